"""relaygen simulate: the time model, the batch, the texts, and both servers through our own engines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygen.api import SyncRelay
from relaygen.cli import main
from relaygen.core.policy import Policy, alone, alternate, segment
from relaygen.engines.base import Engine, Request
from relaygen.engines.http import Endpoint
from relaygen.engines.open import connect
from relaygen.engines.probe import probe
from relaygen.errors import ContextOverflowError, EngineOverloadedError, UserError
from relaygen.run import Pair, Run
from relaygen.simulate.batch import MAX_PASS_TOKENS, Batch
from relaygen.simulate.batch import Sequence as Work
from relaygen.simulate.cache import BLOCK_TOKENS, BlockCache, SlotCache, common_prefix
from relaygen.simulate.llamacpp import SimulatedLlamaServer
from relaygen.simulate.machines import machines, parse
from relaygen.simulate.plan import plan
from relaygen.simulate.script import Library, stretch
from relaygen.simulate.server import Settings, SimulatedServer
from relaygen.simulate.speed import Speed
from relaygen.simulate.vllm import SimulatedVllm
from relaygen.simulate.vocabulary import END_ID, Vocabulary, words
from relaygen.trace import Trace
from relaygen.types import Author, Message, Piece, Result, Sampling

FAST = Speed.of(20_000, 1_000_000)
SERVERS: dict[str, type[SimulatedServer]] = {"vllm": SimulatedVllm, "llamacpp": SimulatedLlamaServer}
CUES = ("Therefore,", "Thus,", "So,", "Now", "Wait,")
THINK = ("<think>", "</think>")
GREEDY = Sampling(temperature=0, seed=1)

# --- the time model


def test_step_times_lie_on_lines() -> None:
    table = Speed(((1, 40.0), (8, 42.0), (32, 54.0)), 8000)
    assert [table.step_ms(n) for n in (1, 8, 20, 32, 44)] == [40, 42, 48, 54, 60]
    slope = Speed.of(25, 8000, 0.1)
    assert [slope.step_ms(n) for n in (1, 2, 11)] == pytest.approx([40, 44, 80])
    assert Speed(((1, 40.0),), 8000).step_ms(99) == 40


def test_a_pass_takes_as_long_as_the_slower_of_weights_and_computing() -> None:
    speed = Speed.of(25, 8000, 0.1)
    assert speed.pass_ms(1, 1) == 40
    assert speed.pass_ms(1, 320) == 40
    assert speed.pass_ms(1, 800) == 100
    assert speed.pass_ms(2, 100) == pytest.approx(44)


@pytest.mark.parametrize(
    "steps",
    [(), ((2, 40.0),), ((1, 40.0), (1, 50.0)), ((1, 40.0), (2, 30.0)), ((1, 0.0),), ((1, float("inf")),)],
)
def test_a_table_of_steps_that_cannot_be(steps: Any) -> None:
    with pytest.raises(UserError):
        Speed(steps, 8000)


def test_speeds_from_words() -> None:
    assert parse("25:8000:0.1") == Speed.of(25, 8000, 0.1)
    assert parse("paper-large") == Speed.of(25, 8000)
    assert parse("paper-large:0.2") == Speed.of(25, 8000, 0.2)
    assert all(machine.source for machine in machines().values())


@pytest.mark.parametrize(
    "word", ["", "25", "25:", "a:b", "25:8000:1:2", "0:8000", "25:-1", "nan:8000", "1:2:nan", "h100"]
)
def test_words_that_are_no_speed(word: str) -> None:
    with pytest.raises(UserError, match="is no speed"):
        parse(word)


# --- the batch


def run_batch(batch: Batch, *added: Work) -> float:
    """Milliseconds until all is done."""
    for work in added:
        batch.add(work)
    at = 0.0
    while (ms := batch.begin()) is not None:
        at += ms / 1000
        batch.end(at)
    return at * 1000


def work(unread: int, num_tokens: int) -> Work:
    return Work(unread, num_tokens, lambda index: None, 0.0)


def test_a_request_alone_takes_its_reading_and_its_steps() -> None:
    one = work(800, 11)
    assert run_batch(Batch(Speed.of(25, 8000), 4), one) == pytest.approx(100 + 10 * 40)
    assert (one.prefill_ms, one.decode_ms) == (pytest.approx(100), pytest.approx(400))


def test_more_requests_slow_each_other_down() -> None:
    speed = Speed.of(25, 8000, 0.1)
    times = {n: run_batch(Batch(speed, 64), *(work(1, 100) for _ in range(n))) for n in (1, 8, 32)}
    assert times == pytest.approx({1: 4000, 8: 4000 * 1.7, 32: 4000 * 4.1})


def test_what_does_not_fit_waits_for_a_place() -> None:
    first, second, third = work(1, 10), work(1, 20), work(1, 5)
    run_batch(Batch(Speed.of(100, 8000), 2), first, second, third)
    assert [w.first_at for w in (first, second, third)] == pytest.approx([0.01, 0.01, 0.11])


def test_a_long_prompt_is_read_in_passes_that_others_take_part_in() -> None:
    writer, reader = work(1, 30), work(10_000, 1)
    batch = Batch(Speed.of(1000, 8000), 4)
    run_batch(batch, writer, reader)
    num_passes = -(-10_000 // (MAX_PASS_TOKENS - 1))
    assert writer.written == 30
    assert reader.first_at * 1000 == pytest.approx((10_000 + num_passes) / 8)


def test_a_request_that_is_removed_writes_no_more() -> None:
    written: list[int] = []
    batch = Batch(Speed.of(100, 8000), 1)
    first, second = Work(1, 50, written.append, 0.0), work(1, 1)
    batch.add(first)
    batch.add(second)
    assert batch.begin()
    batch.end(0.01)
    assert batch.begin()
    batch.remove(first)
    batch.end(0.02)
    assert written == [0]
    assert (batch.num_running, batch.num_waiting) == (0, 1)
    batch.remove(second)
    batch.remove(second)
    assert batch.begin() is None


# --- caches


def test_blocks_are_found_whoever_wrote_them() -> None:
    cache = BlockCache()
    ids = list(range(100))
    assert cache.cached(ids) == 0
    cache.keep(ids)
    assert cache.cached(ids) == 96
    assert cache.cached(ids[:96]) == 80  # the last token is read again, and so its block
    assert cache.cached([*ids[:50], 7, 7, 7]) == 48
    assert cache.cached([7, *ids]) == 0
    assert cache.cached(ids[:BLOCK_TOKENS]) == 0


def test_a_slot_keeps_its_last_request() -> None:
    slots = SlotCache(2)
    a, b = [1, 2, 3, 4, 5], [9, 8, 7]
    slot, cached = slots.take(a, None)
    assert cached == 0
    slots.keep(slot, a)
    slots.release(slot)
    other, _ = slots.take(b, 1 - slot)
    slots.keep(other, b)
    slots.release(other)
    assert slots.take([9, 8, 1], None) == (other, 2)
    assert not slots.is_free(other)
    assert slots.is_free(None)
    assert slots.take(a, None) == (slot, 4)
    assert not slots.is_free(None)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_the_common_prefix(a: list[int], b: list[int]) -> None:
    expected = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == expected


# --- texts


@given(st.text())
def test_words_add_up_and_ids_give_the_text_back(text: str) -> None:
    assert "".join(words(text)) == text
    assert Vocabulary([words("some text")]).decode(Vocabulary([]).encode(text)) == text
    vocabulary = Vocabulary([words(text)])
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert len(vocabulary.encode(text)) == len(list(words(text)))


def test_words_are_cut_as_tokenisers_cut() -> None:
    text = "<think>\nSo, x_1 = 3.14.\n\nIt's  naïve 😀</think>"
    assert list(words(text)) == [
        *(
            "<think>",
            "\n",
            "So",
            ",",
            " x",
            "_",
            "1",
            " =",
            " ",
            "3",
            ".",
            "1",
            "4",
            ".\n\n",
            "It",
            "'",
            "s",
            " ",
        ),
        *(" naïve", " 😀", "</think>"),
    ]


def test_special_tokens_are_text_unless_asked_for() -> None:
    vocabulary = Vocabulary([])
    assert vocabulary.encode("a<|end|>b", special=True) == [97, END_ID, 98]
    assert END_ID not in vocabulary.encode("a<|end|>b")
    assert vocabulary.decode([97, END_ID], special=False) == "a"


def library(*texts: str) -> Library:
    return Library([Trace(str(n), text) for n, text in enumerate(texts)])


def prompt(lib: Library, text: str = "?") -> list[int]:
    return lib.vocabulary.encode(f"<|user|>{text}<|end|><|assistant|>", special=True)


def test_a_prompt_picks_its_text_by_its_problem_and_else_by_a_hash() -> None:
    lib = Library([Trace("a", "first", problem="What is 1?"), Trace("b", "second", problem="What is 2?")])
    assert lib.continuation(prompt(lib, "Please: What is 2?"))[0].text == "second"
    picked = {lib.continuation(prompt(lib, str(n)))[0].text for n in range(20)}
    assert picked == {"first", "second"}
    again = Library([Trace("a", "first"), Trace("b", "second")], seed=5)
    assert {again.continuation(prompt(again, str(n)))[0].text for n in range(20)} == {"first", "second"}


@given(st.integers(0, 60), st.booleans())
def test_an_answer_goes_on_wherever_it_was_left(cut: int, in_bytes: bool) -> None:
    text = "One naïve word. Therefore, two 😀 words.\n\nNow three!"
    lib = library(text)
    whole, start = lib.continuation(prompt(lib))
    assert (whole.text, start) == (text, 0)
    written = list(text[:cut].encode()) if in_bytes else lib.vocabulary.encode(text)[:cut]
    begun = lib.vocabulary.decode(written)
    script, start = lib.continuation([*prompt(lib), *written])
    plan = stretch(script, start, 1000)
    assert begun + lib.vocabulary.decode(plan.ids[:-1]) == text
    assert begun + plan.text(plan.shown_to(keep_stop=True)) == text
    assert plan.finish == "eos"


def test_after_other_text_it_goes_on_at_the_same_number() -> None:
    lib = library("one two three four five")
    script, start = lib.continuation([*prompt(lib), *lib.vocabulary.encode("one three")])
    assert stretch(script, start, 2).text(script.offsets[start + 2]) == " three four"
    script, start = lib.continuation([*prompt(lib), *lib.vocabulary.encode("five" * 40)])
    assert stretch(script, start, 5).ids == [END_ID]


def test_recorded_tokens_are_kept() -> None:
    trace = Trace("a", "abcd", token_ids=(5, 6), pieces=(Piece("ab", (5,)), Piece("cd", (6,))))
    script = Library([trace]).scripts[0]
    assert script.offsets == [0, 2, 4]


@pytest.mark.parametrize(
    ("stops", "shown", "stop"),
    [
        (["three"], "one two three", "three"),
        (["ee f", "four"], "one two three f", "ee f"),
        (["two three", "three"], "one two three", "two three"),
        (["nothing", ""], "one two three four", None),
        (["one two three four five"], "one two three four", None),
    ],
)
def test_the_stop_that_is_complete_first_ends_an_answer(
    stops: list[str], shown: str, stop: str | None
) -> None:
    lib = library("one two three four five")
    plan = stretch(lib.scripts[0], 0, 4, stops)
    assert (plan.text(plan.shown_to(keep_stop=True)), plan.stop) == (shown, stop)
    assert plan.finish == ("stop" if stop else "length")


@given(
    st.text("ab. ", min_size=1),
    st.lists(st.text("ab. ", min_size=1, max_size=4), max_size=4),
    st.integers(1, 900),
)
def test_stops_are_found_as_by_reading_on(text: str, stops: list[str], repeats: int) -> None:
    lib = library(text * repeats)
    plan = stretch(lib.scripts[0], 0, 10**6, stops)
    ends = [(at + len(stop), at) for stop in stops if (at := lib.scripts[0].text.find(stop)) >= 0]
    assert plan.stop_place == ((min(ends)[1], min(ends)[0]) if ends else (0, 0))


def test_a_whole_token_can_end_an_answer() -> None:
    lib = library("one two three two")
    (two,) = lib.vocabulary.encode(" two")
    plan = stretch(lib.scripts[0], 0, 10, [], {two})
    assert (plan.stop, plan.num_tokens) == (two, 2)
    assert plan.text(plan.shown_to(keep_stop=False)) == "one"
    assert stretch(lib.scripts[0], 0, 10, ["ne"], {two}).stop == "ne"


# --- the servers


@asynccontextmanager
async def serving(
    dialect: str, traces: Sequence[Trace] | None = None, speed: Speed = FAST, **settings: Any
) -> AsyncGenerator[SimulatedServer]:
    lib = Library.read() if traces is None else Library(traces)
    settings.setdefault("network_ms", 0.0)
    server = SERVERS[dialect](Settings("simulated", speed, **settings), lib)
    async with server.running():
        yield server


@asynccontextmanager
async def engine(server: SimulatedServer) -> AsyncGenerator[Engine]:
    found = await connect(server.url, name="the engine", api_key=None, context_tokens=100)
    try:
        yield found
    finally:
        await found.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def relay(
    dialects: Sequence[str], policy: Policy, question: str = "?", max_tokens: int = 1000
) -> Result:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(dialect)) for dialect in dialects]
        engines = [await stack.enter_async_context(engine(server)) for server in servers]
        result = await generate(engines, policy, question, max_tokens)
        assert [server.num_requests for server in servers] == [0, 0]
        return result


async def generate(
    engines: Sequence[Engine], policy: Policy, question: str, max_tokens: int = 1000
) -> Result:
    pair = Pair(dict(zip(Author, engines, strict=False)), {author: {} for author in Author})
    run = Run(pair, [Message("user", question)], policy=policy, sampling=GREEDY, max_tokens=max_tokens)
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
    return run.result()


def built_in(question: str) -> str:
    lib = Library.read()
    return lib.continuation(prompt(lib, question))[0].text


@pytest.mark.parametrize("dialects", [("vllm", "vllm"), ("llamacpp", "llamacpp"), ("vllm", "llamacpp")])
@pytest.mark.parametrize(
    "policy",
    [segment(CUES, answer_cues=("\\boxed{",), think=THINK), alternate(3), alternate(7)],
    ids=["cues", "every 3", "every 7"],
)
async def test_a_relay_of_two_simulated_engines_writes_the_recorded_text(
    dialects: tuple[str, str], policy: Policy
) -> None:
    for question in ("?", "What of the tulips?"):
        result = await relay(dialects, policy, question)
        assert result.text == built_in(question)
        assert result.finish_reason == "stop"
        assert result.handovers > 5
        lib = Library.read()
        assert [i for s in result.segments for i in s.token_ids] == lib.vocabulary.encode(result.text)


@pytest.mark.parametrize("dialect", SERVERS)
async def test_the_same_question_always_gets_the_same_answer(dialect: str) -> None:
    texts = {(await relay((dialect, dialect), alone(Author.LARGE), "Same?", 40)).text for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.parametrize("dialect", SERVERS)
async def test_they_are_taken_for_what_they_play(dialect: str) -> None:
    async with serving(dialect) as server, engine(server) as found:
        assert await probe(Endpoint(server.url)) == dialect
        assert (found.info.model, found.info.context_tokens) == ("simulated", 40_960)
        assert await found.tokenize("<|end|>", special=True) == [END_ID]


@pytest.mark.parametrize("dialect", SERVERS)
async def test_what_was_read_is_not_read_again(dialect: str) -> None:
    async with serving(dialect) as server, engine(server) as found, found.session() as session:
        _, ids = await found.render(
            [Message("user", "A question of some length, in words that are not known.")]
        )
        ends: list[Any] = []
        for _ in range(2):
            request = Request(ids, 40, (), GREEDY, 1)
            async for chunk in session.write(request):
                ids = [*ids, *(i for piece in chunk.pieces for i in piece.token_ids)]
                ends += [chunk.end] if chunk.end else []
    assert ends[0].cached_tokens == 0
    assert ends[0].prefill_tokens + 40 - ends[1].cached_tokens <= BLOCK_TOKENS
    assert ends[1].cached_tokens + ends[1].prefill_tokens == ends[0].prefill_tokens + 40


async def test_the_times_of_a_llama_server_are_those_of_the_model() -> None:
    async with serving("llamacpp", speed=Speed.of(500, 100_000)) as server, engine(server) as found:
        result = await generate([found], alone(Author.LARGE), "?", 21)
    times = result.timings.large
    assert (times.decode_steps, times.decode_ms) == (20, pytest.approx(40))
    assert 2 - 1e-6 <= times.prefill_ms < 40


@pytest.mark.parametrize("dialect", SERVERS)
async def test_a_client_that_leaves_frees_its_place(dialect: str) -> None:
    async with serving(dialect, speed=Speed.of(50, 8000), max_sequences=1) as server, engine(server) as found:
        _, ids = await found.render([Message("user", "?")])
        request = Request(ids, 300, (), GREEDY, 1)
        async with found.session() as session, aclosing(session.write(request)) as chunks:
            await anext(chunks)
            assert server.batch.num_running == 1
        await until(lambda: not (server.num_requests or server.batch.num_running or server.batch.num_waiting))
        assert server.tokens_total < 50
        # The place is free, and what was written is in the cache.
        async with found.session() as session, aclosing(session.write(request)) as chunks:
            await anext(chunks)


@pytest.mark.parametrize("dialect", SERVERS)
async def test_a_broken_connection_frees_its_place_in_the_queue_too(dialect: str) -> None:
    async with serving(dialect, speed=Speed.of(50, 8000), max_sequences=1) as server:
        path, field = ("/v1/completions", "max_tokens") if dialect == "vllm" else ("/completion", "n_predict")
        body = {"prompt": "a", field: 300, "stream": True}
        async with aiohttp.ClientSession() as client:

            async def read() -> None:
                async with client.post(server.url + path, json=body) as response:
                    await response.read()

            posts = [asyncio.create_task(read()) for _ in range(3)]
            await until(lambda: server.num_requests == 3)
            for post in posts:
                post.cancel()
            await asyncio.gather(*posts, return_exceptions=True)
        await until(lambda: not (server.num_requests or server.batch.num_running or server.batch.num_waiting))


@pytest.mark.parametrize("dialect", SERVERS)
async def test_a_full_queue_refuses(dialect: str) -> None:
    slow = Speed.of(50, 8000)
    async with (
        serving(dialect, speed=slow, max_sequences=1, max_waiting=0) as server,
        engine(server) as found,
    ):
        _, ids = await found.render([Message("user", "?")])
        request = Request(ids, 300, (), GREEDY, 1)
        async with found.session() as session, aclosing(session.write(request)) as chunks:
            await anext(chunks)
            with pytest.raises(EngineOverloadedError):
                async for _ in session.write(request):
                    pass


@pytest.mark.parametrize("dialect", SERVERS)
async def test_the_context_has_an_end(dialect: str) -> None:
    async with (
        serving(dialect, context_tokens=50) as server,
        engine(server) as found,
        found.session() as session,
    ):
        with pytest.raises(ContextOverflowError):
            async for _ in session.write(Request([97] * 50, 5, (), GREEDY, 1)):
                pass
        ends = [c.end async for c in session.write(Request([97] * 40, 100, (), GREEDY, 1)) if c.end]
        assert (ends[0].finish, ends[0].decode_tokens) == ("length", 10)


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("vllm", "/v1/completions", b"{"),
        ("vllm", "/v1/completions", b"[]"),
        ("vllm", "/v1/completions", b'{"prompt": [-1]}'),
        ("vllm", "/v1/completions", b'{"prompt": []}'),
        ("vllm", "/v1/completions", b'{"prompt": "a", "max_tokens": 0}'),
        ("vllm", "/v1/completions", b'{"prompt": "a", "stop": [1]}'),
        ("vllm", "/v1/completions", b'{"prompt": "a", "n": 2}'),
        ("vllm", "/v1/completions", b'{"prompt": "a", "stop": ["1", "2", "3", "4", "5"]}'),
        ("vllm", "/v1/chat/completions", b'{"messages": []}'),
        ("vllm", "/tokenize", b'{"prompt": 1}'),
        ("vllm", "/detokenize", b'{"tokens": [99999999]}'),
        ("llamacpp", "/completion", b'{"prompt": {}}'),
        ("llamacpp", "/completion", b'{"prompt": "a", "id_slot": 999}'),
        ("llamacpp", "/tokenize", b"{}"),
    ],
)
async def test_bodies_that_cannot_be_answered_are_refused(dialect: str, path: str, body: bytes) -> None:
    async with (
        serving(dialect) as server,
        aiohttp.ClientSession() as client,
        client.post(server.url + path, data=body) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["message"]


async def test_a_chat_is_answered_whole_and_in_a_stream() -> None:
    async with serving("vllm") as server, aiohttp.ClientSession() as client:
        url = server.url + "/v1/chat/completions"
        body: dict[str, Any] = {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}]}]}
        async with client.post(url, json=body) as response:
            whole = await response.json()
        async with client.post(url, json={**body, "stream": True}) as response:
            lines = (await response.text()).split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    text = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert text == whole["choices"][0]["message"]["content"] == built_in("?")
    assert whole["usage"]["completion_tokens"] == len(events) - 1
    assert [e["choices"][0]["finish_reason"] for e in events if e["choices"][0]["finish_reason"]] == ["stop"]
    assert lines[-2] == "data: [DONE]"


async def test_what_the_servers_say_of_themselves() -> None:
    async with serving("vllm") as server, engine(server) as found, aiohttp.ClientSession() as client:
        await generate([found], alone(Author.LARGE), "?", 30)
        async with client.get(server.url + "/metrics") as response:
            metrics = await response.text()
    assert 'vllm:num_requests_running{model_name="simulated"} 0\n' in metrics
    assert 'vllm:generation_tokens_total{model_name="simulated"} 30\n' in metrics
    async with (
        serving("llamacpp", max_sequences=2) as server,
        aiohttp.ClientSession() as client,
        client.get(server.url + "/slots") as response,
    ):
        assert [slot["is_processing"] for slot in await response.json()] == [False, False]


# --- the plan and the command


def test_the_plan_counts_passes() -> None:
    found = plan(Speed.of(25, 8000), Speed.of(170, 40_000), 9000, 20, 0.0)
    assert found.alone_s == pytest.approx(360, rel=0.01)
    by_small = next(row for row in found.rows if row.small_share == 0.3)
    # A pass of the large model reads a whole turn and writes a token, so 70 % of its steps are left.
    assert by_small.relay_s == pytest.approx(0.7 * 360 + 2700 / 170, rel=0.01)
    assert by_small.speedup == pytest.approx(found.alone_s / by_small.relay_s)


def command(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["relaygen", "simulate", *args])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


def test_the_command_serves_until_it_is_stopped() -> None:
    program = [sys.executable, "-m", "relaygen", "simulate", "--json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        urls = json.loads(process.stdout.readline())
        assert set(urls) == {"large", "small"}
        with SyncRelay(**urls, policy="large") as relay:
            assert built_in("?").startswith(relay.generate("?", max_tokens=5, sampling=GREEDY).text)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--large", "fast"), "'fast' is no speed"),
        (("--traces", "absent.jsonl"), "cannot read absent.jsonl"),
        (("--large-port", "7", "--small-port", "7"), "two ports"),
        (("--large-port", "1", "--small", "0:1"), "'0:1' is no speed"),
    ],
)
def test_bad_flags_give_one_line(
    args: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, *args) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert not out


def test_a_port_that_is_taken_gives_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert command(monkeypatch, "--large-port", port) == 2
    err = capsys.readouterr().err
    assert f"cannot listen on port {port}" in err
    assert err.count("\n") == 1


def test_the_command_shows_machines_and_plans(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "--machines", "--json") == 0
    assert "paper-large" in json.loads(capsys.readouterr().out)
    assert command(monkeypatch, "--plan", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 9
    assert command(monkeypatch, "--plan") == 0
    assert "speed-up" in capsys.readouterr().out


def test_recorded_traces_are_played(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps({"text": "one two", "problem": "Count!"}) + "\n")
    lib = Library.read(file)
    assert lib.continuation(prompt(lib, "Count!"))[0].text == "one two"
