"""A bench as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from relaygen.analyse.timing import Spread, Way

_NOT_REPORTED = "not reported"


def table(ways: Sequence[Way], speed_up: Spread | None) -> Table:
    """One column a way, the relay first. Medians, with the range in brackets."""
    out = Table(box=None, pad_edge=False)
    out.add_column("")
    for way in ways:
        out.add_column(way.name, justify="right")
    rows = {
        "answers, tokens": [f"{way.answers}, {way.tokens:,}" for way in ways],
        "share of the small model": [f"{way.small_share:.0%}" for way in ways],
        "first token": [_ms(way.first_token) for way in ways],
        "between reads": [_ms(way.gap) for way in ways],
        "between reads, 99 %": ["" if way.gap_p99 is None else f"{way.gap_p99:,.1f} ms" for way in ways],
        "hand-overs": [f"{way.handovers}" for way in ways],
        "a hand-over": [_ms(way.handover) for way in ways],
        "  on average": [f"{way.split.whole:,.1f} ms" if way.split else "" for way in ways],
        "  of it the engines": [_part(way, "engines") for way in ways],
        "  of it the network": [_part(way, "network") for way in ways],
        "  of it our own": [_part(way, "own") for way in ways],
        "tokens/s of an answer": [_spread(way.tokens_per_s) for way in ways],
        "tokens/s of all": [f"{way.throughput:,.1f}" for way in ways],
    }
    for head, cells in rows.items():
        out.add_row(head, *cells)
    if speed_up:
        out.add_row("as fast as large alone", f"{_spread(speed_up, 3)}x", *[""] * (len(ways) - 1))
    return out


def _ms(spread: Spread | None) -> str:
    return "" if spread is None else f"{_spread(spread)} ms"


def _spread(spread: Spread | None, digits: int = 1) -> str:
    if spread is None:
        return ""
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f} to {spread.high:,.{digits}f})"


def _part(way: Way, name: str) -> str:
    if way.split is None:
        return ""
    value = getattr(way.split, name)
    return _NOT_REPORTED if value is None else f"{value:,.1f} ms"
