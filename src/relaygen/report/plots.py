"""Plots of a calibration as SVG text: drawn by matplotlib, coloured by the page they stand in, so light and dark both work."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from relaygen.analyse.margins import OBJECTIVES, CueStats, Ints, Objective
from relaygen.analyse.select import Expected, Selection
from relaygen.report.cues import shown

# Colours that stand for a variable of the page's style.
_VARIABLES = {
    "#010101": "--ink",
    "#010102": "--faint",
    "#010103": "--line",
    "#010104": "--large",
    "#010105": "--mark",
    "#010106": "--panel",
}
_INK, _FAINT, _LINE, _LARGE, _MARK, _PANEL = _VARIABLES
_STANDALONE = """<style>
svg { --ink:#22262b; --faint:#687079; --line:#e2dfd8; --large:#174a7c; --mark:#d97d0d; --panel:#fff; background:#fff }
@media (prefers-color-scheme: dark) { svg { --ink:#dfe3e8; --faint:#929ba6; --line:#2f353d; --large:#a8cdf4; --mark:#f2a33c;
  --panel:#15181c; background:#15181c } }
</style>"""
_MAX_ROWS = 40


def curve(
    selection: Selection, others: Sequence[tuple[str, Expected]] = (), *, standalone: bool = False
) -> str:
    """Margin and agreement of the tokens handed over, by share. `others` are named sets to compare with."""
    figure, axes = _axes(6.4, 3.6)
    points = [point for point in selection.curve if point.segments]
    for objective, colour, mark in zip(OBJECTIVES, (_MARK, _LARGE), "os", strict=True):
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
    axes.legend(frameon=False, fontsize=7, labelcolor=_INK, loc="best")
    return _svg(figure, "curve", "Share of the small model against margin and agreement", standalone)


def forest(stats: Sequence[CueStats], chosen: Sequence[str], objective: Objective) -> str:
    """The delta of each cue to the rest with its interval, in the given order; at most 40 of them."""
    stats = stats[:_MAX_ROWS]
    figure, axes = _axes(6.4, 0.9 + 0.2 * len(stats))
    for row, one in enumerate(stats):
        delta = one.delta(objective)
        colour = _MARK if one.cue in chosen else _FAINT
        axes.plot([delta.low, delta.high], [row, row], color=colour, lw=1.6, solid_capstyle="butt")
        axes.plot([delta.value], [row], color=colour, marker="o", ms=4)
    axes.axvline(0, color=_INK, lw=0.8)
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
    return _svg(figure, "forest", f"Intervals of the {objective} of each cue")


def lengths(tokens: Ints) -> str:
    """How long the segments are that the chosen cues hand over."""
    figure, axes = _axes(6.4, 2.4)
    counts: list[int] = tokens.tolist()
    top = max(counts, default=1)
    bins = min(40, top)
    axes.hist(counts, bins=bins, range=(0.5, top + 0.5), color=_MARK, edgecolor=_PANEL, lw=0.4)
    axes.set_xlabel("tokens of a segment")
    axes.set_ylabel("segments")
    return _svg(figure, "lengths", "Lengths of the segments")


def _axes(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes: Any = figure.add_subplot()
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_FAINT)
    axes.tick_params(colors=_FAINT, labelcolor=_INK, labelsize=8)
    axes.xaxis.label.set(color=_INK, size=8)
    axes.yaxis.label.set(color=_INK, size=8)
    axes.grid(color=_LINE, lw=0.6)
    axes.set_axisbelow(True)
    return figure, axes


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
        face = colour if filled else _PANEL
        style = {"marker": mark, "ms": 8, "ls": "none", "markerfacecolor": face, "markeredgecolor": colour}
        axes.plot([100 * at.share], [at.of(objective)], label=name, zorder=3, **style)


def _svg(figure: Figure, name: str, title: str, standalone: bool = False) -> str:
    """Text stays text, and the same plot is the same file each time."""
    out = StringIO()
    canvas: Any = FigureCanvasSVG(figure)
    untyped: Any = mpl
    settings = {"svg.fonttype": "none", "svg.hashsalt": name}
    with untyped.rc_context(settings), warnings.catch_warnings():
        # Of the font that only measures the text.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        canvas.print_svg(out, metadata={"Date": None, "Title": title})
    svg = out.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"#(\w+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found.group() if found.group(1) in used else "", svg)
    svg = re.sub(r"#01010[1-6]", lambda found: f"var({_VARIABLES[found.group()]})", svg)
    svg = re.sub(r"font-family: ([^;\"]*)", _font, svg)
    head_end = svg.index(">") + 1
    return svg[:head_end] + (_STANDALONE if standalone else "") + svg[head_end:]


def _font(found: re.Match[str]) -> str:
    fixed = "monospace" in found.group(1)
    return f"font-family: {'ui-monospace, monospace' if fixed else 'system-ui, sans-serif'}"
