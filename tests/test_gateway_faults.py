"""Whatever an engine does, and whenever: a request to the gateway ends in time, with all that was written before.

Two engines play one script over real sockets, so what comes out can be compared with the run without a fault. When the small
one fails the answer is whole; when the large one fails the client gets what was written, and an error.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from string import ascii_letters
from typing import Any, Literal, Self

import aiohttp
import openai
import pytest

from relaygen import Relay
from relaygen.config import Settings
from relaygen.core.policy import Policy, alone
from relaygen.engines.http import Http
from relaygen.gateway.auth import Keys
from relaygen.gateway.server import listen, serve
from relaygen.local import LocalServer, LocalSettings
from relaygen.types import Author
from tests.asking import POLICY, SCRIPT, TEXT, engine_of, relay
from tests.fakes import FakeVllm
from tests.faults import RENDER, Fault, Faulty, Server, until

LARGE, SMALL = Author.LARGE, Author.SMALL
SILENCE_S = 1.0  # after which an engine is given up, here
BOUND_S = 60  # a request that takes longer hangs

Stage = Literal["render", "first turn", "mid turn", "hand-over", "answer"]
STAGES: tuple[Stage, ...] = ("render", "first turn", "mid turn", "hand-over", "answer")
# What OpenAI's client reads as the error's code, when the large engine fails.
CODES = {
    Fault.KILL: {"engine_cut"},
    Fault.STALL: {"engine_cut"},
    Fault.GARBAGE: {"engine_protocol"},
    Fault.BUSY: {"engine_overloaded"},
    Fault.DOWN: {"engine_overloaded"},
    Fault.CLOSE: {"engine_cut", "engine_protocol"},
}


@pytest.fixture(autouse=True)
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """`monkeypatch.undo()` where it must be the client that ends the work."""
    monkeypatch.setattr(Http, "__init__", functools.partialmethod(Http.__init__, read_s=SILENCE_S))


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncGenerator[None]:
    """No task, and no socket or other file, outlives a test."""
    files = num_files()
    yield
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    await until(lambda: num_files() <= files)


def num_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@dataclass
class Answer:
    """What a client has seen."""

    text: str = ""
    authors: list[str] = field(default_factory=list[str])
    finish_reason: str | None = None
    warnings: list[str] = field(default_factory=list[str])
    error: openai.APIError | None = None


@asynccontextmanager
async def gateway(
    large: str | list[str], small: str, *, policy: Policy = POLICY, **settings: Any
) -> AsyncGenerator[openai.AsyncOpenAI]:
    """A gateway over the engines at these addresses, and a client of it."""
    async with Relay(large, small, policy=policy) as pair:
        listener = listen("127.0.0.1", 0)
        started = asyncio.Event()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server = asyncio.create_task(serve(pair, Settings(**settings), Keys(), listener, started.set))
        await started.wait()
        try:
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                yield client
        finally:
            signal.raise_signal(signal.SIGTERM)
            await server


@asynccontextmanager
async def two(large: Faulty, small: Faulty, **settings: Any) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with (
        Server.running(large) as a,
        Server.running(small) as b,
        gateway(a.url, b.url, **settings) as client,
    ):
        yield client


async def begin(
    client: openai.AsyncOpenAI, answer_by: Author = SMALL, model: str = "relaygen"
) -> openai.AsyncStream[Any]:
    return await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "?"}],
        temperature=0,
        stream=True,
        extra_body={"relaygen": {"segments": True, "answer_by": answer_by.value}},
    )


async def ask(client: openai.AsyncOpenAI, answer_by: Author = SMALL) -> Answer:
    answer = Answer()
    try:
        async with asyncio.timeout(BOUND_S), await begin(client, answer_by) as stream:
            async for chunk in stream:
                note(answer, chunk)
    except openai.APIError as error:
        answer.error = error
    return answer


def note(answer: Answer, chunk: Any) -> None:
    [choice] = chunk.choices
    extra: dict[str, Any] = chunk.model_extra or {}
    ours: dict[str, Any] = extra.get("relaygen") or {}
    if choice.delta.content:
        answer.text += choice.delta.content
        answer.authors += [ours["author"]] * len(choice.delta.content)
    answer.finish_reason = choice.finish_reason or answer.finish_reason
    answer.warnings += ours.get("warnings") or []


# ---- one engine fails


_TURNS: dict[Author, list[tuple[Author, int, int]]] = {}


async def turns(answer_by: Author) -> list[tuple[Author, int, int]]:
    """(author, first token, last token + 1) of each turn of the run without a fault."""
    if answer_by not in _TURNS:
        async with engine_of(FakeVllm(SCRIPT)) as large, engine_of(FakeVllm(SCRIPT)) as small:
            result = await relay(large, small, replace(POLICY, answer_by=answer_by))
        ends = list(accumulate(len(segment.token_ids) for segment in result.segments))
        authors = [segment.author for segment in result.segments]
        _TURNS[answer_by] = list(zip(authors, [0, *ends], ends, strict=False))
    return _TURNS[answer_by]


async def place(stage: Stage, side: Author) -> int:
    """The token at which the engine of `side` fails."""
    own = [(first, end) for author, first, end in await turns(side) if author is side]
    match stage:
        case "render":
            return RENDER
        case "first turn":
            return own[0][0]
        case "mid turn":
            return own[0][0] + 2
        case "hand-over":
            return own[1][0]
        case "answer":
            return own[-1][1] - 1


def text_of(first: int, end: int) -> str:
    """Of these tokens."""
    fake = FakeVllm(SCRIPT)
    return fake.vocabulary.decode(fake.script[first:end])


def text_before(token: int) -> str:
    return text_of(0, max(token, 0))


async def test_the_places_are_what_their_names_say() -> None:
    for side in Author:
        render, first, mid, handover, answer = [await place(stage, side) for stage in STAGES]
        assert render < first < mid < handover < answer
        assert text_before(answer).endswith("\\boxed{72}")
    assert await place("first turn", LARGE) == 0


@pytest.mark.parametrize("stage", STAGES)
async def test_the_large_engine_fails(stage: Stage, subtests: pytest.Subtests) -> None:
    large, small = Faulty(SCRIPT), Faulty(SCRIPT)
    large.at = at = await place(stage, LARGE)
    async with two(large, small) as client:
        for fault in CODES:
            with subtests.test(fault.name):
                large.fault = fault
                answer = await ask(client, LARGE)
                await until(lambda: large.num_open + small.num_open == 0)  # the fakes see it a moment later
                assert (answer.text, answer.finish_reason) == (text_before(at), None)
                assert answer.error
                assert answer.error.code in CODES[fault]
                # A stream that has begun ends with an error event; before, it is an HTTP status.
                assert isinstance(answer.error, openai.APIStatusError) == (at <= 0)
        large.fault = None
        assert (await ask(client, LARGE)).text == TEXT  # nothing of it stays


@pytest.mark.parametrize("stage", STAGES)
async def test_the_small_engine_fails(stage: Stage, subtests: pytest.Subtests) -> None:
    large, small = Faulty(SCRIPT), Faulty(SCRIPT)
    small.at = at = await place(stage, SMALL)
    authors = [author.value for author, first, end in await turns(SMALL) for _ in text_of(first, end)]
    before = len(text_before(at))
    async with two(large, small) as client:
        for fault in CODES:
            with subtests.test(fault.name):
                small.fault = fault
                answer = await ask(client)
                await until(lambda: large.num_open + small.num_open == 0)  # the fakes see it a moment later
                assert (answer.text, answer.error, answer.finish_reason) == (TEXT, None, "stop")
                assert answer.authors == authors[:before] + ["large"] * (len(TEXT) - before)
                [warning] = answer.warnings
                assert "the small model failed and the large one went on alone" in warning
        small.fault = None
        assert (await ask(client)).warnings == []


@pytest.mark.parametrize("slow", Author)
async def test_a_slow_engine_is_not_taken_for_a_failed_one(slow: Author) -> None:
    engines = {author: Faulty(SCRIPT) for author in Author}
    async with two(engines[LARGE], engines[SMALL]) as client:
        engines[slow].pause_s = SILENCE_S / 20
        answer = await ask(client)
        assert (answer.text, answer.error, answer.warnings) == (TEXT, None, [])


@pytest.mark.parametrize("stage", STAGES)
async def test_another_replica_takes_over_before_the_first_token_of_a_turn(
    stage: Stage, subtests: pytest.Subtests
) -> None:
    bad, good, small = Faulty(SCRIPT), Faulty(SCRIPT), Faulty(SCRIPT)
    bad.at = at = await place(stage, LARGE)
    for fault in (Fault.KILL, Fault.STALL, Fault.DOWN):
        with subtests.test(fault.name):
            bad.fault = None
            async with (
                Server.running(bad) as a,
                Server.running(good) as b,
                Server.running(small) as c,
                gateway([a.url, b.url], c.url) as client,
            ):
                bad.fault = fault
                answer = await ask(client, LARGE)  # it begins at the first replica
                if stage in ("mid turn", "answer"):
                    assert (answer.text, answer.error is None) == (text_before(at), False)
                else:
                    assert (answer.text, answer.error, answer.warnings) == (TEXT, None, [])
                    assert good.num_written > 0
                answer = await ask(client, LARGE)  # the first one is out
                assert (answer.text, answer.error) == (TEXT, None)
                assert (
                    f'relaygen_replica_failures_total{{address="{a.url}",author="large"}} '
                    in await metrics(client)
                )


async def metrics(client: openai.AsyncOpenAI) -> str:
    async with aiohttp.request("GET", str(client.base_url.join("/metrics"))) as response:
        return await response.text()


# ---- the client goes, or does not read


async def test_a_client_that_goes_ends_the_work_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    large, small = Faulty(SCRIPT), Faulty(SCRIPT)
    large.pause_s = 0.5  # the whole answer, one turn, takes far longer than is waited for here
    async with two(large, small) as client:
        for fault in (None, Fault.STALL):  # while tokens come, and while none does
            large.fault, large.at = fault, 2
            stream = await begin(client, model="relaygen:large")
            await anext(aiter(stream))
            assert large.num_open == 1
            await stream.close()
            await until(lambda: large.num_open == 0)


@pytest.mark.weights
async def test_a_client_that_goes_ends_the_work_of_a_real_engine(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    server = await LocalServer.start(smollm2, LocalSettings(8192), name="test")
    engine = Http(server.endpoint)

    async def busy() -> bool:
        return any(slot["is_processing"] for slot in await engine.get("/slots"))

    try:
        monkeypatch.setenv("RELAYGEN_LARGE_API_KEY", server.endpoint.api_key or "")
        monkeypatch.setenv("RELAYGEN_SMALL_API_KEY", server.endpoint.api_key or "")
        async with gateway(server.endpoint.url, server.endpoint.url, policy=alone(LARGE)) as client:
            stream = await begin(client)
            await anext(aiter(stream))
            assert await busy()
            await stream.close()
            async with asyncio.timeout(20):  # far less than the whole answer takes
                while await busy():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    finally:
        await engine.close()
        server.close()


async def test_a_client_that_does_not_read_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """It gets more than the buffers on the way to it can hold."""
    caplog.set_level(logging.INFO)

    def given_up() -> bool:
        return any(getattr(r, "fields", {}).get("client") == "does not read" for r in caplog.records)

    script = [letter * 200_000 for letter in ascii_letters]
    large, small = Faulty(script), Faulty(script)
    body = b'{"model": "relaygen:large", "stream": true, "messages": [{"role": "user", "content": "?"}]}'
    async with two(large, small, write_s=0.3) as client:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(lazy, (client.base_url.host, client.base_url.port))
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            await loop.sock_sendall(lazy, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await until(lambda: large.num_open == 1, wait_s=BOUND_S)
            await until(lambda: large.num_open == 0, wait_s=BOUND_S)
            await until(given_up, wait_s=BOUND_S)


# ---- the server stops


class Process:
    """`relaygen serve` as a process of its own."""

    def __init__(self, large: str, small: str, grace_s: float) -> None:
        options = ("--large", large, "--small", small, "--port", "0", "--grace", str(grace_s))
        self._command = (sys.executable, "-m", "relaygen", "serve", *options)

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(*self._command, stderr=asyncio.subprocess.PIPE)
        try:
            self.url = await self._address()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()

    def stop(self) -> None:
        self._process.terminate()

    async def exit_code(self) -> int:
        await self._process.communicate()
        return self._process.returncode or 0

    async def _address(self) -> str:
        assert self._process.stderr
        seen = b""
        async with asyncio.timeout(2 * BOUND_S):
            while not (found := re.search(rb"http://[\d.:]+/v1", seen)):
                line = await self._process.stderr.readline()
                assert line, seen.decode()
                seen += line
        return found[0].decode()


@pytest.mark.parametrize("in_time", [True, False])
async def test_on_sigterm_an_open_stream_ends_properly(in_time: bool) -> None:
    large, small = Faulty(SCRIPT), Faulty(SCRIPT)
    large.pause_s = 0.01 if in_time else 0.2
    async with (
        Server.running(large) as a,
        Server.running(small) as b,
        Process(a.url, b.url, grace_s=BOUND_S if in_time else 0.3) as process,
        openai.AsyncOpenAI(base_url=process.url, api_key="none", max_retries=0) as client,
        asyncio.timeout(2 * BOUND_S),
    ):
        answer = Answer()
        stream = await begin(client)
        try:
            note(answer, await anext(aiter(stream)))
            process.stop()
            async for chunk in stream:
                note(answer, chunk)
        except openai.APIError as error:
            answer.error = error
        if in_time:
            assert (answer.text, answer.finish_reason, answer.error) == (TEXT, "stop", None)
        else:
            assert TEXT.startswith(answer.text)
            assert answer.error
            assert answer.error.code == "stopping"
        assert await process.exit_code() == 0
        await until(lambda: large.num_open + small.num_open == 0)
