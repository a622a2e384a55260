"""Between a generation and its client: bytes wait here while the client reads. Bounded, so a slow client slows its own
generation and nobody else's; a client that reads nothing for `write_s` is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_WAITING_BYTES = 256 * 2**10


class ClientGoneError(Exception):
    """The client closed the connection, or does not read."""


class Outlet:
    def __init__(self) -> None:
        self._waiting = bytearray()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._closed = False

    async def put(self, data: bytes) -> None:
        self._waiting += data
        self._filled.set()
        if len(self._waiting) > MAX_WAITING_BYTES:
            self._emptied.clear()
            await self._emptied.wait()

    def close(self) -> None:
        self._closed = True
        self._filled.set()

    async def get(self) -> bytes:
        """All that waits; b"" at the end."""
        while not self._waiting and not self._closed:
            self._filled.clear()
            await self._filled.wait()
        data = bytes(self._waiting)
        self._waiting.clear()
        self._emptied.set()
        return data


class Writer:
    """`send` with a limit on how long it may block. One timer a stream: a timer a chunk would cost as much as the chunk."""

    def __init__(self, send: Send, write_s: float) -> None:
        self._send = send
        self._write_s = write_s
        self._loop = asyncio.get_running_loop()
        self._since = 0.0  # when the send at work began; 0: none is
        self._task = asyncio.current_task()
        self._late = False
        self._timer = self._loop.call_later(write_s, self._check)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        self._since = self._loop.time()
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except asyncio.CancelledError:
            if self._late and self._task:
                self._task.uncancel()
                raise ClientGoneError("does not read") from None
            raise
        finally:
            self._since = 0.0

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        waited = self._loop.time() - self._since if self._since else 0.0
        if waited >= self._write_s:
            self._late = True
            if self._task:
                self._task.cancel()
            return
        self._timer = self._loop.call_later(max(self._write_s - waited, 0.01), self._check)


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
