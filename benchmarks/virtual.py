"""Simulated engines by a virtual clock: for studies of more engines and generations than a machine could play in real time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from relaygen import Message
from relaygen.engines.base import Engine, EngineInfo, Request, Tools
from relaygen.errors import EngineCutError, EngineUnreachableError
from relaygen.simulate import batch
from relaygen.simulate.cache import BlockCache
from relaygen.simulate.script import Library, Script
from relaygen.simulate.speed import Speed
from relaygen.simulate.vocabulary import ASSISTANT_ID
from relaygen.trace import Trace
from relaygen.types import Chunk, Piece, TurnEnd

NETWORK_S = 0.0005
CONTEXT_TOKENS = 40_960


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits, and for nothing"
        self._loop.now += max(0.0, timeout)
        return super().select(0)


class Passes(batch.Batch):
    """Notes when each sequence takes part in its first pass."""

    def __init__(self, speed: Speed, max_sequences: int) -> None:
        super().__init__(speed, max_sequences)
        self.first_pass: dict[batch.Sequence, float] = {}

    def begin(self) -> float | None:
        ms = super().begin()
        now = asyncio.get_running_loop().time()
        for sequence, _ in self._pass:
            self.first_pass.setdefault(sequence, now)
        return ms


class Texts:
    """What is played: each prompt has its script, and all engines the same ones."""

    def __init__(self, traces: Sequence[dict[str, Any]]) -> None:
        self.library = Library([Trace(one["problem"], one["text"]) for one in traces])
        self._known: dict[tuple[int, ...], Script] = {}

    def script(self, prompt: tuple[int, ...]) -> Script:
        if prompt not in self._known:
            self._known[prompt] = self.library.continuation(prompt)[0]
        return self._known[prompt]


class SimulatedEngine:
    """One replica."""

    def __init__(self, address: str, texts: Texts, speed: Speed, max_sequences: int) -> None:
        self.info = EngineInfo("simulated", address, "simulated", CONTEXT_TOKENS)
        self._texts = texts
        self._cache = BlockCache()
        self._batch = Passes(speed, max_sequences)
        self._work = asyncio.Event()
        self._outlets: set[asyncio.Queue[int | None]] = set()
        self._alive = True
        self._steps = asyncio.create_task(self._step())
        self.queued_s: list[float] = []
        self.prompt_tokens = self.cached_tokens = 0

    async def connect(self) -> Engine:
        if not self._alive:
            raise EngineUnreachableError(f"{self.info} is gone", engine=self.info.model)
        return self

    def kill(self) -> None:
        self._alive = False
        for outlet in self._outlets:
            outlet.put_nowait(None)

    async def render(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, list[int]]:
        await self.connect()
        text = "".join(f"<|{m.role}|>{m.content}<|end|>" for m in messages) + "<|assistant|>"
        return text, self._texts.library.vocabulary.encode(text, special=True)

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        await self.connect()
        return self._texts.library.vocabulary.encode(text, special=special)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[SimulatedEngine]:
        yield self

    async def close(self) -> None:
        self._steps.cancel()

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        await asyncio.sleep(NETWORK_S)
        await self.connect()
        ids = list(request.ids)
        answer = ids.index(ASSISTANT_ID) + 1
        script, start = self._texts.script(tuple(ids[:answer])), len(ids) - answer
        end = min(len(script.ids), start + request.max_tokens)
        cached = self._cache.cached(ids)
        self._cache.keep(ids)
        self.prompt_tokens += len(ids)
        self.cached_tokens += cached
        outlet: asyncio.Queue[int | None] = asyncio.Queue()
        num_tokens = max(1, end - start)
        sequence = batch.Sequence(len(ids) - cached, num_tokens, outlet.put_nowait, now())
        self._outlets.add(outlet)
        self._batch.add(sequence)
        self._work.set()
        try:
            while (index := await outlet.get()) is not None:
                at = start + index
                if at >= len(script.ids):
                    break
                last = TurnEnd("length") if index + 1 == num_tokens else None
                yield Chunk((Piece(script.token_text(at, len(script.text)), (script.ids[at],)),), last)
                if last:
                    return
            if index is None:
                raise EngineCutError(f"{self.info} is gone", engine=self.info.model)
            yield Chunk((), TurnEnd("eos"))
        finally:
            self._batch.remove(sequence)
            self._outlets.discard(outlet)
            begun = self._batch.first_pass.pop(sequence, now())
            self.queued_s.append(begun - sequence.arrived)
            self._cache.keep([*ids, *script.ids[start : start + sequence.written]])

    async def _step(self) -> None:
        while True:
            await self._work.wait()
            while (ms := self._batch.begin()) is not None:
                await asyncio.sleep(ms / 1000)
                self._batch.end(now())
            self._work.clear()


def now() -> float:
    return asyncio.get_running_loop().time()
