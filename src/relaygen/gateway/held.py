"""Streamed text on its way to the client: spans with their author, and text held back until it is known what it is. Pure.

What is cut out, and where, must not depend on how the text was cut into chunks. So each filter keeps back what might still
become part of something else, and nothing more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from relaygen.types import Author, TokenLogprob


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as OpenAI's `logprobs` show it."""

    text: str
    logprob: TokenLogprob


class Span(NamedTuple):
    """Text by one author. `tokens` begin in it, where log probabilities were asked for. `turn`: how many hand-overs came
    before it."""

    author: Author
    text: str
    tokens: tuple[TokenText, ...] = ()
    turn: int = 0


class Held:
    """A queue of spans, seen as one text."""

    def __init__(self) -> None:
        self.text = ""
        self._spans: deque[Span] = deque()

    def push(self, span: Span) -> None:
        if span.text or span.tokens:
            self.text += span.text
            self._spans.append(span)

    def take(self, num_chars: int) -> list[Span]:
        """The first characters, by author. A token goes where its first taken character goes."""
        taken: list[Span] = []
        self.text = self.text[num_chars:]
        while self._spans and (num_chars > 0 or not self._spans[0].text):
            span = self._spans.popleft()
            if len(span.text) > num_chars:
                taken.append(span._replace(text=span.text[:num_chars]))
                self._spans.appendleft(span._replace(text=span.text[num_chars:], tokens=()))
                break
            num_chars -= len(span.text)
            taken.append(span)
        return taken

    def drop(self, num_chars: int) -> None:
        self.take(num_chars)

    def take_all(self) -> list[Span]:
        return self.take(len(self.text))


def beginning_of(marker: str, text: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker`."""
    longest = min(len(marker) - 1, len(text))
    if longest < 1 or marker[0] not in text[-longest:]:
        return 0
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


class StopCutter:
    """Cuts the text before the first stop string to be complete (of two that end together, the longer)."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = Held()
        self.found = False

    @property
    def holds(self) -> bool:
        return bool(self._held.text)

    def feed(self, span: Span) -> list[Span]:
        if self.found:
            return []
        if not self._stops:
            return [span]
        self._held.push(span)
        text = self._held.text
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.found = True
            return self._held.take(min(ends)[1])
        held = max(beginning_of(stop, text) for stop in self._stops)
        return self._held.take(len(text) - held)

    def flush(self) -> list[Span]:
        return [] if self.found else self._held.take_all()
