"""Every dialect against a small server that plays one script: found, asked, and relaying with every other."""

from __future__ import annotations

from typing import Any

import pytest

from relaygen.core.policy import alone
from relaygen.engines.http import Endpoint
from relaygen.engines.open import Address, connect, is_url
from relaygen.engines.probe import probe
from relaygen.errors import (
    EngineRefusedError,
    EngineUnreachableError,
    UserError,
)
from relaygen.types import Author, Sampling
from tests.asking import (
    FAKES,
    SCRIPT,
    TEXT,
    engine_of,
    read,
    relay,
    request_for,
)
from tests.fakes import (
    Fake,
    FakeVllm,
)
from tests.fakes_text import FakeOllama


@pytest.mark.parametrize("chunk_tokens", [1, 4])
@pytest.mark.parametrize("small", FAKES)
@pytest.mark.parametrize("large", FAKES)
async def test_a_relay_of_a_script_with_itself_is_the_script(
    large: str, small: str, chunk_tokens: int
) -> None:
    async with (
        engine_of(FAKES[large](SCRIPT, chunk_tokens=chunk_tokens)) as one,
        engine_of(FAKES[small](SCRIPT, chunk_tokens=chunk_tokens)) as other,
    ):
        result = await relay(one, other)
    assert result.text == TEXT
    assert len(result.segments) > 3
    assert result.usage.large_tokens
    assert result.usage.small_tokens
    assert not result.warnings


@pytest.mark.parametrize("kind", FAKES)
async def test_one_model_alone(kind: str) -> None:
    fake = FAKES[kind](SCRIPT)
    async with engine_of(fake) as engine:
        result = await relay(engine, engine, alone(Author.LARGE))
    assert result.text == TEXT
    assert result.finish_reason == "stop"
    assert len(fake.generations) - ("vllm" in kind) == 1


@pytest.mark.parametrize("kind", FAKES)
async def test_every_sampler_field_is_sent(kind: str) -> None:
    fake = FAKES[kind](SCRIPT)
    async with engine_of(fake) as engine:
        await read(engine, request_for(fake, sampling=Sampling(0.5, 0.9, 0, 0.0, 1.0)))
    body = fake.generations[-1]
    options = body.get("options", body)
    assert (options["temperature"], options["top_p"], options["seed"]) == (0.5, 0.9, 7)
    assert (options["presence_penalty"], options["frequency_penalty"]) == (0, 0)
    if kind != "text":
        assert options["top_k"] == (0 if kind in ("ollama", "llamacpp") else -1)
        assert options["min_p"] == 0
        assert options.get("repetition_penalty", options.get("repeat_penalty")) == 1
    assert (options.get("num_predict") or options.get("n_predict") or body["max_tokens"]) == 50


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("vllm", "vllm"),
        ("llamacpp", "llamacpp"),
        ("sglang", "sglang"),
        ("ollama", "ollama"),
        ("text", "text"),
    ],
)
async def test_the_dialect_is_found_by_asking(kind: str, found: str) -> None:
    async with FAKES[kind]().running() as url:
        assert await probe(Endpoint(url)) == found


async def test_nobody_there_and_a_stranger_there() -> None:
    with pytest.raises(EngineUnreachableError, match="Is the server running"):
        await probe(Endpoint("http://127.0.0.1:9", name="the large model"))

    class Stranger(Fake):
        def routes(self, router: Any) -> None:
            pass

    async with Stranger().running() as url:
        with pytest.raises(EngineRefusedError, match="404"):
            await probe(Endpoint(url))


def test_addresses() -> None:
    assert Address.parse("http://host:8000") == Address(None, "http://host:8000", None)
    assert Address.parse("vllm+https://host/v1/#org/name") == Address("vllm", "https://host", "org/name")
    assert Address.parse("http://[::1]:80/proxy/v1") == Address(None, "http://[::1]:80/proxy", None)
    with pytest.raises(UserError, match="unknown dialect 'trtllm': choose one of llamacpp, vllm"):
        Address.parse("trtllm+http://host")
    assert not is_url("qwen2.5-coder-0.5b")
    assert not is_url("./model.gguf")
    assert is_url("ollama+http://host:11434#qwen3")


async def test_a_model_is_named_where_there_are_several() -> None:
    fake = FakeOllama()
    fake.names = ("a:latest", "b:7b")
    async with fake.running() as url:
        with pytest.raises(UserError, match=r"a:latest, b:7b; say which, as http://.*#NAME"):
            await connect(url, name="x", api_key=None, context_tokens=100)
        engine = await connect(f"{url}#a", name="x", api_key=None, context_tokens=100)
        assert (engine.info.model, engine.info.context_tokens) == ("a:latest", 100)
        await engine.close()
        with pytest.raises(UserError, match="ollama pull c"):
            await connect(f"{url}#c", name="x", api_key=None, context_tokens=100)
    async with FakeVllm().running() as url:
        with pytest.raises(UserError, match="serves toy: nope is not there"):
            await connect(f"{url}#nope", name="x", api_key=None, context_tokens=100)
        engine = await connect(f"{url}#toy-lora", name="x", api_key=None, context_tokens=100)
        assert engine.info.model == "toy-lora"
        await engine.close()
