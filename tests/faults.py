"""Servers that fail: one that goes away and comes back at the same address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Self

from aiohttp import web

from tests.fakes import Fake


async def until(done: Callable[[], bool], *, wait_s: float = 10) -> None:
    """Waits for what will come; fails when it does not."""
    async with asyncio.timeout(wait_s):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class Server:
    """A fake on a port that it keeps when it is stopped and started again."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self._port = 0

    @classmethod
    @asynccontextmanager
    async def running(cls, fake: Fake) -> AsyncGenerator[Self]:
        server = cls(fake)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        app = web.Application(middlewares=[self.fake._note])  # pyright: ignore[reportPrivateUsage]
        self.fake.routes(app.router)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Breaks the open connections too."""
        await self._runner.cleanup()
