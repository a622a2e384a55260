"""The occurrences of cues in one trace, in tokens, by the rules of the paper's own script. Pure.

As prob_margin_analysis.py of github.com/jiwonsong-dev/RelayGen (MIT) has them, to compare with; each cue on its own:

- a cue that ends with a comma: a token that is the word, or that begins with a blank and the word, before a token ",";
- a cue that ends with a blank: the same without the comma, so `So ` is found in " Some" too;
- else, and for those too: a token that has the cue in it, so `now` is found in " know";
- a segment goes on to the token before the next one with . ! ? or an inner line break.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from relaygen.analyse.rules import NO_ROWS, Ints, columns
from relaygen.analyse.scored import ScoredTrace

_ENDS = frozenset(".!?\n")
_Hit = tuple[int, bool]  # a cue; whether the next token must be a comma


class _Known(NamedTuple):
    """What a token text means."""

    hits: tuple[_Hit, ...]
    ends_segment: bool
    is_comma: bool


class ReleasedRules:
    def __init__(self, cues: Sequence[str]) -> None:
        self._cues = tuple(cues)
        self._known: dict[str, _Known] = {}

    def rows(self, trace: ScoredTrace, length: int) -> Ints:
        """As of RelayRules. Every row is a place of its own: no cue stands back behind another."""
        known = [self._known.get(text) or self._look(text) for text in trace.token_texts[:length]]
        found = [(cue, at, start) for at in range(length) if known[at].hits for cue, start in _at(known, at)]
        if not found:
            return NO_ROWS
        cue, first, start = columns(found)
        end = np.append(np.flatnonzero([one.ends_segment for one in known]), length)
        stop = end[np.minimum(np.searchsorted(end, start), len(end) - 1)]
        rows = np.column_stack([cue, cue, first, start - 1, start, stop])[start < stop]
        rows = rows[np.argsort(rows[:, 4], kind="stable")]
        rows[:, 0] = np.arange(len(rows))
        return rows

    def _look(self, text: str) -> _Known:
        inner = text.strip()
        hits: list[_Hit] = []
        for number, cue in enumerate(self._cues):
            word = cue[:-1] if cue.endswith(",") else cue.rstrip()
            if cue.endswith((",", " ")) and (inner == word or text.startswith(" " + word)):
                hits.append((number, cue.endswith(",")))
            if cue.strip() and (cue in inner or text == cue):
                hits.append((number, False))
        found = self._known[text] = _Known(tuple(hits), not _ENDS.isdisjoint(inner), inner == ",")
        return found


def _at(known: Sequence[_Known], at: int) -> Iterator[tuple[int, int]]:
    """The cues of a token and where their segments start; the first rule that holds counts."""
    last = -1
    for cue, comma in known[at].hits:
        if cue != last and (not comma or (at + 1 < len(known) and known[at + 1].is_comma)):
            yield cue, at + 1 + comma
            last = cue
