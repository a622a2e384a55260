"""A JSON schema that the text must follow: how each server is told, and that a real one does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.errors import UserError
from relaygen.types import Sampling
from tests.asking import FAKES, SCRIPT, engine_of, read, request_for
from tests.fakes import Fake

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
OPENAI = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("kind", "field", "schema", "sent"),
    [
        ("vllm", "response_format", SCHEMA, OPENAI),
        ("vllm", "response_format", {}, {"type": "json_object"}),
        ("sglang", "response_format", SCHEMA, OPENAI),
        ("sglang", "response_format", {}, {"type": "json_object"}),
        ("llamacpp", "json_schema", SCHEMA, SCHEMA),
        ("llamacpp", "json_schema", {}, {"type": "object"}),
        ("ollama", "format", SCHEMA, SCHEMA),
        ("ollama", "format", {}, "json"),
    ],
)
async def test_how_a_server_is_told(kind: str, field: str, schema: Mapping[str, Any], sent: Any) -> None:
    fake = FAKES[kind](SCRIPT)
    async with engine_of(fake) as engine:
        await read(engine, request_for(fake, schema=schema))
    assert fake.generations[-1][field] == sent


async def test_a_server_that_cannot_is_not_asked() -> None:
    fake = FAKES["text"](SCRIPT)
    async with engine_of(fake) as engine:
        with pytest.raises(UserError, match=r"response_format.*: use vLLM, SGLang, llama-server or Ollama"):
            await read(engine, request_for(fake, schema=SCHEMA))
    assert not fake.generations


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.parametrize("top_logprobs", [None, 1])
@pytest.mark.parametrize("schema", [SCHEMA, {}])
async def test_a_real_llama_server_keeps_to_it(
    smol_engine: LlamaCppEngine, schema: dict[str, Any], top_logprobs: int | None
) -> None:
    ids = await smol_engine.tokenize("The largest city of France, and how many people live there, as JSON:\n")
    request = request_for(
        Fake(),
        ids=ids,
        schema=schema,
        max_tokens=60,
        top_logprobs=top_logprobs,
        sampling=Sampling(temperature=0),
    )
    chunks = await read(smol_engine, request)
    pieces = [piece for chunk in chunks for piece in chunk.pieces]
    text = "".join(piece.text for piece in pieces)
    end = chunks[-1].end
    assert end
    if end.finish == "length":  # the model may not end an open object, but it may begin no other
        assert text.lstrip().startswith("{")
        assert not schema
    else:
        value: dict[str, Any] = json.loads(text)
        assert text.lstrip().startswith("{")
        if schema:
            assert set(value) == {"city", "people"}
            assert isinstance(value["people"], int)
    if top_logprobs:
        assert all(len(piece.logprobs) == len(piece.token_ids) for piece in pieces)
