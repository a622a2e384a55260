"""What every request passes first: an id, limits, keys; and its line in the log. Plain ASGI, so nothing hides a disconnect."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from relaygen.errors import RelayError
from relaygen.gateway import auth
from relaygen.gateway.http import Scope, header, respond_error
from relaygen.gateway.log import log
from relaygen.gateway.metrics import Metrics
from relaygen.gateway.outlet import ClientGoneError, Message, Receive, Send
from relaygen.gateway.wire import RefusedError

App = Callable[[Any, Receive, Send], Awaitable[None]]
_PATHS = frozenset(
    (
        "/",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/health",
        "/ready",
        "/metrics",
        "/openapi.json",
    )
)
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Gate:
    def __init__(
        self, app: App, *, keys: auth.Keys, host: str, max_header_bytes: int, metrics: Metrics
    ) -> None:
        self._app = app
        self._keys = keys
        self._host = host
        self._max_header_bytes = max_header_bytes
        self._metrics = metrics

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        given = header(scope, b"x-request-id")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        notes: dict[str, Any] = {"request_id": request_id, "begun": begun, "log": {}}
        scope["relaygen"] = notes
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        error: BaseException | None = None
        try:
            self._check(scope)
            await self._app(scope, receive, answer)
        except ClientGoneError as gone:
            notes["log"]["client"] = str(gone)
            status = status or 499
            await _drop(scope)
        except RelayError as refused:
            notes["log"]["error"] = str(refused)
            await respond_error(answer, refused)
        except Exception as fault:  # a defect of ours: the client learns no more than that
            error = fault
            if status:
                raise
            await respond_error(
                answer, RelayError("an internal error; the log has more under this request id")
            )
        finally:
            self._note(scope, notes, status, begun, error)

    def _check(self, scope: Scope) -> None:
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["raw_path"])
        if size > self._max_header_bytes:
            raise RefusedError(f"the headers are larger than {self._max_header_bytes} bytes", status=431)
        if not self._keys and not auth.host_allowed(header(scope, b"host"), self._host):
            raise RefusedError("this server answers only to the name of this machine, localhost", status=403)
        if scope["path"].startswith("/v1/") and not self._keys.allow(header(scope, b"authorization")):
            raise RefusedError(
                "the API key is missing or wrong: send it as `Authorization: Bearer <key>`",
                code="invalid_api_key",
                status=401,
                headers={"www-authenticate": "Bearer"},
            )

    def _note(
        self, scope: Any, notes: dict[str, Any], status: int, begun: float, error: BaseException | None
    ) -> None:
        path = (
            scope["path"] if scope["path"] in _PATHS else "other"
        )  # a label for each of a client's words would be too many
        self._metrics.request(path, status)
        quiet = path in ("/health", "/ready", "/metrics") and status < 400
        log(
            "request",
            level=logging.ERROR if error else logging.DEBUG if quiet else logging.INFO,
            exc_info=error,
            request_id=notes["request_id"],
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            total_ms=round((time.perf_counter() - begun) * 1000, 1),
            **notes["log"],
        )


async def _drop(scope: Any) -> None:
    """The connection of a client that is gone: at once, whatever still waits to be sent."""
    if abort := scope.get("relaygen.abort"):
        abort()
        await asyncio.sleep(0)  # for the server to see it
