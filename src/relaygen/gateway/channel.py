"""Questions and answers between two processes, over a socket that both hold an end of: a line of JSON each. Both may ask."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any, Self

import orjson

_MAX_LINE_BYTES = 2**26

Answer = Callable[[str, Any], Awaitable[Any]]


class Channel:
    """One end, for as long as the context lasts. `answer` is given each question of the other end with its value, and returns
    what to reply."""

    def __init__(self, end: socket.socket, answer: Answer) -> None:
        self._end = end
        self._answer = answer
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()
        self._answering: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._end, limit=_MAX_LINE_BYTES)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = (self._reading, *self._answering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def ask(self, question: str, value: Any = None) -> Any:
        """ConnectionError when the other end is closed before it has answered."""
        if self._reading.done():
            raise ConnectionResetError(f"nobody is there to answer {question!r}")
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._write({"ask": question, "number": number, "value": value})
            return await self._asked[number]
        finally:
            del self._asked[number]

    async def closed(self) -> None:
        """Returns when the other end is closed."""
        await asyncio.wait((self._reading,))

    def _write(self, message: dict[str, Any]) -> None:
        self._writer.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                message = orjson.loads(line)
                if "ask" in message:
                    task = asyncio.create_task(self._reply(message))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                elif (asked := self._asked.get(message["number"])) and not asked.done():
                    asked.set_result(message["value"])
        except ConnectionError:
            pass  # as good as the end
        finally:
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(ConnectionResetError("the other process has ended"))

    async def _reply(self, message: dict[str, Any]) -> None:
        value = await self._answer(message["ask"], message["value"])
        self._write({"number": message["number"], "value": value})
