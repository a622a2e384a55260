"""The gateway on a Ray cluster, as many of it as there is work: `serve run relaygen.serve_ray:app`.

Settings are those of `relaygen serve`, read where the command runs: RELAYGEN_LARGE, RELAYGEN_SMALL, relaygen.toml. Arguments
(`max_replicas=20`) are the fields of Scale. Keys are not sent along: each replica reads RELAYGEN_API_KEYS, or its file, where
it runs. Ray's proxy listens; RELAYGEN_HOST says for whom: with 127.0.0.1 only this machine is answered, unless there are keys.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from relaygen import config
from relaygen.config import Settings
from relaygen.errors import RelayError, UserError

try:
    serve: Any = importlib.import_module("ray.serve")  # its own types say little

    from relaygen.gateway import auth, log
    from relaygen.gateway.app import create_app
    from relaygen.gateway.auth import Keys
    from relaygen.gateway.gate import App
    from relaygen.gateway.outlet import Receive, Send
except ModuleNotFoundError as error:
    raise UserError(
        f'relaygen.serve_ray needs the extra `ray`: pip install "relaygen[ray]" ({error})'
    ) from None

if TYPE_CHECKING:
    from ray.serve import Application

_LAST_WORDS_S = 5.0  # after the grace time


class Scale(BaseModel):
    """How many gateways: more of them when each has over `streams` generations at work on average, fewer when under. A core
    passes about 7,000 tokens/s (docs/benchmarks.md): 100 streams of 40 tokens/s leave it room for bursts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(8, ge=1)
    streams: float = Field(100, gt=0)
    cpus: float = Field(1, gt=0)  # reserved, a replica


def app(args: Mapping[str, str]) -> Application:
    """What Ray Serve deploys. UserError for settings that are wrong, or that would load models into each gateway."""
    scale = _scale(args)
    settings = config.load(None, os.environ, {})
    if local := settings.relay().local_models:
        raise UserError(
            f"{local[0]!r} would be loaded into each gateway: on Ray, RELAYGEN_LARGE and RELAYGEN_SMALL are"
            " addresses of servers"
        )
    needs_keys = bool(auth.load(settings.api_keys_file, os.environ, host=settings.host, auth=settings.auth))

    def build() -> App:
        return on_replica(settings, needs_keys=needs_keys)

    return _deployment(build, settings, scale).bind()


def on_replica(settings: Settings, *, needs_keys: bool) -> Gateway:
    """UserError where keys were asked for and none are found."""
    log.set_up()
    needed = needs_keys or settings.auth
    return Gateway(settings, auth.load(settings.api_keys_file, os.environ, host=settings.host, auth=needed))


def _scale(args: Mapping[str, str]) -> Scale:
    try:
        scale = Scale.model_validate(args)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = first["msg"]
        raise UserError(f"{first['loc'][0]}: {what[:1].lower()}{what[1:]}") from None
    if scale.min_replicas > scale.max_replicas:
        raise UserError(f"min_replicas is {scale.min_replicas}, but max_replicas {scale.max_replicas}")
    return scale


class Gateway:
    """The endpoints as an application by itself: opens the engines when ASGI's lifespan begins, closes them when it ends."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self._settings = settings
        self._keys = keys
        self._app: App | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            assert self._app, "no request comes before the lifespan"
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        relay = self._settings.relay()
        try:
            await relay.__aenter__()
        except RelayError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        try:
            self._app, service = create_app(relay, self._settings, self._keys)
            await send({"type": "lifespan.startup.complete"})
            await receive()
            service.stop()
            service.abort_all()
        finally:
            await relay.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})


def _deployment(build: Callable[[], App], settings: Settings, scale: Scale) -> Any:
    """Ray lets more in than we do, so that /health is answered when all is full, and a refusal is our 429."""
    room = settings.max_active + settings.max_queued
    return serve.deployment(
        name="gateway",
        autoscaling_config={
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "target_ongoing_requests": scale.streams,
        },
        ray_actor_options={"num_cpus": scale.cpus},
        max_ongoing_requests=2 * room,
        graceful_shutdown_timeout_s=settings.grace_s + _LAST_WORDS_S,
    )(serve.ingress(build)())
