"""Replayed traces as one HTML page, usable by keyboard and without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relaygen.analyse.tally import Replayed
from relaygen.analyse.turns import Turn
from relaygen.report.coloured import STYLE, Stretch, coloured, key
from relaygen.report.html import end, facts_list, head, safe
from relaygen.report.replay import end_name
from relaygen.report.summary import Row
from relaygen.types import Author


def page(title: str, facts: Sequence[Row], traces: Sequence[Replayed]) -> Iterator[str]:
    """The page in parts, to be written one after the other."""
    yield head(title, STYLE + _STYLE, _SCRIPT)
    yield (
        f'<header><h1>{safe(title)}</h1>{facts_list(facts)}<p class="key">{key()}'
        "<kbd>j</kbd> <kbd>k</kbd> next and previous trace</p></header>\n"
    )
    yield '<nav aria-label="Traces"><ol>\n'
    for number, one in enumerate(traces, 1):
        share = one.tally.share(one.tally.by_author[Author.LARGE])
        yield f'<li><a href="#t{number}">{safe(one.trace.id)}<small>{share:.0%} large</small></a></li>\n'
    yield "</ol></nav>\n<main>\n"
    for number, one in enumerate(traces, 1):
        yield from _section(number, one)
    yield "</main>\n" + end(_SCRIPT)


def _section(number: int, one: Replayed) -> Iterator[str]:
    tally = one.tally
    share = tally.share(tally.by_author[Author.LARGE])
    facts = [f"{share:.1%} large", f"{tally.total.turns:,} turns", f"{tally.total.chars:,} characters"]
    if tally.mean_segment is not None:
        facts.append(f"small segments of {tally.mean_segment:.0f} {tally.unit}")
    line = " · ".join(safe(fact) for fact in (one.trace.model, *facts) if fact)
    yield f'<section id="t{number}"><h2>{safe(one.trace.id)}</h2><p class="facts">{line}</p>\n{_strip(one)}\n'
    if one.trace.problem:
        yield f'<p class="problem">{safe(one.trace.problem)}</p>\n'
    yield '<div class="text">'
    yield from coloured([_stretch(one, turn) for turn in one.turns])
    yield "</div></section>\n"


def _stretch(one: Replayed, turn: Turn) -> Stretch:
    about = f"{turn.num_chars:,} characters, ended by: {end_name(turn.reason)}"
    text = one.trace.text[turn.start : turn.end]
    return Stretch(turn.author, text, turn.cue or "", about if turn.author is Author.SMALL else "")


def _strip(one: Replayed) -> str:
    """The whole text as a ribbon: where along it the small model writes."""
    scale = 1000 / max(1, one.tally.total.chars)
    bars = "".join(
        f'<rect x="{turn.start * scale:.2f}" width="{turn.num_chars * scale:.2f}" height="10"/>'
        for turn in one.turns
        if turn.author is Author.SMALL
    )
    return f'<svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">{bars}</svg>'


_STYLE = """
body { display:grid; grid-template:auto 1fr / 15rem 1fr; min-height:100vh }
header { grid-column:1/-1 }
.key { margin:.6rem 0 0 }
kbd { padding:0 .4em; border:1px solid var(--line); border-radius:4px; font:inherit } kbd:first-of-type { margin-left:auto }
kbd + kbd { margin-left:-.7rem }
nav { position:sticky; top:0; max-height:100vh; overflow:auto; border-right:1px solid var(--line); padding:.6rem }
nav ol { list-style:none; margin:0; padding:0 }
nav a { display:flex; justify-content:space-between; gap:.5rem; padding:.3rem .6rem; border-radius:6px; color:inherit;
  text-decoration:none; overflow-wrap:anywhere }
nav a:hover, nav a[aria-current] { background:var(--here) } nav a:focus-visible { outline:2px solid var(--mark) }
small { white-space:nowrap }
main { padding:1.2rem 1.5rem 4rem; min-width:0 } section { display:none; max-width:52rem; scroll-margin-top:100vh }
section:target, main:not(:has(:target)) section:first-child { display:block }
.facts { margin:.1rem 0 .6rem; font-size:.9rem }
svg { display:block; width:100%; height:12px; margin-bottom:1rem; border-radius:3px; background:var(--large) }
rect { fill:var(--mark) }
.problem { margin:0 0 1rem; padding:.1rem 1rem; border-left:3px solid var(--line); color:var(--faint);
  white-space:pre-wrap; overflow-wrap:anywhere }
@media (max-width:45rem) { body { display:block } nav { position:static; max-height:30vh; border:0 } }
"""

_SCRIPT = """
const links = [...document.querySelectorAll("nav a")];
const here = () => Math.max(0, links.findIndex(a => a.hash === location.hash));
const show = () => {
  for (const link of links) link.removeAttribute("aria-current");
  links[here()].setAttribute("aria-current", "true");
};
addEventListener("hashchange", () => {
  show();
  links[here()].focus(); // following a link within the page takes the focus away
  scrollTo(0, 0);
});
addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const inList = document.activeElement.closest("nav");
  const step = { j: 1, k: -1, ...(inList && { ArrowDown: 1, ArrowUp: -1 }) }[event.key];
  const next = step && links[here() + step];
  if (!next) return;
  event.preventDefault();
  next.click();
});
show();
"""
