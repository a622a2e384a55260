"""HTTP for all dialects: one connection pool per engine, and one place where failures become our error types.

Nothing is sent twice once a byte of the answer has come. A request is repeated only, and only once, when it went out on a
reused connection which the server had closed meanwhile (vLLM does so after 5 s, llama-server after each stream).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable
from urllib.parse import urlsplit

import aiohttp
import orjson

from relaygen.engines.affinity import Affinity
from relaygen.engines.connection import open_session, reason, why_not_connected
from relaygen.engines.silence import Silence
from relaygen.engines.sse import DamagedEventError, EventTooLongError, SSEParser
from relaygen.errors import (
    ContextOverflowError,
    EngineCutError,
    EngineError,
    EngineOverloadedError,
    EngineProtocolError,
    EngineRefusedError,
    EngineUnreachableError,
    RelayError,
    UserError,
)

_LINGER_S = 0.2
_CLOSED_MEANWHILE = (None, errno.ECONNRESET, errno.EPIPE)  # balancers and firewalls reset what was idle
MAX_ANSWER_BYTES = 256 * 1024 * 1024  # scores of a long text are tens of megabytes
_MAX_REFUSAL_BYTES = 64 * 1024
SILENCE_S = 600.0  # a long prompt on a CPU takes minutes before its first token


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine listens. `name` stands for it in messages. After `silence_s` without a byte it is given up."""

    url: str
    api_key: str | None = None
    name: str = "engine"
    silence_s: float = SILENCE_S

    @property
    def address(self) -> str:
        """The URL without user, password or query."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{host}{port}{parts.path}".rstrip("/")

    def __repr__(self) -> str:
        return f"Endpoint({self.address})"


class Parser(Protocol):
    def feed(self, chunk: bytes) -> list[bytes]:
        """The JSON texts that `chunk` completes."""
        ...


class Http:
    def __init__(self, endpoint: Endpoint, *, read_s: float | None = None) -> None:
        self.endpoint = endpoint
        self.num_connections = 0  # opened so far
        # With each request, not with the session: aiohttp sends what belongs to a session, the key too, to proxies as theirs.
        # Not compressed: a proxy that compresses would hold a stream back until a block is full.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if endpoint.api_key and urlsplit(endpoint.url).username is not None:
            raise UserError(
                f"{endpoint.name} at {endpoint.address} has a password in its address and an API key: not both"
            )
        if endpoint.api_key and not (endpoint.api_key.isascii() and endpoint.api_key.isprintable()):
            raise UserError(f"the API key of {endpoint.name} must be ASCII characters on one line")
        if endpoint.api_key:
            self._headers["Authorization"] = f"Bearer {endpoint.api_key}"
        self._silence_s = min(endpoint.silence_s, read_s or endpoint.silence_s)
        self._session = open_session(endpoint.url, silence_s=self._silence_s, trace=self._counting())
        self._base = endpoint.url.rstrip("/")

    async def close(self) -> None:
        await self._session.close()

    async def get(self, path: str) -> Any:
        async with self._open("GET", path, None) as response:
            return self._json(await self._whole(response, path), path)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        async with self._open("POST", path, orjson.dumps(body)) as response:
            return self._json(await self._whole(response, path), path)

    async def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        parser: Parser | None = None,
        affinity: Affinity | None = None,
    ) -> AsyncGenerator[Any]:
        """The JSON values of an event stream, to its end or [DONE]. An error event raises. Whether the stream was
        complete is for the dialect to say: only a finish reason tells."""
        parser = parser or SSEParser()
        headers = {**(headers or {}), **(affinity.headers if affinity else {})}
        async with self._open("POST", path, orjson.dumps(body), headers) as response:
            if affinity:
                affinity.learn(response.headers)
            async for read in self._reads(response):
                for data in parser.feed(read):
                    if data == b"[DONE]":
                        # The connection can be used again only when the body has been read to its end.
                        with suppress(TimeoutError):
                            await asyncio.wait_for(response.content.read(), _LINGER_S)
                        return
                    value = self._json(data, path)
                    if error := _object(value).get("error"):
                        code = _object(error).get("code")
                        raise self._refusal(code if isinstance(code, int) else 500, data)
                    yield value

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        try:
            response = await self._send(method, path, data, headers)
            async with response:
                if 300 <= response.status < 400:
                    raise self._moved(response)
                if response.status != 200:
                    raise self._refusal(response.status, await self._beginning(response))
                yield response
        except (RelayError, asyncio.CancelledError):
            raise
        except (EventTooLongError, DamagedEventError) as error:
            raise EngineProtocolError(self._says(f"sent {error}"), engine=self.endpoint.name) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            what = self._says(why_not_connected(error))
            raise EngineUnreachableError(what, engine=self.endpoint.name) from None
        except aiohttp.InvalidURL:
            raise EngineUnreachableError(
                self._says("has an address that is no URL"), engine=self.endpoint.name
            ) from None
        except TimeoutError:
            raise EngineCutError(
                self._says(
                    f"has been silent for {self._silence_s:g} s, so the request was given up"
                    " (a longer wait: --timeout, or Options(silence_s=...))"
                ),
                engine=self.endpoint.name,
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineCutError(
                self._says(f"broke the connection before it had finished ({reason(error)})"),
                engine=self.endpoint.name,
            ) from None
        except RuntimeError as error:  # aiohttp's, of a session that was closed meanwhile
            raise EngineCutError(
                self._says(f"is no longer asked: its connections were closed here ({error})"),
                engine=self.endpoint.name,
            ) from None

    def _counting(self) -> aiohttp.TraceConfig:
        async def opened(*_: object) -> None:
            self.num_connections += 1

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(opened)
        return trace

    async def _send(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str] | None
    ) -> aiohttp.ClientResponse:
        send = partial(
            self._session.request,
            method,
            self._base + path,
            data=data,
            headers={**self._headers, **(headers or {})},
            allow_redirects=False,  # prompts and the key go where the user said, and nowhere else
        )
        try:
            return await send()
        except aiohttp.ClientConnectorError:
            raise  # nobody is there
        except (aiohttp.ServerDisconnectedError, ConnectionResetError, aiohttp.ClientOSError) as error:
            if isinstance(error, OSError) and error.errno not in _CLOSED_MEANWHILE:
                raise
            return await send()

    async def _whole(self, response: aiohttp.ClientResponse, path: str) -> bytes:
        data = bytearray()
        async for part in self._reads(response):
            data += part
            if len(data) > MAX_ANSWER_BYTES:
                raise EngineProtocolError(
                    self._says(f"answered {path} with more than {MAX_ANSWER_BYTES:,} bytes"),
                    engine=self.endpoint.name,
                )
        return bytes(data)

    async def _beginning(self, response: aiohttp.ClientResponse) -> bytes:
        """Of a refusal: enough for its message."""
        data = bytearray()
        async for part in self._reads(response):
            data += part
            if len(data) >= _MAX_REFUSAL_BYTES:
                break
        return bytes(data)

    async def _reads(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        """The body as it comes. With a limit of our own to silence: aiohttp forgets the reader of a body whose chunks
        turn out to be damaged, and its own limit with it."""
        with Silence(self._silence_s, response.content) as silence:
            while True:
                silence.begins()
                data = await response.content.readany()
                silence.ends()
                if not data:
                    return
                yield data

    def _moved(self, response: aiohttp.ClientResponse) -> EngineRefusedError:
        """A redirect is not followed: whoever answers here could send the key to another host."""
        where = urlsplit(response.headers.get("Location", ""))
        place = f"{where.scheme}://{where.netloc.rpartition('@')[2]}" if where.netloc else "another path"
        return EngineRefusedError(
            self._says(
                f"redirects to {place!r:.200} ({response.status}), which is not followed: give the final address"
            ),
            engine=self.endpoint.name,
        )

    def _json(self, data: bytes, path: str) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            raise EngineProtocolError(
                self._says(f"answered {path} with something that is not JSON: {_excerpt(data)}"),
                engine=self.endpoint.name,
            ) from None

    def _refusal(self, status: int, body: bytes) -> RelayError:
        code, message = _error_of(body)
        name = self.endpoint.name
        if "exceed_context" in code or "context length" in message.lower():
            return ContextOverflowError(self._says(f"cannot hold this much text: {message}"))
        if status in (429, 503):
            return EngineOverloadedError(
                self._says(f"is overloaded or still loading: {message}"), engine=name
            )
        if status in (401, 403):
            return EngineRefusedError(self._says(f"wants another API key: {message}"), engine=name)
        if status < 500:
            return EngineRefusedError(self._says(f"refused the request ({status}): {message}"), engine=name)
        return EngineError(self._says(f"failed ({status}): {message}"), engine=name)

    def _says(self, what: str) -> str:
        """Some servers repeat the key that they refuse: it is no part of a message."""
        key = self.endpoint.api_key
        return f"{self.endpoint.name} at {self.endpoint.address} {what.replace(key, '***') if key else what}"


@runtime_checkable
class OverHttp(Protocol):
    """An engine that talks to a server: for questions that are no part of the Engine protocol."""

    @property
    def http(self) -> Http: ...


def _error_of(body: bytes) -> tuple[str, str]:
    """(type or code, message) of an error body in any of the usual shapes."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", _excerpt(body)
    error = _object(value).get("error", value)
    fields = _object(error)
    return str(fields.get("type", "")), str(fields.get("message", error))[:500]


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _excerpt(data: bytes) -> str:
    text = data[:120].decode(errors="replace").strip()
    return f"{text!r}" if text else "an empty body"
