"""What servers refuse, and what is never sent to them."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from relaygen.engines.http import Endpoint
from relaygen.engines.probe import probe
from relaygen.errors import (
    ContextOverflowError,
    EngineError,
    EngineOverloadedError,
    EngineRefusedError,
    EngineUnreachableError,
    RelayError,
    UserError,
)
from tests.asking import (
    FAKES,
    SCRIPT,
    TEXT,
    answer_to,
    engine_of,
    relay,
)
from tests.fakes import (
    FakeVllm,
    Raw,
    refusal,
)
from tests.fakes_text import FakeText

REFUSALS: list[tuple[int, bytes, type[RelayError], str]] = [
    (429, refusal("slow down"), EngineOverloadedError, "overloaded"),
    (503, b"", EngineOverloadedError, "loading"),
    (401, b'{"error": "Unauthorized"}', EngineRefusedError, "API key"),
    (400, refusal("This model's maximum context length is 500 tokens."), ContextOverflowError, "cannot hold"),
    (400, refusal("top_k must be -1"), EngineRefusedError, "top_k must be -1"),
    (404, b"<html>", EngineRefusedError, "<html>"),
    (500, b"boom", EngineError, "failed"),
]


@pytest.mark.parametrize(("status", "body", "kind", "says"), REFUSALS)
@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp", "text", "ollama"])
async def test_refusals(dialect: str, status: int, body: bytes, kind: type[RelayError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        await answer_to(FAKES[dialect](), body, status=status)
    assert "\n" not in str(caught.value)


async def test_secrets_are_never_in_messages() -> None:
    key = "sk-very-secret"
    body = refusal(f"Incorrect API key provided: {key}")
    with pytest.raises(EngineRefusedError) as caught:
        await answer_to(FakeVllm(), body, status=401, key=key)
    assert key not in str(caught.value)
    with pytest.raises(EngineUnreachableError) as unreachable:
        await probe(Endpoint("http://user:pa55word@127.0.0.1:9/?token=t0ken", name="the large model"))
    for secret in ("pa55word", "t0ken"):
        assert secret not in str(unreachable.value)
    with pytest.raises(UserError, match="not both"):
        await probe(Endpoint("http://user:pa55word@127.0.0.1:9", key))


async def test_a_prompt_longer_than_the_context_is_refused_before_it_is_sent() -> None:
    fake = FakeVllm(SCRIPT)
    fake.max_model_len = 10
    async with engine_of(fake) as engine:
        num_requests = len(fake.generations)
        with pytest.raises(ContextOverflowError):
            await relay(engine, engine)
    assert len(fake.generations) == num_requests


async def test_a_small_context_that_fills_up_unforeseen_leaves_the_large_model_alone() -> None:
    """How many tokens a text-only engine makes of a text is only estimated here."""
    small = FakeText(SCRIPT)
    small.raw.append(Raw((refusal("the prompt exceeds the context length"),), status=400))
    async with engine_of(FakeVllm(SCRIPT)) as large, engine_of(small) as other:
        result = await relay(large, other)
    assert result.text == TEXT
    assert "exceeds the context length" in result.warnings[0]


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "ollama", "text"])
async def test_prompt_and_max_tokens_never_exceed_the_context(kind: str) -> None:
    fake = FAKES[kind](SCRIPT * 20)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(engine_of(fake))
        result = await relay(engine, engine)
        context = engine.info.context_tokens
    for body in fake.generations[1:]:
        limit = body.get("max_tokens") or body.get("n_predict") or body["options"]["num_predict"]
        length = len(body["prompt"]) if isinstance(body["prompt"], list) else len(body["prompt"]) / 4
        assert length + limit <= context
    assert result.finish_reason == "length"
