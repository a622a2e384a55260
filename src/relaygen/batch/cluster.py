"""The same on processes of a Ray cluster, so that the work is not bound to one core. Answers come back to be written here.

Each process opens the pair for itself, so engines are addresses of servers. A process that dies is started again by Ray, and what
it was answering is asked again.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from typing import Any

from relaygen.batch.answer import Answerer, answering, failed
from relaygen.batch.job import Answer
from relaygen.batch.lines import Asked, Outcome
from relaygen.config import Settings
from relaygen.errors import EngineError, RelayError, ResourceError, UserError

_RESTARTS = 3  # of a process; as often a request is asked again


class Member:
    """One process. The pair is opened by what comes first, for Ray restarts it with nothing but its arguments."""

    def __init__(self, settings: Settings, model: str | None) -> None:
        self._settings = settings
        self._model = model
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._answerer: Answerer | None = None

    async def opened(self) -> Answerer:
        async with self._opening:
            if self._answerer is None:
                context = answering(self._settings, self._model)
                self._answerer = await self._stack.enter_async_context(context)
            return self._answerer

    async def fault(self) -> RelayError | None:
        """Why it cannot work: as a value, since Ray wraps what is raised."""
        try:
            await self.opened()
        except RelayError as error:
            return error
        return None

    async def answer(self, asked: Asked) -> Outcome:
        return await (await self.opened())(asked)


@asynccontextmanager
async def answering_on_ray(
    settings: Settings, model: str | None, *, processes: int, concurrency: int
) -> AsyncGenerator[Answer]:
    """On the cluster of RAY_ADDRESS, on one that runs here, or on one started for as long as the context lasts. Its processes
    are spread over the nodes, and each would load for itself a model that is no address. ResourceError when Ray cannot be
    started or reached."""
    ray = _ray()
    with redirect_stdout(sys.stderr):  # Ray prints what it notices
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of many kinds
            why = str(error).splitlines()[0]
            raise ResourceError(f"Ray does not start, or is not reached: {why}") from None
        try:
            yield await _spread(ray, settings, model, processes, concurrency)
        finally:
            ray.shutdown()


async def _spread(
    ray: Any, settings: Settings, model: str | None, processes: int, concurrency: int
) -> Answer:
    kind = ray.remote(
        max_restarts=_RESTARTS,
        max_task_retries=_RESTARTS,
        max_concurrency=concurrency,
        scheduling_strategy="SPREAD",
    )(Member)
    members = [kind.remote(settings, model) for _ in range(processes)]
    for fault in await asyncio.gather(*(member.fault.remote() for member in members)):
        if fault:
            raise fault
    busy = [0] * processes

    async def answer(asked: Asked) -> Outcome:
        least = busy.index(min(busy))
        busy[least] += 1
        try:
            return await members[least].answer.remote(asked)
        except ray.exceptions.RayError as error:
            what = str(error).splitlines()[-1]
            return failed(asked, EngineError(f"a process of the Ray cluster was lost: {what}"))
        finally:
            busy[least] -= 1

    return answer


def _ray() -> Any:
    """Its own types say little."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it tells its makers
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise UserError('--ray needs the extra `ray`: pip install "relaygen[ray]"') from None
