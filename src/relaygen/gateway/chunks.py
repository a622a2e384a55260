"""What goes back to the client: chunks of an event stream, and whole bodies. Pure.

A chunk is two pre-serialised halves with a JSON string between them: this runs once a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from relaygen import trace
from relaygen.core.record import num_tokens
from relaygen.gateway.held import TokenText
from relaygen.gateway.tools import ToolCall
from relaygen.gateway.visible import Delta, HandOver, Text
from relaygen.types import Author, FinishReason, Reason, Result

DONE = b"data: [DONE]\n\n"
_GAP = "@gap@"


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of a response share. `created` in seconds since 1970."""

    id: str
    created: int
    model: str
    chat: bool
    segments: bool
    include_usage: bool


class Chunks:
    """Writes the chunks of one choice."""

    def __init__(self, head: Head, index: int) -> None:
        self._head = head
        self._index = index
        self._halves = {
            (channel, author): self._split(channel, author)
            for channel in ("content", "reasoning")
            for author in Author
        }

    def first(self) -> bytes:
        return self._event({"role": "assistant", "content": ""}) if self._head.chat else b""

    def write(self, deltas: Iterable[Delta]) -> bytes:
        return b"".join(self._one(delta) for delta in deltas)

    def last(self, finish_reason: str, ours: Mapping[str, Any]) -> bytes:
        return self._event({}, finish_reason, relaygen=ours if self._head.segments else None)

    def _one(self, delta: Delta) -> bytes:
        if isinstance(delta, Text):
            if delta.span.tokens and delta.channel == "content":
                return self._with_logprobs(delta)
            before, between, after = self._halves[delta.channel, delta.span.author]
            text = orjson.dumps(delta.span.text)
            return b"".join((before, text, between, text, after)) if between else before + text + after
        if isinstance(delta, ToolCall):
            return self._event({"tool_calls": [{"index": delta.index, **tool_call(delta)}]})
        return self._event({}, relaygen={"switch": switch(delta)}) if self._head.segments else b""

    def _split(self, channel: str, author: Author) -> tuple[bytes, bytes, bytes]:
        """Before the text, between its two copies (thinking goes by two names), after it."""
        names = (
            ("content",)
            if channel == "content" or not self._head.chat
            else ("reasoning_content", "reasoning")
        )
        event = self._event(dict.fromkeys(names, _GAP), relaygen=self._author(author))
        parts = event.split(orjson.dumps(_GAP))
        return (parts[0], b"", parts[1]) if len(parts) == 2 else (parts[0], parts[1], parts[2])

    def _author(self, author: Author) -> dict[str, Any] | None:
        return {"author": author.value} if self._head.segments else None

    def _with_logprobs(self, delta: Text) -> bytes:
        span = delta.span
        return self._event(
            {"content": span.text}, logprobs=logprobs(span.tokens), relaygen=self._author(span.author)
        )

    def _event(
        self,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        *,
        logprobs: dict[str, Any] | None = None,
        relaygen: Mapping[str, Any] | None = None,
    ) -> bytes:
        shown = {"delta": delta} if self._head.chat else {"text": delta.get("content", "")}
        choice = {"index": self._index, **shown, "logprobs": logprobs, "finish_reason": finish_reason}
        return _sse({**_envelope(self._head, stream=True), "choices": [choice], **_given(relaygen)})


def usage_chunk(head: Head, usage: Mapping[str, Any]) -> bytes:
    return _sse({**_envelope(head, stream=True), "choices": [], "usage": usage})


def error_event(body: Mapping[str, Any]) -> bytes:
    """The last event of a stream that failed: no [DONE] after it. OpenAI's client raises it as an APIError."""
    return _sse(body)


@dataclass(frozen=True, slots=True)
class Choice:
    """A finished choice. `ours` is what `relaygen` holds of it."""

    deltas: Sequence[Delta]
    finish_reason: str
    ours: Mapping[str, Any]


def whole(head: Head, choices: Sequence[Choice], usage: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a response that is not streamed."""
    body: dict[str, Any] = {
        **_envelope(head, stream=False),
        "choices": [_choice(head, index, choice) for index, choice in enumerate(choices)],
        "usage": usage,
    }
    if head.segments and len(choices) == 1:
        body["relaygen"] = choices[0].ours
    elif head.segments:
        for shown, choice in zip(body["choices"], choices, strict=True):
            shown["relaygen"] = choice.ours
    return body


def finish_reason(reason: FinishReason, *, called: bool) -> str:
    """OpenAI's word for the end of a generation that did not fail."""
    return "length" if reason == "length" else "tool_calls" if called else "stop"


def usage_of(results: Sequence[Result], reasoning_tokens: int) -> dict[str, Any]:
    """Of all choices together; the prompt is counted once."""
    prompt = max((r.usage.prompt_tokens for r in results), default=0)
    large = sum(r.usage.large_tokens for r in results)
    small = sum(r.usage.small_tokens for r in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": large + small,
        "total_tokens": prompt + large + small,
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "relaygen": {
            "large_tokens": large,
            "small_tokens": small,
            "small_share": round(small / (large + small), 4) if large + small else 0.0,
        },
    }


def ending(result: Result, author: Author, reason: Reason, *, segments: bool) -> dict[str, Any]:
    """The `relaygen` object of a last chunk, or, with the segments, of a whole body."""
    found = trace.to_json(result)
    kept = {name: found[name] for name in ("timings", "warnings")}
    usage = {name: found["usage"][name] for name in ("large_tokens", "small_tokens", "small_share")}
    if segments:
        segments_ = [
            {**shown, "tokens": num_tokens((segment,))}
            for shown, segment in zip(found["segments"], result.segments, strict=True)
        ]
        return {"segments": segments_, "usage": usage, **kept}
    finish = {"author": author.value, "reason": reason.value, "tokens": num_tokens(result.segments[-1:])}
    return {"finish": finish, "usage": usage, **kept}


def switch(delta: HandOver) -> dict[str, Any]:
    event = delta.switch
    return {
        "author": event.author.value,
        "to": event.to.value,
        "reason": event.reason.value,
        "cue": event.cue,
        "tokens": delta.num_tokens,
    }


def tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def logprobs(tokens: Iterable[TokenText]) -> dict[str, Any]:
    content = [
        {
            **_logprob(token.text, token.logprob.logprob),
            "top_logprobs": [_logprob(c.text, c.logprob) for c in token.logprob.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _logprob(text: str, value: float) -> dict[str, Any]:
    # JSON has no minus infinity; OpenAI writes -9999.
    return {"token": text, "logprob": max(value, -9999.0), "bytes": list(text.encode(errors="replace"))}


def _choice(head: Head, index: int, choice: Choice) -> dict[str, Any]:
    texts = [delta for delta in choice.deltas if isinstance(delta, Text)]
    content = "".join(t.span.text for t in texts if t.channel == "content")
    reasoning = "".join(t.span.text for t in texts if t.channel == "reasoning")
    tokens = [token for t in texts if t.channel == "content" for token in t.span.tokens]
    out: dict[str, Any] = {
        "index": index,
        "finish_reason": choice.finish_reason,
        "logprobs": logprobs(tokens) if tokens else None,
    }
    if not head.chat:
        return {**out, "text": reasoning + content}
    calls = [tool_call(delta) for delta in choice.deltas if isinstance(delta, ToolCall)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not calls else None,
        "refusal": None,
    }
    if reasoning:
        message |= {"reasoning_content": reasoning, "reasoning": reasoning}
    if calls:
        message["tool_calls"] = calls
    return {**out, "message": message}


def _envelope(head: Head, *, stream: bool) -> dict[str, Any]:
    kind = ("chat.completion.chunk" if stream else "chat.completion") if head.chat else "text_completion"
    usage = {"usage": None} if stream and head.include_usage else {}
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, **usage}


def _given(relaygen: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if relaygen is None else {"relaygen": relaygen}


def _sse(value: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
