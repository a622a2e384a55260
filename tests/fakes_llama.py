"""A small server that talks like llama-server, weaknesses included."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp import web

from tests.fakes import EOS, MODEL, PROMPT, Fake, likeliest, sse


class FakeLlamaCpp(Fake):
    """One id an event. While a character is incomplete nothing is sent; while the text may begin a stop string its ids come
    without text; stop strings, and text held back at the end, are never shown."""

    context_tokens = 500
    drafting = False

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/props", self.props)
        router.add_post("/apply-template", self.render)
        router.add_post("/tokenize", self.tokenize)
        router.add_post("/detokenize", self.detokenize)
        router.add_post("/completion", self.complete)

    async def props(self, request: web.Request) -> web.Response:
        settings = {"n_ctx": self.context_tokens}
        return web.json_response(
            {"default_generation_settings": settings, "total_slots": 2, "model_path": f"/models/{MODEL}"}
        )

    async def render(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": PROMPT})

    async def tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": self.vocabulary.encode((await request.json())["content"])})

    async def detokenize(self, request: web.Request) -> web.Response:
        ids = (await request.json())["tokens"]
        return web.json_response({"content": self.vocabulary.decode(ids, special=False)})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.raw:
            return await self.play_raw(request, self.raw.popleft())
        response = web.StreamResponse()
        await response.prepare(request)
        for value in self.generate(body):
            await response.write(sse(value, done=False))
            await asyncio.sleep(0)
        return response

    def generate(self, body: Any) -> Iterator[dict[str, Any]]:
        written = self.vocabulary.decode(body["prompt"]).removeprefix(PROMPT)
        script = [*self.vocabulary.encode(self.text[len(written) :]), EOS][: body["n_predict"]]
        shown = 0
        for count in range(1, len(script) + 1):
            text = self.vocabulary.decode(script[:count], special=False)
            if text.endswith("\ufffd"):
                continue
            ends = [(text.find(stop), stop) for stop in body["stop"] if stop in text]
            probs = self.probs(script[count - 1], body)
            if ends:
                yield llama_event(text[shown : min(ends)[0]], [script[count - 1]], count, **probs)
                yield llama_end("word", count, stopping_word=min(ends)[1])
                return
            if any(text.endswith(stop[:n]) for stop in body["stop"] for n in range(1, len(stop))):
                yield llama_event("", [script[count - 1]], count, **probs)
            else:
                yield llama_event(text[shown:], [script[count - 1]], count, **probs)
                shown = len(text)
        yield llama_end("eos" if script[-1] == EOS else "limit", len(script))

    def probs(self, token_id: int, body: Any) -> dict[str, Any]:
        if not (num := body.get("n_probs")) or (
            self.drafting and token_id % 2
        ):  # nothing beside accepted drafts
            return {}
        top = likeliest(token_id, num)
        best = sorted(top.items(), key=lambda pair: -pair[1])[:num]
        row = {"id": token_id, "logprob": top[token_id], "top_logprobs": [self.row(*pair) for pair in best]}
        return {"completion_probabilities": [row]}

    def row(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.vocabulary.decode([token_id], special=False)
        spelt = [token_id] if text == "\ufffd" else list(text.encode())
        return {"id": token_id, "token": text, "bytes": spelt, "logprob": logprob}


def llama_event(text: str, ids: Sequence[int], count: int, **more: Any) -> dict[str, Any]:
    return {"content": text, "tokens": ids, "stop": False, "tokens_predicted": count, **more}


def llama_end(kind: str, count: int, **more: Any) -> dict[str, Any]:
    timings = {"prompt_n": 3, "cache_n": 5, "prompt_ms": 7.0, "predicted_n": count, "predicted_ms": 9.0}
    end: dict[str, Any] = {
        "content": "",
        "tokens": [],
        "stop": True,
        "tokens_predicted": count,
        "timings": timings,
    }
    return {**end, "stop_type": kind, **more}
