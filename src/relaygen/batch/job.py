"""The workers between the file of requests and the file of answers. Only the requests at work are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from relaygen.batch.index import Index
from relaygen.batch.lines import Asked, Fault, Outcome, unsettled
from relaygen.batch.outbox import Outbox
from relaygen.errors import EngineError
from relaygen.types import Usage
from relaygen.waiting import together

Requests = Iterator[tuple[int, Asked | Fault]]
Answer = Callable[[Asked], Awaitable[Outcome]]
_FAILED_IN_A_ROW = 20  # requests, or twice the workers: then it is not the requests


@dataclass(slots=True)
class Tally:
    """What became of the lines of this call: answered, refused, `failed` by the engines (`failure` is the last reason), or no
    requests at all."""

    answered: int = 0
    refused: int = 0
    failed: int = 0
    unreadable: int = 0
    large_tokens: int = 0
    small_tokens: int = 0
    failure: str = ""

    def add(self, outcome: Outcome) -> None:
        setattr(self, outcome.kind, getattr(self, outcome.kind) + 1)
        self.large_tokens += outcome.large_tokens
        self.small_tokens += outcome.small_tokens
        if outcome.kind == "failed":
            self.failure = outcome.message

    @property
    def usage(self) -> Usage:
        """Of what was written; the prompts are not counted."""
        return Usage(large_tokens=self.large_tokens, small_tokens=self.small_tokens)


async def work(
    requests: Requests,
    index: Index,
    outbox: Outbox,
    answer: Answer,
    *,
    concurrency: int,
    tally: Tally,
    on_done: Callable[[], None],
) -> None:
    """Answer what is not settled yet. EngineError when so many fail in a row that the engines must be down."""
    most_in_a_row = max(_FAILED_IN_A_ROW, 2 * concurrency)
    in_a_row = 0

    async def worker() -> None:
        nonlocal in_a_row
        for _, one in requests:
            if isinstance(one, Fault):
                outcome = Outcome("unreadable", unsettled(None, "invalid_line", one.message))
            elif index.is_settled(one.custom_id):
                await asyncio.sleep(0)  # for Ctrl-C to be heard among many
                continue
            else:
                outcome = await answer(one)
                in_a_row = in_a_row + 1 if outcome.kind == "failed" else 0
            outbox.add(outcome)
            tally.add(outcome)
            on_done()
            if in_a_row == most_in_a_row:
                raise EngineError(
                    f"{in_a_row} requests in a row failed, so the job was stopped; the last: {outcome.message}."
                    " Run again to go on"
                )

    async with together() as workers:
        for _ in range(concurrency):
            workers.create_task(worker())
