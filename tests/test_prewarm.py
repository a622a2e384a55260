"""Reading along: it changes nothing of what is written, ends with the turn, and is counted apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from relaygen.core.ledger import Ledger
from relaygen.core.policy import alternate, segment
from relaygen.engines.base import Request
from relaygen.engines.scripted import ScriptedEngine
from relaygen.errors import EngineCutError
from relaygen.prewarm import Reader
from relaygen.run import Pair, Run
from relaygen.types import Author, Chunk, Message, Result, Sampling
from tests.asking import POLICY, SCRIPT
from tests.conftest import start


def run_of(large: Any, small: Any, prewarm_tokens: int | None, policy: Any = POLICY, **pair: Any) -> Run:
    return Run(
        Pair({Author.LARGE: large, Author.SMALL: small}, **pair),
        [Message("user", "Tell me a long story about a dragon in a cave.")],
        policy=policy,
        sampling=Sampling(temperature=0, top_k=1, seed=1),
        max_tokens=60,
        prewarm_tokens=prewarm_tokens,
    )


async def finish(run: Run) -> Result:
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
    assert {t for t in asyncio.all_tasks() if "_ask" in repr(t)} == set()
    return run.result()


def shape(result: Result) -> list[Any]:
    return [(s.author, s.token_ids, s.text, s.reason) for s in result.segments]


class Watched(ScriptedEngine):
    """Counts requests under way, and can be slow, or fail, at those that only read."""

    def __init__(self, *args: Any, read_s: float = 0.0, fails: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.read_s, self.fails = read_s, fails
        self.under_way = self.most = 0
        self.read: list[Request] = []

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if request.max_tokens == 1 and not request.stops:
                self.read.append(request)
                if self.fails:
                    raise EngineCutError("no reading along here")
                await asyncio.sleep(self.read_s)
            async with aclosing(super().write(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.under_way -= 1


@pytest.mark.parametrize("read_s", [0.0, 0.01, 60.0])
@pytest.mark.parametrize("every", [1, 3, 1000])
async def test_it_changes_no_output_and_ends_with_the_turn(every: int, read_s: float) -> None:
    plain = await finish(run_of(ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT), None))
    engines = [Watched(SCRIPT, read_s=read_s) for _ in range(2)]
    result = await finish(run_of(engines[0], engines[1], every))
    assert shape(result) == shape(plain)
    assert all(engine.most == 1 for engine in engines)  # an engine never reads along while it writes
    assert all(engine.under_way == 0 for engine in engines)
    assert bool(engines[1].read) == (every < 1000)
    assert not result.warnings


async def test_the_text_read_is_the_text_so_far() -> None:
    large, small = Watched(SCRIPT), Watched(SCRIPT)
    result = await finish(run_of(large, small, 2))
    written = [0, *(i for s in result.segments for i in s.token_ids)]
    assert small.read
    for request in (*large.read, *small.read):
        assert list(request.ids) == written[: len(request.ids)]


async def test_it_is_counted_apart() -> None:
    plain = await finish(run_of(ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT), None))
    warm = await finish(run_of(ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT), 2))
    assert warm.usage == plain.usage
    for author in ("large", "small"):
        one, other = getattr(plain.timings, author), getattr(warm.timings, author)
        assert (one.requests, one.decode_steps) == (other.requests, other.decode_steps)
        assert one.prewarm_requests == 0
    assert warm.timings.small.prewarm_requests > 0
    assert warm.timings.small.prewarm_ms > 0


async def test_a_failure_is_a_warning_and_no_more() -> None:
    small = Watched(SCRIPT, fails=True)
    result = await finish(run_of(ScriptedEngine(SCRIPT), small, 1))
    assert result.text == "".join(SCRIPT)
    assert len(small.read) == 1  # it is not tried again
    assert [w.split(":")[0] for w in result.warnings] == ["the small model stopped reading along"]


async def test_closing_the_generation_ends_it() -> None:
    small = Watched(SCRIPT, read_s=60)
    run = run_of(ScriptedEngine(SCRIPT), small, 1)
    async with aclosing(run.events()) as events:
        async for _ in events:
            await asyncio.sleep(0)
            if small.under_way:
                break
    assert small.under_way == 0


async def test_another_vocabulary_is_left_to_its_own_turn() -> None:
    """The tokens of a segment depend on where it ends: they are made when it has."""
    translations = {Author.LARGE: None, Author.SMALL: None}
    plain = await finish(
        run_of(ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT), None, translations=translations)
    )
    small = Watched(SCRIPT)
    result = await finish(run_of(ScriptedEngine(SCRIPT), small, 1, translations=translations))
    assert shape(result) == shape(plain)
    assert {len(request.ids) for request in small.read} <= {1, *range(1, 100)}


async def test_it_stays_k_tokens_behind_at_most() -> None:
    engine = Watched(SCRIPT)
    ledger = Ledger([0], {})
    async with Reader(engine.info, engine, ledger, 3) as reader:
        for token in range(1, 12):
            ledger.write([token], "x", own=False)
            reader.wrote()
            for _ in range(10):
                await asyncio.sleep(0)
    assert [len(request.ids) for request in engine.read] == [3, 6, 9, 12]
    reader.own_turn_over()
    reader.wrote()
    assert len(engine.read) == 4


@pytest.mark.weights
@pytest.mark.slow
async def test_on_llama_cpp_the_ids_stay_the_same(smollm2: Path) -> None:
    async with AsyncExitStack() as stack:
        large, small = [
            await start(stack, smollm2, context_tokens=1024, batch_invariant=True, threads=1)
            for _ in range(2)
        ]
        for policy in (alternate(9), segment(("the", "and", "was"), max_small_tokens=12)):
            plain = await finish(run_of(large, small, None, policy))
            warm = await finish(run_of(large, small, 3, policy))
            assert shape(warm) == shape(plain)
            assert len(plain.segments) > 2
            assert warm.timings.small.prewarm_requests > 0
            assert warm.timings.small.prewarm_tokens > 0
