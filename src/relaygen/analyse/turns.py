"""The turns of a relay over a whole text of which only the characters are known. Pure.

What `core.relay.Generation` would do with the text character by character, but by searching ahead: a hundred times as fast. A
test holds the two against each other. It knows the policies of RELAY_TABLE in which the large model leads; `knows` tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relaygen.analyse.places import CueFinder, Place, sentence_end
from relaygen.core.matcher import SentenceMatcher
from relaygen.core.policy import RELAY_TABLE, Policy, State
from relaygen.core.relay import CHARS_PER_TOKEN
from relaygen.types import Author, Reason

_PLAIN_END = re.compile(r"[.!?]|\n\n")


@dataclass(frozen=True, slots=True)
class Turn:
    """`text[start:end]`, by `author`. `reason` is None where the text ends before the turn does."""

    author: Author
    start: int
    end: int
    num_tokens: int  # 0 where characters are counted
    answer: bool  # of the answer stage
    reason: Reason | None
    cue: str | None

    @property
    def num_chars(self) -> int:
        return self.end - self.start


def knows(policy: Policy) -> bool:
    watched = policy.chance is None and policy.min_margin is None and policy.max_large_tokens is None
    leads = policy.start is State.LEAD and policy.lead is Author.LARGE
    return policy.table is RELAY_TABLE and leads and watched and policy.sentence_ends


class TurnFinder:
    """Of one policy, for any number of texts."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        options = {"ignore_case": policy.ignore_case, "borders": not policy.plain}
        self._open, self._close = policy.think or ("", "")
        self._cues = CueFinder(policy.cues, **options)
        self._answers = CueFinder(policy.answer_cues, **options)
        self._closes = CueFinder([self._close] if self._close else [])
        self._floor = policy.min_large_tokens * CHARS_PER_TOKEN
        cap = policy.max_small_tokens
        self._cap = 2**60 if cap is None else cap * CHARS_PER_TOKEN
        self._sentences = SentenceMatcher()

    def find(self, text: str, *, opened: bool) -> Iterator[Turn]:
        """The turns add up to the text."""
        thinking = bool(self._close) and (opened or text.lstrip().startswith(self._open))
        watches_answers = self._policy.answer_cues_in_thinking or not thinking
        cues = _Ahead(self._cues.find(text), self._policy.cues)
        answers = _Ahead(self._answers.find(text) if watches_answers else [], self._policy.answer_cues)
        closes = _Ahead(self._closes.find(text) if thinking else [], (self._close,))
        at, author = 0, Author.LARGE
        while at < len(text):
            ends = [(Reason.ANSWER, closes.after(at, at)), (Reason.ANSWER, answers.after(at, at))]
            if author is Author.LARGE:
                ends.append((Reason.CUE, cues.after(at, at + self._floor)))
            decided = [(*found, reason) for reason, found in ends if found]
            end, cue, reason = min(decided, key=lambda one: one[0], default=(len(text) + 1, None, None))
            if author is Author.SMALL and (sooner := self._sooner(text, at, end - 1)):
                (reason, end), cue = sooner, None
            end = min(end, len(text))
            yield Turn(author, at, end, 0, False, reason, cue)
            at, author = end, author.other
            if reason is Reason.ANSWER:
                if at < len(text):
                    yield Turn(self._policy.answer_by, at, len(text), 0, True, None, None)
                return

    def _sooner(self, text: str, start: int, limit: int) -> tuple[Reason, int] | None:
        """How a small turn ends up to `limit`: with its sentence, or at the cap."""
        capped = start + self._cap
        end = self._sentence(text, start, min(limit, capped))
        if end is not None:
            return Reason.SENTENCE, end
        return (Reason.CAP, capped) if capped <= limit else None

    def _sentence(self, text: str, start: int, limit: int) -> int | None:
        if self._policy.plain:
            found = _PLAIN_END.search(text, start, limit)
            return found.end() if found else None
        match = sentence_end(self._sentences, text, start, limit)
        if match is None:
            return None
        # A line break that was needed to see the end belongs to the sentence; any other look-ahead does not.
        line_break = text[start + match.decided - 1] == "\n"
        return start + (match.decided if line_break else match.end)


class _Ahead:
    """The places still ahead of turns that come one after the other."""

    def __init__(self, places: Sequence[Place], names: Sequence[str]) -> None:
        self._places, self._names, self._at = places, names, 0

    def after(self, turn: int, floor: int) -> tuple[int, str] | None:
        """Where the first cue is decided that begins in the turn and ends beyond `floor`, and which it is."""
        places = self._places
        while self._at < len(places) and places[self._at].end <= turn:
            self._at += 1
        for index in range(self._at, len(places)):
            place = places[index]
            if place.start >= turn and place.end > floor:
                return place.decided, self._names[place.cue]
        return None
