"""Does the gateway keep what it should let go? Memory and open files of `relaygen serve` over many streams that come and go.

    python -m benchmarks.soak [--minutes 30] [--streams 50]

The gateway runs as its users start it, over simulated engines behind fault proxies (relaygen.chaos): one request in fifty meets
a fault. One client in five leaves in the middle. The first fifth of the time is warm-up. After it the medians of the first and
of the last quarter of the samples are compared: more than 5 % of growth in memory, or files that are left when all clients have
gone, make the exit status 1. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from rich.console import Console

from benchmarks.chaos import until
from benchmarks.gateway_load import gateway
from benchmarks.simulator import recorded, simulators
from relaygen.chaos import faults
from relaygen.chaos.faults import Kind
from relaygen.chaos.proxy import Proxy

SPEED = "200:1000000"
FAULTS = 0.02
# A stall would last as long as the gateway's patience, which is ten minutes.
KINDS = tuple(kind for kind in Kind if kind is not Kind.STALL)
LEAVES = 0.2
MAX_GROWTH = 0.05
SAMPLE_S = 3.0


class Soak:
    """`endings` counts how requests ended, `samples` are (bytes, files) of the gateway."""

    def __init__(self, url: str, pid: int, problems: list[str], seed: int) -> None:
        self._url = url
        self._process = psutil.Process(pid)
        self._problems = problems
        self._draw = random.Random(seed)
        self.endings: Counter[str] = Counter()
        self.samples: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        family = (self._process, *self._process.children(recursive=True))
        return sum(p.memory_info().rss for p in family), sum(p.num_fds() for p in family)

    async def run(self, seconds: float, num_streams: int) -> None:
        ends = time.monotonic() + seconds
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            clients = [asyncio.create_task(self._client(http, ends)) for _ in range(num_streams)]
            while time.monotonic() < ends:
                await asyncio.sleep(min(SAMPLE_S, seconds / 20))
                self.samples.append(self.take())
            await asyncio.gather(*clients)

    async def _client(self, http: aiohttp.ClientSession, ends: float) -> None:
        while time.monotonic() < ends:
            try:
                self.endings[await self._ask(http)] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                self.endings[type(error).__name__] += 1
            await asyncio.sleep(self._draw.random() * 0.2)

    async def _ask(self, http: aiohttp.ClientSession) -> str:
        leaves_after = self._draw.randrange(100) if self._draw.random() < LEAVES else None
        body = {
            "model": "relaygen",
            "messages": [{"role": "user", "content": self._draw.choice(self._problems)}],
            "temperature": 0,
            "max_tokens": self._draw.randrange(20, 300),
            "stream": True,
        }
        limit = aiohttp.ClientTimeout(total=120)
        url = f"{self._url}/v1/chat/completions"
        async with http.post(url, json=body, timeout=limit) as response:
            if response.status != 200:
                return str(response.status)
            num_lines, failed = 0, False
            async for line in response.content:
                num_lines += 1
                failed = failed or line.startswith(b'data: {"error"')
                if leaves_after is not None and num_lines > 2 * leaves_after:
                    return "left"
                if line.startswith(b"data: [DONE]"):
                    return "error" if failed else "whole"
        return "error" if failed else "cut"


async def soak(options: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    _, traces = recorded()
    with simulators(folder, traces, "--large", SPEED, "--small", SPEED) as engines:
        async with AsyncExitStack() as stack:
            proxies = [Proxy(url) for url in engines.values()]
            urls = [await stack.enter_async_context(proxy.running()) for proxy in proxies]
            running = gateway(dict(zip(engines, urls, strict=True)), folder)
            # The gateway asks its engines through the proxies of this very loop.
            url, pid = await asyncio.to_thread(running.__enter__)
            try:
                return await _measure(
                    options, Soak(url, pid, [t["problem"] for t in traces], 1), proxies, console
                )
            finally:
                await asyncio.to_thread(running.__exit__, None, None, None)


async def _measure(
    options: argparse.Namespace, run: Soak, proxies: list[Proxy], console: Console
) -> dict[str, Any]:
    seconds = options.minutes * 60
    console.print(f"warming up for {seconds / 5:g} s")
    await run.run(seconds / 5, options.streams)
    await asyncio.sleep(6)  # idle connections are closed after 4 s
    files = run.take()[1]
    run.samples.clear()
    for number, proxy in enumerate(proxies):
        proxy.plan = faults.plan(number, FAULTS, KINDS)
    console.print(f"{options.streams} streams for {seconds:g} s")
    await run.run(seconds, options.streams)
    for proxy in proxies:
        proxy.plan = faults.nothing
    flat = await until(lambda: run.take()[1] <= files, wait_s=20)
    quarter = max(1, len(run.samples) // 4)
    first, last = (
        statistics.median(rss for rss, _ in part) for part in (run.samples[:quarter], run.samples[-quarter:])
    )
    return {
        "minutes": options.minutes,
        "streams": options.streams,
        "faults": sum(len(proxy.struck) for proxy in proxies),
        "endings": dict(run.endings),
        "rss_mib": [round(first / 2**20, 1), round(last / 2**20, 1)],
        "growth": round(last / first - 1, 4),
        "files": {"before": files, "most": max(n for _, n in run.samples), "after": run.take()[1]},
        "ok": flat and last <= first * (1 + MAX_GROWTH),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--streams", type=int, default=50)
    options = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(soak(options, Path(folder), console))
    for name, value in figures.items():
        print(f"{name:10} {value}")
    print(json.dumps({"benchmark": "soak", **figures}))
    sys.exit(not figures["ok"])


if __name__ == "__main__":
    main()
