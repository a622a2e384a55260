"""A worker process: serves the connections that its parent hands over (workers.py). Started as
`python -m relaygen.gateway.worker CONNECTIONS CONTROL`, the numbers of its ends of two sockets.

It ends in order on SIGTERM, and when its parent is gone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from contextlib import suppress
from typing import Any

from relaygen.config import Settings
from relaygen.errors import RelayError
from relaygen.gateway import log
from relaygen.gateway.auth import Keys
from relaygen.gateway.channel import Channel
from relaygen.gateway.server import Server, Tell, loop_factory, make_server, settle_memory
from relaygen.gateway.totals import counts

_LAST_WORDS_S = 2.0


class Intake:
    """The connections that the parent hands over: a byte and a descriptor each. A byte goes back for each that is closed."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)

    def open(self, server: Server) -> None:
        self._server = server
        asyncio.get_running_loop().add_reader(self._end.fileno(), self._take)

    def close(self) -> None:
        """What was handed over before is still taken."""
        if self._end.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._end.fileno())
            self._take()
            self._end.close()

    def tell_closed(self) -> None:
        with suppress(OSError):
            self._end.send(b"-")

    def _take(self) -> None:
        with suppress(OSError):  # nothing more for now
            while True:
                data, descriptors, _, _ = socket.recv_fds(self._end, 1, 1)
                for descriptor in descriptors:
                    self._server.take(socket.socket(fileno=descriptor))
                if not data:  # the parent is gone, which the control socket shows too
                    asyncio.get_running_loop().remove_reader(self._end.fileno())
                    return


async def work(connections: socket.socket, control: socket.socket) -> int:
    """Returns the exit code."""
    intake = Intake(connections)
    server: Server | None = None
    started = asyncio.Event()

    async def answer(question: str, value: Any) -> Any:
        assert question == "counts"
        return counts(server.service.metrics.registry) if server else []

    async with Channel(control, answer) as parent:
        given = await parent.ask("settings")
        settings = Settings.model_validate(given["settings"])
        log.set_up(worker=given["number"])

        async def metrics_text() -> bytes:
            return (await parent.ask("metrics")).encode()

        def begin() -> None:
            assert server
            intake.open(server)
            started.set()

        async def tell() -> None:
            await started.wait()
            await parent.ask("ready")
            await parent.closed()
            if server and not server.should_exit:
                server.stop("the parent process is gone")

        try:
            async with settings.relay() as relay:
                tells = Tell(begin, intake.close, intake.tell_closed)
                server = make_server(relay, settings, Keys.from_json(given["keys"]), tells, metrics_text)
                settle_memory()
                telling = asyncio.create_task(tell())
                await server.serve(sockets=[])
                telling.cancel()
                with suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS_S):
                        await parent.ask("last counts", counts(server.service.metrics.registry))
        except RelayError as error:
            log.log("cannot start", level=logging.ERROR, error=str(error))
            return error.exit_code
    return 0


def main() -> None:
    connections, control = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        sys.exit(runner.run(work(connections, control)))


if __name__ == "__main__":
    main()
