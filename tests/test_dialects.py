"""Every dialect against a small server that plays its weaknesses: each pitfall has its test, named after it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from relaygen.core.policy import alone, segment
from relaygen.engines.base import Engine, Request
from relaygen.engines.completions import CompletionsEngine
from relaygen.engines.http import Endpoint, Http
from relaygen.engines.open import Address, connect, is_url
from relaygen.engines.probe import probe
from relaygen.engines.stops import StopChoice
from relaygen.engines.vllm import VllmEngine
from relaygen.engines.vocabulary import translation
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
from relaygen.run import Pair, Run
from relaygen.types import Author, Chunk, Message, Result, Sampling
from tests.fakes import (
    EOS,
    PROMPT,
    Fake,
    FakeLlamaCpp,
    FakeOllama,
    FakeSglang,
    FakeText,
    FakeVllm,
    Raw,
    event,
    llama_end,
    llama_event,
    refusal,
    sse,
)

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
    fake: Fake, *parts: bytes, cut: bool = False, status: int = 200, key: str | None = None
) -> list[Chunk]:
    """What the engine makes of exactly these bytes."""
    async with engine_of(fake, key) as engine:
        fake.raw.append(Raw(parts, status, cut))
        return await read(engine, request_for(fake))


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


# ---- every dialect


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


@pytest.mark.parametrize("kind", ["vllm", "vllm held back", "sglang"])
async def test_every_way_of_ending_a_turn_gives_the_same_turns(kind: str) -> None:
    """Stop strings (any number), a few of them, none (the stream is closed); one or several tokens per chunk."""
    turns: list[Any] = []
    for max_stops, chunk_tokens in itertools.product((9999, 4, 1), (1, 4)):
        held_back = {"held_back": True} if kind == "vllm held back" else {}
        fakes = [
            (FakeSglang if kind == "sglang" else FakeVllm)(
                SCRIPT, chunk_tokens=chunk_tokens, max_stops=max_stops, **held_back
            )
            for _ in range(2)
        ]
        async with engine_of(fakes[0]) as large, engine_of(fakes[1]) as small:
            for engine in (large, small):
                assert isinstance(engine, CompletionsEngine)
                engine.stops.limit = min(engine.stops.limit, max_stops)
            result = await relay(large, small)
        turns.append([(s.author, s.token_ids, s.text, s.reason) for s in result.segments])
    assert all(turn == turns[0] for turn in turns)


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


# ---- stops


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
    assert choice.pick(stops) == ["a,", "b,"]
    assert choice.pick(("x",)) == ["x"]
    for text, last in (
        ("so d", ","),
        ("x bb", ", and"),
        ("x d", ","),
        ("x bb", ","),
        ("d, d,", " no"),
        ("", ""),
    ):
        choice.learn(stops, text, last)
    assert choice.pick(stops) == ["d,", "bb,"]  # of two that end together the longer is counted


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
