"""One request to its answer, by the gateway's own code and without its HTTP: equal bodies get equal answers and refusals.

Needs the extra `serve`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

from relaygen.batch.lines import Asked, Outcome, settled, unsettled
from relaygen.config import Settings
from relaygen.errors import RelayError
from relaygen.gateway import chunks
from relaygen.gateway.serving import Service
from relaygen.gateway.wire import Job, RefusedError, chat_job, completion_job, error_body, status_of

_PAUSES_S = (1.0, 5.0, 25.0)  # before another try: the restart of a server is waited for
_log = logging.getLogger(__name__)


class Answerer:
    """`model` stands in place of the one that each request names."""

    def __init__(self, service: Service, model: str | None = None) -> None:
        self._service = service
        self._model = model

    async def __call__(self, asked: Asked) -> Outcome:
        pauses = iter(_PAUSES_S)
        while True:
            try:
                return await self._answer(asked)
            except RelayError as error:
                status = status_of(error)
                if status < 500:
                    line = settled(asked.custom_id, status, error_body(error))
                    return Outcome("refused", line)
                pause = next(pauses, None) if error.retryable else None
                if pause is None:
                    return failed(asked, error)
                await asyncio.sleep(pause)
            except Exception as defect:
                _log.exception("a defect, met by the request %r", asked.custom_id[:100])
                return failed(asked, RelayError(f"an internal error: {defect!r}"))

    async def _answer(self, asked: Asked) -> Outcome:
        request = await self._service.prepare(self._job(asked), time.perf_counter())
        choices = await request.whole()
        usage = request.usage()
        line = settled(asked.custom_id, 200, chunks.whole(request.head, choices, usage))
        ours = usage["relaygen"]
        return Outcome("answered", line, ours["large_tokens"], ours["small_tokens"])

    def _job(self, asked: Asked) -> Job:
        body = asked.body
        if self._model is not None and isinstance(body, dict):
            body = {**cast("dict[str, object]", body), "model": self._model}
        job = self._parse(asked, body)
        if job.stream:
            raise RefusedError("stream: the answers of a batch are not streamed", param="stream")
        return job

    def _parse(self, asked: Asked, body: object) -> Job:
        match asked.method, asked.url:
            case "POST", "/v1/chat/completions":
                return chat_job(body, max_messages=self._service.settings.max_messages)
            case "POST", "/v1/completions":
                return completion_job(body)
            case method, url:
                raise RefusedError(
                    f"{str(method)[:20]} {str(url)[:200]} is not served: use POST and /v1/chat/completions"
                    " or /v1/completions",
                    param="url",
                    status=404,
                )


def failed(asked: Asked, error: RelayError) -> Outcome:
    what = error_body(error)["error"]
    line = unsettled(asked.custom_id, what["code"], what["message"])
    return Outcome("failed", line, message=what["message"])


@asynccontextmanager
async def answering(settings: Settings, model: str | None) -> AsyncGenerator[Answerer]:
    """With the pair of `settings`, for as long as the context lasts."""
    async with settings.relay() as relay:
        yield Answerer(Service(relay, settings), model)
