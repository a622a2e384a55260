"""Several processes behind one address. This one accepts the connections, hands each to a worker, starts a worker that died
again, and adds up what they count; all work on requests is theirs.

A new connection goes to the worker with the fewest, of equals to the one whose last came first. Leaving that to the system does
not spread them: of 200 connections at once, one of two workers that accept from an inherited socket got 120 to 160, and with
SO_REUSEPORT, which draws lots, 100 to 110. Handed over it is 100, and no connection is lost that waits for a worker which dies.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from relaygen.config import Settings
from relaygen.errors import ResourceError, UserError
from relaygen.gateway.auth import Keys
from relaygen.gateway.channel import Channel
from relaygen.gateway.log import log
from relaygen.gateway.totals import Family, Totals, single
from relaygen.waiting import first, how_ended

_FIRST_PAUSE_S = 1.0  # before a worker that died is started again; doubled each time
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0  # one that lived so long starts from the first pause
_LOOK_S = 1.0  # between two looks at what the workers have counted: a killed one takes that much with it
_REPORT_S = 2.0  # the longest wait for what a worker has counted
_RETRY_S = 0.05  # when nobody can take a connection
_MARGIN_S = 15.0  # over the grace time, before a worker is killed
_BACKLOG = 2048


def check(settings: Settings) -> None:
    """UserError for settings that several workers cannot keep."""
    number = settings.workers
    if number == 1:
        return
    if not hasattr(socket, "send_fds"):
        raise UserError(
            "--workers needs Linux or macOS: elsewhere one process cannot hand a connection to another"
        )
    if local := settings.relay().local_models:
        raise UserError(
            f"--workers {number} needs models that servers hold: each worker would load {local[0]} again for itself."
            " Start servers (`relaygen launch` does) and give their URLs with --large and --small"
        )
    if settings.max_active < number:
        raise UserError(
            f"max_active {settings.max_active} is less than {number} workers, among whom it is divided"
        )


def part(settings: Settings, number: int) -> Settings:
    """What worker `number` (from 0) gets: its part of the limits, so that the sums are what the user said."""

    def share(total: int) -> int:
        return total // settings.workers + (number < total % settings.workers)

    limits = {"max_active": share(settings.max_active), "max_queued": share(settings.max_queued)}
    return settings.model_copy(update=limits)


async def serve(settings: Settings, keys: Keys, listener: socket.socket, started: Callable[[], None]) -> None:
    """Until a signal comes; a second one does not wait for what runs. `started` is called when all workers are ready.
    ResourceError if one ends before."""
    await _Parent(settings, keys, listener).run(started)


class _Worker:
    """A worker as its parent sees it."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, connections: socket.socket) -> None:
        self.number = number
        self.process = process
        self.num_open = 0  # connections
        self.last = 0  # the number of its last connection
        self.ready = False
        self.counts: list[Family] = []
        self._connections = connections
        self.channel: Channel | None = None

    def take(self, connection: socket.socket) -> bool:
        """False when it takes none: it is about to end, or has not taken the last ones."""
        try:
            socket.send_fds(self._connections, [b"+"], [connection.fileno()])
        except OSError:
            return False
        self.num_open += 1
        return True

    def hear_of_closed(self) -> None:
        """Called when there is something to read: a byte for each connection that was closed."""
        try:
            closed = self._connections.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            closed = b""
        self.num_open -= len(closed)
        if not closed:  # it is ending
            self.leave_out()

    def leave_out(self) -> None:
        self.ready = False
        asyncio.get_running_loop().remove_reader(self._connections)

    async def report(self) -> None:
        """Asks for its counts. One that does not answer keeps those of the last time."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_REPORT_S):
                if self.channel:
                    self.counts = await self.channel.ask("counts")

    def signal(self, which: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(which)


class _Parent:
    def __init__(self, settings: Settings, keys: Keys, listener: socket.socket) -> None:
        self._settings = settings
        self._keys = keys
        self._listener = listener
        self._workers: set[_Worker] = set()
        self._num_connections = self._num_restarts = 0
        self._ended = Totals()
        self._all_ready = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self, started: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        for which in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(which, self._stop, which.name)
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(n)) for n in range(self._settings.workers)]
                await first(self._all_ready.wait(), self._stopping.wait())
                if not self._stopping.is_set():
                    self._listener.setblocking(False)
                    self._listener.listen(_BACKLOG)  # before anybody is told the address
                    tasks = [group.create_task(self._accept()), group.create_task(self._look())]
                    started()
                    await self._stopping.wait()
                    for task in tasks:
                        task.cancel()
                self._listener.close()
                await asyncio.wait(keepers, timeout=self._settings.grace_s + _MARGIN_S)
                for worker in self._workers:
                    log("killed", level=logging.ERROR, worker=worker.number, pid=worker.process.pid)
                    worker.signal(signal.SIGKILL)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            for which in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(which)

    def _stop(self, why: str) -> None:
        if not self._stopping.is_set():
            log("stopping", why=why, workers=len(self._workers), grace_s=self._settings.grace_s)
        self._stopping.set()
        for worker in self._workers:
            worker.signal(signal.SIGTERM)

    # --- workers

    async def _keep(self, number: int) -> None:
        """Has a worker `number` at work until the stop."""
        loop, pause_s = asyncio.get_running_loop(), _FIRST_PAUSE_S
        while not self._stopping.is_set():
            begun = loop.time()
            code = await self._one_life(number)
            if self._stopping.is_set():
                return
            if not self._all_ready.is_set():
                raise ResourceError(
                    f"a worker ended before it was ready ({how_ended(code)}): the lines above say why"
                )
            lived_s = loop.time() - begun
            pause_s = _FIRST_PAUSE_S if lived_s > _STEADY_S else pause_s
            log("worker ended", level=logging.ERROR, worker=number, how=how_ended(code), again_in_s=pause_s)
            await first(asyncio.sleep(pause_s), self._stopping.wait())
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._num_restarts += 1

    async def _one_life(self, number: int) -> int:
        """Starts a worker. Returns its exit code when it has ended."""
        async with self._started(number) as worker:
            self._workers.add(worker)
            if self._stopping.is_set():
                worker.signal(signal.SIGTERM)
            try:
                assert worker.channel
                await worker.channel.closed()
                return await worker.process.wait()
            finally:
                self._workers.discard(worker)
                self._ended.add_ended(worker.counts)

    @asynccontextmanager
    async def _started(self, number: int) -> AsyncGenerator[_Worker]:
        connections, theirs = socket.socketpair()
        control, their_control = socket.socketpair()
        with connections, control, theirs, their_control:
            connections.setblocking(False)
            ends = theirs.fileno(), their_control.fileno()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "relaygen.gateway.worker", *map(str, ends)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=ends,
                start_new_session=True,  # Ctrl-C comes to us alone
            )
            theirs.close()
            their_control.close()
            worker = _Worker(number, process, connections)
            asyncio.get_running_loop().add_reader(connections, worker.hear_of_closed)

            async def answer(question: str, value: Any) -> Any:
                return await self._answer(worker, question, value)

            try:
                async with Channel(control, answer) as worker.channel:
                    yield worker
            finally:
                worker.leave_out()
                worker.signal(signal.SIGKILL)  # it is gone, unless we are going because of a fault
                await process.wait()

    async def _answer(self, worker: _Worker, question: str, value: Any) -> Any:
        match question:
            case "settings":
                settings = part(self._settings, worker.number).model_dump(mode="json")
                return {"number": worker.number, "settings": settings, "keys": self._keys.to_json()}
            case "ready":
                worker.ready = True
                log("worker ready", worker=worker.number, pid=worker.process.pid)
                if sum(one.ready for one in self._workers) == self._settings.workers:
                    self._all_ready.set()
            case "metrics":
                return await self._metrics()
            case "last counts":
                worker.counts = cast("list[Family]", value)
            case _:
                raise AssertionError(f"a worker asked {question!r}")
        return None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._reports()

    async def _reports(self) -> None:
        await asyncio.gather(*(worker.report() for worker in self._workers))

    async def _metrics(self) -> str:
        await self._reports()
        ours = [
            single("relaygen_workers", "Worker processes.", "gauge", len(self._workers)),
            single("relaygen_worker_restarts", "Workers started again.", "counter", self._num_restarts),
        ]
        return self._ended.text([*(worker.counts for worker in self._workers), ours]).decode()

    # --- connections

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # too many files are open, say
                log("cannot accept", level=logging.ERROR, error=error.strerror)
                await asyncio.sleep(_FIRST_PAUSE_S)
                continue
            with connection:  # the worker has one of its own
                await self._give(connection)

    async def _give(self, connection: socket.socket) -> None:
        self._num_connections += 1
        while True:
            for worker in sorted(self._workers, key=lambda w: (w.num_open, w.last)):
                if worker.ready and worker.take(connection):
                    worker.last = self._num_connections
                    return
            await asyncio.sleep(_RETRY_S)
