"""Plots of a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaygen.analyse.margins import OBJECTIVES, CueStats, Ints, Objective
from relaygen.analyse.select import Expected, Selection
from relaygen.report.cues import shown
from relaygen.report.figure import FAINT, INK, LARGE, MARK, PANEL, figure_and_axes, svg

_MAX_ROWS = 40


def curve(
    selection: Selection, others: Sequence[tuple[str, Expected]] = (), *, standalone: bool = False
) -> str:
    """Margin and agreement of the tokens handed over, by share. `others` are named sets to compare with."""
    figure, axes = figure_and_axes(6.4, 3.6)
    points = [point for point in selection.curve if point.segments]
    for objective, colour, mark in zip(OBJECTIVES, (MARK, LARGE), "os", strict=True):
        line = [point.of(objective) for point in points]
        axes.plot(
            [100 * p.share for p in points], line, color=colour, marker=mark, ms=3, lw=1.2, label=objective
        )
        _point(axes, selection.expected, objective, colour, f"chosen, {objective}", filled=True)
        if selection.held_out:
            _point(axes, selection.held_out, objective, colour, f"on held-out problems, {objective}")
        for name, expected in others:
            _point(axes, expected, objective, colour, f"{name}, {objective}", mark="D")
    axes.set_xlabel("share of the small model, %")
    axes.set_ylabel("mean of the tokens handed over")
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=7, labelcolor=INK, loc="best")
    return svg(figure, "curve", "Share of the small model against margin and agreement", standalone)


def forest(stats: Sequence[CueStats], chosen: Sequence[str], objective: Objective) -> str:
    """The delta of each cue to the rest with its interval, in the given order; at most 40 of them."""
    stats = stats[:_MAX_ROWS]
    figure, axes = figure_and_axes(6.4, 0.9 + 0.2 * len(stats))
    for row, one in enumerate(stats):
        delta = one.delta(objective)
        colour = MARK if one.cue in chosen else FAINT
        axes.plot([delta.low, delta.high], [row, row], color=colour, lw=1.6, solid_capstyle="butt")
        axes.plot([delta.value], [row], color=colour, marker="o", ms=4)
    axes.axvline(0, color=INK, lw=0.8)
    if stats:
        known = [
            d
            for one in stats
            if one.traces > 1
            for d in (one.delta(objective).low, one.delta(objective).high)
        ]
        reach = max([0.02, *map(abs, known)]) * 1.05
        axes.set_xlim(-reach, reach)
    axes.set_yticks(range(len(stats)))
    axes.set_yticklabels([shown(one.cue) for one in stats], fontfamily="monospace", parse_math=False)
    axes.set_ylim(len(stats) - 0.4, -0.6)
    axes.set_xlabel(f"{objective} after the cue, less that of the rest")
    return svg(figure, "forest", f"Intervals of the {objective} of each cue")


def lengths(tokens: Ints) -> str:
    """How long the segments are that the chosen cues hand over."""
    figure, axes = figure_and_axes(6.4, 2.4)
    counts: list[int] = tokens.tolist()
    top = max(counts, default=1)
    bins = min(40, top)
    axes.hist(counts, bins=bins, range=(0.5, top + 0.5), color=MARK, edgecolor=PANEL, lw=0.4)
    axes.set_xlabel("tokens of a segment")
    axes.set_ylabel("segments")
    return svg(figure, "lengths", "Lengths of the segments")


def _point(
    axes: Any,
    at: Expected,
    objective: Objective,
    colour: str,
    name: str,
    *,
    filled: bool = False,
    mark: str = "o",
) -> None:
    if at.segments:
        face = colour if filled else PANEL
        style = {"marker": mark, "ms": 8, "ls": "none", "markerfacecolor": face, "markeredgecolor": colour}
        axes.plot([100 * at.share], [at.of(objective)], label=name, zorder=3, **style)
