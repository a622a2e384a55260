"""Events -> Segments -> Result. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

from relaygen.core.relay import CHARS_PER_TOKEN
from relaygen.types import (
    Author,
    Event,
    Finish,
    FinishReason,
    Reason,
    Result,
    Segment,
    Switch,
    Timings,
    Token,
    Usage,
)


class Record:
    """Collects the events of one generation. `result` may be asked for at any time; an unfinished one is "stopped"."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._text: list[str] = []
        self._ids: list[int] = []
        self._author = Author.LARGE
        self._reasoning_chars = 0
        self._finish_reason: FinishReason | None = None

    def add(self, event: Event) -> None:
        match event:
            case Token():
                self._author = event.author
                self._text.append(event.text)
                self._ids.extend(event.token_ids)
                if event.stage == "reasoning":
                    self._reasoning_chars += len(event.text)
            case Switch():
                self._close(event.author, event.reason, event.cue)
            case Finish():
                self._close(event.author, event.reason, None)
                self._finish_reason = event.finish_reason

    def _close(self, author: Author, reason: Reason, cue: str | None) -> None:
        self._segments.append(Segment(author, "".join(self._text), tuple(self._ids), reason, cue))
        self._text.clear()
        self._ids.clear()

    def result(
        self,
        *,
        prompt_tokens: int = 0,
        timings: Timings | None = None,
        think: tuple[str, str] | None = None,
        warnings: Iterable[str] = (),
        metadata: dict[str, Any] | None = None,
        failed: bool = False,
    ) -> Result:
        """`think` gives the (open, close) markers to take off `reasoning` and `answer`; `text` keeps them. `failed`: an error
        has ended it."""
        segments = list(self._segments)
        if self._text:
            reason = Reason.ERROR if failed else Reason.STOPPED
            segments.append(Segment(self._author, "".join(self._text), tuple(self._ids), reason))
        text = "".join(s.text for s in segments)
        reasoning, answer = text[: self._reasoning_chars], text[self._reasoning_chars :]
        if think and reasoning:
            opening, close = think
            # The token that completes the marker may carry the first characters of the answer.
            reasoning, _, spill = reasoning.partition(close)
            reasoning, answer = reasoning.lstrip().removeprefix(opening).strip(), (spill + answer).lstrip()
        counts = {author: sum(num_tokens((s,)) for s in segments if s.author is author) for author in Author}
        return Result(
            text=text,
            reasoning=reasoning,
            answer=answer,
            finish_reason="error" if failed else self._finish_reason or "stopped",
            segments=tuple(segments),
            usage=Usage(prompt_tokens, counts[Author.LARGE], counts[Author.SMALL]),
            timings=timings or Timings(),
            warnings=tuple(warnings),
            metadata=metadata or {},
        )


def num_tokens(written: Sequence[Token | Segment]) -> int:
    """Of one segment. Estimated where the engine gives no ids."""
    number = sum(len(one.token_ids) for one in written)
    return number or ceil(sum(len(one.text) for one in written) / CHARS_PER_TOKEN)
