"""The endpoints. Each parses, calls the service and writes the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route, Router

from relaygen.api import Relay
from relaygen.config import Settings
from relaygen.errors import EngineError, RelayError
from relaygen.gateway import chunks, playground
from relaygen.gateway.auth import Keys
from relaygen.gateway.gate import App, Gate
from relaygen.gateway.http import EVENTS, Scope, read_json, respond, respond_bytes
from relaygen.gateway.log import log
from relaygen.gateway.metrics import CONTENT_TYPE
from relaygen.gateway.openapi import document
from relaygen.gateway.outlet import ClientGoneError, Receive, Send, Writer, attended
from relaygen.gateway.serving import Request, Service
from relaygen.gateway.wire import Job, RefusedError, chat_job, completion_job, error_body

_READY_S = 5.0

MetricsText = Callable[[], Awaitable[bytes]]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


class Plain:
    """A handler as an ASGI application: a bare function would be given a Starlette request."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


class Gateway:
    def __init__(self, service: Service, metrics_text: MetricsText) -> None:
        self.service = service
        self._metrics_text = metrics_text
        self._settings = service.settings
        self._document = document()
        self._started = int(time.time())

    def routes(self) -> list[BaseRoute]:
        def route(path: str, handler: Handler, method: str = "GET") -> Route:
            return Route(path, Plain(handler), methods=[method])

        return [
            route("/v1/chat/completions", self.chat, "POST"),
            route("/v1/completions", self.completions, "POST"),
            route("/v1/models", self.models),
            route("/v1/models/{model:path}", self.model),
            route("/health", self.health),
            route("/ready", self.ready),
            route("/metrics", self.metrics),
            route("/openapi.json", self.openapi),
        ]

    # --- generations

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        max_messages = self._settings.max_messages
        await self._generate(scope, receive, send, lambda data: chat_job(data, max_messages=max_messages))

    async def completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(scope, receive, send, completion_job)

    async def _generate(
        self, scope: Scope, receive: Receive, send: Send, parse: Callable[[bytes], Job]
    ) -> None:
        settings = self._settings
        data = await read_json(scope, receive, max_bytes=settings.max_body_bytes, limit_s=settings.receive_s)
        job = parse(data)
        notes = scope["relaygen"]
        notes["log"] |= {"model": job.model, "stream": job.stream}
        if settings.log_prompts:
            prompt = job.prompt
            notes["log"]["prompt"] = prompt if isinstance(prompt, str) else [m.to_json() for m in prompt]
        try:
            await attended(self._serve(job, notes, send), receive)
        except EngineError as error:
            self.service.metrics.error(error)
            raise

    async def _serve(self, job: Job, notes: dict[str, Any], send: Send) -> None:
        service, begun = self.service, notes["begun"]
        request = await service.prepare(job, begun)
        async with service.admission.admit(job.num_choices):
            notes["log"]["queued_ms"] = round((time.perf_counter() - begun) * 1000, 1)
            service.begin(request)
            try:
                if job.stream:
                    await self._stream(request, notes, send)
                else:
                    choices = await request.whole()
                    await respond(send, chunks.whole(request.head, choices, request.usage()))
            finally:
                service.end(request)
                notes["log"] |= self._summary(request)

    async def _stream(self, request: Request, notes: dict[str, Any], send: Send) -> None:
        """Errors before the first text become an HTTP status; later ones the last event of the stream."""
        writer = Writer(send, EVENTS, self._settings.write_s)
        try:
            await request.stream(writer.write)
            usage = chunks.usage_chunk(request.head, request.usage()) if request.head.include_usage else b""
            await writer.write(usage + chunks.DONE, more=False)
        except ClientGoneError:
            raise
        except Exception as error:
            if not writer.started:
                raise
            await writer.write(chunks.error_event(error_body(self._failure(error, notes))), more=False)
        finally:
            writer.close()

    def _failure(self, error: Exception, notes: dict[str, Any]) -> RelayError:
        self.service.metrics.error(error)
        notes["log"]["error"] = str(error)
        if isinstance(error, RelayError):
            return error
        log("defect", level=logging.ERROR, exc_info=error, request_id=notes["request_id"])
        return RelayError("an internal error; the log has more under this request id")

    def _summary(self, request: Request) -> dict[str, Any]:
        usage = request.usage()
        first = request.writings[0].watch.first_token_s
        results = [writing.result for writing in request.writings]
        found: dict[str, Any] = {
            "prompt_tokens": usage["prompt_tokens"],
            "large_tokens": usage["relaygen"]["large_tokens"],
            "small_tokens": usage["relaygen"]["small_tokens"],
            "handovers": sum(result.handovers for result in results),
            "first_token_ms": None if first is None else round(first * 1000, 1),
            "profile": results[0].metadata["profile"],
            "policy": results[0].metadata["policy"],
            "warnings": [warning for result in results for warning in result.warnings] or None,
        }
        if self._settings.log_prompts:
            found["text"] = [result.text for result in results]
        return found

    # --- about the server

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, {"object": "list", "data": [self._model(name) for name in self.service.models]})

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["model"]
        if name not in self.service.models:
            raise RefusedError(
                f"the model {name[:100]!r} does not exist", param="model", code="model_not_found", status=404
            )
        await respond(send, self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "relaygen"}

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, {"status": "ok"})

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        faults = {"server": "stopping"} if self.service.admission.closed else await self._faults()
        await respond(
            send, {"status": "not ready" if faults else "ready", "faults": faults}, 503 if faults else 200
        )

    async def _faults(self) -> dict[str, str]:
        """Of the engines that do not answer, by author: what is wrong."""
        faults: dict[str, str] = {}
        for author, engine in self.service.relay.pair.engines.items():
            if engine.info.text_only:
                continue  # nothing can be asked of it that costs nothing
            try:
                async with asyncio.timeout(_READY_S):
                    await engine.tokenize("ready?")
            except TimeoutError:
                faults[author.value] = f"{engine.info} did not answer within {_READY_S:g} s"
            except RelayError as error:
                faults[author.value] = str(error)
        return faults

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond_bytes(send, await self._metrics_text(), CONTENT_TYPE.encode())

    async def openapi(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond_bytes(send, self._document, b"application/json")


def create_app(
    relay: Relay, settings: Settings, keys: Keys | None = None, metrics_text: MetricsText | None = None
) -> tuple[App, Service]:
    """The ASGI application for an open relay, and the service behind it. `metrics_text`: what /metrics shows, where that is
    not this service's own metrics alone."""
    service = Service(relay, settings)

    async def own_metrics() -> bytes:
        return service.metrics.text()

    router = Router([*Gateway(service, metrics_text or own_metrics).routes(), *playground.ROUTES])

    async def inner(scope: Any, receive: Receive, send: Send) -> None:
        scope["app"] = router  # has Starlette raise what it would else answer in plain text
        try:
            await router(scope, receive, send)
        except HTTPException as error:
            raise RefusedError(
                f"{scope['method']} {scope['path'][:200]}: {error.detail}",
                status=error.status_code,
                headers=error.headers,
            ) from None

    app: App = Gate(
        inner,
        keys=keys or Keys(),
        host=settings.host,
        max_header_bytes=settings.max_header_bytes,
        metrics=service.metrics,
    )
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app, service
