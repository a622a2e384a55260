"""Faults at random between the relay and its engines: does every generation end, and is every token the right one?

    python -m benchmarks.chaos [--faults 1000] [--real 60] [--seed 1]

Proxies (relaygen.chaos) stand before simulated engines of both dialects, one or two replicas a side, and spoil requests of the
large and of the small side at all stages: connect, request, reuse, head, body, end. Some generations read along (pre-warm), and
some callers leave in the middle. `--real` faults more meet llama.cpp in this process, a model relayed with itself.

Both engines would write the same ids, so the ids of one uninterrupted run are the truth for any hand-over and any fault. A
generation is right when it ends in time, and

    whole   gave exactly these ids (where the small side failed: with a warning)
    error   raised one of our errors; what came before is the beginning of the ids, and is what the error carries
    left    gave the beginning of the ids when its caller left

Everything else is listed, and makes the exit status 1; so do tasks, sockets, files, threads, requests or slots that outlive the
run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from relaygen import models
from relaygen.chaos import faults
from relaygen.chaos.faults import Fault
from relaygen.chaos.proxy import Proxy
from relaygen.core.policy import Policy, alone, alternate, segment
from relaygen.engines.base import Engine
from relaygen.engines.open import open_engine
from relaygen.engines.vocabulary import translation
from relaygen.errors import RelayError
from relaygen.local import LocalServer, LocalSettings
from relaygen.run import Pair, Run
from relaygen.simulate.llamacpp import SimulatedLlamaServer
from relaygen.simulate.script import Library
from relaygen.simulate.server import Settings, SimulatedServer
from relaygen.simulate.speed import Speed
from relaygen.simulate.vllm import SimulatedVllm
from relaygen.types import Author, Message, Sampling, Token

SERVERS: dict[str, type[SimulatedServer]] = {"vllm": SimulatedVllm, "llamacpp": SimulatedLlamaServer}
SILENCE_S = 1.5  # after which an engine is given up, here
BOUND_S = 30.0  # a generation that takes longer hangs
MAX_TOKENS = 100
NUM_PROMPTS = 4
REAL_TOKENS = 32
CUES = ("Therefore,", "Thus,", "So,", "Now", "Wait,")
THINK = ("<think>", "</think>")
POLICIES = (alternate(13), alternate(30), segment(CUES, think=THINK))
GREEDY = Sampling(temperature=0, top_k=1, seed=1)
SAMPLES = 8  # of the memory
REACH = 8  # the fault waits for one of the first so many requests of its side

Ending = Literal["whole", "error", "left"]


@dataclass(frozen=True)
class Outcome:
    """Of one generation. `wrong` says what should not have happened."""

    struck: tuple[Fault, ...]
    side: Author
    ending: Ending
    error: str | None
    wrong: str | None
    seconds: float


@dataclass
class Place:
    """A pair behind proxies, and what it writes without a fault."""

    pair: Pair
    proxies: dict[Author, list[Proxy]]
    prompts: Sequence[str]
    truth: dict[str, tuple[int, ...]]
    max_tokens: int = MAX_TOKENS
    outcomes: list[Outcome] = field(default_factory=list[Outcome])

    @property
    def num_struck(self) -> int:
        return sum(len(outcome.struck) for outcome in self.outcomes)


async def write(pair: Pair, prompt: str, policy: Policy, max_tokens: int) -> tuple[int, ...]:
    run = _run(pair, prompt, policy, max_tokens, None)
    async with aclosing(run.events()) as events:
        return tuple([i async for event in events if isinstance(event, Token) for i in event.token_ids])


def _run(pair: Pair, prompt: str, policy: Policy, max_tokens: int, prewarm_tokens: int | None) -> Run:
    return Run(
        pair,
        [Message("user", prompt)],
        policy=policy,
        sampling=GREEDY,
        max_tokens=max_tokens,
        prewarm_tokens=prewarm_tokens,
    )


async def one(place: Place, seed: int, number: int) -> Outcome:
    """The generation of this number, with a fault of its own."""
    draw = random.Random(f"{seed}-{number}")
    side = draw.choice(list(Author))
    fault, wait = faults.fault(seed, number), draw.randrange(REACH)
    prompt, policy = draw.choice(place.prompts), draw.choice(POLICIES)
    leaves_after = draw.randrange(place.max_tokens) if draw.random() < 0.1 else None
    run = _run(place.pair, prompt, policy, place.max_tokens, draw.choice([None, 8]))
    proxies = place.proxies[side]
    for proxy in proxies:
        proxy.plan = _once(fault, proxies, proxy.num_requests + wait)
    begun = time.monotonic()
    ids: list[int] = []
    ending: Ending = "whole"
    error: Exception | None = None
    try:
        async with asyncio.timeout(BOUND_S), aclosing(run.events()) as events:
            async for event in events:
                ids += event.token_ids if isinstance(event, Token) else ()
                if leaves_after is not None and len(ids) > leaves_after:
                    ending = "left"
                    break
    except Exception as raised:
        error, ending = raised, "error"
    for proxy in proxies:
        proxy.plan = faults.nothing
    struck = tuple(fault for proxy in proxies for _, fault in proxy.struck)
    for proxy in proxies:
        proxy.struck.clear()
    wrong = _wrong(run, error, ending, ids, place.truth[prompt], struck)
    what = type(error).__name__ if error else None
    return Outcome(struck, side, ending, what, wrong, time.monotonic() - begun)


def _once(fault: Fault, proxies: Sequence[Proxy], begin: int) -> faults.Plan:
    """From request `begin` on, until it has struck at one of `proxies`."""

    def befalls(number: int) -> Fault | None:
        return fault if number >= begin and not any(proxy.struck for proxy in proxies) else None

    return befalls


def _wrong(
    run: Run,
    error: Exception | None,
    ending: Ending,
    ids: Sequence[int],
    truth: Sequence[int],
    struck: Sequence[Fault],
) -> str | None:
    if isinstance(error, TimeoutError):
        return "hangs"
    if error and not isinstance(error, RelayError):
        return f"not one of our errors: {error!r}"
    if tuple(ids) != tuple(truth[: len(ids)]):
        same = next(n for n, (a, b) in enumerate(zip(ids, [*truth, -1], strict=False)) if a != b)
        return f"token {same} of {len(truth)} is another one"
    result = run.result()
    if tuple(i for segment in result.segments for i in segment.token_ids) != tuple(ids):
        return "the result is not what was delivered"
    partial = error.partial if isinstance(error, RelayError) else None
    if error and (not partial or partial.text != result.text or partial.finish_reason != "error"):
        return "the error does not carry what was delivered"
    if ending == "whole" and len(ids) != len(truth):
        return f"ended as if whole after {len(ids)} of {len(truth)} tokens"
    failed = [s for s in result.segments if s.reason.value == "small_failed"]
    if failed and not result.warnings:
        return "the small model failed, and there is no warning"
    harmless = all(fault.kind in faults.HARMLESS for fault in struck)
    if harmless and (error or result.warnings) and "silent" not in f"{error}{result.warnings}":
        return f"there was no fault, and yet: {error or result.warnings}"
    return None


# --- where it happens


@asynccontextmanager
async def simulated(dialect: str, num_replicas: int) -> AsyncGenerator[Place]:
    """Simulated engines behind proxies. On leaving no request may be left at them."""
    library = Library.read()
    speed = Speed.of(20_000, 1_000_000)
    async with AsyncExitStack() as outer:
        servers = {
            author: [SERVERS[dialect](Settings(author.value, speed), library) for _ in range(num_replicas)]
            for author in Author
        }
        urls = {
            author: [await outer.enter_async_context(server.running()) for server in group]
            for author, group in servers.items()
        }
        prompts = [script.problem for script in library.scripts][:NUM_PROMPTS]
        async with behind(urls, None, prompts, MAX_TOKENS) as place:
            yield place
        idle = await until(lambda: not any(s.num_requests for group in servers.values() for s in group))
        if not idle:
            raise AssertionError("requests are left at the simulated engines")


@asynccontextmanager
async def real(model: Path) -> AsyncGenerator[Place]:
    """llama.cpp in this process, one token at a time: only so are a text read and a text written the same to the last bit."""
    async with AsyncExitStack() as stack:
        urls: dict[Author, list[str]] = {}
        keys: dict[Author, str | None] = {}
        for author in Author:
            settings = LocalSettings(context_tokens=1024, num_slots=2, batch_invariant=True)
            server = await LocalServer.start(model, settings, name=author.value)
            stack.callback(server.close)
            urls[author], keys[author] = [server.endpoint.url], server.endpoint.api_key
        prompts = [f"What is {a} times {a + 5}, and why?" for a in range(12, 12 + NUM_PROMPTS)]
        async with behind(urls, keys, prompts, REAL_TOKENS) as place:
            yield place
        for author in Author:
            if busy := await slots_at_work(urls[author][0], keys[author]):
                raise AssertionError(f"{busy} slots of llama.cpp are still at work")


@asynccontextmanager
async def behind(
    urls: dict[Author, list[str]],
    keys: dict[Author, str | None] | None,
    prompts: Sequence[str],
    max_tokens: int,
) -> AsyncGenerator[Place]:
    async with AsyncExitStack() as stack:
        proxies = {author: [Proxy(url) for url in group] for author, group in urls.items()}
        engines: dict[Author, Engine] = {}
        for author, group in proxies.items():
            engines[author] = await stack.enter_async_context(
                open_engine(
                    [await stack.enter_async_context(proxy.running()) for proxy in group],
                    name=f"the {author} model",
                    settings=LocalSettings(),
                    api_key=keys[author] if keys else None,
                    progress=models.quiet,
                    silence_s=SILENCE_S if keys is None else 10 * SILENCE_S,
                )
            )
        read = {author: await translation(engines[author], engines[author.other]) for author in Author}
        pair = Pair(engines, read)
        truth = {prompt: await write(pair, prompt, alone(Author.LARGE), max_tokens) for prompt in prompts}
        for prompt, policy in zip(prompts, POLICIES, strict=False):
            assert await write(pair, prompt, policy, max_tokens) == truth[prompt], "the pair is not exact"
        yield Place(pair, proxies, prompts, truth, max_tokens)
        assert await until(lambda: not any(p.num_links > 4 for group in proxies.values() for p in group))


async def slots_at_work(url: str, key: str | None) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    busy = -1
    async with aiohttp.ClientSession(headers=headers) as client:
        for _ in range(50):
            async with client.get(f"{url}/slots") as response:
                busy = sum(slot["is_processing"] for slot in await response.json())
            if not busy:
                break
            await asyncio.sleep(0.2)
    return busy


async def until(done: Callable[[], bool], wait_s: float = 10) -> bool:
    ends = time.monotonic() + wait_s
    while not done():
        if time.monotonic() > ends:
            return False
        await asyncio.sleep(0.05)
    return True


# --- all of it

Progress = Callable[[Outcome], None]


async def strike(place: Place, num_faults: int, seed: int, progress: Progress) -> list[Outcome]:
    """Generations at this place until so many faults have struck."""
    number = 0
    while place.num_struck < num_faults:
        outcome = await one(place, seed, number)
        place.outcomes.append(outcome)
        progress(outcome)
        number += 1
    return place.outcomes


async def play(
    num_faults: int, seed: int, *, at_once: int = 2, progress: Progress = lambda outcome: None
) -> list[Outcome]:
    """`num_faults` over both dialects, with one and two replicas a side, in parallel."""
    places = [(dialect, num) for dialect in SERVERS for num in (1, 2)] * at_once
    each = -(-num_faults // len(places))

    async def run(number: int, dialect: str, num_replicas: int) -> list[Outcome]:
        async with simulated(dialect, num_replicas) as place:
            return await strike(place, each, seed + number, progress)

    found = await asyncio.gather(*(run(n, *which) for n, which in enumerate(places)))
    return [outcome for outcomes in found for outcome in outcomes]


async def play_real(num_faults: int, seed: int, progress: Progress = lambda outcome: None) -> list[Outcome]:
    async with real(models.pull("smollm2-135m")) as place:
        return await strike(place, num_faults, seed, progress)


@dataclass(frozen=True)
class Census:
    """What this process holds."""

    tasks: int
    files: int
    threads: int

    @classmethod
    def take(cls) -> Census:
        gc.collect()
        files = len(list(Path("/proc/self/fd").iterdir()))
        return cls(len(asyncio.all_tasks()), files, threading.active_count())

    async def exceeded(self) -> str | None:
        """What is more than this, also after a while."""
        await until(lambda: self._holds(Census.take()))
        now = Census.take()
        return None if self._holds(now) else f"left behind: {now}, and it was {self}"

    def _holds(self, now: Census) -> bool:
        return now.tasks <= self.tasks and now.files <= self.files and now.threads <= self.threads


async def measure(options: argparse.Namespace, progress: Progress) -> tuple[list[Outcome], dict[str, Any]]:
    await play(20, options.seed + 1000)  # to warm up: what is loaded and made once
    census = Census.take()
    memory: list[int] = []
    num_struck = 0

    def watch(outcome: Outcome) -> None:
        nonlocal num_struck
        num_struck += len(outcome.struck)
        if num_struck * SAMPLES >= len(memory) * options.faults:
            memory.append(psutil.Process().memory_info().rss)
        progress(outcome)

    outcomes = await play(options.faults, options.seed, progress=watch)
    left = await census.exceeded()
    if options.real:
        outcomes += await play_real(options.real, options.seed, progress)
    return outcomes, {"left_behind": left, "rss_mib": [round(rss / 2**20, 1) for rss in memory]}


def table(outcomes: Sequence[Outcome]) -> Table:
    endings = ("whole", "error", "left")
    shown = Table("fault", *endings, "wrong", box=None)
    rows: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for fault in outcome.struck:
            for name in (f"at {fault.stage}", str(fault.kind), f"of the {outcome.side} side"):
                row = rows.setdefault(name, Counter())
                row[outcome.ending] += 1
                row["wrong"] += outcome.wrong is not None
    for name, row in sorted(rows.items()):
        shown.add_row(name, *(str(row[column]) for column in (*endings, "wrong")))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--real", type=int, default=60, help="faults before llama.cpp in this process")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    console, err = Console(width=120), Console(stderr=True)
    num_struck = 0

    def progress(outcome: Outcome) -> None:
        nonlocal num_struck
        before = num_struck
        num_struck += len(outcome.struck)
        if outcome.wrong or before // 100 != num_struck // 100:
            words = f"{outcome.side}: {', '.join(map(str, outcome.struck))}: {outcome.wrong}"
            err.print(f"{num_struck} faults" + (f"; {words}" if outcome.wrong else ""), markup=False)

    outcomes, figures = asyncio.run(measure(options, progress))
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    console.print(table(outcomes))
    figures |= {
        "faults": sum(len(outcome.struck) for outcome in outcomes),
        "generations": len(outcomes),
        "endings": dict(Counter(outcome.ending for outcome in outcomes)),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        "longest_s": round(max(outcome.seconds for outcome in outcomes), 2),
        "wrong": len(wrong),
    }
    print(json.dumps({"benchmark": "chaos", "seed": options.seed, **figures}))
    sys.exit(bool(wrong or figures["left_behind"]))


if __name__ == "__main__":
    main()
