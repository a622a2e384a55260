"""Several servers of one model as one engine.

A session keeps to one replica for all its turns, for the sake of its prefix cache; a new one goes to the replica with the
fewest sessions. A replica that fails is taken out, and asked again in the background, ever more rarely, until it serves the
same model as the others. A request that fails before its first token goes to another replica; after a token the error goes
up, for nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from relaygen.engines.base import Engine, EngineInfo, Request, Session, Tools
from relaygen.engines.vocabulary import Reading, reading
from relaygen.errors import EngineError, EngineRefusedError, EngineUnreachableError, RelayError, UserError
from relaygen.types import Chunk, Message

Connect = Callable[[], Awaitable[Engine]]
T = TypeVar("T")

_FIRST_PAUSE_S = 1.0  # before a failed replica is asked again; doubled each time
_LONGEST_PAUSE_S = 30.0
_PROBE_S = 20.0  # the longest that such a question may take
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """`active` sessions now; `failures` and `failovers` (requests that another replica then took over) since the start."""

    address: str
    alive: bool
    active: int
    failures: int
    failovers: int


class _Replica:
    def __init__(self, address: str, connect: Connect, pause_s: float) -> None:
        self.address = address
        self.connect = connect
        self.engine: Engine | None = None  # None until it has been reached for the first time
        self.alive = False
        self.active = self.failures = self.failovers = 0
        self.last_session = 0  # its number
        self.pause_s = pause_s

    @property
    def open_engine(self) -> Engine:
        assert self.engine
        return self.engine


class Replicas:
    """`open` makes one. `replicas` tells how each is doing."""

    def __init__(self, name: str, connects: Sequence[tuple[str, Connect]], first_pause_s: float) -> None:
        self._name = name
        self._first_pause_s = first_pause_s
        self._replicas = [_Replica(address, connect, first_pause_s) for address, connect in connects]
        self._reviving: set[asyncio.Task[None]] = set()
        self._num_sessions = 0
        self._reading: Reading | None = None

    @classmethod
    async def open(
        cls, name: str, connects: Sequence[tuple[str, Connect]], *, first_pause_s: float = _FIRST_PAUSE_S
    ) -> Replicas:
        """`connects` are the addresses (for messages) and how to reach them; `name` stands for all in messages. One
        replica alive is enough. EngineUnreachableError when none is; UserError when they do not serve one model."""
        self = cls(name, connects, first_pause_s)
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def _open(self) -> None:
        async def connect(replica: _Replica) -> None:
            replica.engine = await replica.connect()

        errors = await asyncio.gather(*map(connect, self._replicas), return_exceptions=True)
        for error in errors:
            if error and not (isinstance(error, EngineError) and error.retryable):
                raise error  # a wrong address or key is better said now
        engines = [replica.engine for replica in self._replicas if replica.engine]
        if not engines:
            why = "; ".join(map(str, errors))
            raise EngineUnreachableError(f"no replica can be used: {why}", engine=self._name)
        context = min(engine.info.context_tokens for engine in engines)
        self._info = replace(engines[0].info, context_tokens=context)
        self._reading = await reading(engines[0])
        for engine in engines[1:]:
            await self._check(engine)
        for replica, error in zip(self._replicas, errors, strict=True):
            replica.alive = not error
            if isinstance(error, EngineError):
                self._take_out(replica, error)

    @property
    def info(self) -> EngineInfo:
        """The address is that of the first replica that answered; the context that of the smallest."""
        return self._info

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        return tuple(
            ReplicaStatus(r.address, r.alive, r.active, r.failures, r.failovers) for r in self._replicas
        )

    async def render(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, list[int]]:
        return await self._ask(lambda engine: engine.render(messages, tools))

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        return await self._ask(lambda engine: engine.tokenize(text, special=special))

    async def _ask(self, question: Callable[[Engine], Awaitable[T]]) -> T:
        tried: list[_Replica] = []
        while True:
            replica = self.pick(tried)
            try:
                return await question(replica.open_engine)
            except EngineError as error:
                if not self.elsewhere(replica, error, tried):
                    raise

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[ReplicasSession]:
        session = ReplicasSession(self)
        try:
            yield session
        finally:
            await session.end()

    async def close(self) -> None:
        for task in self._reviving:
            task.cancel()
        await asyncio.gather(*self._reviving, return_exceptions=True)
        for replica in self._replicas:
            if replica.engine:
                await replica.engine.close()

    # ---- which one

    def pick(self, without: Collection[_Replica] = ()) -> _Replica:
        """The living replica with the fewest sessions, of equals the one whose last came first. When all are out any that
        was ever reached: its own error says more than we could."""
        reached = [r for r in self._replicas if r.engine and r not in without]
        return min(reached, key=lambda r: (not r.alive, r.active, r.last_session))

    @contextmanager
    def place(self, replica: _Replica) -> Generator[None]:
        """Counts a session there for as long as the context lasts."""
        self._num_sessions += 1
        replica.last_session = self._num_sessions
        replica.active += 1
        try:
            yield
        finally:
            replica.active -= 1

    def elsewhere(self, replica: _Replica, error: EngineError, tried: list[_Replica]) -> bool:
        """After a failure before the first token: may another replica be asked? Not for what would be refused there too."""
        self.failed(replica, error)
        tried.append(replica)
        refused = isinstance(error, EngineRefusedError)
        left = not refused and any(r.alive and r not in tried for r in self._replicas)
        replica.failovers += left
        return left

    # ---- out and in again

    def failed(self, replica: _Replica, error: EngineError) -> None:
        """Takes `replica` out, unless it was the request that was wrong."""
        if isinstance(error, EngineRefusedError):
            return
        replica.failures += 1
        if replica.alive:
            self._take_out(replica, error)

    def _take_out(self, replica: _Replica, error: EngineError) -> None:
        replica.alive = False
        _log.warning("taken out until it answers again: %s", error)
        task = asyncio.create_task(self._revive(replica))
        self._reviving.add(task)
        task.add_done_callback(self._reviving.discard)

    def well(self, replica: _Replica) -> None:
        """A session ended without a failure there: the next pause is a short one."""
        replica.pause_s = self._first_pause_s

    async def _revive(self, replica: _Replica) -> None:
        while not replica.alive:
            await asyncio.sleep(replica.pause_s)
            replica.pause_s = min(2 * replica.pause_s, _LONGEST_PAUSE_S)
            try:
                async with asyncio.timeout(_PROBE_S):
                    await self._reach(replica)
            except (RelayError, TimeoutError) as error:
                _log.info("still out: %s", error or f"{replica.address} is silent")
        _log.warning("%s at %s is back", self._name, replica.address)

    async def _reach(self, replica: _Replica) -> None:
        """Connects anew, which shows what is served there now. The engine that sessions may still hold is kept."""
        engine = await replica.connect()
        try:
            await self._check(engine)
        except BaseException:
            await engine.close()
            raise
        if replica.engine:
            await engine.close()
        else:
            replica.engine = engine
        replica.alive = True

    async def _check(self, engine: Engine) -> None:
        """UserError unless `engine` can stand in for the others."""
        ours, its = self._info, engine.info
        if its.model != ours.model:
            raise UserError(f"the replicas of {self._name} must serve one model: there is {ours}, and {its}")
        if its.text_only != ours.text_only or await reading(engine) != self._reading:
            raise UserError(f"the replicas of {self._name} must share a vocabulary: {ours} and {its} do not")
        if its.context_tokens < ours.context_tokens:
            raise UserError(
                f"{its} holds {its.context_tokens} tokens, and {ours.context_tokens} were promised:"
                " start it with a longer context"
            )


class ReplicasSession:
    """A session at one replica, chosen at its first request; at another one after a failure."""

    def __init__(self, group: Replicas) -> None:
        self._group = group
        self._place: tuple[_Replica, Session] | None = None
        self._stack = AsyncExitStack()

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        tried: list[_Replica] = []
        while True:
            replica, session = self._place or await self._enter(tried)
            begun = False
            try:
                async with aclosing(session.write(request)) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except EngineError as error:
                await self._leave()
                if begun:
                    self._group.failed(replica, error)
                    raise
                if not self._group.elsewhere(replica, error, tried):
                    raise

    async def end(self) -> None:
        if self._place:
            self._group.well(self._place[0])
            await self._leave()

    async def _enter(self, tried: list[_Replica]) -> tuple[_Replica, Session]:
        replica = self._group.pick(tried)
        self._stack.enter_context(self._group.place(replica))
        session = await self._stack.enter_async_context(replica.open_engine.session())
        self._place = replica, session
        return self._place

    async def _leave(self) -> None:
        self._place = None
        await self._stack.aclose()
