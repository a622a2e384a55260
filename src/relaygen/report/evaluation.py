"""An evaluation as a table: for the terminal, as Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from relaygen.analyse.evaluate import Interval, Row
from relaygen.analyse.grade import Verdict

_HEADS = (
    "strategy", "right", "95 %", "to large", "95 %", "same answer", "small share", "hand-overs", "tokens", "time",
    "tokens/s", "no answer", "cut",
)  # fmt: skip


def table(rows: Sequence[Row]) -> Table:
    out = Table(box=None, pad_edge=False)
    for number, head in enumerate(_heads(rows)):
        out.add_column(head, justify="left" if number == 0 else "right")
    for row in rows:
        out.add_row(*_cells(row))
    return out


def markdown(rows: Sequence[Row]) -> str:
    heads = _heads(rows)
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *map(_cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
            "tokens_per_s": round(row.tokens_per_s, 2),
            "cost": row.cost,
            "cut": row.cut,
        }
        for row in rows
    ]


def _heads(rows: Sequence[Row]) -> list[str]:
    return [*_HEADS, *(["cost"] if any(row.cost is not None for row in rows) else [])]


def _cells(row: Row) -> list[str]:
    unanswered = row.verdicts.get(Verdict.NONE, 0) + row.verdicts.get(Verdict.TIMEOUT, 0)
    name = row.strategy if row.strategy == row.policy else f"{row.strategy} ({row.policy})"
    cells = [
        name,
        f"{row.pass_at_1:.1%}",
        _percent(row.interval),
        "" if row.difference is None else f"{row.difference * 100:+.1f}",
        _points(row.difference_interval),
        "" if row.agreement is None else f"{row.agreement:.0%}",
        f"{row.small_share:.1%}",
        f"{row.handovers:.1f}",
        f"{row.tokens:.0f}",
        f"{row.seconds:.1f} s",
        f"{row.tokens_per_s:.1f}",
        f"{unanswered}",
        f"{row.cut}",
    ]
    return cells if row.cost is None else [*cells, f"{row.cost:.6f}"]


def _percent(interval: Interval) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}"


def _points(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval[0] * 100:+.1f} to {interval[1] * 100:+.1f}"


def _rounded(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [round(end, 4) for end in interval]
