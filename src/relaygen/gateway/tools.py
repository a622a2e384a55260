"""Tool calls in the form that Hermes and Qwen models write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>. Pure.

A call is passed on when it is complete. What stands between the marks and is no call stays text, marks included.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import orjson

from relaygen.gateway.held import Held, Span, beginning_of

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PROBE: dict[str, Any] = {
    "type": "function",
    "function": {"name": "probe", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def is_hermes(rendered: str) -> bool:
    """True when a template, given a tool, tells the model to use these marks."""
    return OPEN in rendered and CLOSE in rendered


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    index: int
    name: str
    arguments: str  # JSON


class ToolParser:
    """Text -> text and calls. White space around calls is dropped. After `max_calls` it is `full`, and takes no more."""

    def __init__(self, max_calls: int | None = None) -> None:
        self._held = Held()
        self._inside = False
        self._after_call = False
        self._max_calls = max_calls
        self.num_calls = 0

    @property
    def full(self) -> bool:
        return self.num_calls == self._max_calls

    @property
    def holds(self) -> bool:
        return bool(self._held.text)

    def feed(self, span: Span) -> Iterator[Span | ToolCall]:
        if self.full:
            return
        self._held.push(span)
        while not self.full:
            text = self._held.text
            at = text.find(CLOSE if self._inside else OPEN)
            if at < 0:
                break
            if self._inside:
                yield from self._call(at, at + len(CLOSE))
            else:
                yield from self._text(at)
                self._inside = True
        if not self.full and not self._inside:
            yield from self._text(len(self._held.text) - beginning_of(OPEN, self._held.text))

    def flush(self) -> Iterator[Span | ToolCall]:
        if self.full:
            return
        if self._inside:  # some models end right after the JSON
            yield from self._call(len(self._held.text), len(self._held.text))
        elif self.num_calls:
            yield from self._text(len(self._held.text))
        else:
            yield from self._held.take_all()

    def _text(self, num_chars: int) -> Iterator[Span]:
        """Show the first characters, but for white space that a call may follow or that follows one."""
        text = self._held.text[:num_chars]
        if self._after_call:
            blank = len(text) - len(text.lstrip())
            self._held.drop(blank)
            text = text[blank:]
        shown = len(text.rstrip())
        if shown:
            self._after_call = False
            yield from self._held.take(shown)

    def _call(self, end: int, num_chars: int) -> Iterator[Span | ToolCall]:
        """`end`: where the JSON ends in the held text, whose first `num_chars` are white space, marks and call."""
        text = self._held.text
        call = self._parse(text[text.index(OPEN) + len(OPEN) : end])
        self._inside = False
        self._after_call = call is not None
        if call is None:
            yield from self._held.take(num_chars)
        else:
            self._held.drop(num_chars)
            self.num_calls += 1
            yield call

    def _parse(self, text: str) -> ToolCall | None:
        try:
            value: object = orjson.loads(text)
            if not isinstance(value, dict):
                return None
            fields = cast("dict[str, Any]", value)
            name, arguments = fields["name"], fields.get("arguments", {})
            if not isinstance(name, str) or not isinstance(arguments, dict):
                return None
            encoded = orjson.dumps(arguments).decode()
        except (ValueError, TypeError, KeyError):
            return None
        return ToolCall(f"call_{secrets.token_hex(12)}", self.num_calls, name, encoded)
