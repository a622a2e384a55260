"""Runs the application: uvicorn, with limits on headers and a stop in order."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from relaygen.api import Relay
from relaygen.config import Settings
from relaygen.errors import UserError
from relaygen.gateway.app import MetricsText, create_app
from relaygen.gateway.auth import Keys
from relaygen.gateway.log import log
from relaygen.gateway.serving import Service

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAST_WORDS_S = 3.0  # for the ends of aborted streams


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Tell:
    """Who is told when requests are taken, when no more will be, and of each connection that was closed."""

    started: Callable[[], None] = _nothing
    stopping: Callable[[], None] = _nothing
    closed: Callable[[], None] = _nothing


class Server(uvicorn.Server):
    """On SIGTERM or Ctrl-C: no new connection or request, what runs may finish within the grace time, then it is aborted with
    an error that its client gets. A second signal ends the process at once."""

    def __init__(self, config: uvicorn.Config, service: Service, grace_s: float, tell: Tell) -> None:
        super().__init__(config)
        self._tell = tell
        self.service = service
        self._grace_s = grace_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taking: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._tell.started()

    def take(self, connection: socket.socket) -> None:
        """Serves a connection that was accepted elsewhere."""
        task = asyncio.get_running_loop().create_task(self._take(connection))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    async def _take(self, connection: socket.socket) -> None:
        def protocol() -> asyncio.Protocol:
            kind = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
            return kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        with suppress(OSError):  # the client has left already
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """uvicorn's own would send the signal again after the stop, and so end the process before the models are closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop:
            self._loop.call_soon_threadsafe(self.stop, signal.Signals(sig).name)

    def stop(self, why: str = "asked to") -> None:
        if self.should_exit:
            self.force_exit = True
            return
        self.should_exit = True
        log("stopping", why=why, active=self.service.admission.active, grace_s=self._grace_s)
        self._tell.stopping()
        self.service.stop()
        asyncio.get_running_loop().call_later(self._grace_s, self.service.abort_all)


def _protocol(max_header_bytes: int, receive_s: float, closed: Callable[[], None]) -> type[asyncio.Protocol]:
    """uvicorn's fast parser takes headers of any size, and waits for them for ever."""

    class Limited(HttpToolsProtocol):
        _header_bytes = 0
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._deadline = self.loop.call_later(receive_s, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)
            closed()

        def data_received(self, data: bytes) -> None:
            if self._deadline is None and self.cycle and self.cycle.response_complete:  # the next request
                self._deadline = self.loop.call_later(receive_s, self._give_up)
                self._header_bytes = 0
            if self._deadline:
                self._header_bytes += len(data)
            super().data_received(data)
            if self._deadline and self._header_bytes > max_header_bytes + 2**16:
                self._give_up()

        def on_headers_complete(self) -> None:
            self._disarm()
            # close() would wait for a client that does not read.
            scope = cast("dict[str, Any]", self.scope)
            scope["relaygen.abort"] = self.transport.abort
            super().on_headers_complete()

        def _disarm(self) -> None:
            if self._deadline:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            self._disarm()
            if not self.transport.is_closing():
                self.transport.close()

    return Limited


def listen(host: str, port: int) -> socket.socket:
    """Bound before the models are loaded: a port that is taken shows at once."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, proto)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host} port {port}: {reason}") from None
    return found


def make_server(
    relay: Relay,
    settings: Settings,
    keys: Keys,
    tell: Tell | None = None,
    metrics_text: MetricsText | None = None,
) -> Server:
    """For an open relay. `await server.serve(sockets=[listen(...)])` until a signal comes or `stop` is called."""
    tell = tell or Tell()
    app, service = create_app(relay, settings, keys, metrics_text)
    config = uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType]
        http=_protocol(settings.max_header_bytes, settings.receive_s, tell.closed),
        ws="none",
        lifespan="off",
        loop="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=75,  # longer than what clients and proxies keep, so that they close first
        timeout_graceful_shutdown=int(settings.grace_s + _LAST_WORDS_S) + 1,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Server(config, service, settings.grace_s, tell)


async def serve(
    relay: Relay,
    settings: Settings,
    keys: Keys,
    listener: socket.socket,
    started: Callable[[], None] = _nothing,
) -> None:
    """Serve the open relay until a signal comes."""
    await make_server(relay, settings, keys, Tell(started)).serve(sockets=[listener])


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is: half the cost of a write."""
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ModuleNotFoundError:
        return None


def settle_memory() -> None:
    """What is loaded by now stays: walking over it again and again would hold every stream up."""
    gc.collect()
    gc.freeze()
