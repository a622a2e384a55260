"""A real vLLM on the CPU (scripts/vllm_cpu.py): what the small servers of fakes.py only claim."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from relaygen.core.policy import Policy, alternate, segment
from relaygen.engines.base import Engine, Request
from relaygen.engines.http import Endpoint
from relaygen.engines.vllm import VllmEngine
from relaygen.engines.vocabulary import translation
from relaygen.examine import examine
from relaygen.examine.checks import facts
from relaygen.run import Pair, Run
from relaygen.types import Author, Message, Piece, Result, Sampling
from tests.conftest import VLLM_MAX_STOPS, VLLM_MODEL, start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.weights,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("vllm"),
]

MAX_TOKENS = 32
NEAR_TIE = 0.05  # in log probability: two tokens this close may change places when a batch has another shape
CUES = ("Therefore,", "So,", "So ", "now", "is", "we")
PROMPTS = (
    "What is 12 + 30?",
    "Natalia sold clips to 48 of her friends, and then she sold half as many. How many did she sell?",
    "Write one sentence about the sea, and one about the sky.",
    "List three prime numbers and say why they are prime.",
    "Repeat this line five times: 😀🐉 因此，答案是四十二。 naïve café",
)


async def relay(large: Engine, small: Engine, prompt: str, policy: Policy, **pair: Any) -> Result:
    run = Run(
        Pair({Author.LARGE: large, Author.SMALL: small}, **pair),
        [Message("user", prompt)],
        policy=policy,
        sampling=Sampling(temperature=0),
        max_tokens=MAX_TOKENS,
    )
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
    return run.result()


def ids(result: Result) -> list[int]:
    return [i for s in result.segments for i in s.token_ids]


async def reference(engine: VllmEngine, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
    """One uninterrupted run, and how far apart the two likeliest tokens were at each place."""
    body = {
        "model": VLLM_MODEL,
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "return_token_ids": True,
    }
    choice = (await engine.http.post("/v1/completions", {**body, "logprobs": 2}))["choices"][0]
    margins: list[float] = []
    for top in choice["logprobs"]["top_logprobs"]:
        first, second, *_ = [*sorted(top.values(), reverse=True), -math.inf]
        margins.append(first - second)
    tokens: list[int] = choice["token_ids"]
    return (tokens[:-1] if choice["finish_reason"] == "stop" else tokens), margins


async def test_a_relay_of_a_model_with_itself_is_that_model(vllm_engine: VllmEngine, vllm_url: str) -> None:
    small = await VllmEngine.connect(Endpoint(vllm_url))
    differences = 0
    for number, prompt in enumerate(PROMPTS):
        _, prompt_ids = await vllm_engine.render([Message("user", prompt)])
        plain, margins = await reference(vllm_engine, prompt_ids)
        for policy in (alternate((3, 7, 13)[number % 3]), segment(CUES, max_small_tokens=20)):
            result = await relay(vllm_engine, small, prompt, policy)
            found = ids(result)
            at = next((i for i, (a, b) in enumerate(zip(plain, found, strict=False)) if a != b), None)
            if at is not None:
                differences += 1
                assert margins[at] <= NEAR_TIE, (prompt, policy.name, at, margins[at])
            else:
                # A character cut by the budget is not shown: at most three tokens fewer.
                assert len(plain) - len(found) <= (3 if result.finish_reason == "length" else 0)
            assert len(result.segments) > 1 or policy.name == "segment"
            assert (await vllm_engine.spell(found)) == result.text
    await small.close()
    print(f"differences at near ties: {differences} of {2 * len(PROMPTS)}")


async def test_every_way_of_ending_a_turn_gives_the_same_turns(vllm_engine: VllmEngine) -> None:
    assert vllm_engine.stops.limit == VLLM_MAX_STOPS  # found by asking
    cues = ("is", "and", "the", "to", "She")
    policy = segment(cues, max_small_tokens=8, min_large_tokens=2)
    turns: list[Any] = []
    for way in ("all stop strings", "closing the stream", "those that ended most turns", "stop ids"):
        vllm_engine.stops.limit = {"all stop strings": VLLM_MAX_STOPS, "those that ended most turns": 4}.get(
            way, 0
        )
        if (
            way == "stop ids"
        ):  # of cues without their borders, which is not what is learnt: false stops must not matter
            for cue in cues:
                [token_id] = await vllm_engine.tokenize(f" {cue}")
                vllm_engine.stops.learn((f"{cue} ",), "", [Piece(f"{cue} ", (token_id,))])
            assert len(vllm_engine.stops.pick(tuple(f"{cue} " for cue in cues))[1]) == len(cues)
        results = [await relay(vllm_engine, vllm_engine, prompt, policy) for prompt in PROMPTS[1:3]]
        turns.append([[(s.author, s.token_ids, s.text, s.reason) for s in r.segments] for r in results])
    assert all(turn == turns[0] for turn in turns)
    assert all(len(segments) > 3 for segments in turns[0])


async def test_a_stop_id_ends_the_request_and_stays(vllm_engine: VllmEngine) -> None:
    prompt = await vllm_engine.tokenize("Once upon a time, there was")
    plain, _ = await _write(vllm_engine, prompt, 12)
    stop = plain[5]
    cut, text = await _write(vllm_engine, prompt, 12, stop_ids=(stop,))
    assert cut == plain[: plain.index(stop) + 1]
    assert await vllm_engine.spell(cut) == text


async def test_log_probabilities(vllm_engine: VllmEngine) -> None:
    prompt = await vllm_engine.tokenize("Repeat: 🎉🐉 因此，答案是四十二。 The capital of France is")
    for num, stops in ((3, ()), (2, ("Paris", ".\n")), (0, ())):
        request = Request(prompt, 12, stops, Sampling(temperature=0), 1, top_logprobs=num)
        for piece in await _pieces(vllm_engine, request):
            assert len(piece.logprobs) == len(piece.token_ids) > 0
            for token_id, found in zip(piece.token_ids, piece.logprobs, strict=True):
                assert found.logprob <= 0
                assert len(found.top) == num
                assert sum(math.exp(top.logprob) for top in found.top) <= 1 + 1e-3
                if num:
                    assert found.top[0].logprob - found.logprob <= NEAR_TIE  # greedy
                    assert token_id in [top.token_id for top in found.top]


async def test_a_schema_is_kept_to(vllm_engine: VllmEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    prompt = await vllm_engine.tokenize("The capital of France as JSON:\n")
    request = Request(prompt, 40, (), Sampling(temperature=0), 1, schema=schema)
    text = "".join(piece.text for piece in await _pieces(vllm_engine, request))
    assert json.loads(text)["city"] in ("Paris", "Rome")


async def test_requests_end_on_whole_characters(vllm_engine: VllmEngine) -> None:
    """Emoji of several tokens, asked for token by token: what is missing of a character is asked for again."""
    written = await vllm_engine.tokenize("party: 🎉🐉🎉🐉🎉🐉🎉🐉🎉🐉🎉🐉")
    whole = await _write(vllm_engine, written, 12)
    assert "🐉" in whole[1]
    text = ""
    for max_tokens in (1, 2, 8, 1, 2, 8):
        got, shown = await _write(vllm_engine, written, max_tokens)
        written, text = [*written, *got], text + shown
        assert "\ufffd" not in shown
    assert text.startswith(whole[1][:4])


async def _pieces(engine: VllmEngine, request: Request) -> list[Piece]:
    async with engine.session() as session, aclosing(session.write(request)) as chunks:
        return [piece async for chunk in chunks for piece in chunk.pieces]


async def _write(
    engine: VllmEngine, prompt: Sequence[int], max_tokens: int, **more: Any
) -> tuple[list[int], str]:
    pieces = await _pieces(engine, Request(prompt, max_tokens, (), Sampling(temperature=0), 1, **more))
    return [i for piece in pieces for i in piece.token_ids], "".join(piece.text for piece in pieces)


async def test_vllm_and_llama_cpp_relay_by_ids(vllm_engine: VllmEngine, smollm2: Path) -> None:
    async with AsyncExitStack() as stack:
        small = await start(stack, smollm2, context_tokens=2048)
        translations = {
            Author.LARGE: await translation(vllm_engine, small),
            Author.SMALL: await translation(small, vllm_engine),
        }
        assert translations == {Author.LARGE: {}, Author.SMALL: {}}
        policy = segment(CUES, max_small_tokens=20, min_large_tokens=2)
        result = await relay(vllm_engine, small, PROMPTS[1], policy, translations=translations)
        assert {s.author for s in result.segments} == set(Author)
        assert not result.warnings
        assert await vllm_engine.spell(ids(result)) == result.text
        assert (await vllm_engine.render([Message("user", "?")]))[1] == (
            await small.render([Message("user", "?")])
        )[1]
        assert result.timings.large.prefill_ms > 0


async def test_the_doctor_finds_nothing_but_what_is(vllm_engine: VllmEngine) -> None:
    """Started without --enable-prompt-tokens-details: only the time tells that the prefix cache works."""
    one = await examine(vllm_engine)
    assert one.findings == ()
    assert one.cached_share == 1
    assert one.version
    assert one.version.startswith("0.")


async def test_the_doctor_finds_the_stop_cap(vllm_engine: VllmEngine) -> None:
    vllm_engine.stops.limit = 4
    assert [f.name for f in facts(vllm_engine)] == ["stop-cap"]


async def test_closing_the_stream_frees_the_server(vllm_engine: VllmEngine, vllm_url: str) -> None:
    request = Request(await vllm_engine.tokenize("Once upon a time"), 1000, (), Sampling(temperature=1), 1)
    async with vllm_engine.session() as session, aclosing(session.write(request)) as chunks:
        async for _ in chunks:
            assert await _num_running(vllm_url) == 1
            break
    for _ in range(10):
        if await _num_running(vllm_url) == 0:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("vLLM goes on writing for nobody")


async def _num_running(url: str) -> float:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))
