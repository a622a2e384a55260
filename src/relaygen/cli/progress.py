"""What is shown while one waits: models that load, and work that can be counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def counting(console: Console, *more: TextColumn) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, *more, console=console)


@asynccontextmanager
async def opened(pair: AbstractAsyncContextManager[T], console: Console) -> AsyncGenerator[T]:
    """`pair`: a relay, or what opens one."""
    async with AsyncExitStack() as stack:
        with console.status("loading the models"):
            ready = await stack.enter_async_context(pair)
        yield ready
