"""Starts llama.cpp servers inside this process (extra `local`). They listen on loopback, on a free port, behind a key
made for this run, so that local and remote engines share one code path."""

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaygen import gguf
from relaygen.engines.http import Endpoint
from relaygen.errors import ResourceError, UserError, WeightsError

DEFAULT_CONTEXT_TOKENS = 8192
_MEMORY_MARGIN = 256 * 2**20  # compute buffers and the rest


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """`context_tokens` are per generation, and `num_slots` generations run at once. `draft` is a model for speculative
    decoding inside this engine. threads None: one per physical core.

    `batch_invariant` evaluates one token at a time. llama.cpp rounds differently in batches of different sizes, enough to
    turn near ties; so only then does a text read in one piece give the very logits of the same text written token by token.
    Reading becomes as slow as writing.
    """

    context_tokens: int = DEFAULT_CONTEXT_TOKENS
    num_slots: int = 1
    draft: Path | None = None
    draft_tokens: int = 4
    threads: int | None = None
    batch_invariant: bool = False


class LocalServer:
    """A running server. `close` stops it; close the connections to it first, or llama.cpp waits up to 30 s for them."""

    def __init__(self, server: Any, endpoint: Endpoint) -> None:
        self._server = server
        self.endpoint = endpoint

    @classmethod
    async def start(cls, model: Path, settings: LocalSettings, *, name: str) -> LocalServer:
        """Raises WeightsError for a bad file, ResourceError when the model would not fit into memory."""
        header = gguf.check(model)
        if settings.draft:
            gguf.check(settings.draft)
        context = min(settings.context_tokens, header.context_length or settings.context_tokens)
        _check_memory(model, header.kv_bytes_per_token * context * settings.num_slots, settings.draft)
        key = secrets.token_urlsafe(24)
        params = _params(model, settings, context, key)
        server = await asyncio.to_thread(_load, params, model)
        return cls(server, Endpoint(server.listening_address, key, name))

    def close(self) -> None:
        self._server = None  # the last reference: its destructor stops the threads and frees the model


def _extra(module: str) -> Any:
    """xllamacpp, a compiled module without types, or psutil."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            "models on this machine need the extra `local`: pip install 'relaygen[local]' (or give the URL of a server)"
        ) from None


def _load(params: Any, model: Path) -> Any:
    try:
        server = _extra("xllamacpp").Server(params)
    except RuntimeError as error:
        raise WeightsError(f"llama.cpp cannot load {model}: {error}") from None
    # The server's own loop answers this. Before that loop has begun, the destructor would wait for its end for ever.
    server.handle_metrics()
    return server


def _params(model: Path, settings: LocalSettings, context: int, key: str) -> Any:
    threads = settings.threads or _physical_cores()
    llama = _extra("xllamacpp")
    params = llama.CommonParams()
    params.model.path = str(model)
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.ui = False
    params.endpoint_metrics = True  # for _load
    params.verbosity = 0
    params.n_ctx = context * settings.num_slots
    params.n_parallel = settings.num_slots
    params.n_threads_http = settings.num_slots + 2
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    # Slots keep their own KV cache and are never swapped out: a hand-over must find its prefix where it was.
    params.kv_unified = False
    params.cache_idle_slots = False
    params.cache_ram_mib = 0
    if settings.batch_invariant:
        params.n_ubatch = 1
    if settings.draft:
        draft = params.speculative.draft
        draft.mparams.path = str(settings.draft)
        draft.n_max = settings.draft_tokens
        draft.cpuparams.n_threads = threads
        draft.cpuparams_batch.n_threads = threads
        params.speculative.types = [llama.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    return params


def _physical_cores() -> int:
    cores = _extra("psutil").cpu_count(logical=False) or 1
    # A container may be given fewer than the machine has.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return min(cores, allowed)


def _check_memory(model: Path, kv_bytes: int, draft: Path | None) -> None:
    needed = model.stat().st_size + kv_bytes + _MEMORY_MARGIN + (draft.stat().st_size if draft else 0)
    free = _extra("psutil").virtual_memory().available
    if needed > free:
        raise ResourceError(
            f"{model.name} needs about {needed / 2**30:.1f} GiB of memory and {free / 2**30:.1f} GiB are free:"
            " close other programs, take a smaller model, or a shorter --context"
        )
