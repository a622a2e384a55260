"""`relaygen bench` on simulated engines, whose speeds are known, and its sums."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest

from relaygen import Author, Relay, Sampling
from relaygen.analyse.timing import Pass, Sample, Spread, speed_up, way
from relaygen.bench import Plan, bench
from relaygen.core.policy import alone, alternate
from relaygen.errors import EngineError
from relaygen.tasks.prompts import PROMPTS
from relaygen.types import EngineTimings, Result, Timings, Usage

Pair = tuple[str, str]


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    command = [sys.executable, "-m", "relaygen", "simulate", "--json", "--dialect", request.param]
    with subprocess.Popen(
        [*command, "--large", "50:8000", "--small", "200:40000"], stdout=subprocess.PIPE
    ) as it:
        assert it.stdout
        urls = json.loads(it.stdout.readline())
        yield urls["large"], urls["small"]
        it.terminate()


async def passes_of(pair: Pair, *, concurrency: int = 1, rounds: int = 2) -> list[Pass]:
    ways = {"relay": alternate(5), "large": alone(Author.LARGE)}
    plan = Plan(ways, PROMPTS[:2], rounds, concurrency, 16, Sampling(temperature=0))
    done: list[int] = []
    async with Relay(*pair) as relay:
        passes = await bench(relay.pair, plan, on_done=lambda: done.append(1))
    assert len(done) == len(passes) == len(plan.groups()) * 2
    return passes


async def test_the_parts_are_the_whole(pair: Pair) -> None:
    for one in await passes_of(pair):
        (sample,) = one.samples
        parts = [sample.first_token_ms, *sample.gaps_ms, *sample.handovers_ms, sample.tail_ms]
        assert math.isclose(sum(parts), sample.total_ms, rel_tol=1e-6)
        assert min(parts) >= 0
        assert len(sample.handovers_ms) == sample.result.handovers
        assert sample.total_ms <= one.wall_ms


async def test_a_step_of_the_engine_is_seen(pair: Pair) -> None:
    """50 tokens/s: 20 ms. A busy machine makes it later, never earlier."""
    large = way([one for one in await passes_of(pair) if one.way == "large"], 0.0)
    assert large.gap
    assert large.gap.median > 15
    assert large.handover is None
    assert large.split is None
    assert large.small_share == 0
    assert 0 < large.throughput < 51


async def test_ways_take_turns_and_groups_are_whole(pair: Pair) -> None:
    passes = await passes_of(pair, concurrency=3, rounds=3)
    assert [one.way for one in passes] == ["relay", "large", "large", "relay"] * 3
    assert [one.number for one in passes] == [n for n in range(1, 7) for _ in "ab"]
    assert {len(one.samples) for one in passes} == {3, 1}
    assert speed_up(passes, "relay", "large")


def test_groups_repeat_prompts_where_there_are_too_few() -> None:
    plan = Plan({}, ("a", "b"), 2, 5, 1, Sampling())
    assert plan.groups() == [("a", "b", "a", "b", "a"), ("b",)] * 2


def _pass(name: str, untimed: int) -> Pass:
    engine = EngineTimings(requests=2, untimed_requests=untimed, handover_prefill_ms=30.0)
    result = Result("", "", "", "stop", (), Usage(1, 5, 5), Timings(100.0, engine, engine))
    return Pass(name, 1, 200.0, (Sample(result, 100.0, 20.0, (1.0, 2.0), (33.0, 43.0), 1.0),))


def test_where_a_hand_over_goes() -> None:
    split = way([_pass("relay", 0)], 2.5).split
    assert split
    assert (split.whole, split.engines, split.network, split.own) == (38.0, 30.0, 2.5, 5.5)


def test_what_no_engine_has_reported_is_not_made_up() -> None:
    figures = way([_pass("relay", 1)], 2.5)
    assert figures.untimed == 0.5
    assert figures.split
    assert figures.split.engines is figures.split.own is None


def test_speed_up_is_taken_group_by_group() -> None:
    slow = Pass("large", 1, 400.0, _pass("", 0).samples)
    assert speed_up([_pass("relay", 0), slow], "relay", "large") == Spread(2.0, 2.0, 2.0)


async def test_a_small_model_that_fails_is_not_timed(pair: Pair) -> None:
    async with Relay(*pair) as relay:
        await relay.pair.engines[Author.SMALL].close()
        plan = Plan({"relay": alternate(5)}, PROMPTS[:1], 1, 1, 20, Sampling())
        with pytest.raises(EngineError):
            await bench(relay.pair, plan, on_done=lambda: None)


def test_the_command(pair: Pair) -> None:
    options = [
        "--large",
        pair[0],
        "--small",
        pair[1],
        "--prompts",
        "1",
        "--rounds",
        "1",
        "--max-tokens",
        "20",
    ]
    command = [sys.executable, "-m", "relaygen", "bench", *options]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=100, check=True)
    told = json.loads(done.stdout)
    assert [one["name"] for one in told["ways"]] == ["segment", "large alone"]
    assert told["speed_up"]["low"] <= told["speed_up"]["median"] <= told["speed_up"]["high"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "first token" in done.stdout
    assert "as fast as large alone" in done.stdout
    done = subprocess.run(
        [*command, "--policy", "large"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
