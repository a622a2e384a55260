"""Several servers of one model as one engine: who is chosen, what a failure does, how the dead come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relaygen import Relay, config
from relaygen.engines.base import Engine, Request, Session
from relaygen.engines.open import open_engine, replicas_of
from relaygen.engines.replicas import Replicas
from relaygen.engines.scripted import ScriptedEngine
from relaygen.errors import (
    EngineCutError,
    EngineError,
    EngineOverloadedError,
    EngineProtocolError,
    EngineRefusedError,
    EngineUnreachableError,
    UserError,
)
from relaygen.local import LocalSettings
from relaygen.models import quiet
from relaygen.types import Author, Chunk, Message, Sampling
from tests.asking import POLICY, SCRIPT, TEXT, relay
from tests.fakes import Fake, FakeVllm
from tests.fakes_llama import FakeLlamaCpp
from tests.fakes_text import FakeText
from tests.faults import Server, until

PAUSE_S = 0.001


class Toy(ScriptedEngine):
    """A scripted engine that can be `down`: then every question fails with that error. `strike_at`: so many tokens of a
    request come before it fails with a cut."""

    def __init__(
        self,
        address: str,
        script: Sequence[str] = SCRIPT,
        *,
        name: str = "toy",
        context_tokens: int = 1000,
    ) -> None:
        super().__init__(script, name=name, context_tokens=context_tokens)
        self.address = address
        self.down: EngineError | None = None
        self.strike_at: int | None = None
        self.num_connects = 0
        self.num_open = 0

    def _ask(self) -> None:
        if self.down:
            raise self.down

    async def connect(self) -> Engine:
        await asyncio.sleep(0)
        self._ask()
        self.num_connects += 1
        self.num_open += 1
        return self

    async def close(self) -> None:
        self.num_open -= 1

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        self._ask()
        return await super().tokenize(text, special=special)

    async def render(self, *args: Any, **kwargs: Any) -> tuple[str, list[int]]:
        self._ask()
        return await super().render(*args, **kwargs)

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        self._ask()
        async with aclosing(super().write(request)) as chunks:
            count = 0
            async for chunk in chunks:
                if count == self.strike_at:
                    raise EngineCutError("cut")
                self._ask()
                count += 1
                yield chunk


@asynccontextmanager
async def group_of(*toys: Toy) -> AsyncGenerator[Replicas]:
    group = await Replicas.open(
        "the toys", [(toy.address, toy.connect) for toy in toys], first_pause_s=PAUSE_S
    )
    try:
        yield group
    finally:
        await group.close()


def request(engine: Engine, num_written: int = 0, num_tokens: int = 3) -> Request:
    """Continue the script after `num_written` tokens."""
    known = {text: i for i, text in enumerate(dict.fromkeys(SCRIPT), 1)}
    ids = [0, *(known[text] for text in SCRIPT[:num_written])]
    return Request(ids, num_tokens, (), Sampling(temperature=0), seed=1)


async def written(session: Session, request: Request) -> str:
    async with aclosing(session.write(request)) as chunks:
        return "".join([piece.text async for chunk in chunks for piece in chunk.pieces])


def at(group: Replicas, name: str) -> list[Any]:
    return [getattr(replica, name) for replica in group.replicas]


# ---- who is chosen


async def test_a_session_keeps_to_its_replica_and_new_ones_go_where_the_fewest_are() -> None:
    toys = [Toy(name) for name in "abc"]
    async with group_of(*toys) as group, AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(group.session()) for _ in range(6)]
        for turn in range(3):
            for session in sessions:
                assert await written(session, request(group, 3 * turn)) == "".join(SCRIPT[3 * turn :][:3])
        assert at(group, "active") == [2, 2, 2]
        assert [len(toy.requests) for toy in toys] == [6, 6, 6]
        for toy in toys:  # each session's three requests went to one place
            assert sorted(len(request.ids) for request in toy.requests) == [1, 1, 4, 4, 7, 7]
    assert at(group, "active") == [0, 0, 0]


async def test_the_one_with_the_fewest_is_not_the_one_whose_turn_it_is() -> None:
    async with group_of(*(Toy(name) for name in "abc")) as group, AsyncExitStack() as stack:
        for _ in range(2):
            await written(await stack.enter_async_context(group.session()), request(group))
        async with group.session() as third:
            await written(third, request(group))
        assert at(group, "active") == [1, 1, 0]
        await written(await stack.enter_async_context(group.session()), request(group))
        assert at(group, "active") == [1, 1, 1]


async def test_of_equals_each_has_its_turn() -> None:
    toys = [Toy(name) for name in "abc"]
    async with group_of(*toys) as group:
        for _ in range(6):
            await group.render([Message("user", "?")])  # which has no part in it
            async with group.session() as session:
                await written(session, request(group))
    assert [len(toy.requests) for toy in toys] == [2, 2, 2]


# ---- what a failure does


@pytest.mark.parametrize(
    "kind", [EngineUnreachableError, EngineOverloadedError, EngineCutError, EngineProtocolError, EngineError]
)
async def test_before_the_first_token_another_replica_takes_over(kind: type[EngineError]) -> None:
    a, b = Toy("a"), Toy("b")
    async with group_of(a, b) as group:
        async with group.session() as session:
            assert await written(session, request(group)) == "".join(SCRIPT[:3])
            a.down = kind("down")
            assert await written(session, request(group, 3)) == "".join(SCRIPT[3:6])
            assert at(group, "alive") == [False, True]
            assert at(group, "failovers") == [1, 0]
            assert at(group, "active") == [0, 1]
        assert await group.render([Message("user", "?")]) == (ScriptedEngine.PROMPT, [0])


async def test_after_a_token_the_error_goes_up_and_the_next_turn_is_elsewhere() -> None:
    a, b = Toy("a"), Toy("b")
    async with group_of(a, b) as group, group.session() as session:
        a.strike_at = 2
        texts: list[str] = []
        with pytest.raises(EngineCutError):
            async with aclosing(session.write(request(group))) as chunks:
                async for chunk in chunks:
                    texts += [piece.text for piece in chunk.pieces]
        assert texts == SCRIPT[:2]
        assert not b.requests  # nothing was asked twice
        assert await written(session, request(group, 2)) == "".join(SCRIPT[2:5])
        assert at(group, "failovers") == [0, 0]


async def test_what_is_refused_is_asked_nowhere_else() -> None:
    a, b = Toy("a"), Toy("b")
    async with group_of(a, b) as group, group.session() as session:
        a.down = EngineRefusedError("no")
        with pytest.raises(EngineRefusedError):
            await written(session, request(group))
        assert not b.requests
        assert at(group, "alive") == [True, True]


async def test_when_all_fail_the_last_error_goes_up_and_each_was_asked_once() -> None:
    toys = [Toy(name) for name in "abc"]
    async with group_of(*toys) as group, group.session() as session:
        for toy in toys:
            toy.down = EngineUnreachableError(f"{toy.address} is down")
        with pytest.raises(EngineUnreachableError, match="c is down"):
            await written(session, request(group))
        assert at(group, "failures") == [1, 1, 1]
        with pytest.raises(EngineUnreachableError):  # one is asked all the same: its error says most
            await written(session, request(group))
        assert sum(at(group, "failures")) == 4


# ---- how they come back


async def test_the_dead_are_asked_in_the_background_and_come_back(caplog: pytest.LogCaptureFixture) -> None:
    a, b = Toy("a"), Toy("b")
    with caplog.at_level(logging.WARNING):
        async with group_of(a, b) as group:
            a.down = EngineUnreachableError("a is down")
            await group.render([Message("user", "?")])
            assert at(group, "alive") == [False, True]
            a.down = None
            await until(lambda: at(group, "alive") == [True, True])
            assert (a.num_connects, a.num_open) == (2, 1)  # the first engine was kept
    assert [record.message for record in caplog.records] == [
        "taken out until it answers again: a is down",
        "the toys at a is back",
    ]


async def test_one_that_comes_back_with_another_model_stays_out(caplog: pytest.LogCaptureFixture) -> None:
    a, b = Toy("a"), Toy("b")
    other = Toy("a", name="other")
    async with group_of(a, b) as group:
        a.down = EngineUnreachableError("a is down")
        await group.render([Message("user", "?")])
        with caplog.at_level(logging.INFO):
            group._replicas[0].connect = other.connect  # pyright: ignore[reportPrivateUsage]
            await until(lambda: other.num_connects > 1)
        assert at(group, "alive") == [False, True]
    assert other.num_open == 0
    assert "must serve one model" in caplog.text


async def test_closing_leaves_no_task_behind() -> None:
    a, b = Toy("a"), Toy("b")
    async with group_of(a, b) as group:
        a.down = EngineUnreachableError("a is down")
        await group.render([Message("user", "?")])
        assert len(asyncio.all_tasks()) == 2
    assert len(asyncio.all_tasks()) == 1
    assert (a.num_open, b.num_open) == (0, 0)


# ---- opening


async def test_at_opening_one_replica_is_enough() -> None:
    a, b = Toy("a"), Toy("b", context_tokens=50)
    a.down = EngineUnreachableError("a is down")
    async with group_of(a, b) as group:
        assert at(group, "alive") == [False, True]
        assert group.info.context_tokens == 50
        a.down = None
        await until(lambda: at(group, "alive") == [True, True])
    assert (a.num_open, b.num_open) == (0, 0)


async def test_opening_fails_when_none_lives() -> None:
    a, b = Toy("a"), Toy("b")
    a.down, b.down = EngineUnreachableError("a is down"), EngineOverloadedError("b is loading")
    with pytest.raises(EngineUnreachableError, match="no replica can be used: a is down; b is loading"):
        async with group_of(a, b):
            pass


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            Toy("b", name="bigger"),
            r"the replicas of the toys must serve one model: there is toy at .*, and bigger",
        ),
        (Toy("b", ["Therefore", "x"]), "must share a vocabulary"),
    ],
)
async def test_opening_fails_when_they_differ(other: Toy, message: str) -> None:
    a = Toy("a")
    with pytest.raises(UserError, match=message):
        async with group_of(a, other):
            pass
    assert (a.num_open, other.num_open) == (0, 0)


async def test_opening_fails_on_a_wrong_key_and_closes_the_others() -> None:
    a, b = Toy("a"), Toy("b")
    b.down = EngineRefusedError("wants another API key")
    with pytest.raises(EngineRefusedError):
        async with group_of(a, b):
            pass
    assert a.num_open == 0


def test_how_replicas_are_written() -> None:
    assert replicas_of("model,with,commas.gguf") == ("model,with,commas.gguf",)
    assert replicas_of("http://a:1, vllm+http://b,https://c#m") == (
        "http://a:1",
        "vllm+http://b",
        "https://c#m",
    )
    assert replicas_of(["http://a", "http://b"]) == ("http://a", "http://b")
    for wrong, message in (
        ("qwen2.5-coder-0.5b,http://a", "'qwen2.5-coder-0.5b' is none"),
        ("http://a,http://a", "listed twice"),
        (list[str](), "no model"),
    ):
        with pytest.raises(UserError, match=message):
            replicas_of(wrong)


# ---- over real sockets


@asynccontextmanager
async def opened(*servers: Server) -> AsyncGenerator[Replicas]:
    async with open_engine(
        [server.url for server in servers],
        name="the large model",
        settings=LocalSettings(),
        api_key=None,
        progress=quiet,
    ) as engine:
        assert isinstance(engine, Replicas)
        engine._first_pause_s = PAUSE_S  # pyright: ignore[reportPrivateUsage]
        for replica in engine._replicas:  # pyright: ignore[reportPrivateUsage]
            replica.pause_s = PAUSE_S
        yield engine


@pytest.mark.parametrize("kind", [FakeVllm, FakeLlamaCpp, FakeText])
async def test_a_server_dies_between_turns_and_comes_back(kind: type[Fake]) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Server.running(kind(SCRIPT))) for _ in range(2)]
        small = await stack.enter_async_context(Server.running(kind(SCRIPT)))
        group = await stack.enter_async_context(opened(*servers))
        other = await stack.enter_async_context(
            open_engine(small.url, name="s", settings=LocalSettings(), api_key=None, progress=quiet)
        )
        for server in servers:
            server.fake.requests.clear()
        result = await relay(group, other)
        assert result.text == TEXT
        assert sorted(bool(server.fake.generations) for server in servers) == [False, True]

        await servers[0].stop()
        for _ in range(2):
            result = await relay(group, other)
            assert (result.text, result.warnings) == (TEXT, ())
        assert at(group, "alive") == [False, True]

        await servers[0].start()
        await until(lambda: at(group, "alive") == [True, True])
        servers[0].fake.requests.clear()
        for _ in range(2):
            assert (await relay(group, other)).text == TEXT
        assert servers[0].fake.generations


def test_settings_take_replicas_as_a_list(tmp_path: Path) -> None:
    file = tmp_path / "relaygen.toml"
    file.write_text('large = ["http://a", "http://b"]\nsmall = "http://c,http://d"\n')
    settings = config.load(file, {}, {})
    assert replicas_of(settings.large) == ("http://a", "http://b")
    assert replicas_of(settings.small) == ("http://c", "http://d")
    file.write_text("large = 5\n")
    with pytest.raises(UserError, match="line 1: large: input should be a valid string"):
        config.load(file, {}, {})


async def test_a_relay_takes_addresses_with_commas_or_a_list() -> None:
    async with (
        Server.running(FakeVllm(SCRIPT)) as a,
        Server.running(FakeVllm(SCRIPT)) as b,
        Server.running(FakeVllm(SCRIPT)) as c,
    ):
        async with Relay(f"{a.url},{b.url}", [b.url, c.url], policy=POLICY) as both:
            assert (await both.generate("?", sampling=Sampling(temperature=0))).text == TEXT
            engines = [both.pair.engines[author] for author in Author]
        assert [[r.address for r in e.replicas] for e in engines if isinstance(e, Replicas)] == [
            [a.url, b.url],
            [b.url, c.url],
        ]


# ---- any order of events


class AnyOrder(RuleBasedStateMachine):
    """Sessions write while replicas die and come back. What is written is the script, whoever writes it; it fails only when
    nobody is left; a session moves only when its replica has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.toys = [Toy(name) for name in "abc"]
        self.stack = AsyncExitStack()
        self.group = self.run(self.stack.enter_async_context(group_of(*self.toys)))
        self.sessions: list[tuple[AsyncExitStack, Any]] = []
        self.progress: list[int] = []

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        for stack, _ in self.sessions:
            self.run(stack.aclose())
        self.run(self.stack.aclose())
        assert not asyncio.all_tasks(self.loop)
        assert at(self.group, "active") == [0, 0, 0]
        self.loop.close()

    @precondition(lambda self: len(self.sessions) < 5)
    @rule()
    def begin(self) -> None:
        stack = AsyncExitStack()
        self.sessions.append((stack, self.run(stack.enter_async_context(self.group.session()))))
        self.progress.append(0)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), num_tokens=st.integers(1, 4))
    def write(self, data: st.DataObject, num_tokens: int) -> None:
        number = data.draw(st.integers(0, len(self.sessions) - 1))
        session, start = self.sessions[number][1], self.progress[number]
        before = [len(toy.requests) for toy in self.toys]
        home = self.home(session)
        living = [toy for toy in self.toys if not toy.down]
        try:
            text = self.run(written(session, request(self.group, start, num_tokens)))
        except EngineError:
            # Those that live may still be out, unless there is one that was never out.
            assert not any(
                alive and toy in living for alive, toy in zip(at(self.group, "alive"), self.toys, strict=True)
            )
            return
        self.progress[number] = min(start + num_tokens, len(SCRIPT))
        assert text == "".join(SCRIPT[start : start + num_tokens])
        asked = [len(toy.requests) - count for toy, count in zip(self.toys, before, strict=True)]
        assert sum(asked) == 1  # (who is down does not count a request)
        if home is not None and self.toys[home] in living:
            assert asked[home] == 1

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.sessions) - 1))
        stack, _ = self.sessions.pop(number)
        del self.progress[number]
        self.run(stack.aclose())

    @rule(number=st.integers(0, 2))
    def kill(self, number: int) -> None:
        self.toys[number].down = EngineUnreachableError("down")

    @rule(number=st.integers(0, 2))
    def revive(self, number: int) -> None:
        self.toys[number].down = None

    @rule()
    def all_come_back(self) -> None:
        for toy, replica in zip(self.toys, self.group._replicas, strict=True):  # pyright: ignore[reportPrivateUsage]
            toy.down = None
            replica.pause_s = PAUSE_S
        self.run(until(lambda: all(at(self.group, "alive"))))

    @invariant()
    def each_session_is_counted_once(self) -> None:
        placed = [self.home(session) for _, session in self.sessions]
        assert at(self.group, "active") == [placed.count(number) for number in range(3)]

    def home(self, session: Any) -> int | None:
        place = session._place
        return self.group._replicas.index(place[0]) if place else None  # pyright: ignore[reportPrivateUsage]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
