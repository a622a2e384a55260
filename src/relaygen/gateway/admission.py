"""How many generations run at once, and how many may wait: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from relaygen.gateway.wire import RETRY_LATER, RefusedError


class Admission:
    def __init__(self, max_active: int, max_queued: int) -> None:
        self._max_active = max_active
        self._max_queued = max_queued
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.active = 0
        self.closed = False  # the server is stopping

    @property
    def queued(self) -> int:
        return sum(number for number, _ in self._waiting)

    @asynccontextmanager
    async def admit(self, number: int) -> AsyncGenerator[None]:
        """Room for `number` generations, for as long as the context lasts."""
        await self._enter(number)
        try:
            yield
        finally:
            self._leave(number)

    def close(self) -> None:
        """Nobody is let in any more, nor out of the queue."""
        self.closed = True
        for _, place in self._waiting:
            if not place.done():
                place.set_exception(stopping())

    async def _enter(self, number: int) -> None:
        if self.closed:
            raise stopping()
        if number > self._max_active:
            raise RefusedError(f"n: at most {self._max_active} generations run here at once", param="n")
        if not self._waiting and self.active + number <= self._max_active:
            self.active += number
            return
        if self.queued + number > self._max_queued:
            raise RefusedError(
                f"{self.active} generations are running and {self.queued} are waiting: try again later",
                code="overloaded",
                status=429,
                headers=RETRY_LATER,
            )
        place = asyncio.get_running_loop().create_future()
        self._waiting.append((number, place))
        try:
            await place
        except asyncio.CancelledError:
            if (
                place.done() and not place.cancelled() and place.exception() is None
            ):  # let in at this very moment
                self._leave(number)
            raise
        finally:
            if (number, place) in self._waiting:
                self._waiting.remove((number, place))
                self._let_in()

    def _leave(self, number: int) -> None:
        self.active -= number
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.active + self._waiting[0][0] <= self._max_active:
            number, place = self._waiting.popleft()
            if not place.done():
                self.active += number
                place.set_result(None)


def stopping() -> RefusedError:
    return RefusedError("the server is stopping", code="stopping", status=503, headers=RETRY_LATER)
