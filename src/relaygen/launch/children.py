"""Runs the two servers of a plan: the second once the first is ready, their logs with a prefix, and both ended together."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import aiohttp

from relaygen.errors import ResourceError, UserError
from relaygen.launch.commands import Command
from relaygen.types import Author
from relaygen.waiting import how_ended

STOP_S = 15.0  # from the polite end to the other one
_POLL_S = 0.5
_LINE_BYTES = 2**20

Say = Callable[[Author, str], None]


async def run_both(commands: Sequence[Command], say: Say, ready: Callable[[], None]) -> None:
    """Until cancelled, or until one of them ends, which is a ResourceError. `say` gets each line of their logs, `ready` is
    called when both answer. Returns never otherwise; both are gone afterwards, their own children too."""
    for command in commands:
        await _check_installed(command)
    async with asyncio.TaskGroup() as group:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        children: list[asyncio.subprocess.Process] = []
        try:
            for command in commands:
                child = await _start(command)
                children.append(child)
                group.create_task(_read(child, command, say))
                group.create_task(_watch(child, command, ended))
                if not await _first(_healthy(command.health), ended):
                    break
            else:
                ready()
            raise ResourceError(await ended)
        finally:
            await asyncio.shield(_end(children))


async def _check_installed(command: Command) -> None:
    program, *arguments = command.program
    found = shutil.which(program)
    if found and arguments[:1] == ["-m"]:
        look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
        child = await asyncio.create_subprocess_exec(found, "-c", look, arguments[1].partition(".")[0])
        found = await child.wait() == 0
    if not found:
        missing = arguments[1].partition(".")[0] if arguments[:1] == ["-m"] else program
        raise UserError(f"{missing} is not installed here: {command.install}")


async def _start(command: Command) -> asyncio.subprocess.Process:
    # A session of its own makes a group of its own: Ctrl-C comes to us alone, and the end to all that a server started.
    return await asyncio.create_subprocess_exec(
        *command.argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **command.env, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        limit=_LINE_BYTES,
    )


async def _read(child: asyncio.subprocess.Process, command: Command, say: Say) -> None:
    assert child.stdout
    rest = b""
    while data := await child.stdout.read(2**16):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            say(command.author, line.decode(errors="replace").rstrip("\r"))
    if rest:
        say(command.author, rest.decode(errors="replace"))


async def _watch(child: asyncio.subprocess.Process, command: Command, ended: asyncio.Future[str]) -> None:
    code = await child.wait()
    if not ended.done():
        ended.set_result(
            f"the {command.author.value} model's server ended ({how_ended(code)}): its last lines say why"
        )


async def _first(work: Awaitable[None], ended: asyncio.Future[str]) -> bool:
    """Whether `work` was done before `ended`."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        task.cancel()


async def _healthy(url: str) -> None:
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        while True:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(_POLL_S)


async def _end(children: Sequence[asyncio.subprocess.Process]) -> None:
    for child in children:
        _signal(child, signal.SIGTERM)
    waiting = [asyncio.ensure_future(child.wait()) for child in children]
    if waiting:
        await asyncio.wait(waiting, timeout=STOP_S)
    for child in children:
        _signal(child, _kill())
    if waiting:
        await asyncio.wait(waiting)


def _kill() -> signal.Signals:
    return signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


def _signal(child: asyncio.subprocess.Process, which: signal.Signals) -> None:
    """To the whole group; the leader may be gone while others of it are not."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, which)
