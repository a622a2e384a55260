"""Servers that fail: one that goes away and comes back at the same address, and one whose answers break off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Self

from aiohttp import web

from tests.fakes import PROMPT, Fake, FakeVllm, refusal, sse


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


class Fault(StrEnum):
    KILL = "killed"
    STALL = "stalled"
    SLOW = "slow"  # no fault, but it must not be taken for one
    GARBAGE = "garbage"
    BUSY = "429"
    DOWN = "503"
    CLOSE = "closed early"


RENDER = -1
_GARBAGE = b"data: <html>\xff</html>\n\n"


class Faulty(FakeVllm):
    """`fault` strikes at token `at` of the answer, or when the prompt is rendered. `num_open` generations are at work, and
    `num_written` tokens have been sent."""

    def __init__(self, script: Sequence[str], fault: Fault | None = None, at: int = 0) -> None:
        super().__init__(script)
        self.fault = fault
        self.at = at
        self.pause_s = 0.0  # between tokens
        self.num_open = self.num_written = 0

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        if self.fault and self.at == RENDER and "messages" in await request.json():
            return await self._strike(request, None) or await super().tokenize(request)
        return await super().tokenize(request)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("stream"):
            return await super().complete(request)
        self.num_open += 1
        try:
            return await self._play(request, body)
        finally:
            self.num_open -= 1

    async def _play(self, request: web.Request, body: Any) -> web.StreamResponse:
        position = len(body["prompt"]) - len(self.vocabulary.encode(PROMPT))
        response: web.StreamResponse | None = None
        for step in self.generate(body):
            if self.fault and self.at != RENDER and position >= self.at:
                struck = await self._strike(request, response)
                if struck is not None:
                    return struck
            if response is None:
                response = web.StreamResponse()
                await response.prepare(request)
            await response.write(sse(self.choice(step), done=False))
            await asyncio.sleep(self.pause_s)
            position += len(step.ids)
            self.num_written += len(step.ids)
        assert response
        await response.write(sse({"choices": [], "usage": {"prompt_tokens": len(body["prompt"])}}))
        return response

    async def _strike(
        self, request: web.Request, response: web.StreamResponse | None
    ) -> web.StreamResponse | None:
        """The end of the request; None when it goes on."""
        status = {Fault.BUSY: 429, Fault.DOWN: 503}.get(self.fault or Fault.SLOW, 200)
        if self.fault is Fault.SLOW:
            await asyncio.sleep(0.01)
            return None
        if self.fault is Fault.KILL and request.transport:
            request.transport.abort()
        if self.fault in (Fault.KILL, Fault.STALL):
            await asyncio.Event().wait()  # until the client has closed the connection
        if self.fault is Fault.CLOSE:
            return response or web.Response()
        if response is None:
            return web.Response(status=status, body=_GARBAGE if status == 200 else refusal("no room"))
        error = {"error": {"message": "no room", "code": status}}
        await response.write(_GARBAGE if status == 200 else sse(error))
        return response
