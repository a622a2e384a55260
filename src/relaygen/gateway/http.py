"""Small parts of HTTP that the endpoints share: bodies in, JSON out. Plain ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from relaygen.errors import RelayError
from relaygen.gateway.outlet import ClientGoneError, Receive, Send
from relaygen.gateway.wire import RefusedError, error_body, headers_of, status_of

Scope = Mapping[str, Any]
_CLOSE = {"connection": "close"}  # the rest of the body is not read
JSON = b"application/json"
EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # else nginx would collect the chunks
]


def header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def read_json(scope: Scope, receive: Receive, *, max_bytes: int, limit_s: float) -> bytes:
    """The body, which must say that it is JSON: so no web page can send one without asking first (CORS)."""
    kind = header(scope, b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError("the Content-Type must be application/json", status=415)
    length = header(scope, b"content-length")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError("closed the connection")
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise RefusedError(
            f"the body did not arrive within {limit_s:g} s", status=408, headers=_CLOSE
        ) from None


async def respond(
    send: Send, value: Any, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    await respond_bytes(send, orjson.dumps(value), JSON, status, headers)


async def respond_bytes(
    send: Send,
    data: bytes,
    kind: bytes,
    status: int = 200,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    length = (b"content-length", str(len(data)).encode())
    start = [(b"content-type", kind), length, *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": data})


async def respond_error(send: Send, error: RelayError) -> None:
    status = status_of(error)
    headers = [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
    await respond(send, error_body(error), status, headers)


def _too_large(max_bytes: int) -> RefusedError:
    return RefusedError(f"the body is larger than {max_bytes} bytes", status=413, headers=_CLOSE)
