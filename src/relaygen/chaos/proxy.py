"""A TCP proxy before an HTTP server, that strikes where its plan says.

Of HTTP it knows what the places of a fault need: a request begins with the first bytes from the client, and again with the
first bytes after an answer; a head ends with an empty line; a body ends after Content-Length bytes or with the last chunk.
(With chunks, "bytes before the end" counts within the read that brings the last one.) Requests are numbered as they come; a
new connection is one from its beginning.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from relaygen.chaos.faults import Fault, Kind, Plan, Stage, nothing
from relaygen.errors import UserError
from relaygen.waiting import first

_READ_BYTES = 64 * 1024
_CORRUPT_BYTES = 16
_TRICKLE_BYTES = 400  # that come in small pieces
_PIECE_BYTES = 3
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"


class _Broken(Exception):
    """The link is over."""


@dataclass
class Exchange:
    """A request and its answer, as far as they have passed."""

    number: int
    fault: Fault | None
    first: bool  # on its connection
    request: bytes = b""  # until its end is known
    answered: int = 0  # bytes
    head: bytes = b""  # of the answer
    body_at: int | None = None  # where it begins
    size: int | None = None  # of the whole answer, where its head says so

    def strikes_request(self, data: bytes) -> int | None:
        """Where in `data`, the next of the request; None when not there. Call before `request` grows."""
        fault, passed = self.fault, len(self.request)
        if not fault or (fault.stage is Stage.REUSE and self.first):
            return None
        if fault.stage is Stage.REUSE:
            return 0
        place = fault.at - passed
        return place if fault.stage is Stage.REQUEST and 0 <= place < len(data) else None

    def strikes_answer(self, data: bytes) -> int | None:
        """The same of the answer. Call before `answered` grows."""
        self._read_head(data)
        fault, begin, end = self.fault, self.answered, self.answered + len(data)
        if not fault:
            return None
        place: int | None = None
        if fault.stage is Stage.HEAD:
            place = fault.at
        elif fault.stage is Stage.BODY and self.body_at is not None:
            place = self.body_at + fault.at
        elif fault.stage is Stage.END and self.body_at is not None:
            if self.size is not None:
                place = max(self.body_at, self.size - fault.at)
            elif data.endswith(_LAST_CHUNK):
                place = max(begin, self.body_at, end - fault.at)
        return place - begin if place is not None and begin <= place < end else None

    def _read_head(self, data: bytes) -> None:
        if self.body_at is None:
            self.head += data
            if (end := self.head.find(b"\r\n\r\n")) >= 0:
                self.body_at = end + 4
                length = _LENGTH.search(self.head, 0, self.body_at)
                self.size = self.body_at + int(length[1]) if length else None

    @property
    def request_is_whole(self) -> bool:
        head, found, body = self.request.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        return bool(found) and len(body) >= (int(length[1]) if length else 0)


@dataclass
class Proxy:
    """`running` serves it. `plan` may be changed at any time. `struck` are the faults that have come about, with the numbers
    of their requests."""

    target: str
    plan: Plan = nothing
    delay_s: float = 0.05
    num_requests: int = 0
    struck: list[tuple[int, Fault]] = field(default_factory=list[tuple[int, Fault]])
    _links: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.target)
        if parts.scheme != "http" or not parts.hostname:
            raise UserError(f"{self.target!r} is no address that begins with http://")
        self._address = parts.hostname, parts.port or 80

    @property
    def num_links(self) -> int:
        """Connections open now."""
        return len(self._links)

    @asynccontextmanager
    async def running(self, port: int = 0, host: str = "127.0.0.1") -> AsyncGenerator[str]:
        """Serves until it is left; gives the URL. OSError when the port is taken."""
        server = await asyncio.start_server(self._accept, host, port)
        try:
            yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._links:
                task.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)
            await server.wait_closed()

    def next_exchange(self, *, first: bool) -> Exchange:
        number = self.num_requests
        self.num_requests += 1
        return Exchange(number, self.plan(number), first)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._address)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Link(self, reader, writer).run())
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        task.add_done_callback(lambda _: writer.close())  # one cancelled before it began closes nothing


class _Link:
    """A connection of a client, and that to the server which belongs to it."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = reader, writer
        self._exchange = proxy.next_exchange(first=True)
        self._trickling = 0  # so many bytes more

    async def run(self) -> None:
        writers = [self._to_client]
        try:
            if (fault := self._exchange.fault) and fault.stage is Stage.CONNECT:
                self._exchange.fault = None
                await self._strike(fault, self._to_client, b"", b"")
            from_server, to_server = await self._proxy.connect()
            writers.append(to_server)
            await first(self._pass_requests(to_server), self._pass_answers(from_server))
        except (_Broken, OSError):
            pass
        finally:
            for writer in writers:  # all of them before the first wait, which may be cancelled
                writer.close()
            for writer in writers:
                with suppress(OSError):
                    await writer.wait_closed()

    async def _pass_requests(self, to_server: asyncio.StreamWriter) -> None:
        while data := await self._from_client.read(_READ_BYTES):
            if self._exchange.answered:
                self._exchange = self._proxy.next_exchange(first=False)
            exchange = self._exchange
            at = exchange.strikes_request(data)
            exchange.request += data
            if exchange.fault and at is not None:
                fault, exchange.fault = exchange.fault, None
                await self._strike(fault, to_server, data[:at], data[at:])
            else:
                await self._send(to_server, data)

    async def _pass_answers(self, from_server: asyncio.StreamReader) -> None:
        while data := await from_server.read(_READ_BYTES):
            exchange = self._exchange
            at = exchange.strikes_answer(data)
            exchange.answered += len(data)
            if exchange.fault and at is not None:
                fault, exchange.fault = exchange.fault, None
                await self._strike(fault, self._to_client, data[:at], data[at:])
            else:
                await self._send(self._to_client, data)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        while self._trickling > 0 and data:
            piece, data = data[:_PIECE_BYTES], data[_PIECE_BYTES:]
            writer.write(piece)
            self._trickling -= len(piece)
            await asyncio.sleep(0)
        writer.write(data)
        await writer.drain()

    async def _strike(self, fault: Fault, writer: asyncio.StreamWriter, before: bytes, after: bytes) -> None:
        """`before` still passes to `writer`; what becomes of `after` is the fault."""
        self._proxy.struck.append((self._exchange.number, fault))
        if before:
            await self._send(writer, before)
        match fault.kind:
            case Kind.RESET:
                _reset(self._to_client)
                raise _Broken
            case Kind.CLOSE:
                raise _Broken
            case Kind.STALL:
                await self._until_the_client_leaves()
                raise _Broken
            case Kind.BUSY | Kind.DOWN:
                await self._refuse(fault.kind)
                raise _Broken
            case Kind.CORRUPT:
                after = b"\xff" * min(_CORRUPT_BYTES, len(after)) + after[_CORRUPT_BYTES:]
            case Kind.DELAY:
                await asyncio.sleep(self._proxy.delay_s)
            case Kind.TRICKLE:
                self._trickling = _TRICKLE_BYTES
        if after:
            await self._send(writer, after)

    async def _until_the_client_leaves(self) -> None:
        with suppress(RuntimeError):  # the pump of the requests is reading already, and will see it
            while await self._from_client.read(_READ_BYTES):
                pass
            return
        await asyncio.Event().wait()

    async def _refuse(self, kind: Kind) -> None:
        while not self._exchange.request_is_whole:
            data = await self._from_client.read(_READ_BYTES)
            if not data:
                return
            self._exchange.request += data
        body = b'{"error": {"message": "chaos", "code": %s}}' % kind.value.encode()
        head = f"HTTP/1.1 {kind.value} Chaos\r\nContent-Type: application/json\r\nConnection: close\r\n"
        self._to_client.write(head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await self._to_client.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
