"""Plots of a calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaygen.analyse.margins import CueStats, Ints, Objective
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
    objectives: tuple[Objective, ...] = ("margin", "agreement")
    for objective, colour, mark in zip(objectives, (MARK, LARGE), "os", strict=True):
        line = [point.of(objective) for point in points]
        axes.plot(
            [100 * p.share for p in points], line, color=colour, marker=mark, ms=3, lw=1.2, label=objective
        )
        _sets(axes, selection, others, lambda one, of=objective: one.of(of), colour, f", {objective}")
    _by_share(axes, "mean of the tokens handed over")
    return svg(figure, "curve", "Share of the small model against margin and agreement", standalone)


def changed(selection: Selection, others: Sequence[tuple[str, Expected]] = ()) -> str:
    """Figures that the scorer would have changed, in 1,000 tokens of the whole text, by share."""
    figure, axes = figure_and_axes(6.4, 2.8)
    points = [point for point in selection.curve if point.segments]
    line = [point.changed_figures for point in points]
    axes.plot(
        [100 * p.share for p in points], line, color=MARK, marker="o", ms=3, lw=1.2, label="surest first"
    )
    _sets(axes, selection, others, lambda one: one.changed_figures, MARK)
    _by_share(axes, "changed figures in 1,000 tokens")
    axes.set_ylim(bottom=0)
    return svg(figure, "changed", "Share of the small model against changed figures")


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


def _by_share(axes: Any, what: str) -> None:
    axes.set_xlabel("share of the small model, %")
    axes.set_ylabel(what)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=7, labelcolor=INK, loc="best")


def _sets(
    axes: Any,
    selection: Selection,
    others: Sequence[tuple[str, Expected]],
    height: Callable[[Expected], float],
    colour: str,
    of: str = "",
) -> None:
    """The chosen set as a full mark, what it is compared with as empty ones."""
    sets = [("chosen", selection.expected, "o", colour), *((name, one, "D", PANEL) for name, one in others)]
    if selection.held_out:
        sets.insert(1, ("on held-out problems", selection.held_out, "o", PANEL))
    for name, at, mark, face in sets:
        if at.segments:
            faces = {"markerfacecolor": face, "markeredgecolor": colour}
            where = [100 * at.share], [height(at)]
            axes.plot(*where, label=f"{name}{of}", marker=mark, ms=8, ls="none", zorder=3, **faces)
