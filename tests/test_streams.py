"""What can be wrong with a stream, a connection or an answer: each pitfall has its test, named after it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from relaygen.engines.http import Endpoint, Http
from relaygen.engines.open import connect
from relaygen.engines.probe import probe
from relaygen.errors import (
    ContextOverflowError,
    EngineCutError,
    EngineError,
    EngineOverloadedError,
    EngineProtocolError,
    EngineRefusedError,
    EngineUnreachableError,
    RelayError,
    UserError,
)
from relaygen.local import LocalServer, LocalSettings
from relaygen.types import Message
from tests.asking import (
    FAKES,
    SCRIPT,
    TEXT,
    answer_to,
    engine_of,
    finish,
    pieces,
    read,
    relay,
    request_for,
)
from tests.fakes import (
    EOS,
    FakeSglang,
    FakeVllm,
    Raw,
    event,
    refusal,
    sse,
)
from tests.fakes_llama import FakeLlamaCpp, llama_end, llama_event
from tests.fakes_text import FakeOllama, FakeText

# ---- ids and text


async def test_held_back_text() -> None:
    fake = FakeVllm(["ab", "cd", "ef"])
    [ab, cd, ef] = fake.script
    stream = sse(
        event("", [ab]), event("ab", [cd]), event("cd", [ef]), event("ef", [EOS], "stop", stop_reason=None)
    )
    assert pieces(await answer_to(fake, stream)) == [("ab", (ab,)), ("cd", (cd,)), ("ef", (ef,))]


async def test_held_back_text_is_cut_anywhere() -> None:
    fake = FakeSglang(["abc", "def"])
    [abc, de] = fake.script
    stream = sse(event("a", [abc]), event("bcd", [de]), event("ef", [EOS], "stop", matched_stop=EOS))
    assert pieces(await answer_to(fake, stream)) == [("abc", (abc,)), ("def", (de,))]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_incomplete_utf8_gives_ids_without_text(kind: str) -> None:
    fake = FAKES[kind]()
    a, b, c, d = "🎉".encode()
    stream = sse(
        event("", [a]),
        event("", [b]),
        event("", [c]),
        event("🎉", [d]),
        event("", [EOS], "stop", matched_stop=EOS),
    )
    assert pieces(await answer_to(fake, stream)) == [("🎉", (a, b, c, d))]


async def test_a_token_that_begins_with_a_whole_character_and_ends_in_a_part_of_one() -> None:
    fake = FakeSglang()
    blank, a, b = *b" ", *"é".encode()
    stream = sse(event(" ", [blank, a]), event("é", [b]), event("", [EOS], "stop", matched_stop=EOS))
    assert pieces(await answer_to(fake, stream)) == [(" ", (blank,)), ("é", (a, b))]


async def test_a_request_does_not_end_inside_a_character() -> None:
    fake = FakeVllm()
    x, a, b = *b"x", *"é".encode()[:1], *"🎉".encode()[:1]
    for last in (a, b):
        chunks = await answer_to(fake, sse(event("x", [x]), event("", [last], "length")))
        assert pieces(chunks) == [("x", (x,))]
        assert finish(chunks) == "length"
    stream = sse(event("x", [x]), event("\ufffd", [a], "length", matched_stop=None))  # SGLang shows the part
    assert pieces(await answer_to(FakeSglang(), stream)) == [("x", (x,))]


async def test_special_tokens_have_ids_and_no_text() -> None:
    fake = FakeVllm(["a", "b"])
    [a, b] = fake.script
    stream = sse(event("a", [a]), event("", [EOS]), event("b", [b]), event("", [EOS], "length"))
    assert pieces(await answer_to(fake, stream)) == [("a", (a,)), ("b", (EOS, b)), ("", (EOS,))]


@pytest.mark.parametrize("reason", [None, EOS, 300])
async def test_eos_id_in_ids(reason: int | None) -> None:
    fake = FakeVllm(["a"])
    chunks = await answer_to(
        fake, sse(event("a", fake.script), event("", [reason or EOS], "stop", stop_reason=reason))
    )
    assert pieces(chunks) == [("a", tuple(fake.script))]
    assert finish(chunks) == "eos"


async def test_an_eos_token_with_a_text_of_its_own() -> None:
    fake = FakeVllm(["a"])
    stream = sse(event("a", fake.script), event("<|end|>", [EOS], "stop", stop_reason=None))
    assert pieces(await answer_to(fake, stream)) == [("a", tuple(fake.script))]


async def test_several_tokens_per_chunk() -> None:
    fake = FakeVllm(["ab", "cd"])
    ab, cd = fake.script
    e = tuple("é".encode())
    stream = sse(event("abécd", [ab, *e, cd]), event("ab", [ab, EOS], "stop", stop_reason=None))
    assert pieces(await answer_to(fake, stream)) == [("ab", (ab,)), ("é", e), ("cd", (cd,)), ("ab", (ab,))]


async def test_a_stop_string_cuts_text_inside_a_token() -> None:
    fake = FakeVllm([" known", ".\n\n", "So"])
    known, dots, so = fake.script
    stop = event(" know", [known], "stop", stop_reason="now")
    chunks = await answer_to(fake, sse(event("So", [so]), stop))
    assert pieces(chunks) == [("So", (so,)), (" known", (known,))]
    assert finish(chunks) == "stop"
    chunks = await answer_to(fake, sse(event(" known.", [known, dots, so], "stop", stop_reason=".")))
    assert pieces(chunks) == [(" known", (known,)), (".\n\n", (dots,)), ("So", (so,))]


async def test_prompt_text_leaks_into_the_first_delta() -> None:
    fake = FakeVllm(["a", "b"])
    [a, b] = fake.script
    leaked = "long prompt \ufffd" * 20
    stream = sse(event(leaked + "a", [a]), event("b", [b], "length"))
    assert pieces(await answer_to(fake, stream)) == [("a", (a,)), ("b", (b,))]
    e = tuple("é".encode())
    stream = sse(event("", e[:1]), event(leaked + "é", e[1:]), event("b", [b], "length"))
    assert pieces(await answer_to(fake, stream)) == [("é", e), ("b", (b,))]


async def test_a_server_without_token_ids_is_told_to_be_updated() -> None:
    with pytest.raises(EngineProtocolError, match="gives no token ids: a newer vLLM does"):
        await answer_to(FakeVllm(), sse(event("a", None), event("", None, "length")))


# ---- the stream


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


# ---- the connection


async def test_a_stale_keep_alive_socket_is_replaced_once() -> None:
    """A server that closes idle connections just when they are used again (vLLM after 5 s)."""
    num_requests = {"any": 0}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = True
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) and first:
                num_requests["any"] += 1
                first = False
                length = (
                    int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                    if b"ength:" in head
                    else 0
                )
                await reader.readexactly(length)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        http = Http(Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        for _ in range(4):
            assert await http.post("/x", {"a": 1}) == {}
        await http.close()
    assert num_requests["any"] == 4


async def test_a_request_is_sent_at_most_twice() -> None:
    num_requests = {"any": 0}

    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        num_requests["any"] += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(slam, "127.0.0.1", 0)
    async with server:
        http = Http(Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        with pytest.raises(EngineCutError):
            await http.post("/x", {"a": 1})
        await http.close()
    assert num_requests["any"] == 2


async def test_a_finished_stream_leaves_its_connection_to_the_next() -> None:
    fake = FakeVllm(SCRIPT)
    async with engine_of(fake) as engine:
        for _ in range(5):
            assert finish(await read(engine, request_for(fake, max_tokens=3))) == "length"
    assert fake.num_connections <= 2  # one is the probe's


# ---- refusals


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
