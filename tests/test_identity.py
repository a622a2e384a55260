"""The strongest test of ledger, cutting and hand-over: a greedy relay of a model with itself writes the very ids of one
uninterrupted run. On real llama.cpp, two servers on one file, evaluating one token at a time: in batches of different sizes
llama.cpp rounds differently, which is not what is tested here (benchmarks/identity.py counts how often that shows)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from relaygen.core.policy import Policy, alternate, segment
from relaygen.engines.http import Endpoint, Http
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.local import LocalServer, LocalSettings
from relaygen.run import Pair, Run
from relaygen.types import Author, Message, Result, Sampling
from tests.conftest import shared_lines, start

SCRIPTS = (
    "Repeat this line five times: 😀🐉 因此，答案是四十二。 ありがとう 👩‍👩‍👧 naïve café",
    "Write a poem in Chinese, Thai and emoji.",
)
MAX_TOKENS = 24
CUES = ("Therefore,", "So,", "So ", "Now,", "Next,", "now", "The", "is", "we")


class Reference:
    """One uninterrupted run: not streamed, so that the ids come straight from the server's own list."""

    def __init__(self, server: LocalServer) -> None:
        self.http = Http(server.endpoint)

    async def ids(self, prompt: Sequence[int], num_tokens: int, eos: int) -> list[int]:
        answer = await self.http.post(
            "/completion",
            {
                "prompt": prompt,
                "n_predict": num_tokens,
                "temperature": 0,
                "return_tokens": True,
                "cache_prompt": True,
            },
        )
        tokens: list[int] = answer["tokens"]
        return tokens[:-1] if answer["stop_type"] == "eos" and tokens[-1] == eos else tokens


@pytest_asyncio.fixture
async def smol_pair(
    smollm2: Path, request: pytest.FixtureRequest
) -> AsyncGenerator[tuple[LlamaCppEngine, LlamaCppEngine, Reference]]:
    async with AsyncExitStack() as stack:
        draft = smollm2 if request.param == "drafting" else None
        large, small = [
            await start(stack, smollm2, context_tokens=2048, draft=draft, batch_invariant=True)
            for _ in range(2)
        ]
        server = await LocalServer.start(
            smollm2, LocalSettings(context_tokens=2048, batch_invariant=True), name="reference"
        )
        stack.callback(server.close)
        reference = Reference(server)
        stack.push_async_callback(reference.http.close)
        yield large, small, reference


async def relay(pair: Sequence[LlamaCppEngine], prompt: str, policy: Policy, max_tokens: int) -> Result:
    run = Run(
        Pair(dict(zip(Author, pair, strict=True))),
        [Message("user", prompt)],
        policy=policy,
        sampling=Sampling(temperature=0, top_k=1),
        max_tokens=max_tokens,
    )
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
    return run.result()


def ids(result: Result) -> list[int]:
    return [i for s in result.segments for i in s.token_ids]


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("smol_pair", "num_prompts"), [("plain", 22), ("drafting", 3)], indirect=["smol_pair"]
)
async def test_smollm2_with_itself(
    smol_pair: tuple[LlamaCppEngine, LlamaCppEngine, Reference], num_prompts: int
) -> None:
    large, small, reference = smol_pair
    problems = [
        problem
        for name, number in (("gsm8k-dev.jsonl", 14), ("math500-dev.jsonl", 6))
        for problem in sorted((line["problem"] for line in shared_lines(name)), key=len)[:number]
    ]  # the shortest: prompts are read a token at a time here
    [eos] = await large.tokenize("<|im_end|>", special=True)
    for number, prompt in enumerate([*SCRIPTS, *problems][:num_prompts]):
        _, prompt_ids = await large.render([Message("user", prompt)])
        plain = await reference.ids(prompt_ids, MAX_TOKENS, eos)
        for policy in (alternate((1, 3, 7, 13)[number % 4]), segment(CUES, max_small_tokens=20)):
            result = await relay((large, small), prompt, policy, MAX_TOKENS)
            assert ids(result) == plain[: len(ids(result))], (prompt, policy.name)
            # A character cut by the budget is not shown: at most three tokens fewer.
            assert len(plain) - len(ids(result)) <= (3 if result.finish_reason == "length" else 0)
            assert len(result.segments) > 1 or policy.name == "segment"
            assert await _decoded(large, ids(result)) == result.text


async def _decoded(engine: LlamaCppEngine, token_ids: list[int]) -> str:
    return (await engine._http.post("/detokenize", {"tokens": token_ids}))["content"]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_qwen_with_itself(qwen_small: Path) -> None:
    async with AsyncExitStack() as stack:
        large, small = [
            await start(stack, qwen_small, context_tokens=2048, batch_invariant=True) for _ in range(2)
        ]
        server = await LocalServer.start(
            qwen_small, LocalSettings(context_tokens=2048, batch_invariant=True), name="reference"
        )
        stack.callback(server.close)
        reference = Reference(server)
        stack.push_async_callback(reference.http.close)
        [eos] = await large.tokenize("<|im_end|>", special=True)
        for prompt in [line["problem"] for line in shared_lines("gsm8k-dev.jsonl")[:3]]:
            _, prompt_ids = await large.render([Message("user", prompt)])
            plain = await reference.ids(prompt_ids, MAX_TOKENS, eos)
            for policy in (alternate(13), segment((*CUES, "To"), max_small_tokens=20)):
                result = await relay((large, small), prompt, policy, MAX_TOKENS)
                assert ids(result) == plain


@pytest.mark.weights
async def test_a_server_elsewhere_is_reached_by_its_url(smollm2: Path) -> None:
    server = await LocalServer.start(smollm2, LocalSettings(context_tokens=512, num_slots=2), name="x")
    try:
        engine = await LlamaCppEngine.connect(Endpoint(server.endpoint.url, server.endpoint.api_key, "mine"))
        result = await relay((engine, engine), "Hi", alternate(5), 20)
        assert result.usage.completion_tokens > 1
        await engine.close()
    finally:
        server.close()
