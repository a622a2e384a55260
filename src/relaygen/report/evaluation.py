"""An evaluation as a table: for the terminal, as Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from relaygen.analyse.evaluate import Interval, Row
from relaygen.analyse.grade import Verdict
from relaygen.report.terminal import printable


class Column(NamedTuple):
    """`in_terminal`: there is room for it in a terminal too."""

    name: str
    about: str
    in_terminal: bool = True


COLUMNS = (
    Column("strategy", "who writes when, as it was asked for"),
    Column(
        "right (95 %)",
        "pass@1: the mean over the problems of the part of answers that are right, and the interval that the bootstrap over "
        "problems gives it",
    ),
    Column(
        "to large (95 %)",
        "the difference of that in percentage points to the large model (or the first strategy, without it), problem by "
        "problem, with its interval",
    ),
    Column("same", "how often the final answer is the one that the large model gave, right or wrong"),
    Column("share", "of all tokens, those that the small model wrote"),
    Column("hand-overs", "changes of author in an answer, on average", in_terminal=False),
    Column("tokens", "of an answer, on average", in_terminal=False),
    Column("time", "of an answer, on average"),
    Column("tokens/s", "all tokens by all of that time", in_terminal=False),
    Column(
        "none",
        "answers in which no final answer was found, or on which the grader took too long; they count as not right",
    ),
    Column(
        "cut",
        "answers that ended at the token budget, which may have been right with more",
        in_terminal=False,
    ),
    Column("cost of 1,000", "answers, at the given prices of written tokens"),
)


def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Those that say something: a cost where prices were given."""
    return COLUMNS if any(row.cost is not None for row in rows) else COLUMNS[:-1]


def table(rows: Sequence[Row]) -> Table:
    out = Table(box=None, padding=(0, 1, 0, 0))
    shown = [number for number, column in enumerate(columns(rows)) if column.in_terminal]
    for number in shown:
        name = COLUMNS[number].name.replace(" (", "\n(").replace(" of ", "\nof ")
        out.add_column(name, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    for row in rows:
        of = cells(row)
        out.add_row(*(Text(of[number]) for number in shown))
    return out


def markdown(rows: Sequence[Row]) -> str:
    heads = [column.name for column in columns(rows)]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *(cells(row)[: len(heads)] for row in rows)]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "strategy": row.strategy,
            "policy": row.policy,
            "answers": row.num_answers,
            **{verdict.value: row.verdicts.get(verdict, 0) for verdict in Verdict},
            "pass_at_1": round(row.pass_at_1, 4),
            "pass_at_1_interval": _rounded(row.interval),
            "difference": None if row.difference is None else round(row.difference, 4),
            "difference_interval": _rounded(row.difference_interval),
            "agreement": None if row.agreement is None else round(row.agreement, 4),
            "small_share": round(row.small_share, 4),
            "handovers": round(row.handovers, 2),
            "tokens": round(row.tokens, 1),
            "seconds": round(row.seconds, 2),
            "seconds_interval": _rounded(row.seconds_interval),
            "tokens_per_s": round(row.tokens_per_s, 2),
            "cost": row.cost,
            "cut": row.cut,
        }
        for row in rows
    ]


def cells(row: Row) -> list[str]:
    """For COLUMNS."""
    unanswered = row.verdicts.get(Verdict.NONE, 0) + row.verdicts.get(Verdict.TIMEOUT, 0)
    low, high = row.interval
    return [
        printable(row.name),
        f"{row.pass_at_1:.1%} ({low * 100:.0f} to {high * 100:.0f})",
        _points(row),
        "" if row.agreement is None else f"{row.agreement:.0%}",
        f"{row.small_share:.1%}",
        f"{row.handovers:.1f}",
        f"{row.tokens:.0f}",
        f"{row.seconds:.1f} s",
        f"{row.tokens_per_s:.1f}",
        f"{unanswered}",
        f"{row.cut}",
        "" if row.cost is None else f"{row.cost * 1000:.3f}",
    ]


def _points(row: Row) -> str:
    """In percentage points."""
    if row.difference is None or row.difference_interval is None:
        return ""
    low, high = row.difference_interval
    return f"{row.difference * 100:+.1f} ({low * 100:+.0f} to {high * 100:+.0f})"


def _rounded(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [round(end, 4) for end in interval]
