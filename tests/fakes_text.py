"""Small servers that take and give text only: a plain OpenAI-compatible one, and Ollama."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from tests.fakes import MODEL, PROMPT, Fake, event, refusal, sse


class FakeText(Fake):
    """Text in, text out, strict: a field that OpenAI does not have is refused."""

    FIELDS = frozenset(
        "model prompt max_tokens stream temperature top_p presence_penalty frequency_penalty seed stop n user".split()
    )

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/models", self.models)
        router.add_post("/v1/completions", self.complete)
        router.add_post("/chat_tokenize", self.render)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL}]})

    async def render(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"tokenize_response": [], "templated_text": self.prompt_of(await request.json())}
        )

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if unknown := body.keys() - self.FIELDS:
            return web.Response(status=422, body=refusal(f"extra fields not permitted: {sorted(unknown)}"))
        if self.raw:
            return await self.play_raw(request, self.raw.popleft())
        response = web.StreamResponse()
        await response.prepare(request)
        await self.read(body["prompt"])
        for step in self.steps(body, body["prompt"].removeprefix(PROMPT), keep_stop=False, held=0):
            await response.write(sse(event(step.text, None, step.finish), done=False))
            await self.step()
        await response.write(b"data: [DONE]\n\n")
        return response


class FakeOllama(FakeText):
    names: tuple[str, ...] = ("toy:latest",)

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/models", self.models)
        router.add_get("/api/version", self.version)
        router.add_get("/api/tags", self.tags)
        router.add_post("/api/show", self.show)
        router.add_post("/api/chat", self.chat)
        router.add_post("/api/generate", self.generate)

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.20.0"})

    async def tags(self, request: web.Request) -> web.Response:
        return web.json_response({"models": [{"name": name} for name in self.names]})

    async def show(self, request: web.Request) -> web.Response:
        return web.json_response({"model_info": {"general.architecture": "toy", "toy.context_length": 4096}})

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        shown = {"_debug_info": {"rendered_template": PROMPT}} if body.get("_debug_render_only") else {}
        return web.json_response({"model": MODEL, **shown})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body["raw"] or body["truncate"] or body["shift"]:
            raise AssertionError("the prompt would be wrapped, or lose its middle")
        if self.raw:
            return await self.play_raw(request, self.raw.popleft())
        response = web.StreamResponse()
        await response.prepare(request)
        options = {"max_tokens": body["options"]["num_predict"]}
        for step in self.steps(options, body["prompt"].removeprefix(PROMPT), keep_stop=False, held=0):
            line = {"response": step.text, "done": False}
            if step.finish:
                line |= {
                    "done": True,
                    "done_reason": step.finish,
                    "eval_count": 3,
                    "eval_duration": 5_000_000,
                }
            await response.write(json.dumps(line).encode() + b"\n")
            await asyncio.sleep(0)
        return response
