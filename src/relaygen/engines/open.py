"""A user's word for a model -> a connected engine: a catalogue name, a .gguf file, or the address of a server.

An address is  [dialect+]http[s]://host[:port][/path][#model]  with dialect one of llamacpp, vllm, sglang, ollama, text. Without
it the server is asked what it is; the model is needed only where the server has several. Several addresses with commas
between them (or a list of words) are replicas of one model.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast, get_args

from relaygen.engines.base import Engine
from relaygen.engines.http import SILENCE_S, Endpoint
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.engines.ollama import OllamaEngine
from relaygen.engines.probe import Dialect, probe
from relaygen.engines.replicas import Replicas
from relaygen.engines.sglang import SglangEngine
from relaygen.engines.text import TextEngine
from relaygen.engines.vllm import VllmEngine
from relaygen.errors import UserError
from relaygen.local import LocalServer, LocalSettings
from relaygen.models import Progress, resolve

_ADDRESS = re.compile(r"(?:([\w-]+)\+)?(https?://[^#]*?)(?:/v1)?/?(?:#(.*))?")


_COMMA = re.compile(r"\s*,\s*(?=(?:[\w-]+\+)?https?://)")  # a path or a file name may hold other commas


def is_url(spec: str) -> bool:
    return _ADDRESS.fullmatch(spec) is not None


def replicas_of(spec: str | Sequence[str]) -> tuple[str, ...]:
    """The words of `spec`. UserError unless there is one, or several different addresses."""
    words = [word for one in ([spec] if isinstance(spec, str) else spec) for word in _COMMA.split(one)]
    if not words:
        raise UserError("no model is named")
    for word in words if len(words) > 1 else ():
        if not is_url(word):
            raise UserError(f"replicas are addresses of servers, and {word!r} is none")
        if words.count(word) > 1:
            raise UserError("the same replica is listed twice")
    return tuple(words)


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


async def connect(
    spec: str, *, name: str, api_key: str | None, context_tokens: int, silence_s: float = SILENCE_S
) -> Engine:
    """An engine for the address `spec`. `context_tokens` count where the server leaves that to its client or is silent;
    after `silence_s` without a byte it is given up."""
    address = Address.parse(spec)
    endpoint = Endpoint(address.url, api_key, name, silence_s)
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
    spec: str | Sequence[str],
    *,
    name: str,
    settings: LocalSettings,
    api_key: str | None,
    progress: Progress,
    silence_s: float = SILENCE_S,
) -> AsyncGenerator[Engine]:
    """`name` stands for the engine in messages. `settings` are for models on this machine, `api_key` and `silence_s` for
    servers."""
    spec, *others = replicas_of(spec)
    if is_url(spec):
        reach = partial(
            connect,
            name=name,
            api_key=api_key,
            context_tokens=settings.context_tokens,
            silence_s=silence_s,
        )
        connects = [
            (Endpoint(Address.parse(one).url).address, partial(reach, one)) for one in (spec, *others)
        ]
        engine = await (Replicas.open(name, connects) if others else reach(spec))
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
