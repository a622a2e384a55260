"""A gateway that plays what a test gives it: to show the playground faults that the real one has only when something breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from relaygen.gateway.playground import ROUTES

Event = dict[str, Any]


def text(author: str, content: str, *, reasoning: bool = False) -> Event:
    names = ("reasoning_content", "reasoning") if reasoning else ("content",)
    return {"choices": [{"index": 0, "delta": dict.fromkeys(names, content)}], "relaygen": {"author": author}}


def switch(author: str, to: str, reason: str, cue: str | None = None, tokens: int | None = None) -> Event:
    """Without `tokens` the page has to count by itself."""
    found = {"author": author, "to": to, "reason": reason, "cue": cue, "tokens": tokens}
    return {"choices": [{"index": 0, "delta": {}}], "relaygen": {"switch": found}}


def finish(large: int, small: int, *, reason: str = "eos", warnings: Sequence[str] = ()) -> Event:
    return {
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        "relaygen": {
            "finish": {"author": "small", "reason": reason},
            "usage": {
                "large_tokens": large,
                "small_tokens": small,
                "small_share": small / max(1, large + small),
            },
            "timings": {"total_ms": 2000.0},
            "warnings": list(warnings),
        },
    }


def error(message: str) -> Event:
    return {"error": {"message": message, "type": "engine_error", "code": "engine_failed"}}


RELAYED: list[Event] = [
    text("large", "The sum is easy. ", reasoning=True),
    text("large", "So,", reasoning=True),
    text("large", " let", reasoning=True),
    switch("large", "small", "cue", "So,"),
    text("small", " me add.\n", reasoning=True),
    switch("small", "large", "sentence"),
    text("large", "Good.", reasoning=True),
    switch("large", "small", "answer"),
    text("small", "\n\nIt is 4."),
    finish(4, 2),
]
ALONE: list[Event] = [text("large", "It is four."), finish(3, 0)]


@dataclass
class FakeGateway:
    """Plays `events`, or `alone` when the policy is large; then hangs if `hangs`, until the client leaves (`left` is set).
    `refusal` is (status, message) for every call but those with `api_key`."""

    events: list[Event] = field(default_factory=lambda: list(RELAYED))
    alone: list[Event] = field(default_factory=lambda: list(ALONE))
    models: tuple[str, ...] = ("relaygen", "relaygen:large", "relaygen:small", "relaygen:generic")
    hangs: bool = False
    refusal: tuple[int, str] | None = None
    api_key: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    num_left: int = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                *ROUTES,
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    def _refused(self, request: Request) -> Response | None:
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return JSONResponse(error("a key is needed: Authorization: Bearer KEY"), 401)
        if self.refusal:
            return JSONResponse(error(self.refusal[1]), self.refusal[0])
        return None

    async def _models(self, request: Request) -> Response:
        if self.api_key and (refused := self._refused(request)):
            return refused
        return JSONResponse({"object": "list", "data": [{"id": name} for name in self.models]})

    async def _chat(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        if refused := self._refused(request):
            return refused
        ours = self.bodies[-1]["relaygen"]
        events = self.alone if ours.get("policy") == "large" else self.events
        return StreamingResponse(self._play(events), media_type="text/event-stream")

    async def _play(self, events: list[Event]) -> AsyncGenerator[bytes]:
        yield b": a comment\n\n"
        try:
            for event in events:
                yield b"data: " + json.dumps(event).encode() + b"\n\n"
            if self.hangs:
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.num_left += 1
            raise
        if "error" not in events[-1]:
            yield b"data: [DONE]\n\n"
