"""An engine that plays a script: for tests, and for trying policies without a model.

The script is a list of token texts; ids are positions in a vocabulary made of them. Whatever part of the script the request
already holds, the engine continues after it. So two engines with one script agree, as a model agrees with itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from relaygen.engines.base import EngineInfo, Request, Tools
from relaygen.types import Chunk, Message, Piece, TurnEnd


class ScriptedEngine:
    """`chunk_tokens` tokens come per chunk, as with speculative decoding. `stops` says whether the engine ends a request
    at stop strings, as servers do, or leaves that to the caller. At script position `fail_at` it raises `error`, `failures`
    times. `requests` keeps every request; `closed_early` counts those that were closed before their end."""

    PROMPT = "<prompt>"

    def __init__(
        self,
        script: Sequence[str],
        *,
        name: str = "scripted",
        context_tokens: int = 100_000,
        chunk_tokens: int = 1,
        stops: bool = True,
        fail_at: int | None = None,
        error: Exception | None = None,
        failures: int = 1,
    ) -> None:
        self._vocabulary = [self.PROMPT, *dict.fromkeys(script)]
        self._id = {text: i for i, text in enumerate(self._vocabulary)}
        self._script = [self._id[text] for text in script]
        self._info = EngineInfo(name, "scripted", "scripted", context_tokens)
        self._chunk_tokens = chunk_tokens
        self._stops = stops
        self._fail_at, self._error, self._failures = fail_at, error, failures
        self.requests: list[Request] = []
        self.closed_early = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def render(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, list[int]]:
        return self.PROMPT, [0]

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Greedy, longest token first; characters outside the vocabulary are dropped."""
        ids: list[int] = []
        while text:
            found = max((t for t in self._vocabulary[1:] if t and text.startswith(t)), key=len, default="")
            if found:
                ids.append(self._id[found])
            text = text[len(found) or 1 :]
        return ids

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[ScriptedEngine]:
        yield self

    async def close(self) -> None:
        pass

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        self.requests.append(request)
        start = len(request.ids) - 1  # after the prompt
        written, text, pieces = 0, "", list[Piece]()
        finished = False
        try:
            while True:
                await asyncio.sleep(0)
                position = start + written
                if position == self._fail_at and self._error and self._failures:
                    self._failures -= 1
                    raise self._error
                if position < len(self._script) and written < request.max_tokens:
                    token = self._script[position]
                    pieces.append(Piece(self._vocabulary[token], (token,)))
                    written += 1
                    text = (text + self._vocabulary[token])[-80:]
                    finish = "stop" if self._stops and any(stop in text for stop in request.stops) else None
                else:
                    finish = "eos" if position >= len(self._script) else "length"
                if finish:
                    finished = True
                    yield Chunk(tuple(pieces), TurnEnd(finish, decode_tokens=written))
                    return
                if len(pieces) >= self._chunk_tokens:
                    yield Chunk(tuple(pieces))
                    pieces = []
        finally:
            self.closed_early += not finished
