"""From a generation to its client. What the client does not read waits in the socket and in the server's buffer, which are
bounded: so a slow client slows its own generation and nobody else's. One that reads nothing for `write_s` is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientGoneError(Exception):
    """The client closed the connection, or does not read."""


class Writer:
    """The streamed response: begins it with the first bytes, and limits how long a client may block it. Several choices may
    write at once. One timer a stream: a timer a chunk would cost as much as the chunk."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]], write_s: float) -> None:
        self._send = send
        self._headers = headers
        self._write_s = write_s
        self._loop = asyncio.get_running_loop()
        self._blocked: dict[asyncio.Task[Any] | None, float] = {}  # since when
        self._late: set[asyncio.Task[Any]] = set()
        self._timer = self._loop.call_later(write_s, self._check)
        self.started = False

    async def write(self, data: bytes, *, more: bool = True) -> None:
        task = asyncio.current_task()
        self._blocked[task] = self._loop.time()
        try:
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except asyncio.CancelledError:
            if task in self._late:
                task.uncancel()
                raise ClientGoneError("does not read") from None
            raise
        finally:
            del self._blocked[task]

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        now = self._loop.time()
        for task, since in self._blocked.items():
            if task and now - since >= self._write_s:
                self._late.add(task)
                task.cancel()
        if not self._late:
            oldest = min(self._blocked.values(), default=now)
            self._timer = self._loop.call_later(max(oldest + self._write_s - now, 0.01), self._check)


async def attended(work: Awaitable[None], receive: Receive) -> None:
    """`work`, given up as soon as the client closes the connection (ClientGoneError)."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError("closed the connection")
        await task
    finally:
        for one in (task, watcher):
            one.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
