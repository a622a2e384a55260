"""Splits the streamed text into thinking and answer, as core/record.py does with the whole text. Pure.

The markers are not shown, nor white space around the thinking and before the answer.
"""

from __future__ import annotations

from typing import Literal

from relaygen.gateway.held import Held, Span, beginning_of

Channel = Literal["reasoning", "content"]
Part = tuple[Channel, Span]


class ThinkSplitter:
    """`think`: the markers that open and close the thinking; None for a model without."""

    def __init__(self, think: tuple[str, str] | None) -> None:
        self._open, self._close = think or ("", "")
        self._held = Held()
        self._opening = bool(self._open)  # the opening marker may still come
        self._at_start = True  # nothing shown yet: white space is dropped
        self._thinking = bool(think)
        self._thought = False  # there was text of the thinking stage
        self._answering = False

    @property
    def holds(self) -> bool:
        return bool(self._held.text)

    def feed(self, span: Span, *, reasoning: bool) -> list[Part]:
        if not reasoning or not self._thinking:
            return self._answer(span) if reasoning else [*self._end_of_thinking(), *self._answer(span)]
        self._thought = self._thought or bool(span.text)
        self._held.push(span)
        at = self._held.text.find(self._close)
        if at < 0:
            return self._think(len(self._held.text) - beginning_of(self._close, self._held.text))
        shown = self._think(at, final=True)
        self._thinking = False
        self._held.drop(len(self._close))
        return [*shown, *(part for span in self._held.take_all() for part in self._answer(span))]

    def flush(self) -> list[Part]:
        return self._end_of_thinking()

    def _end_of_thinking(self) -> list[Part]:
        if not self._thinking:
            return []
        shown = self._think(len(self._held.text), final=True)
        self._thinking = False
        return shown

    def _think(self, num_chars: int, *, final: bool = False) -> list[Part]:
        """The first characters are certain to be thinking; `final` says that no more will come."""
        held = self._held
        if self._at_start:
            num_chars -= self._skip_space(num_chars)
        if self._opening:
            text = held.text[:num_chars]
            if self._open.startswith(text) and text != self._open and not final:
                return []
            self._opening = False
            if text.startswith(self._open):
                held.drop(len(self._open))
                num_chars -= len(self._open)
                num_chars -= self._skip_space(num_chars)
        shown = len(held.text[:num_chars].rstrip())
        if not shown:
            if final:
                held.drop(num_chars)
            return []
        self._at_start = False
        parts: list[Part] = [("reasoning", span) for span in held.take(shown)]
        if final:
            held.drop(num_chars - shown)
        return parts

    def _skip_space(self, num_chars: int) -> int:
        text = self._held.text[:num_chars]
        skipped = len(text) - len(text.lstrip())
        if skipped:
            self._held.drop(skipped)
        return skipped

    def _answer(self, span: Span) -> list[Part]:
        if not self._answering and self._thought:
            text = span.text.lstrip()
            if not text:
                return []
            span = span._replace(text=text)
        self._answering = True
        return [("content", span)]
