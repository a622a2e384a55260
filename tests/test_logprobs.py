"""Log probabilities: one for each token id, whatever the stream does to ids and text."""

from __future__ import annotations

import itertools
import math
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relaygen.core.policy import alone
from relaygen.core.relay import Generation
from relaygen.engines.align import Aligner
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.errors import EngineProtocolError, UserError
from relaygen.types import Author, Candidate, Piece, Sampling, Token, TokenLogprob
from tests.asking import FAKES, SCRIPT, answer_to, engine_of, read, request_for
from tests.conftest import start
from tests.fakes import EOS, Fake, FakeSglang, FakeVllm, Vocabulary, event, likeliest, sse
from tests.fakes_llama import FakeLlamaCpp

WITH_IDS = [kind for kind in FAKES if kind not in ("text", "ollama")]
STOPS = ("Therefore,", "now,", ".\n", "\\boxed{")


def expected(fake: Fake, token_id: int, num: int) -> TokenLogprob:
    scores = likeliest(token_id, num)
    best = sorted(scores.items(), key=lambda pair: -pair[1])[:num]
    tops = [Candidate(fake.vocabulary.decode([i]), logprob, i) for i, logprob in best]
    if isinstance(fake, FakeSglang):  # without ids, and of one text only the likeliest
        tops = [Candidate(top.text, top.logprob) for top in tops]
        tops = list({top.text: top for top in reversed(tops)}.values())[::-1]
    return TokenLogprob(scores[token_id], tuple(sorted(tops, key=lambda top: -top.logprob)))


def check(fake: Fake, pieces: list[Piece], num: int) -> None:
    for piece in pieces:
        assert len(piece.logprobs) == len(piece.token_ids)
        for token_id, found in zip(piece.token_ids, piece.logprobs, strict=True):
            if math.isnan(found.logprob):
                # llama-server loses all of a character's tokens but the last.
                assert isinstance(fake, FakeLlamaCpp)
                assert len(piece.token_ids) > 1
                assert not found.top
            else:
                assert found == expected(fake, token_id, num)
        assert piece.logprobs
        assert not math.isnan(piece.logprobs[-1].logprob)


@pytest.mark.parametrize("num", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", WITH_IDS)
async def test_each_id_has_its_log_probability(kind: str, num: int) -> None:
    for chunk_tokens, stops in itertools.product((1, 4), ((), STOPS)):
        fake = FAKES[kind](SCRIPT, chunk_tokens=chunk_tokens)
        async with engine_of(fake) as engine:
            chunks = await read(engine, request_for(fake, top_logprobs=num, stops=stops, max_tokens=90))
            plain = await read(engine, request_for(fake, stops=stops, max_tokens=90))
        found = [piece for chunk in chunks for piece in chunk.pieces]
        check(fake, found, num)
        bare = [piece for chunk in plain for piece in chunk.pieces]
        assert [(p.text, p.token_ids) for p in found] == [(p.text, p.token_ids) for p in bare]
        assert not any(piece.logprobs for piece in bare)


@pytest.mark.parametrize("kind", FAKES)
async def test_nothing_is_sent_that_was_not_asked_for(kind: str) -> None:
    fake = FAKES[kind](SCRIPT)
    async with engine_of(fake) as engine:
        await read(engine, request_for(fake))
    new = {"logprobs", "return_tokens_as_token_ids", "n_probs", "post_sampling_probs", "stop_token_ids"}
    assert not fake.generations[-1].keys() & (new | {"response_format", "json_schema", "format"})


@pytest.mark.parametrize("kind", ["text", "ollama"])
async def test_text_without_ids_has_none(kind: str) -> None:
    fake = FAKES[kind](SCRIPT)
    async with engine_of(fake) as engine:
        num_asked = len(fake.generations)
        with pytest.raises(UserError, match=r"log probabilities.*: use vLLM, SGLang or llama-server"):
            await read(engine, request_for(fake, top_logprobs=2))
    assert len(fake.generations) == num_asked


async def test_accepted_drafts_of_llama_server_have_none() -> None:
    fake = FakeLlamaCpp(SCRIPT)
    fake.drafting = True
    async with engine_of(fake) as engine:
        with pytest.raises(UserError, match="without speculative decoding"):
            await read(engine, request_for(fake, top_logprobs=2))


def scored(text: str, ids: list[int], **more: Any) -> dict[str, Any]:
    lists: Any = {"token_logprobs": [-0.5] * len(ids), "top_logprobs": [{f"token_id:{i}": -0.5} for i in ids]}
    fields: Any = {"logprobs": lists, **more}
    return event(text, ids, **fields)


@pytest.mark.parametrize(
    "bad",
    [
        event("a", [97]),  # none at all
        scored("ab", [97, 98], logprobs={"token_logprobs": [-0.5], "top_logprobs": [{"token_id:97": -0.5}]}),
        scored("a", [97], logprobs={"token_logprobs": [None], "top_logprobs": [None]}),
        scored("a", [97], logprobs={"token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}]}),
        scored("a", [97], logprobs=[]),
        scored("a", [97], logprobs="x"),
        scored("", [], logprobs={"token_logprobs": [-0.5, -0.5]}),
    ],
)
async def test_other_log_probabilities_than_ids_are_an_error(bad: dict[str, Any]) -> None:
    with pytest.raises(EngineProtocolError, match="unknown shape"):
        await answer_to(FakeVllm(), sse(bad, scored("", [], finish="length")), top_logprobs=1)


async def test_log_probabilities_behind_their_ids_are_waited_for() -> None:
    fake = FakeSglang(["ab", "cd"])
    ab, cd = fake.script
    late = {"token_logprobs": [-0.25, -0.5, -1.0], "top_logprobs": []}
    stream = sse(
        event("ab", [ab]), event("cd", [cd], logprobs=late), event("", [EOS], "stop", matched_stop=EOS)
    )
    chunks = await answer_to(fake, stream, top_logprobs=0)
    assert [piece for chunk in chunks for piece in chunk.pieces] == [
        Piece("ab", (ab,), (TokenLogprob(-0.25),)),
        Piece("cd", (cd,), (TokenLogprob(-0.5),)),
    ]


WORDS = Vocabulary(["ab", "abc", " now", ".\n\n", "c"])
TOKENS = st.lists(st.sampled_from([*range(257, 262), *"é🎉".encode(), 97]), max_size=14)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=TOKENS, data=st.data())
async def test_the_result_does_not_depend_on_the_chunks(ids: list[int], data: st.DataObject) -> None:
    """Ids, text and log probabilities are each cut elsewhere; text and log probabilities may lag the ids, never lead."""
    ids = WORDS.encode(WORDS.decode(ids, special=False).replace("\ufffd", ""))
    logprobs = [TokenLogprob(-float(n)) for n in range(len(ids))]

    async def spell(some: Any) -> str:
        return WORDS.decode(some)

    aligner = Aligner(spell, in_step=False, scored=True)
    pieces: list[Piece] = []
    at = lp_at = char_at = 0
    while at < len(ids):
        end = data.draw(st.integers(at + 1, len(ids)))
        shown = len(WORDS.decode(ids[:end], special=False).rstrip("\ufffd"))
        char_end = data.draw(st.integers(char_at, max(char_at, shown)))
        lp_end = data.draw(st.integers(lp_at, end))
        text = WORDS.decode(ids, special=False)[char_at:char_end]
        await aligner.add(ids[at:end], text, logprobs[lp_at:lp_end])
        at, lp_at, char_at = end, lp_end, max(char_at, char_end)
        pieces += await aligner.ready()
    await aligner.add([], WORDS.decode(ids)[char_at:], logprobs[lp_at:])
    pieces += await aligner.end(eos=False, cut=False)
    assert [i for piece in pieces for i in piece.token_ids] == ids
    assert [lp for piece in pieces for lp in piece.logprobs] == logprobs
    assert all(piece.text == WORDS.decode(piece.token_ids) for piece in pieces)
    assert all(len(piece.logprobs) == len(piece.token_ids) for piece in pieces)


async def test_the_tokens_of_a_generation_carry_them() -> None:
    """What core makes of the pieces."""
    fake = FakeVllm(SCRIPT)
    async with engine_of(fake) as engine:
        chunks = await read(engine, request_for(fake, top_logprobs=2, max_tokens=90))
    generation = Generation(alone(Author.LARGE), max_tokens=len(fake.script))
    generation.next_ask()
    tokens = [e for chunk in chunks for e in generation.feed(chunk) if isinstance(e, Token)]
    assert [i for token in tokens for i in token.token_ids] == fake.script
    assert all(len(token.logprobs) == len(token.token_ids) for token in tokens)


# ---- a real llama-server


PROMPTS = ("What is 12 + 30? Therefore", "Repeat: 🎉🐉 因此，答案是四十二。 naïve café. Again:")


@pytest.mark.weights
@pytest.mark.slow
async def test_of_a_real_llama_server(smol_engine: LlamaCppEngine) -> None:
    for prompt in PROMPTS:
        ids = await smol_engine.tokenize(prompt)
        for num, stops, max_tokens in ((5, (), 24), (2, (".\n", "42", "is "), 24), (0, (), 3)):
            request = request_for(
                Fake(), ids=ids, top_logprobs=num, stops=stops, max_tokens=max_tokens,
                sampling=Sampling(temperature=0, top_k=1),
            )  # fmt: skip
            pieces = [piece for chunk in await read(smol_engine, request) for piece in chunk.pieces]
            assert pieces
            for piece in pieces:
                assert len(piece.logprobs) == len(piece.token_ids) > 0
                last = piece.logprobs[-1]
                assert last.logprob <= 0
                assert len(last.top) == num
                if num:
                    assert sum(math.exp(top.logprob) for top in last.top) <= 1 + 1e-6
                    assert last.top[0].token_id == piece.token_ids[-1]  # greedy
                    assert last.top[0].logprob == last.logprob
                    assert (last.margin is None) == (num < 2)
                if len(piece.token_ids) == 1 and num:
                    assert last.top[0].text == piece.text


@pytest.mark.weights
@pytest.mark.slow
async def test_drafting_on_a_real_llama_server_gives_none(smollm2: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = await start(stack, smollm2, context_tokens=512, draft=smollm2)
        ids = await engine.tokenize("One, two, three, four, five,")
        with pytest.raises(UserError, match="without speculative decoding"):
            await read(engine, request_for(Fake(), ids=ids, top_logprobs=1, sampling=Sampling(temperature=0)))
