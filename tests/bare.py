"""A server that says the bytes a test wants said, below HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def bare_server(serve: Serve) -> AsyncGenerator[str]:
    """Its URL. `serve` is asked once a connection, which is closed after it, or with the server."""
    connections: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        task.add_done_callback(lambda _: writer.close())
        connections.append(task)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            for task in connections:
                task.cancel()
            ends = await asyncio.gather(*connections, return_exceptions=True)
    left = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)  # as a client may
    for end in ends:
        if end is not None and not isinstance(end, left):
            raise end
