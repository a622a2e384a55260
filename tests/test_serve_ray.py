"""The gateway on Ray: its settings, its lifespan, and all of it on a real Ray over simulated engines."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import psutil
import pytest

from relaygen import serve_ray
from relaygen.config import Settings
from relaygen.errors import UserError
from relaygen.gateway.auth import Keys
from relaygen.serve_ray import Gateway
from relaygen.simulate.script import Library
from relaygen.simulate.server import Settings as EngineSettings
from relaygen.simulate.speed import Speed
from relaygen.simulate.vllm import SimulatedVllm
from relaygen.trace import Trace
from tests.serving import ask, events_of
from tests.test_launch import free_port

KEY = "a-key-of-the-tests"
AUTHORISED = {"Authorization": f"Bearer {KEY}"}
TEXT = "We count one more tulip. Therefore, there is one more of them in the garden now. " * 1000
URLS = {"RELAYGEN_LARGE": "http://127.0.0.1:1", "RELAYGEN_SMALL": "http://127.0.0.1:2"}


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in URLS.items():
        monkeypatch.setenv(name, value)


def test_settings_become_a_deployment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELAYGEN_GRACE_S", "7")
    (tmp_path / "relaygen.toml").write_text("max_active = 50\nmax_queued = 10\n")
    built: Any = serve_ray.app({"max_replicas": "20", "streams": "30"})
    deployment = built._bound_deployment
    scaling = deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (1, 20, 30)
    assert deployment.max_ongoing_requests > 60
    assert deployment._deployment_config.graceful_shutdown_timeout_s > 7


def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="max_replicas: input should be greater than or equal to 1"):
        serve_ray.app({"max_replicas": "0"})
    with pytest.raises(UserError, match="min_replicas is 9, but max_replicas 8"):
        serve_ray.app({"min_replicas": "9"})
    with pytest.raises(UserError, match="replicas: extra inputs"):
        serve_ray.app({"replicas": "3"})
    monkeypatch.setenv("RELAYGEN_HOST", "0.0.0.0")
    with pytest.raises(UserError, match="give API keys"):
        serve_ray.app({})
    monkeypatch.setenv("RELAYGEN_SMALL", "qwen2.5-coder-0.5b")
    with pytest.raises(UserError, match=r"'qwen2\.5-coder-0\.5b' would be loaded into each gateway"):
        serve_ray.app({})


def test_keys_that_are_missing_on_a_replica_do_not_open_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYGEN_API_KEYS", KEY)
    built: Any = serve_ray.app({})
    sent = built._bound_deployment._replica_config
    assert b"127.0.0.1" in sent.serialized_deployment_def
    assert KEY.encode() not in sent.serialized_deployment_def
    assert KEY.encode() not in sent.serialized_init_args + sent.serialized_init_kwargs
    monkeypatch.delenv("RELAYGEN_API_KEYS")
    with pytest.raises(UserError, match="give API keys"):
        serve_ray.on_replica(Settings(), needs_keys=True)


async def test_an_engine_that_is_not_there_ends_the_start_with_one_line() -> None:
    gateway = Gateway(Settings(large=URLS["RELAYGEN_LARGE"], small=URLS["RELAYGEN_SMALL"]), Keys())
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    await gateway({"type": "lifespan"}, receive, send)
    [message] = sent
    assert message["type"] == "lifespan.startup.failed"
    assert "http://127.0.0.1:" in message["message"]
    assert "\n" not in message["message"]


# --- on a real Ray


@contextmanager
def on_ray(large: str, small: str) -> Generator[str]:
    """The URL of the gateway. Afterwards nothing of Ray is left."""
    port = free_port()
    environment = {
        **os.environ,
        "RELAYGEN_LARGE": large,
        "RELAYGEN_SMALL": small,
        "RELAYGEN_API_KEYS": KEY,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.ray_driver", str(port)],
        cwd=Path(__file__).parent.parent,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert driver.stdin
    assert driver.stdout
    try:
        lines: list[str] = []
        while not lines or lines[-1] != "ready\n":
            lines.append(driver.stdout.readline())
            assert lines[-1], "".join(lines)
        started = psutil.Process(driver.pid).children(recursive=True)
        assert started
        yield f"http://127.0.0.1:{port}"
        driver.stdin.close()
        rest = driver.stdout.read()
        assert driver.wait(60) == 0, rest
        assert psutil.wait_procs(started, timeout=30)[1] == []
    finally:
        driver.kill()
        driver.wait()
        driver.stdin.close()
        driver.stdout.close()


async def running(url: str) -> float:
    """Requests at work on a simulated engine."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


@pytest.mark.slow
async def test_on_a_real_ray() -> None:
    """Everything in one test: to start and stop Ray takes 30 seconds."""
    library = Library([Trace("tulips", TEXT)])
    engine = EngineSettings("simulated", Speed.of(50, 40_000), max_stops=1000)
    large, small = SimulatedVllm(engine, library), SimulatedVllm(engine, library)
    async with large.running(0) as large_url, small.running(0) as small_url:
        context = on_ray(large_url, small_url)
        url = await asyncio.to_thread(context.__enter__)
        try:
            async with aiohttp.ClientSession(url, headers=AUTHORISED) as http:
                await _whole_and_streamed(http)
                await _refused_without_a_key(url)
                await _a_client_that_leaves(http, [large_url, small_url])
                await _a_second_gateway_for_more_work(http, [large_url, small_url])
        except BaseException:
            await asyncio.to_thread(context.__exit__, *sys.exc_info())
            raise
        await asyncio.to_thread(context.__exit__, None, None, None)


async def _whole_and_streamed(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as response:
        assert "relaygen" in {model["id"] for model in orjson.loads(await response.read())["data"]}
    body = ask("Count the tulips.", max_tokens=60)
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200
        whole = orjson.loads(await response.read())
    assert whole["usage"]["completion_tokens"] == 60
    assert whole["usage"]["relaygen"]["small_tokens"] > 0
    async with http.post("/v1/chat/completions", json={**body, "stream": True}) as response:
        events = events_of(await response.read())
    assert events[-1] == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    told = "".join(delta.get("content") or "" for delta in deltas)
    assert told == whole["choices"][0]["message"]["content"]
    assert TEXT.startswith(told)


async def _refused_without_a_key(url: str) -> None:
    async with aiohttp.ClientSession(url) as http, http.get("/v1/models") as response:
        assert response.status == 401


async def _a_client_that_leaves(http: aiohttp.ClientSession, engines: list[str]) -> None:
    """Its first text comes while an engine still writes, and its leaving ends that: the whole would take minutes."""
    body = ask("Count the tulips.", max_tokens=20_000, stream=True)
    async with http.post("/v1/chat/completions", json=body) as response:
        assert await response.content.readuntil(b"tulip")
        assert sum([await running(url) for url in engines]) == 1
        response.close()
    deadline = time.monotonic() + 20
    while sum([await running(url) for url in engines]):
        assert time.monotonic() < deadline, "an engine writes on for a client that has left"
        await asyncio.sleep(0.1)


async def _a_second_gateway_for_more_work(http: aiohttp.ClientSession, engines: list[str]) -> None:
    """Five streams are more than the two that one gateway should have. Both then have connections to the engines."""
    ports = {urlsplit(url).port for url in engines}

    def at_work() -> int:
        return sum(
            any(peer.raddr and peer.raddr.port in ports for peer in process.net_connections())
            for process in psutil.process_iter(["cmdline"])
            if "ServeReplica" in " ".join(process.info["cmdline"] or ())
        )

    async def stream() -> None:
        body = ask("Count the tulips.", max_tokens=20_000, stream=True)
        async with http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200
            await response.content.read()

    async with asyncio.timeout(150):
        streams = [asyncio.create_task(stream()) for _ in range(5)]
        while at_work() < 2:
            await asyncio.sleep(2)
            streams.append(asyncio.create_task(stream()))  # those that run stay where they are
    assert not any(task.done() for task in streams)
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
