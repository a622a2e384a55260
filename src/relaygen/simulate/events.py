"""The events of OpenAI's two streams as vLLM writes them. What is the same for every request is serialised once a token."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from relaygen.simulate.script import Stretch

DONE = b"data: [DONE]\n\n"


Shelf = dict[tuple[int, str], bytes]  # serialised events of single tokens, without their head


class Events:
    """Of one request. `shelf` is shared by requests whose events have the same fields."""

    kind: ClassVar[str]

    def __init__(self, request_id: str, model: str, shelf: Shelf) -> None:
        self.fields = {"id": request_id, "object": self.kind, "created": int(time.time()), "model": model}
        self._head = b"data: " + orjson.dumps(self.fields)[:-1] + b","
        self._shelf = shelf

    def opening(self) -> bytes:
        """What comes before the first token."""
        return b""

    def event(self, fields: Mapping[str, Any]) -> bytes:
        return self._head + _tail(fields)

    def token(self, token_id: int, text: str) -> bytes:
        key = token_id, text
        known = self._shelf.get(key)
        if known is None:
            known = self._shelf[key] = _tail({"choices": [self.choice(text, [token_id])]})
        return self._head + known

    def last(self, plan: Stretch, text: str) -> bytes:
        """The last token, with what ended the answer."""
        return self.event({"choices": [self.choice(text, [plan.last_id], finish_of(plan), plan.stop)]})

    def choice(
        self, text: str, ids: Sequence[int], finish: str | None = None, stop: str | int | None = None
    ) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self, text: str, plan: Stretch, usage: Mapping[str, Any]) -> dict[str, Any]:
        """The answer in one piece."""
        choice = self.whole_choice(text, plan.ids, finish_of(plan), plan.stop)
        return {**self.fields, "choices": [choice], "usage": usage}

    def whole_choice(
        self, text: str, ids: Sequence[int], finish: str, stop: str | int | None
    ) -> dict[str, Any]:
        return self.choice(text, ids, finish, stop)


class CompletionEvents(Events):
    kind = "text_completion"

    def __init__(self, *args: Any, with_ids: bool) -> None:
        super().__init__(*args)
        self._with_ids = with_ids

    def choice(
        self, text: str, ids: Sequence[int], finish: str | None = None, stop: str | int | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": stop,
        }
        return {**choice, "token_ids": ids} if self._with_ids else choice


class ChatEvents(Events):
    kind = "chat.completion.chunk"

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self.event(
            {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
        )

    def choice(
        self, text: str, ids: Sequence[int], finish: str | None = None, stop: str | int | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": finish,
        }
        return {**choice, "stop_reason": stop} if finish else choice

    def whole(self, text: str, plan: Stretch, usage: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().whole(text, plan, usage), "object": "chat.completion"}

    def whole_choice(
        self, text: str, ids: Sequence[int], finish: str, stop: str | int | None
    ) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": stop,
        }


def finish_of(plan: Stretch) -> str:
    return "length" if plan.finish == "length" else "stop"


def _tail(fields: Mapping[str, Any]) -> bytes:
    return orjson.dumps(fields)[1:] + b"\n\n"
