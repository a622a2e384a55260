"""Figures as SVG text: drawn by matplotlib, coloured by the page they stand in, so light and dark both work."""

from __future__ import annotations

import re
import warnings
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Colours that stand for a variable of the page's style.
_VARIABLES = {
    "#010101": "--ink",
    "#010102": "--faint",
    "#010103": "--line",
    "#010104": "--large",
    "#010105": "--mark",
    "#010106": "--panel",
    "#010107": "--green",
    "#010108": "--violet",
    "#010109": "--teal",
    "#01010a": "--red",
}
INK, FAINT, LINE, LARGE, MARK, PANEL, GREEN, VIOLET, TEAL, RED = _VARIABLES
_STANDALONE = """<style>
svg { --ink:#22262b; --faint:#687079; --line:#e2dfd8; --large:#174a7c; --mark:#d97d0d; --panel:#fff; background:#fff }
@media (prefers-color-scheme: dark) { svg { --ink:#dfe3e8; --faint:#929ba6; --line:#2f353d; --large:#a8cdf4; --mark:#f2a33c;
  --panel:#15181c; background:#15181c } }
</style>"""


def figure_and_axes(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes: Any = figure.add_subplot()
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)
    axes.tick_params(colors=FAINT, labelcolor=INK, labelsize=8)
    axes.xaxis.label.set(color=INK, size=8)
    axes.yaxis.label.set(color=INK, size=8)
    axes.grid(color=LINE, lw=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def svg(figure: Figure, name: str, title: str, standalone: bool = False) -> str:
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
    svg = re.sub(r"#01010[1-9a]", lambda found: f"var({_VARIABLES[found.group()]})", svg)
    svg = re.sub(r"font-family: ([^;\"]*)", _font, svg)
    head_end = svg.index(">") + 1
    return svg[:head_end] + (_STANDALONE if standalone else "") + svg[head_end:]


def _font(found: re.Match[str]) -> str:
    fixed = "monospace" in found.group(1)
    return f"font-family: {'ui-monospace, monospace' if fixed else 'system-ui, sans-serif'}"
