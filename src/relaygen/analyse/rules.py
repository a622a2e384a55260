"""The occurrences of cues in one trace, in tokens, by the rules of the relay. Pure.

Rows are integers: place, cue, first, last, start, stop (see `margins.Occurrences`), counted from the start of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from relaygen.analyse.places import CueFinder, sentence_end
from relaygen.analyse.scored import ScoredTrace
from relaygen.core.matcher import SentenceMatcher

Ints = NDArray[np.int64]
NO_ROWS: Ints = np.zeros((0, 6), np.int64)


class RelayRules:
    """As `core.relay.Generation` would, were it the large model's turn at each cue: a token is never cut; the token that
    decides a cue stays with the large model; one that was only needed to see a sentence end does too."""

    def __init__(self, cues: Sequence[str], max_small_tokens: int | None) -> None:
        self._finder = CueFinder(cues)
        self._cap = max_small_tokens
        self._sentences = SentenceMatcher()

    def reasoning_tokens(self, trace: ScoredTrace) -> int:
        """How many tokens there are to the first of the cues, all if there is none."""
        places = self._finder.find(trace.text)
        if not places:
            return len(trace.token_texts)
        return int(np.searchsorted(_ends(trace), places[0].decided - 1, side="right")) + 1

    def rows(self, trace: ScoredTrace, length: int) -> Ints:
        """Of the first `length` tokens; without the cues that nothing follows."""
        ends = _ends(trace)[:length]
        places = self._finder.find(trace.text[: ends[-1]]) if length else []
        if not places:
            return NO_ROWS
        decided, _, _, start, end, cue = columns(places)
        begins = np.searchsorted(ends, decided - 1, side="right") + 1
        place = np.cumsum(np.diff(decided, prepend=decided[:1]) > 0, dtype=np.int64)
        first = np.searchsorted(ends, start, side="right")
        last = np.searchsorted(ends, end - 1, side="right")
        keep = begins < length
        begins = begins[keep]
        turns, which = np.unique(begins, return_inverse=True)
        stops = self._stops(trace, ends, turns)[which]
        rows = (place[keep], cue[keep], first[keep], last[keep], begins, stops)
        return np.column_stack(rows).astype(np.int64)

    def _stops(self, trace: ScoredTrace, ends: Ints, turns: Ints) -> Ints:
        """Where small turns that begin at these tokens would end."""
        limits = np.full(len(turns), len(ends)) if self._cap is None else turns + self._cap
        limits = np.minimum(limits, len(ends))
        chars, ends_before = ends[limits - 1], ends[turns - 1]
        found = [
            sentence_end(self._sentences, trace.text, start, limit)
            for start, limit in zip(ends_before.tolist(), chars.tolist(), strict=True)
        ]
        stops = limits.copy()
        sentences = np.array([match is not None for match in found])
        if not sentences.any():
            return stops
        marks: Ints = np.array([(match.end, match.decided) for match in found if match])
        marks += ends_before[sentences, None]
        token = np.searchsorted(ends, marks[:, 1] - 1, side="right").astype(np.int64)
        only_look_ahead = marks[:, 0] <= ends[token - 1]  # no turn begins with the first token
        line_breaks = np.array([_is_line_break(trace.token_texts[t]) for t in list[int](token.tolist())])
        stops[sentences] = token + ~(only_look_ahead & ~line_breaks)
        return stops


def columns(rows: Sequence[tuple[int, ...]]) -> list[Ints]:
    return list(np.array(rows, np.int64).T.copy())


def _ends(trace: ScoredTrace) -> Ints:
    """Of each token, in characters of the text."""
    return np.cumsum(np.fromiter(map(len, trace.token_texts), np.int64, len(trace.token_texts)))


def _is_line_break(text: str) -> bool:
    return "\n" in text and text.isspace()
