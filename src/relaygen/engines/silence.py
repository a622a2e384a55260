"""A limit to how long a body may be silent."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Self

import aiohttp


class Silence:
    """Ends a read that gets nothing for `limit_s` with a TimeoutError. One timer a body, which looks when the time would have
    been up: to set one for each read costs as much as to read a token."""

    def __init__(self, limit_s: float, content: aiohttp.StreamReader) -> None:
        self._limit_s = limit_s
        self._content = content
        self._loop = asyncio.get_running_loop()
        self._since = inf  # nobody is reading

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._limit_s, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def begins(self) -> None:
        self._since = self._loop.time()

    def ends(self) -> None:
        self._since = inf

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._since + self._limit_s:
            self._content.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_at(min(self._since, now) + self._limit_s, self._look)
