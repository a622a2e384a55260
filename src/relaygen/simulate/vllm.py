"""Talks like vLLM: /v1/completions and /v1/chat/completions, /tokenize, /detokenize, /v1/models, /metrics."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
from aiohttp import web

from relaygen.simulate.cache import BlockCache
from relaygen.simulate.events import DONE, ChatEvents, CompletionEvents, Events, Shelf
from relaygen.simulate.script import Stretch, stretch
from relaygen.simulate.server import (
    RefusedError,
    SimulatedServer,
    Stream,
    answer,
    as_object,
    body_of,
    number,
    texts,
)


class SimulatedVllm(SimulatedServer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._cache = BlockCache()
        self._numbers = itertools.count(1)
        self._shelves = (Shelf(), Shelf())  # of completions, without and with ids
        self._chat_shelf = Shelf()

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/health", self._health)
        router.add_get("/version", self._version)
        router.add_get("/v1/models", self._models)
        router.add_get("/metrics", self._metrics)
        router.add_post("/tokenize", self._tokenize)
        router.add_post("/detokenize", self._detokenize)
        router.add_post("/v1/completions", self._completions)
        router.add_post("/v1/chat/completions", self._chat)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return answer({"version": "simulated"})

    async def _models(self, request: web.Request) -> web.Response:
        s = self.settings
        model = {
            "id": s.name,
            "object": "model",
            "owned_by": "vllm",
            "max_model_len": s.context_tokens,
            "parent": None,
        }
        return answer({"object": "list", "data": [model]})

    async def _metrics(self, request: web.Request) -> web.Response:
        figures = {
            "num_requests_running": self.batch.num_running,
            "num_requests_waiting": self.num_requests - self.batch.num_running,
            "prompt_tokens_total": self.prompt_tokens_total,
            "prefix_cache_queries_total": self.prompt_tokens_total,
            "prefix_cache_hits_total": self.cached_tokens_total,
            "generation_tokens_total": self.tokens_total,
            "request_prefill_time_seconds_sum": self.prefill_s_total,
            "request_prefill_time_seconds_count": self.requests_total,
            "request_decode_time_seconds_sum": self.decode_s_total,
            "request_decode_time_seconds_count": self.requests_total,
        }
        label = orjson.dumps(self.settings.name).decode()
        lines = (f"vllm:{name}{{model_name={label}}} {value}\n" for name, value in figures.items())
        return web.Response(text="".join(lines))

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        text = self.chat(body["messages"], body.get("tools")) if "messages" in body else body.get("prompt")
        if not isinstance(text, str):
            raise RefusedError(400, "prompt must be text")
        ids = self.vocabulary.encode(text, special=True)
        return answer({"tokens": ids, "count": len(ids), "max_model_len": self.settings.context_tokens})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        skip = bool(body.get("skip_special_tokens", False))
        ids = self.ids_of(body.get("tokens"))
        return answer({"prompt": self.vocabulary.decode(ids, special=not skip)})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request)
        ids = self.ids_of(body.get("prompt"))
        with_ids = bool(body.get("return_token_ids"))
        name, shelf = f"cmpl-{next(self._numbers)}", self._shelves[with_ids]
        events = CompletionEvents(name, self.settings.name, shelf, with_ids=with_ids)
        return await self._write(request, body, ids, number(body, "max_tokens", 16), events)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request)
        ids = self.ids_of(self.chat(body.get("messages"), body.get("tools")))
        room = max(1, self.settings.context_tokens - len(ids))
        budget = number(body, "max_completion_tokens", number(body, "max_tokens", room))
        events = ChatEvents(f"chatcmpl-{next(self._numbers)}", self.settings.name, self._chat_shelf)
        return await self._write(request, body, ids, budget, events)

    def _plan(self, body: dict[str, Any], ids: list[int], max_tokens: int) -> Stretch:
        s = self.settings
        if body.get("model") not in (None, s.name):
            raise RefusedError(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        if body.get("n") not in (None, 1):
            raise RefusedError(400, "the simulated engine writes one answer a request: n must be 1")
        stops = texts(body.get("stop"), "stop")
        if len(stops) > s.max_stops:
            raise RefusedError(
                400,
                f"'stop': List should have at most {s.max_stops} items after validation, not {len(stops)}",
            )
        room = s.context_tokens - len(ids)
        if room < 1:
            raise RefusedError(
                400,
                f"This model's maximum context length is {s.context_tokens} tokens. However, your prompt has {len(ids)}.",
            )
        script, start = self.continuation(ids)
        stop_ids = frozenset(body.get("stop_token_ids") or ())
        return stretch(script, start, min(max_tokens, room), stops, stop_ids)

    async def _write(
        self, request: web.Request, body: dict[str, Any], ids: list[int], max_tokens: int, events: Events
    ) -> web.StreamResponse:
        plan = self._plan(body, ids, max_tokens)
        script = plan.script
        keep_stop = bool(body.get("include_stop_str_in_output"))
        shown_to = plan.shown_to(keep_stop=keep_stop)
        async with self.admitted():
            cached = self._cache.cached(ids)
            self._cache.keep(ids)  # others find it from now on
            usage = _usage(len(ids), cached, plan.num_tokens)
            if not body.get("stream"):
                await self.generate(ids, cached, plan, keep=self._cache.keep)
                return answer(events.whole(plan.text(shown_to), plan, usage))
            stream = await Stream.open(request)
            if opening := events.opening():
                stream.write(opening)

            def write(index: int) -> None:
                at = plan.start + index
                stream.write(events.token(script.ids[at], script.token_text(at, shown_to)))

            await self.generate(ids, cached, plan, write, keep=self._cache.keep)
            last_text = script.token_text(plan.end - 1, shown_to) if plan.finish != "eos" else ""
            last = events.last(plan, last_text)
            if as_object(body.get("stream_options")).get("include_usage"):
                last += events.event({"choices": [], "usage": usage})
            return await stream.end(last + DONE)


def _usage(prompt: int, cached: int, completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
