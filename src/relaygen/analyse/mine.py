"""Cues that the traces themselves suggest: how their sentences and lines open. Pure.

A sentence opens with a mark (`**`, `\\[`), with up to three words, or both; a comma or colon behind the words makes a cue of
its own. Lists (`1.`, `-`) and headings count at the start of a line only: elsewhere they are numbers and minus signs, so the
line break is part of the cue. In scripts without blanks the first two to four characters, or all up to a comma, stand for
the words.

Only how often an opener stands is looked at here, never how sure a model is after it; so what is chosen of these on half of
the problems can be tried on the other half (`MarginTable.halves`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from relaygen.analyse.scored import ScoredTrace
from relaygen.core.matcher import CueMatcher
from relaygen.core.text import is_word

MAX_CUE_CHARS = 40
_WORD = r"[^\W_]+(?:['’-][^\W_]+)*"
_OPENING = re.compile(
    # Behind the start, a line break, or the mark that ends a sentence. Where that is no sentence end after all ("e.g. a"), an
    # opener too many is counted.
    r"(?:\A|(\n)|[.!?][\"'\u201d\u2019)\]}*_`$]*[ \t]|[\u3002\uff01\uff1f\uff61])[ \t]*"
    r"(\d{1,2}[.)]|[^\w\s]{1,4})?"  # a mark
    rf"([ \t]*)(?:({_WORD})(?: ({_WORD})(?: ({_WORD}))?)?([,:\uff0c\uff1a\u3001]?))?"
)
_LIST = re.compile(r"\d{1,2}[.)]|[-*+•]|#{1,4}")


def candidates(
    scored: Iterable[ScoredTrace], *, min_occurrences: int = 10, min_problems: int = 5, most: int = 300
) -> tuple[str, ...]:
    """The `most` frequent openers, the most frequent first (equal ones by the alphabet). An opener must stand in the traces
    of `min_problems` problems: the words of one problem help with no other."""
    occurrences, problems, last = Counter[str](), Counter[str](), dict[str, set[str]]()
    for trace in scored:
        found = Counter(opener for match in _OPENING.finditer(trace.text) for opener in _openers(match))
        occurrences.update(found)
        last.setdefault(trace.problem or trace.id, set()).update(found)
    for openers in last.values():
        problems.update(openers)
    kept = [
        opener
        for opener, count in occurrences.items()
        if count >= min_occurrences and problems[opener] >= min_problems and is_cue(opener)
    ]
    return tuple(sorted(kept, key=lambda opener: (-occurrences[opener], opener))[:most])


def is_cue(text: str) -> bool:
    """Whether the relay would find it in a text."""
    if not text.strip() or len(text) > MAX_CUE_CHARS:
        return False
    match = CueMatcher([text]).feed(f"{text}\n")
    return match is not None and match.end == len(text)


def _openers(match: re.Match[str]) -> Iterator[str]:
    line, mark, space, *words, comma = (part or "" for part in match.groups())
    if mark:
        in_list = _LIST.fullmatch(mark)
        if in_list and not (line and space):
            return
        mark = f"\n{mark} " if in_list else mark
        yield mark
    if words[0]:
        before = f"{mark}{'' if mark.endswith(' ') else space}" if mark else ""
        for phrase in _phrases([word for word in words if word], comma):
            yield f"{before}{phrase}"


def _phrases(words: list[str], comma: str) -> Iterator[str]:
    if not is_word(words[0][0]):  # a script without blanks: the "word" is a clause
        clause = words[0]
        yield from (clause[:size] for size in (2, 3, 4) if size <= len(clause))
        if comma and len(clause) <= 6 and len(words) == 1:
            yield clause + comma
        return
    for size in range(1, len(words) + 1):
        yield " ".join(words[:size])
    if comma:
        yield " ".join(words) + comma
