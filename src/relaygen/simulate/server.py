"""What the simulated servers have in common: the clock, the batch at work, a request from its arrival to its last token.

One task steps all sequences; a token is one write of bytes that were put together once. So hundreds of streams take a few
percent of a core.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import orjson
from aiohttp import web

from relaygen.simulate import batch
from relaygen.simulate.batch import Batch
from relaygen.simulate.script import Library, Script, Stretch
from relaygen.simulate.speed import Speed

_MAX_BODY_BYTES = 64 * 1024 * 1024
_LATE_S = 0.1  # further behind than this, the clock is set anew: the machine is too slow for the speeds that were asked for


@dataclass(frozen=True, slots=True)
class Settings:
    """`name` of the model; `network_ms` pass before a request reaches the engine; `max_sequences` are at work at once (the slots
    of a llama-server), and with `max_waiting` more are refused with a 503; `max_stops`: stop strings of a request (vLLM)."""

    name: str
    speed: Speed
    network_ms: float = 0.5
    max_sequences: int = 256
    max_waiting: int | None = None
    context_tokens: int = 40_960
    max_stops: int = 4


class RefusedError(Exception):
    """Answered in the dialect's own form."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", **fields: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.fields = status, message, kind, fields


class SimulatedServer(ABC):
    """`running` serves it. The counters are of all requests so far, aborted ones included; times in seconds."""

    def __init__(self, settings: Settings, library: Library) -> None:
        self.settings = settings
        self.library = library
        self.vocabulary = library.vocabulary
        self.batch = Batch(settings.speed, settings.max_sequences)
        self.num_requests = 0  # now, from arrival to end
        self.requests_total = self.prompt_tokens_total = self.cached_tokens_total = self.tokens_total = 0
        self.prefill_s_total = self.decode_s_total = 0.0
        self._work = asyncio.Event()
        self.url = ""

    @abstractmethod
    def routes(self, router: web.UrlDispatcher) -> None: ...

    @asynccontextmanager
    async def running(self, port: int = 0, host: str = "127.0.0.1") -> AsyncGenerator[str]:
        """Serves until it is left; gives the URL. OSError when the port is taken."""
        app = web.Application(middlewares=[_answer_refusals], client_max_size=_MAX_BODY_BYTES)
        self.routes(app.router)
        # A handler whose client has gone is cancelled: that is what aborts a request.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        steps = asyncio.create_task(self._step())
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
            self.url = f"http://{host}:{runner.addresses[0][1]}"
            yield self.url
        finally:
            await runner.cleanup()
            steps.cancel()
            with suppress(asyncio.CancelledError):
                await steps

    async def _step(self) -> None:
        """Each pass ends at its time by the model, not a little after the last one was seen to end: no delay adds up."""
        while True:
            await self._work.wait()
            at = time.perf_counter()
            while (ms := self.batch.begin()) is not None:
                at += ms / 1000
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                if time.perf_counter() - at > _LATE_S:
                    at = time.perf_counter()
                self.batch.end(at)
            self._work.clear()

    async def generate(
        self,
        ids: Sequence[int],
        cached: int,
        plan: Stretch,
        write: Callable[[int], None] = lambda index: None,
        *,
        keep: Callable[[Sequence[int]], None],
    ) -> batch.Sequence:
        """One request at the engine. `write` is called with the index of each token but the last, which the caller writes
        together with what ended the answer. `keep` is given all ids that the engine has seen then, or when the client left."""
        finished = asyncio.get_running_loop().create_future()

        def wrote(index: int) -> None:
            if not sequence.is_done:
                write(index)
            elif not finished.done():
                finished.set_result(None)

        sequence = batch.Sequence(len(ids) - cached, plan.num_tokens, wrote, time.perf_counter())
        self.requests_total += 1
        self.prompt_tokens_total += len(ids)
        self.cached_tokens_total += cached
        self.batch.add(sequence)
        self._work.set()
        try:
            await finished
        finally:
            self.batch.remove(sequence)
            self.tokens_total += sequence.written
            self.prefill_s_total += sequence.prefill_ms / 1000
            self.decode_s_total += sequence.decode_ms / 1000
            keep([*ids, *plan.script.ids[plan.start : min(plan.end, plan.start + sequence.written)]])
        return sequence

    @asynccontextmanager
    async def admitted(self) -> AsyncGenerator[None]:
        """A place in the server, network included."""
        s = self.settings
        if s.max_waiting is not None and self.num_requests >= s.max_sequences + s.max_waiting:
            raise RefusedError(503, "the server is overloaded: its queue is full", "ServiceUnavailableError")
        self.num_requests += 1
        try:
            await asyncio.sleep(s.network_ms / 1000)
            yield
        finally:
            self.num_requests -= 1

    # --- what requests say

    def ids_of(self, prompt: Any) -> list[int]:
        """A prompt as ids, whichever way it was given."""
        if isinstance(prompt, str):
            return self.vocabulary.encode(prompt, special=True)
        known, ids = len(self.vocabulary), as_list(prompt)
        if not isinstance(prompt, list) or not all(type(i) is int and 0 <= i < known for i in ids):
            raise RefusedError(400, f"prompt must be text, or a list of token ids below {known}")
        return ids

    def chat(self, messages: Any, tools: Any = None) -> str:
        """The prompt by our template, ready for the answer."""
        if not as_list(messages) or not all(isinstance(message, dict) for message in messages):
            raise RefusedError(400, "messages must be a list of objects")
        said = [(m.get("role"), content_text(m.get("content"))) for m in map(as_object, messages)]
        if tools:
            said.insert(0, ("system", orjson.dumps(tools).decode()))
        return "".join(f"<|{role}|>{text}<|end|>" for role, text in said) + "<|assistant|>"

    def continuation(self, ids: Sequence[int]) -> tuple[Script, int]:
        if not ids:
            raise RefusedError(400, "the prompt is empty")
        return self.library.continuation(ids)


def content_text(content: Any) -> str:
    """Of a message: plain, or in parts as OpenAI's API has them."""
    if isinstance(content, list):
        return "".join(str(as_object(part).get("text", "")) for part in as_list(content))
    return "" if content is None else str(content)


def as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


async def body_of(request: web.Request) -> dict[str, Any]:
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"the body is not JSON: {error.msg}") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "the body must be an object")
    return as_object(body)


def number(body: dict[str, Any], name: str, default: int, low: int = 1) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or value < low:
        raise RefusedError(400, f"{name} must be a whole number of {low} or more")
    return value


def texts(value: Any, name: str) -> list[str]:
    """None, one text or several."""
    found = [] if value is None else [value] if isinstance(value, str) else as_list(value)
    if not isinstance(value, list | str | None) or not all(isinstance(one, str) for one in found):
        raise RefusedError(400, f"{name} must be a text or a list of texts")
    return found


def answer(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


@web.middleware
async def _answer_refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusedError as refused:
        error = {"message": refused.message, "type": refused.kind, "code": refused.status, **refused.fields}
        return web.Response(
            status=refused.status, body=orjson.dumps({"error": error}), content_type="application/json"
        )


class Stream:
    """An event stream whose tokens are written without waiting: what a slow client has not read yet is kept, and that is at most
    one answer."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._transport = request.transport
        self._response = response

    @classmethod
    async def open(cls, request: web.Request) -> Stream:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        return cls(request, response)

    def write(self, data: bytes) -> None:
        """`data` as one chunk of the body, in one write: aiohttp's own takes several and a coroutine."""
        if self._transport is not None:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self, data: bytes) -> web.StreamResponse:
        with suppress(ConnectionError):  # the client may have left a moment ago
            await self._response.write_eof(data)
        return self._response
