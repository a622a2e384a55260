"""`relaygen serve --workers`: real processes on real sockets, in front of simulated engines."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from relaygen.config import Settings
from relaygen.errors import UserError
from relaygen.gateway import workers
from relaygen.gateway.auth import Keys
from relaygen.gateway.server import listen
from relaygen.gateway.totals import Family, Totals
from relaygen.simulate.script import Library
from relaygen.simulate.server import Settings as EngineSettings
from relaygen.simulate.speed import Speed
from relaygen.simulate.vllm import SimulatedVllm
from tests.serving import ask, events_of

URLS: dict[str, Any] = {"large": "http://large", "small": "http://small"}
KEY = "a-key-of-the-test"


def processes(test: Callable[..., Any]) -> Any:
    """Looks into /proc, and takes seconds."""
    for mark in (
        pytest.mark.slow,
        pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: reads /proc"),
    ):
        test = mark(test)
    return test


# --- settings


def test_the_limits_are_divided() -> None:
    settings = Settings(workers=3, max_active=10, max_queued=2, **URLS)
    parts = [workers.part(settings, number) for number in range(3)]
    assert [part.max_active for part in parts] == [4, 3, 3]
    assert [part.max_queued for part in parts] == [1, 1, 0]


def test_settings_survive_the_way_to_a_worker() -> None:
    settings = Settings(workers=2, api_keys_file=Path("keys"), cors_origins=("https://a.example",), **URLS)
    sent = orjson.loads(orjson.dumps(settings.model_dump(mode="json")))
    assert Settings.model_validate(sent) == settings
    keys = Keys.from_json(Keys([KEY]).to_json())
    assert keys.allow(f"Bearer {KEY}")
    assert not keys.allow("Bearer another-key")
    assert KEY not in str(Keys([KEY]).to_json())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workers": 2}, "each worker would load qwen2.5-coder-1.5b"),
        ({"workers": 2, "small": "http://small"}, "each worker would load qwen2.5-coder-1.5b"),
        ({"workers": 5, "max_active": 4, **URLS}, "max_active 4 is less than 5 workers"),
    ],
)
def test_what_several_workers_cannot_do(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        workers.check(Settings(**fields))


def test_one_worker_is_always_possible() -> None:
    workers.check(Settings())
    workers.check(Settings(workers=2, large="http://large", policy="large"))


# --- sums


def counted(
    tokens: dict[str, float], active: float, alive: float, requests: dict[str, float]
) -> list[Family]:
    total = sum(tokens.values())
    return [
        ("relaygen_tokens", "", "counter", [("relaygen_tokens_total", {"author": a}, n) for a, n in tokens.items()]),
        ("relaygen_small_share", "", "gauge", [("relaygen_small_share", {}, tokens["small"] / total)]),
        ("relaygen_active_generations", "", "gauge", [("relaygen_active_generations", {}, active)]),
        ("relaygen_replica_alive", "", "gauge", [("relaygen_replica_alive", {"address": "a"}, alive)]),
        ("relaygen_requests", "", "counter", [("relaygen_requests_total", {"path": p}, n) for p, n in requests.items()]),
    ]  # fmt: skip


def values_of(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_sums_of_workers() -> None:
    totals = Totals()
    one = counted({"large": 10, "small": 30}, 3, 1, {"/": 1})
    two = counted({"large": 50, "small": 10}, 4, 0, {"/v1": 5})
    found = values_of(totals.text([one, two]).decode())
    assert found == values_of(totals.text([one, two]).decode())  # asking changes nothing
    assert found == {
        'relaygen_tokens_total{author="large"}': 60,
        'relaygen_tokens_total{author="small"}': 40,
        "relaygen_small_share": 0.4,
        "relaygen_active_generations": 7,
        'relaygen_replica_alive{address="a"}': 0,
        'relaygen_requests_total{path="/"}': 1,
        'relaygen_requests_total{path="/v1"}': 5,
    }


def test_an_ended_worker_leaves_its_counts_and_not_its_work() -> None:
    totals = Totals()
    totals.add_ended(counted({"large": 10, "small": 30}, 3, 0, {"/": 1}))
    found = values_of(totals.text([counted({"large": 50, "small": 10}, 4, 1, {"/": 5})]).decode())
    assert found['relaygen_tokens_total{author="large"}'] == 60
    assert found["relaygen_small_share"] == 0.4
    assert found["relaygen_active_generations"] == 4
    assert found['relaygen_replica_alive{address="a"}'] == 1
    assert found['relaygen_requests_total{path="/"}'] == 6


# --- processes


@dataclass
class Running:
    process: asyncio.subprocess.Process
    url: str
    http: aiohttp.ClientSession
    logs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def workers(self) -> list[int]:
        """The process ids of those that are or were ready, the last ones last."""
        return [line["pid"] for line in self.logs if line["event"] == "worker ready"]

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.logs if line["event"] == event]

    def completions(self) -> list[dict[str, Any]]:
        return [line for line in self.logged("request") if line["path"] == "/v1/chat/completions"]

    async def stream(self, max_tokens: int = 20) -> list[Any]:
        async with self.begin(max_tokens) as response:
            return events_of(await response.read())

    def begin(self, max_tokens: int) -> Any:
        """On a connection of its own."""
        body = ask(stream=True, stream_options={"include_usage": True}, max_tokens=max_tokens)
        headers = {"Connection": "close"}
        return self.http.post(self.url + "/v1/chat/completions", json=body, headers=headers)

    async def metrics(self) -> dict[str, float]:
        async with self.http.get(self.url + "/metrics", headers={"Connection": "close"}) as response:
            assert response.status == 200
            return values_of(await response.text())

    async def are_active(self, number: int) -> None:
        async with asyncio.timeout(60):
            while (await self.metrics())["relaygen_active_generations"] != number:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "relaygen", "serve", "--port", "0", *flags]


@asynccontextmanager
async def engine(tokens_s: float = 2000) -> AsyncGenerator[str]:
    speed = Speed.of(tokens_s, 1_000_000)
    async with SimulatedVllm(EngineSettings("simulated", speed), Library.read()).running() as url:
        yield url


@asynccontextmanager
async def running(*flags: str, num: int = 2, tokens_s: float = 2000) -> AsyncGenerator[Running]:
    async with engine(tokens_s) as url, aiohttp.ClientSession() as http:
        process = await asyncio.create_subprocess_exec(
            *command("--large", url, "--small", url, "--workers", str(num), *flags), stderr=asyncio.subprocess.PIPE
        )  # fmt: skip
        found = Running(process, "", http)
        reading = asyncio.create_task(_read(found))
        try:
            await eventually(lambda: bool(found.url))
            yield found
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGTERM)
            await process.wait()
            await reading  # to the end: nobody holds standard error any more
            await eventually(lambda: not any(map(alive, found.workers())))


async def _read(found: Running) -> None:
    assert found.process.stderr
    async for line in found.process.stderr:
        if line.startswith(b"{"):
            found.logs.append(json.loads(line))
        elif address := re.search(rb"serves .* at (http://\S+)", line):
            found.url = address[1].decode()


async def eventually(condition: Callable[[], bool], within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def inodes(pid: int) -> set[str]:
    """Of the sockets that the process holds."""
    links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH115, PTH208
    return {link for link in links if link.startswith("socket:")}


@processes
async def test_workers_share_the_work_and_add_up_what_they_count() -> None:
    async with running() as gateway:
        assert len(gateway.workers()) == 2
        streams = await asyncio.gather(*(gateway.stream() for _ in range(20)))
        assert all(events[-1] == "[DONE]" for events in streams)
        await eventually(lambda: len(gateway.completions()) == 20)  # a request is counted once it is all sent
        metrics = await gateway.metrics()
        parent = inodes(gateway.process.pid)
        for pid in gateway.workers():
            assert not inodes(pid) & parent  # neither the listening socket nor its ends of anything
        assert len(inodes(gateway.process.pid)) < 20  # what was handed over is closed here
    assert sorted(line["worker"] for line in gateway.completions()) == [0] * 10 + [1] * 10
    usages = [events[-2]["usage"] for events in streams]
    for author in ("large", "small"):
        counted = sum(usage["relaygen"][f"{author}_tokens"] for usage in usages)
        assert metrics[f'relaygen_tokens_total{{author="{author}"}}'] == counted
    assert metrics['relaygen_requests_total{path="/v1/chat/completions",status="200"}'] == 20
    assert metrics["relaygen_first_token_seconds_count"] == 20
    assert metrics["relaygen_workers"] == 2
    assert metrics["relaygen_active_generations"] == 0


@processes
async def test_a_killed_worker_is_started_again_and_the_others_go_on() -> None:
    async with running(tokens_s=40) as gateway:
        first, second = gateway.workers()
        work = [asyncio.create_task(gateway.stream(200)) for _ in range(4)]
        await gateway.are_active(4)
        await asyncio.sleep(1.5)  # till the counts were looked at
        before = await gateway.metrics()
        os.kill(first, signal.SIGKILL)
        answers = await asyncio.gather(*work, return_exceptions=True)
        broken = [one for one in answers if isinstance(one, aiohttp.ClientPayloadError)]
        whole = [one for one in answers if isinstance(one, list)]
        assert (len(broken), len(whole)) == (2, 2)
        assert all(events[-1] == "[DONE]" for events in whole)
        await eventually(lambda: len(gateway.workers()) == 3)
        again = [await gateway.stream() for _ in range(4)]
        assert all(events[-1] == "[DONE]" for events in again)
        await gateway.are_active(0)
        after = await gateway.metrics()
        ended = gateway.logged("worker ended")
        assert [(line["level"], line["how"], line["again_in_s"]) for line in ended] == [
            ("error", "signal SIGKILL", 1.0)
        ]
        third = gateway.workers()[-1]
        assert {second, third} == set(filter(alive, gateway.workers()))
        await eventually(lambda: len(gateway.completions()) >= 6)  # two ended with their worker
        assert {line["worker"] for line in gateway.completions()} == {0, 1}
    assert after["relaygen_worker_restarts_total"] == 1
    assert after["relaygen_workers"] == 2
    assert after["relaygen_active_generations"] == 0
    sums = [name for name in before if re.search("_(total|count|bucket|sum)($|{)", name)]
    assert all(after[name] >= before[name] for name in sums)
    # the two that went on, the four after it, and what was counted of the two that broke
    assert after["relaygen_first_token_seconds_count"] == 8


@processes
async def test_who_is_told_the_address_can_connect() -> None:
    def started() -> None:
        socket.create_connection(listener.getsockname(), timeout=10).close()
        signal.raise_signal(signal.SIGTERM)

    async with engine() as url:
        settings = Settings(large=url, small=url, workers=2)
        with listen("127.0.0.1", 0) as listener:
            await workers.serve(settings, Keys(), listener, started)


@processes
@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_the_stop_lets_what_runs_finish(which: signal.Signals) -> None:
    async with running(tokens_s=40) as gateway:
        work = [asyncio.create_task(gateway.stream(60)) for _ in range(4)]
        await gateway.are_active(4)
        gateway.process.send_signal(which)
        streams = await asyncio.gather(*work)
        assert all(events[-1] == "[DONE]" for events in streams)
        assert all(events[-2]["usage"]["completion_tokens"] == 60 for events in streams)
        assert await asyncio.wait_for(gateway.process.wait(), 60) == 0
        with pytest.raises(aiohttp.ClientConnectorError):
            await gateway.stream()


@processes
async def test_what_takes_too_long_is_ended_in_order() -> None:
    async with running("--grace", "0.5", tokens_s=20) as gateway:
        work = [asyncio.create_task(gateway.stream(2000)) for _ in range(2)]
        await gateway.are_active(2)
        gateway.process.send_signal(signal.SIGTERM)
        streams = await asyncio.gather(*work)
        assert [events[-1]["error"]["code"] for events in streams] == ["stopping"] * 2
        assert await asyncio.wait_for(gateway.process.wait(), 60) == 0


@processes
async def test_workers_do_not_outlive_their_parent() -> None:
    async with running() as gateway:
        gateway.process.kill()
        await gateway.process.wait()
        await eventually(lambda: len(gateway.logged("stopping")) == 2)
        assert {line["why"] for line in gateway.logged("stopping")} == {"the parent process is gone"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--large", "http://127.0.0.1:9", "--small", "http://127.0.0.1:9"), 5, "the large model at"),
        ((), 2, "each worker would load"),
        (("--large", "http://127.0.0.1:9", "--policy", "nonsense"), 2, "unknown policy 'nonsense'"),
    ],
)
async def test_a_start_that_fails_is_told_once(flags: tuple[str, ...], code: int, words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command("--workers", "3", *flags), stderr=asyncio.subprocess.PIPE
    )
    _, told = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == code
    assert len(told.decode().splitlines()) == 1
    assert words in told.decode()
