"""The real server, on a free port, over engines of the test's choice; and engines that can a little more than play a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from relaygen.api import Relay
from relaygen.config import Settings
from relaygen.engines.base import Engine, Request, Tools
from relaygen.engines.scripted import ScriptedEngine
from relaygen.gateway.auth import Keys
from relaygen.gateway.server import Server, Tell, listen, make_server
from relaygen.gateway.serving import Service
from relaygen.profile import Profile
from relaygen.types import Author, Candidate, Chunk, Message, Piece, TokenLogprob

THINKING = Profile.model_validate(
    {"name": "thinking", "cues": ("Therefore,",), "think": {"open": "<think>", "close": "</think>"}}
)
PLAIN = Profile(name="plain", cues=("Therefore,",))
SCRIPT = "First| we| add|.| Therefore|,| it| is| 5|.\n\n|So| the| answer| is| 5|.".split("|")
THOUGHT = "<think>|\n|Let| me| see|.| Therefore|,| 5|.\n|</think>|\n\n|The| sum| is| 5|.".split("|")
HERMES = 'Write <tool_call>{"name": ...}</tool_call>'


class Player(ScriptedEngine):
    """`delay_s` before each token. With `tools` its template tells of the Hermes form. Log probabilities on request. What it
    rendered is in `rendered`."""

    def __init__(
        self, script: Sequence[str] = SCRIPT, *, delay_s: float = 0, tools: bool = True, **options: Any
    ) -> None:
        super().__init__(script, **options)
        self._delay_s = delay_s
        self._tools = tools
        self.rendered: list[tuple[list[Message], Tools]] = []
        self.open_writes = 0
        self.asked: list[
            tuple[int, Any]
        ] = []  # of each request: its number of ids, which grows later, and its schema

    async def render(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, list[int]]:
        self.rendered.append((list(messages), tools))
        text, ids = await super().render(messages, tools)
        return (HERMES + text if tools and self._tools else text), ids

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        self.open_writes += 1
        self.asked.append((len(request.ids), request.schema))
        chunks = super().write(request)
        try:
            async for chunk in chunks:
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                if request.top_logprobs is None:
                    yield chunk
                else:
                    yield Chunk(tuple(_rated(p, request.top_logprobs) for p in chunk.pieces), chunk.end)
        finally:
            await chunks.aclose()
            self.open_writes -= 1


def _rated(piece: Piece, number: int) -> Piece:
    top = tuple(Candidate(piece.text if i == 0 else f"~{i}", -0.5 - i) for i in range(number))
    return Piece(piece.text, piece.token_ids, (TokenLogprob(-0.5, top),))


class FakeRelay(Relay):
    def __init__(self, engines: Mapping[Author, Engine], profile: Profile, policy: str) -> None:
        super().__init__("http://large", "http://small", profile=profile, policy=policy)
        self._given = engines

    async def _open(self, author: Author) -> Engine:
        return self._given[author]


@dataclass
class Served:
    url: str
    server: Server
    http: aiohttp.ClientSession

    @property
    def service(self) -> Service:
        return self.server.service

    async def post(self, body: Any, path: str = "/v1/chat/completions", **options: Any) -> tuple[int, Any]:
        """Status and JSON of a request that is not streamed."""
        options = {"json": body, **options}
        async with self.http.post(self.url + path, **options) as response:
            return response.status, orjson.loads(await response.read())

    async def stream(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
        """The data of each event; [DONE] stays text."""
        async with self.http.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            return events_of(await response.read())


def events_of(data: bytes) -> list[Any]:
    parts = [part.removeprefix(b"data: ") for part in data.split(b"\n\n") if part]
    return [part.decode() if part == b"[DONE]" else orjson.loads(part) for part in parts]


def ask(content: str = "What is 2 + 3?", /, **fields: Any) -> dict[str, Any]:
    return {"model": "relaygen", "messages": [{"role": "user", "content": content}], **fields}


@asynccontextmanager
async def served(relay: Relay, *, keys: Sequence[str] = (), **settings: Any) -> AsyncGenerator[Served]:
    """`relay` is open already."""
    listener = listen("127.0.0.1", 0)
    ready = asyncio.Event()
    server = make_server(relay, Settings(port=0, **settings), Keys(keys), Tell(ready.set))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await ready.wait()
        async with aiohttp.ClientSession() as http:
            yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", server, http)
    finally:
        if not server.should_exit:
            server.stop()
        server.force_exit = True
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def serving(
    large: Engine | None = None,
    small: Engine | None = None,
    *,
    profile: Profile = PLAIN,
    policy: str = "segment",
    **settings: Any,
) -> AsyncGenerator[Served]:
    engines = {Author.LARGE: large or Player(), Author.SMALL: small or Player()}
    async with FakeRelay(engines, profile, policy) as relay, served(relay, **settings) as found:
        yield found
