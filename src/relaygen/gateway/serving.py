"""One request from its Job to its last byte: choices run side by side, each through its own filters, all to one client."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from relaygen import profile as profiles
from relaygen.api import Relay, Variant
from relaygen.config import Settings
from relaygen.core.policy import constrained
from relaygen.errors import RelayError
from relaygen.gateway.admission import Admission, stopping
from relaygen.gateway.chunks import Choice, Chunks, Head, ending, finish_reason, usage_of
from relaygen.gateway.metrics import Metrics, Watch
from relaygen.gateway.tools import PROBE, ToolParser, is_hermes
from relaygen.gateway.visible import Delta, Visible
from relaygen.gateway.wire import MODEL, Job, RefusedError
from relaygen.profile import Profile
from relaygen.run import Run
from relaygen.types import Author, Finish, Message, Reason, Result, Switch

Sink = Callable[[bytes], Awaitable[None]]


class Writing:
    """One choice being written."""

    def __init__(self, run: Run, visible: Visible, watch: Watch) -> None:
        self._run = run
        self._visible = visible
        self.watch = watch
        self._author, self._reason = Author.LARGE, Reason.STOPPED

    async def deltas(self) -> AsyncGenerator[list[Delta]]:
        async with aclosing(self._run.batches()) as batches:
            async for events in batches:
                self.watch.note(events)
                last = events[-1]
                if isinstance(last, Finish):
                    self._reason = last.reason
                self._author = last.to if isinstance(last, Switch) else last.author
                if deltas := self._visible.feed(events):
                    yield deltas
                if self._visible.over and not isinstance(last, Finish):
                    break
        if rest := self._visible.flush():
            yield rest

    @property
    def result(self) -> Result:
        return self._run.result()

    @property
    def reasoning_tokens(self) -> int:
        return self._visible.reasoning_tokens

    @property
    def finish_reason(self) -> str:
        called = self._visible.num_calls > 0
        return finish_reason("stop" if self._visible.over else self.result.finish_reason, called=called)

    def ending(self, *, segments: bool) -> dict[str, Any]:
        return ending(self.result, self._author, self._reason, segments=segments)


class Request:
    """A job at work. `stream` or `whole` runs it; `abort` ends it from outside, with an error for the client."""

    def __init__(self, head: Head, writings: Sequence[Writing], limit_s: float) -> None:
        self.head = head
        self.writings = writings
        self._limit_s = limit_s
        self._task: asyncio.Task[Any] | None = None
        self._abort: RelayError | None = None

    def abort(self, error: RelayError) -> None:
        self._abort = error
        if self._task:
            self._task.cancel()

    async def stream(self, sink: Sink) -> None:
        await self._limited([self._stream_one(i, sink) for i in range(len(self.writings))])

    async def whole(self) -> list[Choice]:
        return await self._limited([self._whole_one(writing) for writing in self.writings])

    def usage(self) -> dict[str, Any]:
        return usage_of([w.result for w in self.writings], sum(w.reasoning_tokens for w in self.writings))

    async def _stream_one(self, index: int, sink: Sink) -> None:
        writing, chunks = self.writings[index], Chunks(self.head, index)
        start = chunks.first()
        async with aclosing(writing.deltas()) as all_deltas:
            async for deltas in all_deltas:
                await sink(start + chunks.write(deltas))
                start = b""
        ours = writing.ending(segments=False) if self.head.segments else {}
        await sink(start + chunks.last(writing.finish_reason, ours))

    async def _whole_one(self, writing: Writing) -> Choice:
        async with aclosing(writing.deltas()) as all_deltas:
            found = [delta async for deltas in all_deltas for delta in deltas]
        ours = writing.ending(segments=True) if self.head.segments else {}
        return Choice(found, writing.finish_reason, ours)

    async def _limited(self, choices: Sequence[Awaitable[Any]]) -> Any:
        """All choices, side by side; the first failure ends the others."""
        self._task = asyncio.current_task()
        try:
            async with asyncio.timeout(self._limit_s):
                if len(choices) == 1:
                    return [await choices[0]]
                return await _all(choices)
        except TimeoutError:
            raise RefusedError(
                f"the generation took longer than {self._limit_s:g} s", code="timeout", status=504
            ) from None
        except asyncio.CancelledError:
            if self._abort is None or self._task is None:
                raise
            self._task.uncancel()
            raise self._abort from None
        finally:
            self._task = None


async def _all(work: Sequence[Awaitable[Any]]) -> list[Any]:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Service:
    """The open relay as the endpoints see it."""

    def __init__(self, relay: Relay, settings: Settings) -> None:
        self.relay = relay
        self.settings = settings
        self.admission = Admission(self._max_active(), settings.max_queued)
        self.metrics = Metrics(lambda: self.admission.active, lambda: self.admission.queued)
        self.metrics.watch(relay.pair.engines)
        self._profiles: dict[str, Profile] = {
            **{name: profiles.load(name) for name in profiles.builtin_names()},
            relay.profile.name: relay.profile,
        }
        self._hermes: dict[Author, bool] = {}
        self._requests: set[Request] = set()

    @property
    def models(self) -> list[str]:
        """What a client may name: the pair, one model alone, or the pair with another profile."""
        alone = [f"{MODEL}:{author.value}" for author in self.relay.pair.engines]
        return [MODEL, *alone, *(f"{MODEL}:{name}" for name in self._profiles)]

    async def prepare(self, job: Job, begun: float) -> Request:
        """Everything that may be wrong with a job, before anything is written. `begun` by time.perf_counter."""
        if job.num_choices > self.settings.max_choices:
            raise RefusedError(f"n: at most {self.settings.max_choices}", param="n")
        variant = await self._variant(job)
        if job.tools:
            await self._check_tools(variant)
        head = Head(
            id=("chatcmpl-" if job.chat else "cmpl-") + secrets.token_hex(12),
            created=int(time.time()),
            model=job.model,
            chat=job.chat,
            segments=job.segments,
            include_usage=job.include_usage,
        )
        writings = [self._writing(job, variant, index, begun) for index in range(job.num_choices)]
        return Request(head, writings, self.settings.generation_s)

    def begin(self, request: Request) -> None:
        self._requests.add(request)

    def end(self, request: Request) -> None:
        self._requests.discard(request)

    def stop(self) -> None:
        """Let nobody in any more; what runs goes on."""
        self.admission.close()

    def abort_all(self) -> None:
        for request in self._requests:
            request.abort(stopping())

    def _max_active(self) -> int:
        local = self.settings.slots if self.relay.local_models else self.settings.max_active
        return min(self.settings.max_active, local)

    async def _variant(self, job: Job) -> Variant:
        if job.model not in self.models:
            raise RefusedError(
                f"the model {job.model[:100]!r} does not exist; there are {', '.join(self.models)}",
                param="model",
                code="model_not_found",
                status=404,
            )
        name = job.model.partition(":")[2]
        alone = name if name in ("large", "small") else None
        if alone and job.policy not in (None, alone):
            raise RefusedError(
                f"relaygen.policy: {job.policy} does not go with the model {job.model}",
                param="relaygen.policy",
            )
        profile = job.profile or (name if name and not alone else None)
        if profile and profile not in self._profiles:
            raise RefusedError(
                f"relaygen.profile: {profile[:100]!r} is not one of {', '.join(self._profiles)}",
                param="relaygen.profile",
            )
        variant = await self.relay.variant(
            profile=self._profiles[profile] if profile else None,
            policy=alone or job.policy,
            answer_by=job.answer_by,
        )
        if job.schema is not None:
            # Without a thinking stage the answer is all there is: the large model's, unless told otherwise.
            author = variant.policy.answer_by if variant.policy.think else job.answer_by or Author.LARGE
            variant = replace(variant, policy=constrained(variant.policy, author))
        return variant

    async def _check_tools(self, variant: Variant) -> None:
        """Every engine that may write must have been told of the tools, in the form that is understood here."""
        for author in variant.policy.authors:
            engine = variant.pair.engines[author]
            if author not in self._hermes:
                text, _ = await engine.render([Message("user", "?")], [PROBE])
                self._hermes[author] = is_hermes(text)
            if not self._hermes[author]:
                raise RefusedError(
                    f"tools: the chat template of {engine.info.model} does not tell the model to write"
                    " <tool_call>{...}</tool_call> (as Hermes and Qwen do), and no other form is read here",
                    param="tools",
                )

    def _writing(self, job: Job, variant: Variant, index: int, begun: float) -> Writing:
        sampling = replace(variant.profile.sampling.values(), **job.sampling)
        if sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + index) % 2**63)
        budget = variant.profile.limits.max_tokens if job.max_tokens is None else job.max_tokens
        run = Run(
            variant.pair,
            job.prompt,
            policy=variant.policy,
            sampling=sampling,
            max_tokens=budget,
            tools=job.tools,
            top_logprobs=job.top_logprobs,
            schema=job.schema,
            metadata={"profile": variant.profile.name},
        )
        tools = ToolParser(job.max_calls) if job.tools else None
        visible = Visible(variant.policy.think if job.chat else None, job.stops, tools, job.top_logprobs)
        return Writing(run, visible, Watch(self.metrics, begun))
