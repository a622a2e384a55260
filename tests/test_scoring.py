"""Teacher forcing: the same figures by every way there is."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from aiohttp import web

from relaygen.engines.base import Engine
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.engines.scoring import score, score_next, token_texts
from relaygen.errors import ContextOverflowError, EngineProtocolError, UserError
from relaygen.types import Message, TokenLogprob
from tests.asking import engine_of
from tests.conftest import start
from tests.fakes import Fake, FakeSglang, FakeVllm
from tests.fakes_llama import FakeLlamaCpp
from tests.fakes_text import FakeText

TEXTS = (
    "First, we add 12 and 30. Therefore, the sum is 42.\n\nSo, the answer is \\boxed{42}.",
    "The sea is wide 😀🐉, and 因此 naïve sailors fear it. Now, the sky is wider still.",
    "2, 3 and 5 are prime: each has no divisor but 1 and itself.",
)
QUESTION = [Message("user", "What is 12 + 30?")]


@pytest.mark.weights
async def test_llama_cpp_gives_the_same_in_a_batch_and_token_by_token(smollm2: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = await start(stack, smollm2, context_tokens=512, num_slots=3)
        _, prompt = await engine.render(QUESTION)
        texts = [await engine.tokenize(text) for text in TEXTS]
        batched = await asyncio.gather(*(score(engine, prompt + ids, len(prompt)) for ids in texts))
        single = [await one_by_one(engine, prompt, ids) for ids in texts]
        assert [await token_texts(engine, ids) for ids in texts[1:2]] != [[]]
        for ids, text in zip(texts, TEXTS, strict=True):
            assert "".join(await token_texts(engine, ids)) == text
    for ids, many, one in zip(texts, batched, single, strict=True):
        assert len(many) == len(one) == len(ids)
        assert difference(many, one) < 0.02
        for a, b in zip(many, one, strict=True):
            assert a.top[0].logprob >= a.top[1].logprob
            if not math.isnan(b.logprob):  # beyond the candidates of one place
                assert a.logprob == pytest.approx(b.logprob, abs=0.2)


async def one_by_one(engine: LlamaCppEngine, prompt: Sequence[int], ids: Sequence[int]) -> list[TokenLogprob]:
    async with engine.session() as session:
        return [await score_next(engine, session, [*prompt, *ids[:at]], ids[at]) for at in range(len(ids))]


def difference(some: Sequence[TokenLogprob], others: Sequence[TokenLogprob]) -> float:
    """Of the margins: the mean of the absolute differences."""
    return fmean(abs((a.margin or 0) - (b.margin or 0)) for a, b in zip(some, others, strict=True))


# --- servers that answer by a rule: at place p the written token i has -p - i / 1000, another -0.5


def own(place: int, token_id: int) -> float:
    return -place - token_id / 1000


class ScoringVllm(FakeVllm):
    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "prompt_logprobs" not in body:
            return await super().complete(request)
        rows: list[Any] = [None]
        for place, token_id in enumerate(body["prompt"][1:], 1):
            row = {"logprob": own(place, token_id), "rank": 3, "decoded_token": "x"}
            first = {"logprob": -0.5, "rank": 1, "decoded_token": "y"}
            second = {"logprob": -0.9, "rank": 2, "decoded_token": "z"}
            rows.append({str(token_id): row, "7001": first, "7002": second})
        return web.json_response({"choices": [{"text": "x", "prompt_logprobs": rows}]})


class ScoringSglang(FakeSglang):
    def routes(self, router: web.UrlDispatcher) -> None:
        super().routes(router)
        router.add_post("/generate", self.score)

    async def score(self, request: web.Request) -> web.Response:
        body = await request.json()
        begin, ids = body["logprob_start_len"], body["input_ids"]
        places = range(begin + 1, len(ids))
        tops = [[[-0.5, 7001, None], [-0.9, 7002, None]] for _ in places]
        meta = {
            "input_token_logprobs": [
                [None, ids[begin], None],
                *([own(place, ids[place]), ids[place], None] for place in places),
            ],
            "input_top_logprobs": [None, *tops],
        }
        return web.json_response({"text": "x", "meta_info": meta})


class ObedientLlamaCpp(FakeLlamaCpp):
    """Writes what the grammar says."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        written = json.loads(f"[{body['grammar'][11:-2].replace(']> <[', ',')}]")
        assert "\ufffd" not in self.vocabulary.decode(written, special=False)
        tops = [{"token": "y", "logprob": -0.5, "id": 7001}, {"token": "z", "logprob": -0.9, "id": 7002}]
        rows = [
            {"id": token_id, "logprob": own(len(body["prompt"]) + number, token_id), "top_logprobs": tops}
            for number, token_id in enumerate(written)
        ]
        return web.json_response({"content": "x", "tokens": written, "completion_probabilities": rows})


@pytest.mark.parametrize("kind", [ScoringVllm, ScoringSglang, ObedientLlamaCpp])
async def test_each_token_gets_the_figures_of_its_place(kind: type[Fake]) -> None:
    fake = kind()
    async with engine_of(fake) as engine:
        ids = await engine.tokenize("What? So, 🎉 naïve 因此 3.14.")
        found = await score(engine, ids, 2)
        assert [len(one.top) for one in found] == [2] * (len(ids) - 2)
        assert all(one.margin == pytest.approx(math.exp(-0.5) - math.exp(-0.9)) for one in found)
        assert all(one.top[0].token_id == 7001 for one in found)
        told = [one.logprob for one in found if not math.isnan(one.logprob)]
        places = [own(place, ids[place]) for place in range(2, len(ids))]
        if kind is ObedientLlamaCpp:
            assert 0 < len(told) < len(places)  # the parts of 🎉 are not among the candidates
            assert [p for p, one in zip(places, found, strict=True) if not math.isnan(one.logprob)] == told
        else:
            assert told == places
        assert "".join(await token_texts(engine, ids)) == "What? So, 🎉 naïve 因此 3.14."


async def test_only_what_is_needed_is_asked_for() -> None:
    fake = ScoringSglang()
    async with engine_of(fake) as engine:
        ids = await engine.tokenize("one two three four")
        await score(engine, ids, 3)
    body = next(body for path, body in fake.requests if path == "/generate")
    assert body["logprob_start_len"] == 2
    assert body["top_logprobs_num"] == 2


class OldLlamaCpp(ObedientLlamaCpp):
    """Knows no grammar of tokens, and writes what it likes."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"content": "x", "tokens": [1], "completion_probabilities": []})


class OddVllm(FakeVllm):
    """As vLLM where prompt_logprobs are switched off."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "prompt_logprobs" not in body:
            return await super().complete(request)
        return web.json_response({"choices": [{"text": "x", "prompt_logprobs": None}]})


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (OldLlamaCpp, EngineProtocolError, "wrote other tokens than it was told to"),
        (OddVllm, EngineProtocolError, "in an unknown shape"),
        (FakeText, UserError, "cannot score text"),
    ],
)
async def test_engines_that_cannot(kind: type[Fake], error: type[Exception], message: str) -> None:
    async with engine_of(kind()) as engine:
        with pytest.raises(error, match=message):
            await score(engine, [1, 2, 3, 4], 2)


async def test_a_trace_longer_than_the_context() -> None:
    async with engine_of(ScoringVllm()) as engine:
        too_long: Engine = engine
        with pytest.raises(ContextOverflowError, match="600 tokens long with its prompt"):
            await score(too_long, [1] * 600, 2)
