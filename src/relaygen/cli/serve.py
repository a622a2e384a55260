"""relaygen serve: the OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import importlib
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from relaygen import config
from relaygen.api import Relay
from relaygen.cli.models import fetching
from relaygen.config import Settings
from relaygen.errors import UserError
from relaygen.models import resolve
from relaygen.strategies import POLICIES

if TYPE_CHECKING:
    import socket

    from relaygen.gateway.auth import Keys


def _default(key: str) -> str:
    value = Settings.model_fields[key].default
    return "" if value is None or value == () else f" [default: {value}]"


def _option(key: str, words: str, *names: str) -> Any:
    return typer.Option(*names, help=words + _default(key).replace("[", "\\["), show_default=False)


def serve(
    file: Annotated[
        Path | None, typer.Option("--config", help="Settings. Default: relaygen.toml, if there is one.")
    ] = None,
    large: Annotated[
        str | None, _option("large", "The large model: a name, a .gguf file, or the URL of a server.")
    ] = None,
    small: Annotated[str | None, _option("small", "The small model.")] = None,
    profile: Annotated[
        str | None, _option("profile", "A built-in profile or a .toml file. Default: by the models' names.")
    ] = None,
    policy: Annotated[str | None, _option("policy", f"One of {', '.join(POLICIES)}.")] = None,
    host: Annotated[str | None, _option("host", "Address to listen on.")] = None,
    port: Annotated[int | None, _option("port", "Port; 0 takes a free one.")] = None,
    api_keys_file: Annotated[
        Path | None, _option("api_keys_file", "API keys, one a line. RELAYGEN_API_KEYS has more.")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask nobody for a key.")] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="A web page's origin that may ask, as https://example.org. Repeatable."),
    ] = None,
    workers: Annotated[
        int | None, _option("workers", "Processes that share the address, with models that servers hold.")
    ] = None,
    max_active: Annotated[int | None, _option("max_active", "Generations at once.")] = None,
    max_queued: Annotated[int | None, _option("max_queued", "Generations that may wait.")] = None,
    slots: Annotated[
        int | None, _option("slots", "Generations at once, with a model on this machine.")
    ] = None,
    context: Annotated[
        int | None, _option("context_tokens", "Context in tokens, for models on this machine.")
    ] = None,
    threads: Annotated[int | None, _option("threads", "Threads a model, on this machine.")] = None,
    draft: Annotated[
        str | None, _option("draft", "Speculative decoding inside the large engine, as in `relaygen run`.")
    ] = None,
    grace: Annotated[
        float | None, _option("grace_s", "Seconds for generations at work to finish, when stopped.")
    ] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Prompts and answers in the log.")
    ] = False,
) -> None:
    """Serve two models as one, with OpenAI's API.

    Every option can stand in relaygen.toml (`port = 8000`) or in the environment (RELAYGEN_PORT). Logs go to standard error,
    one JSON object a line.

    Examples:

        relaygen serve

        relaygen serve --large http://gpu:8000 --small http://gpu:8001 --port 9000

        relaygen serve --host 0.0.0.0 --api-keys-file keys.txt

        relaygen serve --large http://gpu:8000 --small http://gpu:8001 --workers 4
    """
    flags: dict[str, Any] = {
        "large": large,
        "small": small,
        "profile": profile,
        "policy": policy,
        "host": host,
        "port": port,
        "api_keys_file": api_keys_file,
        "auth": False if no_auth else None,
        "cors_origins": tuple(cors_origin) if cors_origin else None,
        "workers": workers,
        "max_active": max_active,
        "max_queued": max_queued,
        "slots": slots,
        "context_tokens": context,
        "threads": threads,
        "draft": draft,
        "grace_s": grace,
        "log_prompts": log_prompts or None,
    }
    settings = config.load(file, os.environ, flags)
    try:
        auth = importlib.import_module("relaygen.gateway.auth")
        log = importlib.import_module("relaygen.gateway.log")
        server = importlib.import_module("relaygen.gateway.server")
        workers_ = importlib.import_module("relaygen.gateway.workers")
    except ModuleNotFoundError as error:
        raise UserError(
            f'relaygen serve needs the extra `serve`: pip install "relaygen[serve]" ({error})'
        ) from None
    keys = auth.load(settings.api_keys_file, os.environ, host=settings.host, auth=settings.auth)
    workers_.check(settings)
    listener = server.listen(settings.host, settings.port)
    relay = settings.relay()
    with fetching() as bars:
        for model in relay.local_models:
            resolve(model, bars)
    log.set_up()
    with asyncio.Runner(loop_factory=server.loop_factory()) as runner:
        runner.run(_serve(relay, settings, keys, listener, server, workers_))


async def _serve(
    relay: Relay,
    settings: Settings,
    keys: Keys,
    listener: socket.socket,
    server: Any,
    workers: Any,
) -> None:
    """With several workers the relay is opened here too, so that what is wrong with it is told once, and by nobody else."""
    err = Console(stderr=True, highlight=False)
    with err.status("loading the models") if err.is_terminal else nullcontext():
        await relay.__aenter__()
    try:
        name, port = listener.getsockname()[:2]
        shown = f"[{name}]" if ":" in name else name
        models = " + ".join(engine.info.model for engine in relay.pair.engines.values())
        lines = (
            f"RelayGen serves {models} at http://{shown}:{port}",
            f"OpenAI's API: http://{shown}:{port}/v1   models: relaygen, …   keys: {'needed' if keys else 'none'}",
            "Ctrl-C stops it",
        )

        def started() -> None:
            err.print("\n".join(lines), markup=False, soft_wrap=True)

        if settings.workers == 1:
            server.settle_memory()
            await server.serve(relay, settings, keys, listener, started)
    finally:
        await relay.__aexit__(None, None, None)
    if settings.workers > 1:
        await workers.serve(settings, keys, listener, started)
