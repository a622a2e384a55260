"""The same prompts by the relay and by the large model alone, in turns within one run, by our clock.

Each group of prompts is written by all ways before the next group begins, and the order of the ways changes from group to group,
so that a machine that slows down slows all of them. A number in front of each prompt, never the same twice, keeps a prefix cache
from giving the second way what the first one has read.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count

from relaygen.analyse.timing import Pass, Sample
from relaygen.core.policy import Policy
from relaygen.engines.base import Engine
from relaygen.engines.http import OverHttp
from relaygen.errors import EngineError
from relaygen.run import Pair, Run
from relaygen.types import Author, Event, Message, Sampling, Token
from relaygen.waiting import together

_WARM_UP_TOKENS = 8
_ROUND_TRIPS = 9


@dataclass(frozen=True, slots=True)
class Plan:
    """`concurrency` prompts are written at once. max_tokens is the budget of an answer, over both models."""

    ways: Mapping[str, Policy]
    prompts: Sequence[str]
    rounds: int
    concurrency: int
    max_tokens: int
    sampling: Sampling

    def groups(self) -> list[tuple[str, ...]]:
        """All the groups of a run. Prompts repeat where there are fewer than are wanted at once."""
        prompts = [*self.prompts] * -(-self.concurrency // len(self.prompts))
        starts = range(0, len(prompts), self.concurrency)
        return [tuple(prompts[start : start + self.concurrency]) for start in starts] * self.rounds


async def bench(pair: Pair, plan: Plan, *, on_done: Callable[[], None]) -> list[Pass]:
    """`on_done` is called after each pass; there are `len(plan.groups()) * len(plan.ways)`. RelayError as from a Run, and
    EngineError where the small model failed, since the rest is then the large model's time."""
    numbers = count(1)

    async def at_once(way: str, number: int, prompts: Sequence[str], max_tokens: int) -> Pass:
        begun = time.perf_counter()
        async with together() as group:
            tasks = [
                group.create_task(_sample(pair, plan, way, f"({next(numbers)}) {prompt}", max_tokens))
                for prompt in prompts
            ]
        wall_ms = (time.perf_counter() - begun) * 1000
        return Pass(way, number, wall_ms, tuple(task.result() for task in tasks))

    ways = list(plan.ways)
    passes: list[Pass] = []
    for way in ways:  # pages in the weights, opens the connections
        await at_once(way, 0, plan.prompts[:1], _WARM_UP_TOKENS)
    for number, prompts in enumerate(plan.groups(), 1):
        for way in ways if number % 2 else reversed(ways):
            passes.append(await at_once(way, number, prompts, plan.max_tokens))
            on_done()
    return passes


async def round_trip_ms(engine: Engine) -> float | None:
    """The median of a small request to the engine's server, on a kept connection. None for an engine without one."""
    if not isinstance(engine, OverHttp):
        return None
    took: list[float] = []
    for _ in range(_ROUND_TRIPS):
        begun = time.perf_counter()
        try:
            await engine.http.get("/v1/models")
        except EngineError:
            return None  # it has no such path
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


async def _sample(pair: Pair, plan: Plan, way: str, prompt: str, max_tokens: int) -> Sample:
    run = Run(
        pair,
        [Message("user", prompt)],
        policy=plan.ways[way],
        sampling=plan.sampling,
        max_tokens=max_tokens,
    )
    begun = last = time.perf_counter()
    author: Author | None = None
    first_token_ms = 0.0
    gaps: list[float] = []
    handovers: list[float] = []
    async with aclosing(run.batches()) as batches:
        async for batch in batches:
            now = time.perf_counter()
            if not (writer := _writer(batch)):
                continue
            took = (now - last) * 1000
            if author is None:
                first_token_ms = took
            else:
                (gaps if writer is author else handovers).append(took)
            author, last = writer, now
    ended = time.perf_counter()
    result = run.result()
    if result.warnings:
        raise EngineError(result.warnings[-1])
    if author is None:
        raise EngineError(f"{way}: there was no text in the answer to {prompt!r}")
    total_ms, tail_ms = (ended - begun) * 1000, (ended - last) * 1000
    return Sample(result, total_ms, first_token_ms, tuple(gaps), tuple(handovers), tail_ms)


def _writer(batch: Sequence[Event]) -> Author | None:
    return next((event.author for event in batch if isinstance(event, Token)), None)
