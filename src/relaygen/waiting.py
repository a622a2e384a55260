"""Several things at work: the first that ends, the first that fails, and how a process ended in words."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from relaygen.errors import RelayError


async def first(*work: Awaitable[Any]) -> None:
    """Waits for one of them, and gives up the others. What they raise is dropped."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def together() -> AsyncGenerator[asyncio.TaskGroup]:
    """A TaskGroup that raises the first of our errors by itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except* RelayError as errors:
        raise errors.exceptions[0] from None


def how_ended(code: int) -> str:
    """`code` as asyncio and subprocess give it: below 0 for a signal."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
