"""How turns are ended on servers that take few stop strings: those learnt, stop ids, and closing the stream."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relaygen.core.policy import Policy, segment
from relaygen.engines.base import Engine, Request, Session
from relaygen.engines.completions import CompletionsEngine
from relaygen.engines.http import Endpoint
from relaygen.engines.stops import StopChoice
from relaygen.engines.vllm import VllmEngine
from relaygen.run import Pair, Run
from relaygen.types import Author, Chunk, Message, Piece, Result, Sampling
from tests.asking import CUES, SCRIPT, engine_of, finish, pieces, read, relay, request_for
from tests.conftest import start
from tests.fakes import EOS, FakeSglang, FakeVllm

LIMITS = (9999, 4, 1, 0)


def turns_of(result: Result) -> list[Any]:
    return [(s.author, s.token_ids, s.text, s.reason) for s in result.segments]


@pytest.mark.parametrize("kind", ["vllm", "vllm held back", "sglang"])
async def test_every_way_of_ending_a_turn_gives_the_same_turns(kind: str) -> None:
    """Stop strings (all, a few, one), stop ids (once they are learnt, beside those), and closing the stream; one or several
    tokens per chunk."""
    turns: list[Any] = []
    for max_stops, chunk_tokens in itertools.product(LIMITS, (1, 4)):
        held_back = {"held_back": True} if kind == "vllm held back" else {}
        fakes = [
            (FakeSglang if kind == "sglang" else FakeVllm)(
                SCRIPT, chunk_tokens=chunk_tokens, max_stops=max_stops or 1, **held_back
            )
            for _ in range(2)
        ]
        async with engine_of(fakes[0]) as large, engine_of(fakes[1]) as small:
            for engine in (large, small):
                assert isinstance(engine, CompletionsEngine)
                engine.stops.limit = min(engine.stops.limit, max_stops)
            results = [await relay(large, small) for _ in range(2)]
        turns += [turns_of(result) for result in results]
        asked = [body.get("stop_token_ids") for fake in fakes for body in fake.generations]
        assert any(asked) or max_stops or kind == "vllm held back"
    assert all(turn == turns[0] for turn in turns)
    assert {author for author, *_ in turns[0]} == set(Author)


class WithoutStops:
    """An engine that is told of no stops: all its turns are ended by closing the stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Any]:
        async with self._engine.session() as session:
            yield _Session(session)


class _Session:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        async with aclosing(self._session.write(replace(request, stops=()))) as chunks:
            async for chunk in chunks:
                yield chunk


@pytest.mark.weights
@pytest.mark.slow
async def test_stop_strings_and_closing_give_the_same_turns_on_a_real_llama_server(smollm2: Path) -> None:
    """One token at a time: in batches of other sizes it rounds differently, and closing makes other batches."""
    policy = segment(("is", "and", "the", "to", "So"), max_small_tokens=8, min_large_tokens=2)
    async with AsyncExitStack() as stack:
        large, small = [
            await start(stack, smollm2, context_tokens=512, batch_invariant=True) for _ in range(2)
        ]
        for prompt in ("What is 12 + 30?", "Repeat three times: 🎉🐉 因此 naïve café. So is it."):
            ways = ((large, small), (WithoutStops(large), WithoutStops(small)))
            turns = [turns_of(await _relay(*way, prompt, policy)) for way in ways]
            assert turns[0] == turns[1]
            assert len(turns[0]) >= 3


async def _relay(large: Any, small: Any, prompt: str, policy: Policy) -> Result:
    run = Run(
        Pair({Author.LARGE: large, Author.SMALL: small}),
        [Message("user", prompt)],
        policy=policy,
        sampling=Sampling(temperature=0, top_k=1, seed=1),
        max_tokens=60,
    )
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
    return run.result()


@pytest.mark.parametrize("kind", [FakeVllm, FakeSglang])
@pytest.mark.parametrize("chunk_tokens", [1, 4])
async def test_the_stop_id_ends_the_request_and_stays(kind: Any, chunk_tokens: int) -> None:
    fake = kind(["ab", ".\n", "cd"], chunk_tokens=chunk_tokens)
    ab, dot, _ = fake.script
    async with engine_of(fake) as engine:
        chunks = await read(engine, request_for(fake, stop_ids=(dot,), top_logprobs=1))
        assert pieces(chunks) == [("ab", (ab,)), (".\n", (dot,))]
        assert finish(chunks) == "stop"
        assert all(piece.logprobs for chunk in chunks for piece in chunk.pieces)
        chunks = await read(engine, request_for(fake, stop_ids=(EOS + 99,)))
        assert finish(chunks) == "eos"
        assert pieces(chunks)[-1][0] == "cd"


@pytest.mark.parametrize("max_stops", [4, 29])
async def test_five_stops_are_refused_and_the_cap_is_found(max_stops: int) -> None:
    fake = FakeVllm(SCRIPT, max_stops=max_stops)
    async with fake.running() as url:
        engine = await VllmEngine.connect(Endpoint(url))
        assert engine.stops.limit == max_stops
        await read(engine, request_for(fake, stops=tuple(f"stop {i}" for i in range(50))))
        assert len(fake.generations[-1]["stop"]) == max_stops
        await engine.close()


def test_the_stops_sent_are_those_that_end_most_turns() -> None:
    stops = ("a,", "b,", "c,", "d,", "bb,")
    choice = StopChoice(2)
    assert choice.pick(stops) == (["a,", "b,"], [])
    assert choice.pick(("x",)) == (["x"], [])
    for text, last in (
        ("so d", ","),
        ("x bb", ", and"),
        ("x d", ","),
        ("x bb", ","),
        ("d, d,", " no"),
        ("", ""),
    ):
        choice.learn(stops, text, [Piece(last, (7,))])
    assert choice.pick(stops) == (["d,", "bb,"], [])  # of two that end together the longer is counted


def test_the_stop_ids_sent_are_of_tokens_that_hold_a_whole_stop() -> None:
    stops = ("So,", ".\n", "</think>")
    choice = StopChoice(1)
    choice.learn(stops, "", [Piece(" So", (1,)), Piece(",", (2,))])  # the border is another token's
    assert choice.pick(stops) == (["So,"], [])
    choice.learn(stops, "x.", [Piece("\n", (3,))])
    choice.learn(stops, "é", [Piece(".\n", (4, 5))])  # a piece of two tokens has no id of its own
    assert choice.pick(stops) == ([".\n"], [])
    choice.learn(stops, "x", [Piece("y", (6,)), Piece(".\n\n", (7,)), Piece("So", (8,))])
    choice.learn(stops, "y.\n", [Piece("</think>", (9,))])
    assert choice.pick(stops) == ([".\n"], [7, 9])
    assert choice.pick(("So,", ".\n")) == ([".\n"], [7])
    assert choice.pick((".\n",)) == ([".\n"], [])  # all fit: strings are enough


async def test_stops_are_learnt_and_then_keep_the_connection() -> None:
    fake = FakeVllm((SCRIPT[9:18]) * 8)
    async with engine_of(fake) as engine:
        for _ in range(2):
            await relay(engine, engine, segment(CUES))
        closed = fake.num_connections
        await relay(engine, engine, segment(CUES))
        assert closed > 2
        assert fake.num_connections - closed <= 1
    assert any("Therefore," in body["stop"] for body in fake.generations[1:])
