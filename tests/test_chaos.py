"""The fault harness itself, and a short run of it between the relay and its engines (the long one: benchmarks/chaos.py)."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from benchmarks import chaos, soak
from rich.console import Console

from relaygen.chaos import faults
from relaygen.chaos.faults import Fault, Kind, Stage
from relaygen.chaos.proxy import Proxy
from relaygen.errors import UserError
from tests.bare import bare_server

BODY = b"0123456789" * 40
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n" + BODY
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n190\r\n" + BODY + b"\r\n0\r\n\r\n"


@asynccontextmanager
async def before(answer: bytes, *planned: Fault | None) -> AsyncGenerator[tuple[Proxy, int]]:
    """A server that gives `answer` to whatever it is asked, and a proxy before it, with a plan for its first requests."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(10_000):
            writer.write(answer)

    async with bare_server(serve) as target:
        proxy = Proxy(target, lambda number: planned[number] if number < len(planned) else None, delay_s=0.01)
        async with proxy.running() as url:
            yield proxy, int(url.rpartition(":")[2])


async def ask(port: int, *, wait_s: float = 5) -> tuple[bytes, str]:
    """What came, and how it ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    came = b""
    try:
        async with asyncio.timeout(wait_s):
            while data := await reader.read(10_000):
                came += data
                if came in (ANSWER, CHUNKED):
                    return came, "whole"
        return came, "closed"
    except TimeoutError:
        return came, "silent"
    except ConnectionError:
        return came, "reset"
    finally:
        writer.transport.abort()


HEAD_BYTES = len(ANSWER) - len(BODY)


@pytest.mark.parametrize(
    ("fault", "came", "ended"),
    [
        (Fault(Kind.RESET, Stage.CONNECT), 0, "reset"),
        (Fault(Kind.CLOSE, Stage.REQUEST, 5), 0, "closed"),
        (Fault(Kind.CLOSE, Stage.HEAD, 7), 7, "closed"),
        (Fault(Kind.RESET, Stage.BODY, 123), HEAD_BYTES + 123, "reset"),
        (Fault(Kind.CLOSE, Stage.BODY, 123), HEAD_BYTES + 123, "closed"),
        (Fault(Kind.STALL, Stage.BODY, 123), HEAD_BYTES + 123, "silent"),
        (Fault(Kind.CLOSE, Stage.END, 10), len(ANSWER) - 10, "closed"),
        (Fault(Kind.TRICKLE, Stage.HEAD, 3), len(ANSWER), "whole"),
        (Fault(Kind.DELAY, Stage.BODY, 3), len(ANSWER), "whole"),
        (Fault(Kind.RESET, Stage.REUSE), len(ANSWER), "whole"),  # a first request reuses nothing
    ],
    ids=str,
)
async def test_a_fault_strikes_at_its_byte(fault: Fault, came: int, ended: str) -> None:
    async with before(ANSWER, fault) as (proxy, port):
        found, how = await ask(port, wait_s=0.3 if ended == "silent" else 5)
        assert (found, how) == (ANSWER[:came], ended)
        assert proxy.struck == ([] if fault.stage is Stage.REUSE else [(0, fault)])
        assert await ask(port) == (ANSWER, "whole")
    assert not proxy.num_links


async def test_bytes_are_corrupted_in_their_place() -> None:
    async with before(ANSWER, Fault(Kind.CORRUPT, Stage.BODY, 100)) as (_, port):
        found, _ = await ask(port, wait_s=0.3)
    assert found == ANSWER[: HEAD_BYTES + 100] + b"\xff" * 16 + ANSWER[HEAD_BYTES + 116 :]


async def test_the_end_of_a_body_in_chunks() -> None:
    async with before(CHUNKED, Fault(Kind.CLOSE, Stage.END, 4)) as (_, port):
        assert await ask(port) == (CHUNKED[:-4], "closed")


@pytest.mark.parametrize("kind", [Kind.BUSY, Kind.DOWN])
async def test_requests_are_refused(kind: Kind) -> None:
    body = {"error": {"message": "chaos", "code": int(kind)}}
    async with before(ANSWER, Fault(kind, Stage.REQUEST)) as (_, port), aiohttp.ClientSession() as http:
        response = await http.post(f"http://127.0.0.1:{port}", data=b"x" * 300_000)
        assert (response.status, await response.json()) == (int(kind), body)


async def test_a_connection_that_served_before_breaks() -> None:
    fault = Fault(Kind.RESET, Stage.REUSE)
    async with before(ANSWER, fault, fault) as (proxy, port), aiohttp.ClientSession() as http:
        for _ in range(2):  # aiohttp itself repeats a GET on a new connection
            async with http.get(f"http://127.0.0.1:{port}") as response:
                assert await response.read() == BODY
        assert proxy.struck == [(1, fault)]


def test_a_plan_depends_on_its_seed_alone() -> None:
    first, again, other = faults.plan(7, 0.3), faults.plan(7, 0.3), faults.plan(8, 0.3)
    numbers = range(2000)
    assert [first(n) for n in numbers] == [again(n) for n in numbers] != [other(n) for n in numbers]
    met = [fault for n in numbers if (fault := first(n))]
    assert 500 < len(met) < 700
    assert {(fault.stage, fault.kind) for fault in met} == {
        (stage, kind) for stage, kinds in faults.KINDS.items() for kind in kinds
    }
    busy = faults.plan(7, 1, [Kind.BUSY])
    assert all(fault and fault.kind is Kind.BUSY for fault in map(busy, numbers))


def test_only_plain_http_is_spoilt() -> None:
    for target in ("https://gpu:8000", "gpu:8000", "http://"):
        with pytest.raises(UserError, match="begins with http://"):
            Proxy(target)


async def test_the_command() -> None:
    async def hello(request: web.BaseRequest) -> web.Response:
        return web.Response(text="hello")

    runner = web.ServerRunner(web.Server(hello))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    target = f"http://127.0.0.1:{runner.addresses[0][1]}"
    command = [sys.executable, "-u", "-m", "relaygen.chaos", target, "--rate", "1", "--kind", "503"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        line = (await process.stdout.readline()).decode()
        found = re.fullmatch(rf"(http://\S+) -> {target}\n", line)
        assert found, line
        statuses: list[int] = []
        async with aiohttp.ClientSession() as http:
            for _ in range(20):
                async with http.get(found[1]) as response:
                    statuses.append(response.status)
        assert 503 in statuses  # where the place is within the request
        assert 200 in statuses  # where it is beyond its end
        said = (await process.stdout.readline()).decode()
        assert re.fullmatch(r"request \d+: 503 at (request|reuse)\+\d+\n", said)
    finally:
        process.send_signal(signal.SIGINT)
        await process.communicate()
        await runner.cleanup()
    assert process.returncode == 0


async def test_no_fault_breaks_a_promise() -> None:
    """A short run of `python -m benchmarks.chaos`."""
    await chaos.play(4, seed=1000, at_once=1)  # what is loaded and made once
    census = chaos.Census.take()
    outcomes = await chaos.play(60, seed=int(os.environ.get("RELAYGEN_CHAOS_SEED", "1")), at_once=1)
    assert [outcome for outcome in outcomes if outcome.wrong] == []
    assert {outcome.ending for outcome in outcomes} == {"whole", "error", "left"}
    assert await census.exceeded() is None


@pytest.mark.slow
@pytest.mark.weights
async def test_no_fault_before_llamacpp_breaks_a_promise() -> None:
    outcomes = await chaos.play_real(6, seed=1)
    assert [outcome for outcome in outcomes if outcome.wrong] == []


@pytest.mark.slow
async def test_a_gateway_among_faults_keeps_nothing(tmp_path: Path) -> None:
    """A short run of `python -m benchmarks.soak`: too short for 5 %, long enough for what leaks with each request."""
    found = await soak.soak(argparse.Namespace(minutes=0.15, streams=20), tmp_path, Console(quiet=True))
    assert found["faults"] > 0
    assert found["endings"]["whole"] > 20
    assert found["endings"]["left"] > 0
    assert found["files"]["after"] <= found["files"]["before"]
    assert found["growth"] < 0.25
