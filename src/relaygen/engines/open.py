"""A user's word for a model -> a connected engine: a catalogue name, a .gguf file, or the address of a server.

An address is  [dialect+]http[s]://host[:port][/path][#model]  with dialect one of llamacpp, vllm, sglang, ollama, text. Without
it the server is asked what it is; the model is needed only where the server has several.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast, get_args

from relaygen.engines.base import Engine
from relaygen.engines.http import Endpoint
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.engines.ollama import OllamaEngine
from relaygen.engines.probe import Dialect, probe
from relaygen.engines.sglang import SglangEngine
from relaygen.engines.text import TextEngine
from relaygen.engines.vllm import VllmEngine
from relaygen.errors import UserError
from relaygen.local import LocalServer, LocalSettings
from relaygen.models import Progress, resolve

_ADDRESS = re.compile(r"(?:([\w-]+)\+)?(https?://[^#]*?)(?:/v1)?/?(?:#(.*))?")


def is_url(spec: str) -> bool:
    return _ADDRESS.fullmatch(spec) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. None: to be found by asking."""

    dialect: Dialect | None
    url: str
    model: str | None

    @classmethod
    def parse(cls, spec: str) -> Address:
        found = _ADDRESS.fullmatch(spec)
        if not found:
            raise UserError(f"{spec!r} is no address of a server")
        dialect, url, model = found.groups()
        if dialect and dialect not in get_args(Dialect):
            raise UserError(f"unknown dialect {dialect!r}: choose one of {', '.join(get_args(Dialect))}")
        return cls(cast("Dialect | None", dialect), url, model or None)


async def connect(spec: str, *, name: str, api_key: str | None, context_tokens: int) -> Engine:
    """An engine for the address `spec`. `context_tokens` count where the server leaves that to its client or is silent."""
    address = Address.parse(spec)
    endpoint = Endpoint(address.url, api_key, name)
    match address.dialect or await probe(endpoint):
        case "llamacpp":
            return await LlamaCppEngine.connect(endpoint)
        case "vllm":
            return await VllmEngine.connect(endpoint, address.model)
        case "sglang":
            return await SglangEngine.connect(endpoint, address.model)
        case "ollama":
            return await OllamaEngine.connect(endpoint, address.model, context_tokens)
        case "text":
            return await TextEngine.connect(endpoint, address.model, context_tokens)


@asynccontextmanager
async def open_engine(
    spec: str, *, name: str, settings: LocalSettings, api_key: str | None, progress: Progress
) -> AsyncGenerator[Engine]:
    """`name` stands for the engine in messages. `settings` are for models on this machine, `api_key` for servers."""
    if is_url(spec):
        engine = await connect(spec, name=name, api_key=api_key, context_tokens=settings.context_tokens)
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
