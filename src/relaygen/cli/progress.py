"""What is shown while one waits: models that load, and work that can be counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from relaygen.api import Relay


def counting(console: Console, *more: TextColumn) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, *more, console=console)


@asynccontextmanager
async def opened(relay: Relay, console: Console) -> AsyncGenerator[Relay]:
    with console.status("loading the models"):
        await relay.__aenter__()
    try:
        yield relay
    finally:
        await relay.__aexit__(None, None, None)
