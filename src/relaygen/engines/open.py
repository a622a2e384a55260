"""A user's word for a model -> a connected engine: a catalogue name, a .gguf file, or the URL of a llama-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from relaygen.engines.base import Engine
from relaygen.engines.http import Endpoint
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.local import LocalServer, LocalSettings
from relaygen.models import Progress, resolve


def is_url(spec: str) -> bool:
    return spec.startswith(("http://", "https://"))


@asynccontextmanager
async def open_engine(
    spec: str, *, name: str, settings: LocalSettings, api_key: str | None, progress: Progress
) -> AsyncGenerator[Engine]:
    """`name` stands for the engine in messages. `settings` are for models on this machine, `api_key` for servers."""
    if is_url(spec):
        engine = await LlamaCppEngine.connect(Endpoint(spec, api_key, name))
        try:
            yield engine
        finally:
            await engine.close()
        return
    model = await asyncio.to_thread(resolve, spec, progress)
    server = await LocalServer.start(model, settings, name=name)
    try:
        engine = await LlamaCppEngine.connect(server.endpoint, pinned=True)
        try:
            yield engine
        finally:
            await engine.close()
    finally:
        server.close()
