"""Pre-warm: while one model writes, the other one's server reads along.

Whenever its ledger has grown by k tokens it is given the text so far, for one token that nobody looks at; so at a hand-over
its prefix cache holds all but the last k tokens. It costs the server a request each k tokens, and on a shared CPU time of the
model that writes. Nothing of it outlives the turn, and a failure only ends the reading along.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from types import TracebackType

from relaygen.core.ledger import Ledger
from relaygen.engines.base import EngineInfo, Request, Session
from relaygen.errors import RelayError
from relaygen.types import Sampling

_SAMPLING = Sampling(temperature=0)


class Reader:
    """Reads along on one engine, during the turns of the other: `async with` is one such turn. Counts its work apart from
    that of the turns: `requests`, `tokens` (read anew, where the engine tells) and `ms` (by our clock)."""

    def __init__(self, info: EngineInfo, session: Session, ledger: Ledger, every_tokens: int) -> None:
        self._info = info
        self._session = session
        self._ledger = ledger
        self._every = every_tokens
        self._read = 0  # how much of the ledger the engine has seen
        self._task: asyncio.Task[None] | None = None
        self.failure: RelayError | None = None
        self.requests = 0
        self.tokens = 0
        self.ms = 0.0

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    def wrote(self) -> None:
        """The ledger has grown. What this engine does not have as tokens yet (another vocabulary) waits for its own turn:
        its tokens depend on where the segment ends."""
        size = self._ledger.num_tokens
        busy = self._task and not self._task.done()
        if busy or self.failure or size - self._read < self._every or size >= self._info.context_tokens:
            return
        self._read = size
        request = Request(list(self._ledger.ids), 1, (), _SAMPLING, 0, self._ledger.text)
        self._task = asyncio.create_task(self._ask(request))

    def own_turn_over(self) -> None:
        """The engine itself wrote up to here."""
        self._read = self._ledger.num_tokens

    async def _ask(self, request: Request) -> None:
        begun = time.perf_counter()
        self.requests += 1
        try:
            async with aclosing(self._session.write(request)) as chunks:
                async for chunk in chunks:
                    if chunk.end:
                        self.tokens += chunk.end.prefill_tokens
        except RelayError as error:
            self.failure = error
        finally:
            self.ms += (time.perf_counter() - begun) * 1000
