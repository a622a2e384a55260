"""Plots of an evaluation: a mark and a colour for each strategy, the same in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaygen.analyse.evaluate import Answer, Interval, Row
from relaygen.report.figure import (
    GREEN,
    INK,
    LARGE,
    MARK,
    PANEL,
    RED,
    TEAL,
    VIOLET,
    figure_and_axes,
    svg,
)
from relaygen.report.terminal import printable

_COLOURS = (GREEN, VIOLET, TEAL, RED, INK)
_MARKS = "^DvPX"
_MAX_NAME = 32


def accuracy_and_time(rows: Sequence[Row]) -> str:
    """Right answers against the time of an answer, both with their intervals."""
    figure, axes = figure_and_axes(6.4, 4.0)
    for row, style in _styled(rows):
        right, seconds = _scaled(row.interval, 100), row.seconds_interval
        _point(axes, row, (row.seconds, seconds), (row.pass_at_1 * 100, right), style)
    axes.set_xlabel("seconds an answer")
    axes.set_ylabel("right, %")
    axes.set_xlim(left=0)
    _legend(figure, axes)
    return svg(figure, "accuracy-time", "Right answers against time")


def difference_and_share(rows: Sequence[Row], baseline: str) -> str:
    """What is lost to the baseline, with its paired interval, against the small model's share."""
    figure, axes = figure_and_axes(6.4, 4.0)
    for row, style in _styled(rows):
        if row.difference is not None and row.difference_interval is not None:
            points = (row.difference * 100, _scaled(row.difference_interval, 100))
            _point(axes, row, (row.small_share * 100, None), points, style)
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_xlabel("share of the small model, %")
    axes.set_ylabel(f"right, points more than {_name(baseline)}", parse_math=False)
    axes.set_xlim(-4, 104)
    _legend(figure, axes)
    return svg(figure, "difference-share", "Difference to the baseline against the small model's share")


def authors(rows: Sequence[Row]) -> str:
    """How many tokens of an answer each model writes."""
    figure, axes = _figure_of(rows)
    for at, row in enumerate(rows):
        small = row.tokens * row.small_share
        large = row.tokens - small
        axes.barh([at, at], [large, small], left=[0, large], color=[LARGE, MARK], height=0.6)
        if 0 < row.small_share < 1:
            axes.annotate(
                f"{row.small_share:.0%}",
                (row.tokens, at),
                (4, 0),
                textcoords="offset points",
                va="center",
                color=INK,
                size=8,
            )
    axes.set_xlim(0, max([1.0, *(row.tokens for row in rows)]) * 1.08)
    axes.set_xlabel("tokens an answer, by the large model and the small one")
    return svg(figure, "authors", "Tokens of each model")


def lengths(rows: Sequence[Row], answers: Sequence[Sequence[Answer]]) -> str:
    """How the lengths of the answers are spread: 5 to 95 %, the middle half, the median."""
    figure, axes = _figure_of(rows)
    for at, (of, (_, (colour, _))) in enumerate(zip(answers, _styled(rows), strict=True)):
        if of:
            low, first, middle, third, high = np.quantile(
                [a.num_tokens for a in of], [0.05, 0.25, 0.5, 0.75, 0.95]
            )
            axes.plot([low, high], [at, at], color=colour, lw=1.2)
            axes.plot([first, third], [at, at], color=colour, lw=7, solid_capstyle="butt")
            axes.plot([middle], [at], marker="|", ms=11, mew=2.2, color=PANEL)
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens of an answer")
    return svg(figure, "lengths", "Lengths of the answers")


Style = tuple[str, str]  # colour, mark


def _styled(rows: Sequence[Row]) -> list[tuple[Row, Style]]:
    known = {"large": (LARGE, "o"), "small": (MARK, "s")}
    others = [row for row in rows if row.policy not in known]
    styles = {
        row.strategy: (_COLOURS[n % len(_COLOURS)], _MARKS[(n + n // len(_COLOURS)) % len(_MARKS)])
        for n, row in enumerate(others)
    }
    return [(row, known.get(row.policy) or styles[row.strategy]) for row in rows]


def _point(
    axes: Any, row: Row, x: tuple[float, Interval | None], y: tuple[float, Interval], style: Style
) -> None:
    colour, mark = style
    axes.errorbar(
        [x[0]],
        [y[0]],
        xerr=_arms(*x) if x[1] else None,
        yerr=_arms(*y),
        color=colour,
        marker=mark,
        ms=7,
        ls="none",
        elinewidth=1.2,
        markeredgecolor=PANEL,
        markeredgewidth=0.8,
        label=_name(row.name),
    )


def _arms(value: float, interval: Interval | None) -> list[list[float]]:
    low, high = interval or (value, value)
    return [[max(0.0, value - low)], [max(0.0, high - value)]]


def _scaled(interval: Interval, by: float) -> Interval:
    return interval[0] * by, interval[1] * by


def _figure_of(rows: Sequence[Row]) -> tuple[Any, Any]:
    """With a line for each strategy, the first on top."""
    figure, axes = figure_and_axes(6.4, 0.8 + 0.28 * max(1, len(rows)))
    axes.set_yticks(range(len(rows)))
    axes.set_yticklabels([_name(row.name) for row in rows], parse_math=False)
    axes.set_ylim(max(1, len(rows)) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    return figure, axes


def _legend(figure: Any, axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    if handles:
        legend = figure.legend(
            handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8, labelcolor=INK
        )
        for text in legend.get_texts():
            text.set_parse_math(False)


def _name(name: str) -> str:
    """Short enough for a plot; a legend leaves out what begins with `_`."""
    shown = printable(name).lstrip("_") or "-"
    return shown if len(shown) <= _MAX_NAME else f"{shown[: _MAX_NAME - 1]}…"
