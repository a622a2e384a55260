"""A text coloured by author, with its cues and a mark at each hand-over, as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from relaygen.report.html import safe
from relaygen.types import Author


class Stretch(NamedTuple):
    """`cue` is marked where it last stands in the text; `about` is shown on pointing at it."""

    author: Author
    text: str
    cue: str = ""
    about: str = ""


def coloured(stretches: Sequence[Stretch]) -> Iterator[str]:
    """To stand in an element of class `text`, styled by STYLE."""
    before: Author | None = None
    for one, following in pairwise([*stretches, None]):
        assert one
        begin = '<i class="on"></i>' if before and before is not one.author is Author.SMALL else ""
        body = _with_cue(one.text, one.cue)
        if one.author is Author.SMALL and following and following.author is Author.LARGE:
            shown = body.rstrip()  # the mark stands in the line that it ends
            body = f'{shown}<i class="back"></i>{body[len(shown) :]}'
        about = f' title="{safe(one.about)}"' if one.about else ""
        yield f'<span class="{one.author}"{about}>{begin}{body}</span>'
        before = one.author


def key() -> str:
    """What the colours mean."""
    return (
        '<span class="large">large model</span> <span class="small">small model</span> '
        '<span><i class="on"></i> <i class="back"></i> hand-over</span> <span class="large"><b>cue</b></span>'
    )


def _with_cue(text: str, cue: str) -> str:
    found = list(re.finditer(re.escape(cue), text, re.IGNORECASE)) if cue else []
    if not found:
        return safe(text)
    at, to = found[-1].span()
    return f"{safe(text[:at])}<b>{safe(text[at:to])}</b>{safe(text[to:])}"


STYLE = """
.text { white-space:pre-wrap; overflow-wrap:anywhere; tab-size:4 }
.large { color:var(--large) } .small { color:var(--small); background:var(--wash); border-radius:3px }
i { color:var(--mark); font-style:normal } .on::before { content:"\\25B8" } .back::before { content:"\\25C2" }
.text b, .key b { font-weight:600; border-bottom:2px solid var(--mark) }
.key { display:flex; flex-wrap:wrap; gap:.3rem 1rem; align-items:center; font-size:.85rem; color:var(--faint) }
"""
