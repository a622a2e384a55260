"""Replayed traces as one HTML page: light and dark, no file beside it, usable by keyboard and without scripts.

Everything from a trace is escaped. Should that ever fail, the page's own policy still lets no script run but the one below.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape

from relaygen.analyse.tally import Replayed
from relaygen.report.replay import end_name
from relaygen.report.summary import Row
from relaygen.report.terminal import printable
from relaygen.types import Author


def page(title: str, facts: Sequence[Row], traces: Sequence[Replayed]) -> Iterator[str]:
    """The page in parts, to be written one after the other."""
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_digest(_SCRIPT)}'"
    yield (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n"
    )
    items = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts)
    yield (
        f'<header><h1>{_text(title)}</h1><dl>{items}</dl><p class="key"><span class="large">large model</span> '
        '<span class="small">small model<i></i></span> <span class="large"><b>cue</b></span>'
        "<kbd>j</kbd> <kbd>k</kbd> next and previous trace</p></header>\n"
    )
    yield '<nav aria-label="Traces"><ol>\n'
    for number, one in enumerate(traces, 1):
        share = one.tally.share(one.tally.by_author[Author.LARGE])
        yield f'<li><a href="#t{number}">{_text(one.trace.id)}<small>{share:.0%} large</small></a></li>\n'
    yield "</ol></nav>\n<main>\n"
    for number, one in enumerate(traces, 1):
        yield from _section(number, one)
    yield f"</main>\n<script>{_SCRIPT}</script>\n</html>\n"


def _section(number: int, one: Replayed) -> Iterator[str]:
    tally = one.tally
    share = tally.share(tally.by_author[Author.LARGE])
    facts = [f"{share:.1%} large", f"{tally.total.turns:,} turns", f"{tally.total.chars:,} characters"]
    if tally.mean_segment is not None:
        facts.append(f"small segments of {tally.mean_segment:.0f} {tally.unit}")
    line = " · ".join(_text(fact) for fact in (one.trace.model, *facts) if fact)
    yield f'<section id="t{number}"><h2>{_text(one.trace.id)}</h2><p class="facts">{line}</p>\n{_strip(one)}\n'
    if one.trace.problem:
        yield f'<p class="problem">{_text(one.trace.problem)}</p>\n'
    yield '<div class="text">'
    for turn in one.turns:
        text, title = one.trace.text[turn.start : turn.end], ""
        at = text.lower().rfind(turn.cue.lower()) if turn.cue else -1
        body = _text(text)
        if turn.cue and at >= 0:
            to = at + len(turn.cue)
            body = f"{_text(text[:at])}<b>{_text(text[at:to])}</b>{_text(text[to:])}"
        if turn.author is Author.SMALL:
            title = f' title="{turn.num_chars:,} characters, ended by: {end_name(turn.reason)}"'
            shown = body.rstrip()
            body = (
                f"{shown}<i></i>{body[len(shown) :]}"  # the mark of the hand-over, in the line that it ends
            )
        yield f'<span class="{turn.author}"{title}>{body}</span>'
    yield "</div></section>\n"


def _strip(one: Replayed) -> str:
    """The whole text as a ribbon: where along it the small model writes."""
    scale = 1000 / max(1, one.tally.total.chars)
    bars = "".join(
        f'<rect x="{turn.start * scale:.2f}" width="{turn.num_chars * scale:.2f}" height="10"/>'
        for turn in one.turns
        if turn.author is Author.SMALL
    )
    return f'<svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">{bars}</svg>'


def _text(text: str) -> str:
    return escape(printable(text))


def _digest(script: str) -> str:
    return b64encode(sha256(script.encode()).digest()).decode()


_STYLE = """
:root { --paper:#fbfaf7; --panel:#fff; --ink:#22262b; --faint:#687079; --line:#e2dfd8;
  --large:#174a7c; --small:#7d3f00; --wash:#ffeccd; --mark:#d97d0d; --here:#e8f0f9; }
@media (prefers-color-scheme: dark) { :root { --paper:#15181c; --panel:#1c2026; --ink:#dfe3e8; --faint:#929ba6;
  --line:#2f353d; --large:#a8cdf4; --small:#ffd596; --wash:#40301a; --mark:#f2a33c; --here:#233243; } }
* { box-sizing:border-box }
body { margin:0; display:grid; grid-template:auto 1fr / 15rem 1fr; min-height:100vh; background:var(--paper);
  color:var(--ink); font:15px/1.6 system-ui,sans-serif }
header { grid-column:1/-1; padding:1.1rem 1.5rem .8rem; border-bottom:1px solid var(--line); background:var(--panel) }
h1 { margin:0 0 .5rem; font-size:1.2rem } h2 { margin:0; font-size:1.1rem; overflow-wrap:anywhere }
dl { display:grid; grid-template-columns:max-content 1fr; gap:0 1rem; margin:0; font-size:.9rem }
dt, .facts, small { color:var(--faint) } dd { margin:0; overflow-wrap:anywhere }
.key { display:flex; flex-wrap:wrap; gap:.3rem 1rem; align-items:center; margin:.6rem 0 0; font-size:.85rem; color:var(--faint) }
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
.text { white-space:pre-wrap; overflow-wrap:anywhere; tab-size:4 }
.large { color:var(--large) } .small { color:var(--small); background:var(--wash); border-radius:3px }
.small::before, i::after { content:"\\25B8"; color:var(--mark) } i::after { content:"\\25C2"; font-style:normal }
b { font-weight:600; border-bottom:2px solid var(--mark) }
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
