"""What the tests of the dialects share: engines on small servers, and their answers to exact bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from relaygen.core.policy import segment
from relaygen.engines.base import Engine, Request
from relaygen.engines.open import connect
from relaygen.engines.vocabulary import translation
from relaygen.run import Pair, Run
from relaygen.types import Author, Chunk, Message, Result, Sampling
from tests.fakes import (
    PROMPT,
    Fake,
    FakeSglang,
    FakeVllm,
    Raw,
)
from tests.fakes_llama import FakeLlamaCpp
from tests.fakes_text import FakeOllama, FakeText

SCRIPT = (
    "First|,| we| know| that| 48| clips| 🎉|.| Therefore|,| May| has| 24| of| them|.|\n\n|Now| we| add| 48| and| 3|.|14"
    "| in| naïve| words|.| Thus| the| sum| is| known| now|,| as| 因此| 72| .|\n| So|,| the| answer| is| \\boxed{|72|}|."
).split("|")
TEXT = "".join(SCRIPT)
CUES = ("Therefore,", "Thus", "So,", "now", "Now")
POLICY = segment(CUES, answer_cues=("\\boxed{",))
FAKES: dict[str, Callable[..., Fake]] = {
    "vllm": FakeVllm,
    "vllm held back": lambda *a, **k: FakeVllm(*a, held_back=True, **k),
    "vllm any stops": lambda *a, **k: FakeVllm(*a, max_stops=9999, **k),
    "sglang": FakeSglang,
    "llamacpp": FakeLlamaCpp,
    "ollama": FakeOllama,
    "text": FakeText,
}


@asynccontextmanager
async def engine_of(fake: Fake, api_key: str | None = None) -> AsyncGenerator[Engine]:
    async with fake.running() as url:
        engine = await connect(url, name="the engine", api_key=api_key, context_tokens=4000)
        try:
            yield engine
        finally:
            await engine.close()


def request_for(fake: Fake, **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "ids": fake.vocabulary.encode(PROMPT),
        "max_tokens": 50,
        "stops": (),
        "sampling": Sampling(temperature=0),
        "seed": 7,
        "text": PROMPT,
    }
    return Request(**(fields | changes))


async def read(engine: Engine, request: Request) -> list[Chunk]:
    async with engine.session() as session, aclosing(session.write(request)) as chunks:
        return [chunk async for chunk in chunks]


async def answer_to(
    fake: Fake, *parts: bytes, cut: bool = False, status: int = 200, key: str | None = None, **asked: Any
) -> list[Chunk]:
    """What the engine makes of exactly these bytes."""
    async with engine_of(fake, key) as engine:
        fake.raw.append(Raw(parts, status, cut))
        return await read(engine, request_for(fake, **asked))


def pieces(chunks: list[Chunk]) -> list[tuple[str, tuple[int, ...]]]:
    return [(piece.text, piece.token_ids) for chunk in chunks for piece in chunk.pieces]


def finish(chunks: list[Chunk]) -> str:
    end = chunks[-1].end
    assert end
    return end.finish


async def relay(large: Engine, small: Engine, policy: Any = POLICY) -> Result:
    engines = {Author.LARGE: large, Author.SMALL: small}
    run = Run(
        Pair(
            {author: engines[author] for author in policy.authors},
            {a: await translation(engines[a], engines[a.other]) for a in Author},
        ),
        [Message("user", "?")],
        policy=policy,
        sampling=Sampling(temperature=0, seed=1),
        max_tokens=400,
    )
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
    return run.result()
