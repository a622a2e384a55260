"""What can be wrong with a stream: each pitfall has its test, named after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from relaygen.engines.open import connect
from relaygen.engines.probe import probe
from relaygen.errors import (
    ContextOverflowError,
    EngineCutError,
    EngineError,
    EngineProtocolError,
    EngineRefusedError,
    UserError,
)
from relaygen.local import LocalServer, LocalSettings
from relaygen.types import Message
from tests.asking import (
    FAKES,
    SCRIPT,
    answer_to,
    engine_of,
    finish,
    pieces,
    read,
    request_for,
)
from tests.fakes import (
    FakeVllm,
    event,
    sse,
)
from tests.fakes_llama import FakeLlamaCpp, llama_end, llama_event
from tests.fakes_text import FakeOllama, FakeText

FINISHED = [("a", (97,)), ("b", (98,))]
GOOD = (event("a", [97]), event("b", [98], "length"))


async def test_usage_chunk_with_empty_choices() -> None:
    usage = {"prompt_tokens": 30, "prompt_tokens_details": {"cached_tokens": 16}}
    chunks = await answer_to(FakeVllm(), sse(*GOOD, {"choices": [], "usage": usage}))
    end = chunks[-1].end
    assert end
    assert (end.prefill_tokens, end.cached_tokens, end.decode_tokens) == (14, 16, 2)
    unknown = (await answer_to(FakeVllm(), sse(*GOOD, {"choices": [], "usage": {"prompt_tokens": 30}})))[
        -1
    ].end
    assert unknown
    assert (unknown.prefill_tokens, unknown.cached_tokens) == (0, 0)  # not told, not guessed


@pytest.mark.parametrize(
    "shape", ["comments", "crlf", "multi-line", "no done", "cut in bytes", "reset after finish"]
)
@pytest.mark.parametrize("kind", ["vllm", "sglang", "text"])
async def test_shapes_of_a_good_stream(kind: str, shape: str) -> None:
    stream = sse(*GOOD, done=shape not in ("no done", "reset after finish"))
    parts = {
        "comments": (b": ping\n\n", stream.replace(b"\n\n", b"\n\n: ping\n\n")),
        "crlf": (stream.replace(b"\n", b"\r\n"),),
        "multi-line": (stream.replace(b', "choices"', b',\ndata: "choices"'),),
        "cut in bytes": tuple(stream[i : i + 7] for i in range(0, len(stream), 7)),
    }
    chunks = await answer_to(FAKES[kind](), *parts.get(shape, (stream,)), cut=shape == "reset after finish")
    assert finish(chunks) == "length"
    assert [text for text, _ in pieces(chunks)] == ["a", "b"]


async def test_line_separators_inside_json() -> None:
    chunks = await answer_to(FakeText(), sse(event("a\u2028b\u0085c"), event("", None, "stop")))
    assert pieces(chunks) == [("a\u2028b\u0085c", ())]


@pytest.mark.parametrize("kind", ["vllm", "sglang", "text"])
@pytest.mark.parametrize("done", [True, False])
async def test_done_without_a_finish_reason_is_a_cut(kind: str, done: bool) -> None:
    with pytest.raises(EngineCutError, match="without a finish reason"):
        await answer_to(FAKES[kind](), sse(event("a", [97]), done=done))


@pytest.mark.parametrize("kind", ["vllm", "sglang", "text"])
async def test_error_then_done(kind: str) -> None:
    stream = sse(
        event("a", [97]), {"error": {"message": "out of vocabulary", "type": "BadRequestError", "code": 400}}
    )
    with pytest.raises(EngineRefusedError, match="out of vocabulary"):
        await answer_to(FAKES[kind](), stream)
    with pytest.raises(EngineError, match="died"):
        await answer_to(FAKES[kind](), sse({"error": {"message": "died"}}))


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_an_aborted_request_is_a_cut(reason: str) -> None:
    with pytest.raises(EngineCutError, match=reason):
        await answer_to(FakeVllm(), sse(event("a", [97]), event("", [], reason)))


@pytest.mark.parametrize("kind", ["vllm", "text", "ollama"])
async def test_connection_reset_in_the_middle(kind: str) -> None:
    fake = FAKES[kind]()
    with pytest.raises(EngineCutError, match="broke the connection"):
        await answer_to(
            fake,
            b'{"response": "a", "done": false}\n' if kind == "ollama" else sse(event("a", [97]), done=False),
            cut=True,
        )
    assert len(fake.generations) == (2 if kind == "vllm" else 1)  # never sent again once something has come


@pytest.mark.parametrize(
    "garbage", [b"data: {nonsense\n\n", b"data: [1]\n\n", b'data: {"choices": [{}]}\n\n', b"data: {}\n\n"]
)
@pytest.mark.parametrize("kind", ["vllm", "sglang", "text"])
async def test_garbage(kind: str, garbage: bytes) -> None:
    with pytest.raises((EngineProtocolError, EngineCutError)):
        await answer_to(FAKES[kind](), garbage)


# ---- Ollama


async def test_ollama_lines() -> None:
    stream = '{"response":"a","done":false}\n{"response":"🎉","done":false}\n\n'.encode()
    counts = b'"prompt_eval_count":9,"prompt_eval_duration":7000000,"eval_count":2,"eval_duration":5000000'
    more = b'{"response":"","done":true,"done_reason":"stop",' + counts + b"}\n"
    chunks = await answer_to(FakeOllama(), stream[:40], stream[40:], more)
    assert [text for text, _ in pieces(chunks)] == ["a", "🎉"]
    end = chunks[-1].end
    assert end
    assert (end.finish, end.prefill_tokens, end.prefill_ms, end.decode_ms) == ("eos", 9, 7, 5)


async def test_ollama_errors() -> None:
    with pytest.raises(EngineError, match="runner has gone"):
        await answer_to(FakeOllama(), b'{"response":"a","done":false}\n{"error":"runner has gone"}\n')
    with pytest.raises(EngineCutError, match="without a finish reason"):
        await answer_to(FakeOllama(), b'{"response":"a","done":false}\n')
    with pytest.raises(ContextOverflowError):
        await answer_to(FakeOllama(), b'{"error":"the input length exceeds the context length"}', status=400)


async def test_ollama_keeps_the_model_and_the_middle_of_the_text() -> None:
    fake = FakeOllama(SCRIPT)
    async with engine_of(fake) as engine:
        await read(engine, request_for(fake))
    body = fake.generations[-1]
    assert (body["raw"], body["truncate"], body["shift"], body["keep_alive"]) == (True, False, False, "30m")
    assert body["options"]["num_ctx"] == 4000  # its own default is small


async def test_an_ollama_that_cannot_render_is_told_to_be_updated() -> None:
    class Old(FakeOllama):
        async def chat(self, request: Any) -> Any:
            return web.json_response({"message": {"content": "Hello!"}})

    async with engine_of(Old()) as engine:
        with pytest.raises(UserError, match="update Ollama"):
            await engine.render([Message("user", "?")])


async def test_a_server_that_cannot_render_is_refused_with_what_to_do() -> None:
    class Bare(FakeText):
        async def render(self, request: Any) -> Any:
            raise web.HTTPNotFound

    async with engine_of(Bare()) as engine:
        with pytest.raises(UserError, match="does not render chats"):
            await engine.render([Message("user", "?")])


# ---- llama-server


async def test_llama_server_loses_the_ids_of_a_character() -> None:
    fake = FakeLlamaCpp()
    party = "🎉".encode()
    stream = sse(llama_event("🎉", [party[-1]], 4), llama_end("limit", 4), done=False)
    assert pieces(await answer_to(fake, stream)) == [("🎉", tuple(party))]


async def test_llama_server_errors_have_no_done() -> None:
    event = llama_event("a", [97], 1)
    with pytest.raises(EngineError, match="died"):
        await answer_to(FakeLlamaCpp(), sse(event, {"error": {"message": "died", "code": 500}}, done=False))
    with pytest.raises(EngineCutError, match="without a finish reason"):
        await answer_to(FakeLlamaCpp(), sse(event, done=False))
    with pytest.raises(EngineCutError, match="broke the connection"):
        await answer_to(FakeLlamaCpp(), sse(event, done=False), cut=True)
    with pytest.raises(EngineProtocolError, match="unknown shape"):
        await answer_to(FakeLlamaCpp(), b"data: {}\n\n")
    body = b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}'
    with pytest.raises(ContextOverflowError):
        await answer_to(FakeLlamaCpp(), body, status=400)


@pytest.mark.weights
async def test_a_real_llama_server_is_found_and_refuses_a_wrong_key(smollm2: Path) -> None:
    server = await LocalServer.start(smollm2, LocalSettings(context_tokens=256), name="x")
    try:
        assert await probe(server.endpoint) == "llamacpp"
        with pytest.raises(EngineRefusedError, match="API key") as caught:
            await connect(server.endpoint.url, name="x", api_key="wrong-key", context_tokens=0)
        assert "wrong-key" not in str(caught.value)
    finally:
        server.close()
