"""An evaluation as a table: for the terminal, as Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from relaygen.analyse.evaluate import Interval, Row
from relaygen.analyse.grade import Verdict

# Head, and whether it has room in a terminal too. "same" answer as the baseline, "share" of the small model, "none": no
# answer found, "cut" at the token budget.
_HEADS = {
    "strategy": True, "right (95 %)": True, "to large (95 %)": True, "same": True, "share": True,
    "hand-overs": False, "tokens": False, "time": True, "tokens/s": False, "none": True, "cut": False,
    "cost": False,
}  # fmt: skip


def table(rows: Sequence[Row]) -> Table:
    out = Table(box=None, pad_edge=False)
    shown = [number for number, in_terminal in enumerate(_HEADS.values()) if in_terminal]
    for number in shown:
        out.add_column(list(_HEADS)[number], justify="right" if number else "left", no_wrap=number > 0)
    for row in rows:
        cells = _cells(row)
        out.add_row(*(cells[number] for number in shown))
    return out


def markdown(rows: Sequence[Row]) -> str:
    lines = [list(_HEADS), ["---", *["---:"] * (len(_HEADS) - 1)], *map(_cells, rows)]
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


def _cells(row: Row) -> list[str]:
    unanswered = row.verdicts.get(Verdict.NONE, 0) + row.verdicts.get(Verdict.TIMEOUT, 0)
    low, high = row.interval
    return [
        row.policy if row.strategy == "random" else row.strategy,
        f"{row.pass_at_1:.1%} ({low:.0%} to {high:.0%})",
        _points(row),
        "" if row.agreement is None else f"{row.agreement:.0%}",
        f"{row.small_share:.1%}",
        f"{row.handovers:.1f}",
        f"{row.tokens:.0f}",
        f"{row.seconds:.1f} s",
        f"{row.tokens_per_s:.1f}",
        f"{unanswered}",
        f"{row.cut}",
        "" if row.cost is None else f"{row.cost:.6f}",
    ]


def _points(row: Row) -> str:
    """In percentage points."""
    if row.difference is None or row.difference_interval is None:
        return ""
    low, high = row.difference_interval
    return f"{row.difference * 100:+.1f} ({low * 100:+.0f} to {high * 100:+.0f})"


def _rounded(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [round(end, 4) for end in interval]
