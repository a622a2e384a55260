"""Talks like llama-server: /completion, /apply-template, /tokenize, /detokenize, /props, /slots, /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from collections.abc import Sequence as PySequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from relaygen.simulate.batch import Sequence
from relaygen.simulate.cache import SlotCache
from relaygen.simulate.script import Stretch, stretch
from relaygen.simulate.server import (
    RefusedError,
    SimulatedServer,
    Stream,
    answer,
    body_of,
    number,
    texts,
)


class SimulatedLlamaServer(SimulatedServer):
    """Unlike the real one it knows where a stop string will come, so it never holds text back for one that does not."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._slots = SlotCache(self.settings.max_sequences)
        self._freed = asyncio.Event()  # set, and replaced, when a slot comes free
        self._shelf: dict[tuple[int, str], bytes] = {}  # the events of single tokens, up to the count

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/health", self._health)
        router.add_get("/props", self._props)
        router.add_get("/slots", self._slots_now)
        router.add_get("/v1/models", self._models)
        router.add_get("/metrics", self._metrics)
        router.add_post("/apply-template", self._template)
        router.add_post("/tokenize", self._tokenize)
        router.add_post("/detokenize", self._detokenize)
        router.add_post("/completion", self._completion)

    async def _health(self, request: web.Request) -> web.Response:
        return answer({"status": "ok"})

    async def _props(self, request: web.Request) -> web.Response:
        s = self.settings
        generation = {"n_ctx": s.context_tokens}
        return answer(
            {
                "default_generation_settings": generation,
                "total_slots": self._slots.num_slots,
                "model_alias": s.name,
                "model_path": f"/{s.name}",
                "build_info": "simulated",
            }
        )

    async def _slots_now(self, request: web.Request) -> web.Response:
        context = self.settings.context_tokens
        return answer(
            [
                {"id": n, "n_ctx": context, "is_processing": not self._slots.is_free(n)}
                for n in range(self._slots.num_slots)
            ]
        )

    async def _models(self, request: web.Request) -> web.Response:
        name = self.settings.name
        return answer({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "llamacpp"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        figures = {
            "requests_processing": self.batch.num_running,
            "requests_deferred": self.num_requests - self.batch.num_running,
            "prompt_tokens_total": self.prompt_tokens_total - self.cached_tokens_total,
            "prompt_seconds_total": self.prefill_s_total,
            "tokens_predicted_total": self.tokens_total,
            "tokens_predicted_seconds_total": self.decode_s_total,
        }
        return web.Response(text="".join(f"llamacpp:{name} {value}\n" for name, value in figures.items()))

    async def _template(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        return answer({"prompt": self.chat(body.get("messages"), body.get("tools"))})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        text = body.get("content")
        if not isinstance(text, str):
            raise RefusedError(400, "content must be text", "invalid_request_error")
        return answer({"tokens": self.vocabulary.encode(text, special=body.get("parse_special", True))})

    async def _detokenize(self, request: web.Request) -> web.Response:
        ids = self.ids_of((await body_of(request)).get("tokens"))
        return answer({"content": self.vocabulary.decode(ids)})

    def _plan(self, body: dict[str, Any], ids: list[int]) -> Stretch:
        room = self.settings.context_tokens - len(ids)
        if room < 1:
            raise RefusedError(
                400,
                f"the request exceeds the available context size ({len(ids)} tokens)",
                "exceed_context_size_error",
                n_prompt_tokens=len(ids),
                n_ctx=self.settings.context_tokens,
            )
        wanted = number(body, "n_predict", number(body, "max_tokens", -1, -1), -1)
        script, start = self.continuation(ids)
        return stretch(
            script, start, room if wanted < 0 else min(wanted, room), texts(body.get("stop"), "stop")
        )

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request)
        ids = self.ids_of(body.get("prompt"))
        plan = self._plan(body, ids)
        pinned = number(body, "id_slot", -1, -1)
        if pinned >= self._slots.num_slots:
            raise RefusedError(400, f"there is no slot {pinned}", "invalid_request_error")
        async with self.admitted(), self._slot(ids, None if pinned < 0 else pinned) as place:
            return await self._write(request, bool(body.get("stream")), ids, plan, place)

    @asynccontextmanager
    async def _slot(self, ids: list[int], wanted: int | None) -> AsyncGenerator[tuple[int, int]]:
        """(slot, tokens that need not be read), once the wanted slot is free, or any where it is None."""
        while not self._slots.is_free(wanted):
            await self._freed.wait()
        slot, cached = self._slots.take(ids, wanted)
        try:
            yield slot, cached
        finally:
            self._slots.release(slot)
            self._freed.set()
            self._freed = asyncio.Event()

    async def _write(
        self, request: web.Request, is_stream: bool, ids: list[int], plan: Stretch, place: tuple[int, int]
    ) -> web.StreamResponse:
        script, shown_to = plan.script, plan.shown_to(keep_stop=False)
        slot, cached = place

        def keep(seen: PySequence[int]) -> None:
            self._slots.keep(slot, seen)

        if not is_stream:
            sequence = await self.generate(ids, cached, plan, keep=keep)
            end = _end(plan, sequence, len(ids), cached, slot)
            return answer({**end, "content": plan.text(shown_to), "tokens": plan.ids})
        stream = await Stream.open(request)

        def write(index: int) -> None:
            at = plan.start + index
            # What is part of the stop string is held back, with all of its token.
            held = script.offsets[at + 1] > shown_to
            text = "" if held else script.token_text(at, shown_to)
            stream.write(self._event(script.ids[at], text, index + 1))

        sequence = await self.generate(ids, cached, plan, write, keep=keep)
        end = _end(plan, sequence, len(ids), cached, slot)
        last = self._event(plan.last_id, plan.last_text(shown_to), plan.num_tokens)
        return await stream.end(last + _sse({**end, "content": "", "tokens": []}))

    def _event(self, token_id: int, text: str, count: int) -> bytes:
        key = token_id, text
        shown = self._shelf.get(key)
        if shown is None:
            fields: dict[str, Any] = {"index": 0, "content": text, "tokens": [token_id], "stop": False}
            shown = _sse(fields).removesuffix(b"}\n\n") + b',"tokens_predicted":'
            self._shelf[key] = shown
        return b"%b%d}\n\n" % (shown, count)


def _sse(fields: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"


_STOP_TYPES = {"eos": "eos", "stop": "word", "length": "limit"}


def _end(plan: Stretch, sequence: Sequence, prompt_tokens: int, cached: int, slot: int) -> dict[str, Any]:
    read = prompt_tokens - cached
    return {
        "index": 0,
        "stop": True,
        "id_slot": slot,
        "stop_type": _STOP_TYPES[plan.finish],
        "stopping_word": plan.stop or "",
        "truncated": False,
        "tokens_evaluated": prompt_tokens,
        "tokens_predicted": plan.num_tokens,
        "tokens_cached": prompt_tokens + plan.num_tokens - 1,
        "timings": {
            "cache_n": cached,
            "prompt_n": read,
            "prompt_ms": sequence.prefill_ms,
            "predicted_n": plan.num_tokens,
            "predicted_ms": sequence.decode_ms,
        },
    }
