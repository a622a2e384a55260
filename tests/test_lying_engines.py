"""Servers that lie: answers of the right path and the wrong shape, bodies without end, redirects to somewhere else."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from relaygen.engines import http, ollama, sse
from relaygen.engines.http import Endpoint, Http
from relaygen.engines.open import connect
from relaygen.engines.probe import probe
from relaygen.engines.scoring import score
from relaygen.errors import EngineProtocolError, EngineRefusedError, RelayError
from tests.asking import FAKES, SCRIPT, answer_to, relay
from tests.fakes import sse as sse_bytes
from tests.fakes_llama import FakeLlamaCpp, llama_event
from tests.fakes_text import FakeOllama

KEY = "sk-0123456789abcdef"

# ---- answers of the wrong shape: every value that a server sends may be replaced by one of these
ODDITIES: list[Any] = [
    None, True, -1, 0, 5, 10**12, 2**63, 1.5, 1e308, "", "x", "\ud7ff\x00", [], [[]], [1], ["x"], [None], {}, {"": None},
    {"id": 5}, {"message": []},
]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of all values inside."""
    found: Any = value
    keys: Any = (
        list(found) if isinstance(value, dict) else range(len(found)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield found, key
        yield from places(found[key])


def lied(value: Any, chance: random.Random) -> Any:
    """`value`, with one part of it replaced, doubled or taken away."""
    value = copy.deepcopy(value)
    spots = list(places(value))
    if not spots or chance.random() < 0.1:
        return chance.choice(ODDITIES)
    container, key = chance.choice(spots)
    way = chance.randrange(5)
    if way == 0:
        del container[key]
    elif way == 1 and isinstance(key, int):
        container.insert(key, container[key])
    else:
        container[key] = chance.choice(ODDITIES)
    return value


async def everything(url: str) -> str:
    """A relay and a score by this server, and the words of the error that ended it."""
    try:
        async with asyncio.timeout(20):
            engine = await connect(url, name="the engine", api_key=None, context_tokens=4000)
            try:
                await relay(engine, engine)
                if not engine.info.text_only:
                    await score(engine, await engine.tokenize("48 clips"), 1)
            finally:
                await engine.close()
    except RelayError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 150), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("kind", FAKES)
async def test_no_lie_is_more_than_an_error(kind: str, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Http._json  # pyright: ignore[reportPrivateUsage]
    for seed in seeds:
        chance = random.Random(f"{kind} {seed}")
        first = chance.randrange(60)  # the first lie: while it connects, while it renders, or in a stream
        seen = {"answers": 0}

        def json(
            self: Http, data: bytes, path: str, chance: Any = chance, first: Any = first, seen: Any = seen
        ) -> Any:
            value = honest(self, data, path)
            seen["answers"] += 1
            return lied(value, chance) if seen["answers"] > first and chance.random() < 0.3 else value

        with monkeypatch.context() as patch:
            patch.setattr(Http, "_json", json)
            async with FAKES[kind](SCRIPT[:24]).running() as url:
                said = await everything(url)
                assert "\n" not in said, seed
                assert len(said) < 2000, seed


async def test_a_count_of_a_server_makes_no_list() -> None:
    """`[x] * 10**12` would take all of the memory."""
    event = {**llama_event("a", [97], 1), "tokens_predicted": 10**9}
    with pytest.raises(EngineProtocolError, match="tokens without ids"):
        await answer_to(FakeLlamaCpp(), sse_bytes(event))


async def test_a_number_of_a_server_makes_no_bytes() -> None:
    top = {"id": 97, "token": "a", "bytes": 10**12, "logprob": -0.1}
    row = {"id": 97, "token": "a", "bytes": [97], "logprob": -0.1, "top_logprobs": [top]}
    event = {**llama_event("a", [97], 1), "completion_probabilities": [row]}
    with pytest.raises(EngineProtocolError, match="unknown shape"):
        await answer_to(FakeLlamaCpp(), sse_bytes(event), top_logprobs=1)


# ---- bodies without end


@asynccontextmanager
async def server(handler: Callable[[web.Request], Any]) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    running = TestServer(app)
    await running.start_server()
    try:
        yield str(running.make_url("")).rstrip("/")
    finally:
        await running.close()


async def flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=int(request.query.get("status", 200)))
    await response.prepare(request)
    try:
        while True:
            await response.write(b"[" * 4096)
    except ConnectionError:
        return response


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 100_000)
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100_000)
    monkeypatch.setattr(ollama, "MAX_EVENT_BYTES", 100_000)
    async with asyncio.timeout(20), server(flood) as url:
        asked = Http(Endpoint(url, name="the engine"))
        try:
            with pytest.raises(EngineProtocolError, match="more than 100,000 bytes"):
                await asked.get("/v1/models")
            with pytest.raises(EngineRefusedError, match="refused the request"):
                await asked.get("/v1/models?status=400")
            with pytest.raises(EngineProtocolError, match="an event of more than"):
                await anext(asked.stream("/v1/completions", {}))
            lines = ollama.Lines()
            with pytest.raises(EngineProtocolError, match="a line of more than"):
                await anext(asked.stream("/api/generate", {}, parser=lines))
        finally:
            await asked.close()


def test_lines_in_every_cut() -> None:
    stream = b'{"a":1}\n\n{"b":2}\n  \n{"c":3}'
    for cut in range(len(stream) + 1):
        parser = ollama.Lines()
        assert parser.feed(stream[:cut]) + parser.feed(stream[cut:]) == [b'{"a":1}', b'{"b":2}'], cut


# ---- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    """To another host it would take the prompt along, and perhaps the key."""
    visits: list[tuple[str, str | None]] = []

    async def elsewhere(request: web.Request) -> web.Response:
        visits.append((await request.text(), request.headers.get("Authorization")))
        return web.json_response({"data": []})

    async with server(elsewhere) as other:

        async def handler(request: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": f"{other}{request.path}"})

        async with server(handler) as url:
            asked = Http(Endpoint(url, KEY, "the engine"))
            try:
                for ask in (asked.get("/v1/models"), asked.post("/tokenize", {"prompt": "secret"})):
                    with pytest.raises(
                        EngineRefusedError, match="not followed: give the final address"
                    ) as told:
                        await ask
                    assert other in str(told.value)
                with pytest.raises(EngineRefusedError, match="not followed"):
                    await anext(asked.stream("/v1/completions", {"prompt": "secret"}))
            finally:
                await asked.close()
            with pytest.raises(RelayError):
                await probe(Endpoint(url, KEY, "the engine"))
    assert visits == []


async def test_a_redirect_does_not_show_a_password() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(
            status=307, headers={"Location": "http://user:geheim@elsewhere.invalid/x?token=t0ken"}
        )

    async with server(handler) as url:
        asked = Http(Endpoint(url, name="the engine"))
        with pytest.raises(EngineRefusedError, match=r"elsewhere\.invalid") as told:
            await asked.get("/v1/models")
        await asked.close()
    assert "geheim" not in str(told.value)
    assert "t0ken" not in str(told.value)


async def test_an_ollama_that_ends_without_text() -> None:
    with pytest.raises(EngineProtocolError, match="unknown shape"):
        await answer_to(FakeOllama(), b'{"response":null,"done":true,"done_reason":"stop"}\n')
