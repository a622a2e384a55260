"""A calibration as one HTML page: the curve, the cues with their intervals, the segments, and how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from relaygen.analyse.figures import num_changed
from relaygen.analyse.margins import CueStats, MarginTable
from relaygen.analyse.select import Expected, Selection
from relaygen.report import plots
from relaygen.report.cues import shown
from relaygen.report.html import FIGURE_STYLE, end, facts_list, head, plot, safe, write
from relaygen.report.summary import Row


def write_page(
    path: Path,
    table: MarginTable,
    selection: Selection,
    *,
    title: str,
    facts: Sequence[Row] = (),
    others: Sequence[tuple[str, Expected]] = (),
    made: Sequence[str] = (),
) -> None:
    """`table` is what the cues were chosen on; `facts` come before the figures (models, problems), `others` are named sets to
    compare with, `made` are paragraphs on how it was made beside those about the statistics."""
    write(path, page(table, selection, title=title, facts=facts, others=others, made=made))


def rows(table: MarginTable, selection: Selection) -> list[Row]:
    """The result, for people."""
    out = [
        ("traces", f"{len(table.traces.tokens):,}, {table.num_tokens:,} tokens"),
        (
            "all tokens",
            f"margin {table.overall('margin').value:.3f}, agreement {table.overall('agreement').value:.1%}, "
            f"{num_changed(table.overall('figures').value):.1f} figures changed in 1,000",
        ),
        (
            "cues",
            f"{len(selection.cues)} of {len(table.cues)} kept, by {selection.method}, on {selection.objective}",
        ),
        ("small share", _expected(selection.expected)),
    ]
    if selection.held_out:
        out.append(("on held-out problems", _expected(selection.held_out)))
    return out


def page(
    table: MarginTable,
    selection: Selection,
    *,
    title: str,
    facts: Sequence[Row] = (),
    others: Sequence[tuple[str, Expected]] = (),
    made: Sequence[str] = (),
) -> Iterator[str]:
    stats = _sorted(table, selection)
    yield head(title, FIGURE_STYLE + _STYLE, _SCRIPT)
    yield f"<header><h1>{safe(title)}</h1>{facts_list([*facts, *rows(table, selection)])}</header>\n<main>\n"
    if selection.warnings:
        items = "".join(f"<li>{safe(warning)}</li>" for warning in selection.warnings)
        yield f'<section class="warnings"><h2>Warnings</h2><ul>{items}</ul></section>\n'
    chosen = " ".join(f"<code>{safe(shown(cue))}</code>" for cue in selection.cues)
    yield f"<section><h2>The cues</h2><p>{chosen or 'None.'}</p></section>\n"
    if selection.curve or others:
        yield plot(
            "Share and sureness",
            plots.curve(selection, others),
            "What more cues hand over, and how sure the scorer is of it: the surest cues first. Full marks: the chosen set.",
        )
        yield plot(
            "Share and figures",
            plots.changed(selection, others),
            "Figures that the scorer would have written otherwise: where a share costs answers.",
        )
    yield plot(
        "Each cue against the rest",
        plots.forest(stats, selection.cues, selection.objective),
        f"With the interval that holds the truth in {table.level:.0%} of calibrations. Coloured: kept.",
    )
    yield plot(
        "Segments", plots.lengths(table.lengths_of(selection.cues)), "Of the chosen cues, each by itself."
    )
    yield "<section><h2>All cues that occur</h2>\n" + _table(stats, selection) + "</section>\n"
    paragraphs = "".join(f"<p>{safe(paragraph)}</p>" for paragraph in (*made, *_made(table, selection)))
    yield f"<section><h2>How it was made</h2>{paragraphs}</section>\n</main>\n{end(_SCRIPT)}"


def _sorted(table: MarginTable, selection: Selection) -> list[CueStats]:
    objective = selection.objective
    return sorted(
        table.stats.values(), key=lambda one: (one.cue not in selection.cues, -one.delta(objective).low)
    )


def _expected(found: Expected) -> str:
    return (
        f"{found.share:.1%}, in {found.segments:,} segments of {found.segment_tokens:.1f} tokens; "
        f"margin {found.margin:.3f}, agreement {found.agreement:.1%}; "
        f"{found.changed_figures:.1f} figures changed in 1,000 tokens of the whole"
    )


# --- the table

_COLUMNS = (
    ("kept", "whether the profile has it"),
    ("cue", "␣ is a blank, ⏎ a line break"),
    ("times", "occurrences"),
    ("traces", "that it is in"),
    ("share", "of all tokens that it would hand over"),
    ("margin", "mean of these tokens"),
    ("± error", "standard error of the mean"),
    ("delta", "to the other tokens of these traces"),
    ("from", "lower end of the interval of delta"),
    ("to", "upper end of it"),
    ("agreement", "how often the scorer's first choice is what stands there"),
    ("delta ", "of the agreement"),
    ("whole segments", "in which it agrees with every token"),
    ("figures", "that the scorer would change, in 1,000 of these tokens"),
)


def _table(stats: Sequence[CueStats], selection: Selection) -> str:
    heads = "".join(
        f'<th scope="col" title="{safe(about)}"><button>{safe(name)}</button></th>'
        for name, about in _COLUMNS
    )
    body = "\n".join(_row(one, one.cue in selection.cues) for one in stats)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _row(one: CueStats, kept: bool) -> str:
    margin, delta = one.margin, one.margin_delta
    numbers = (
        (one.occurrences, f"{one.occurrences:,}"),
        (one.traces, f"{one.traces:,}"),
        (one.share, f"{one.share:.2%}"),
        (margin.value, f"{margin.value:.3f}"),
        (margin.error, f"{margin.error:.3f}" if one.traces > 1 else "unknown"),
        (delta.value, f"{delta.value:+.3f}"),
        (delta.low, f"{delta.low:+.3f}"),
        (delta.high, f"{delta.high:+.3f}"),
        (one.agreement.value, f"{one.agreement.value:.1%}"),
        (one.agreement_delta.value, f"{one.agreement_delta.value:+.1%}"),
        (one.full_agreement, f"{one.full_agreement:.0%}"),
        (1 - one.figures.value, f"{num_changed(one.figures.value):.1f}"),
    )
    cells = "".join(f'<td data-v="{value}">{label}</td>' for value, label in numbers)
    mark = f'<td data-v="{int(kept)}">{"✓" if kept else ""}</td>'
    return f"<tr{' class=kept' if kept else ''}>{mark}<th scope=row><code>{safe(shown(one.cue))}</code></th>{cells}</tr>"


def _made(table: MarginTable, selection: Selection) -> Iterator[str]:
    if table.plain:
        yield "Cues and segments are found as the script of the released code does; each cue by itself."
    else:
        yield (
            "An occurrence is where a relay would hand over: at the longest cue that is decided at a character. Its tokens are "
            "those after the token that decided, to the end of the sentence."
        )
    yield (
        "The rest, to which a cue is compared, is the other tokens of the traces it is in. Errors and intervals are clustered by "
        f"trace (cluster-robust variance, Student's t); the level is {table.level:.0%}."
    )
    yield _METHODS[selection.method]
    yield (
        "Share, margin and agreement of a set come from running the relay over the recorded traces. There the small model's "
        "words are the large one's; its own would go on differently."
    )


_METHODS = {
    "paper": "Kept is every candidate of the paper with a mean margin above that of the rest.",
    "ci": "Kept is every cue whose delta has its lower bound above 0; a short cue is also judged where it stands in for a "
    "longer one that is not kept.",
    "budget": "Kept are the cues with the highest lower bounds of the mean, until the wanted share is reached.",
}

_STYLE = """
main { max-width:60rem; margin:0 auto; padding:0 1.5rem 4rem } section { margin-top:1.6rem }
p { margin:.4rem 0 }
code { font:.9em ui-monospace,monospace; padding:.05em .35em; border-radius:4px; background:var(--here); white-space:pre-wrap }
.warnings { padding:.6rem 1rem; border-left:3px solid var(--mark); background:var(--wash) } .warnings ul { margin:.2rem 0 }
table { border-collapse:collapse; font-size:.85rem; font-variant-numeric:tabular-nums }
td, th { padding:.15rem .5rem; text-align:right; border-bottom:1px solid var(--line); font-weight:400; white-space:nowrap }
th:nth-child(2) { text-align:left } tbody td:first-child { color:var(--mark) }
thead th { position:sticky; top:0; background:var(--paper) }
th button { all:unset; cursor:pointer; color:var(--faint) } th button:focus-visible { outline:2px solid var(--mark) }
th[aria-sort] button { color:var(--ink) }
th[aria-sort=ascending] button::after { content:" \\25B4" } th[aria-sort=descending] button::after { content:" \\25BE" }
tr.kept code { background:var(--wash) }
"""

_SCRIPT = """
const table = document.querySelector("table"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
heads.forEach((head, column) => head.addEventListener("click", () => {
  const up = head.getAttribute("aria-sort") === "descending";
  for (const other of heads) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = row => row.cells[column].dataset.v;
  const compare = (a, b) => value(a) === undefined
    ? b.cells[column].textContent.localeCompare(a.cells[column].textContent)
    : value(b) - value(a);
  body.append(...[...body.rows].sort((a, b) => up ? -compare(a, b) : compare(a, b)));
}));
"""
