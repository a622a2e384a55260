"""Small servers that talk like vLLM and SGLang, weaknesses included; and what all small servers share.

All play one script: whatever part of it the prompt already holds, they continue after it, as a model at temperature 0 does.
`raw` answers go first: exact bytes in place of a generation.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

PROMPT = "<|user|>?<|assistant|>"
MODEL = "toy"
EOS = 256


class Vocabulary:
    """Ids under 256 are bytes, 256 ends the text, the rest are `words`. So a character outside of ASCII takes several ids."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(dict.fromkeys(words))
        self._id = {word: 257 + i for i, word in enumerate(self._words)}
        # Longest first: with one first character, the first that fits is the one.
        self._starting: dict[str, list[str]] = {}
        for word in sorted(self._words, key=len, reverse=True):
            self._starting.setdefault(word[:1], []).append(word)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(text):
            words = self._starting.get(text[at], ())
            word = next((w for w in words if text.startswith(w, at)), "")
            ids += [self._id[word]] if word else text[at].encode()
            at += len(word) or 1
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        names = {EOS: b"<|end|>" if special else b""}
        parts = (bytes([i]) if i < 256 else names.get(i) or self._word(i) for i in ids)
        return b"".join(parts).decode(errors="replace")

    def _word(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else self._words[token_id - 257].encode()


def likeliest(token_id: int, num: int) -> dict[int, float]:
    """Made up: the log probabilities of the `num` likeliest where `token_id` was written, and its own. They halve from place
    to place; each fifth id was only the second."""
    place = int(token_id % 5 == 0)
    others = [(token_id + n) % 256 for n in range(1, num + 2)]
    order = [*others[:place], token_id, *others[place:]]
    return {i: -(rank + 1) * math.log(2) for rank, i in enumerate(order) if rank < num or i == token_id}


@dataclass(frozen=True)
class Raw:
    """Exact bytes, each part sent on its own; `cut` then breaks the connection."""

    parts: tuple[bytes, ...]
    status: int = 200
    cut: bool = False


@dataclass(frozen=True)
class Step:
    """One chunk of a generation: its ids, its text as the server shows it, and how it ends."""

    ids: list[int]
    text: str
    finish: str | None = None
    stop: str | int | None = None


@dataclass(frozen=True)
class Habits:
    """How a server differs from the small ones that the dialects are tested with. `template`, with the messages in place of
    {}, is its chat template; `cache` remembers prompts and counts them (False: counts none, None: tells nothing); a second
    request with one seed writes other text with `forgets_seed`. Any prompt is taken, and answered with the script."""

    template: str = "<|user|>{}<|assistant|>"
    cache: bool | None = True
    read_ms: float = 0.0  # a token
    decode_ms: float = 0.0  # a step
    keeps_connections: bool = True
    forgets_seed: bool = False


class Fake:
    """What the dialects share. `requests` are (path, body) in order; `max_stops` refuses more stop strings."""

    def __init__(
        self,
        script: Sequence[str] = (),
        *,
        chunk_tokens: int = 1,
        max_stops: int = 4,
        habits: Habits | None = None,
    ) -> None:
        self.habits = habits
        self._prompts: list[Any] = []
        self.vocabulary = Vocabulary([word for word in script if word.isascii()])
        self.text = "".join(script)
        self.script = self.vocabulary.encode(self.text)
        self.chunk_tokens = chunk_tokens
        self.max_stops = max_stops
        self.raw: deque[Raw] = deque()
        self.requests: list[tuple[str, Any]] = []
        self._clients: set[Any] = set()
        self.url = ""

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
        app = web.Application(middlewares=[self._note])
        self.routes(app.router)
        server = TestServer(app)
        await server.start_server(ssl=tls)
        try:
            self.url = str(server.make_url("")).rstrip("/")
            yield self.url
        finally:
            await server.close()

    def routes(self, router: web.UrlDispatcher) -> None:
        raise NotImplementedError

    @property
    def num_connections(self) -> int:
        return len(self._clients)

    @property
    def generations(self) -> list[Any]:
        return [
            body
            for path, body in self.requests
            if path in ("/v1/completions", "/api/generate", "/completion")
        ]

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        assert (
            request.headers["Accept-Encoding"] == "identity"
        )  # else a proxy may compress, and hold back, a stream
        text = await request.text()
        self.requests.append((request.path, json.loads(text) if text else None))
        if request.transport:
            self._clients.add(request.transport.get_extra_info("peername"))
        response = await handler(request)
        if self.habits and not self.habits.keeps_connections and not response.prepared:
            response.force_close()
        return response

    def prompt_of(self, body: Any) -> str:
        """The chat in `body`, rendered."""
        if not self.habits:
            return PROMPT
        return self.habits.template.replace("{}", " ".join(m["content"] for m in body["messages"]))

    async def read(self, prompt: Sequence[Any]) -> int:
        """Take the time that reading takes; how much of `prompt` was in the cache."""
        if not self.habits:
            return 0
        cached = max((_common(prompt, known) for known in self._prompts), default=0)
        cached = min(cached, len(prompt) - 1) if self.habits.cache is not False else 0
        self._prompts.append(prompt)
        await asyncio.sleep((len(prompt) - cached) * self.habits.read_ms / 1000)
        return cached

    async def step(self) -> None:
        await asyncio.sleep(self.habits.decode_ms / 1000 if self.habits else 0)

    def steps(self, body: Any, written: str, *, keep_stop: bool, held: int) -> Iterator[Step]:
        """The script after `written`, which must be whole characters. Text stays `held` characters behind the ids."""
        if self.habits:
            written = self.text[: (len(self.requests) if self.habits.forgets_seed else 0)]
        assert self.text.startswith(written), written
        script = self.vocabulary.encode(self.text[len(written) :])
        ids: list[int] = []
        shown = 0
        while True:
            new = script[len(ids) :][: min(self.chunk_tokens, body["max_tokens"] - len(ids))]
            ids += new
            wanted: list[int] = body.get("stop_token_ids") or []
            at_id = next((n for n, i in enumerate(new) if i in wanted), None)
            if at_id is not None:  # found inside of the engine, before the text is looked at
                ids = ids[: len(ids) - len(new) + at_id + 1]
                new = new[: at_id + 1]
            text = self._whole(ids)
            for stop in body.get("stop") or ():
                at = text.find(stop, max(0, shown - len(stop)))
                if at >= 0:
                    cut = at + len(stop) if keep_stop else at
                    yield Step(new, text[shown:cut], "stop", stop)
                    return
            if at_id is not None:
                yield Step(new, text[shown:], "stop", new[-1])
                return
            is_full = len(ids) == body["max_tokens"]
            if is_full or len(ids) == len(script):
                yield Step(new if is_full else [*new, EOS], text[shown:], "length" if is_full else "stop")
                return
            visible = max(shown, len(text) - held)
            yield Step(new, text[shown:visible])
            shown = visible

    def _whole(self, ids: Sequence[int]) -> str:
        return self.vocabulary.decode(ids, special=False).rstrip("\ufffd")

    async def play_raw(self, request: web.Request, raw: Raw) -> web.StreamResponse:
        response = web.StreamResponse(status=raw.status)
        await response.prepare(request)
        for part in raw.parts:
            await response.write(part)
            await asyncio.sleep(0.01)
        if raw.cut and request.transport:
            request.transport.abort()
        return response


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def sse(*values: Any, done: bool = True) -> bytes:
    text = "".join(f"data: {json.dumps(value, ensure_ascii=False)}\n\n" for value in values)
    return (text + "data: [DONE]\n\n" * done).encode()


def event(
    text: str, ids: Sequence[int] | None = None, finish: str | None = None, **more: Any
) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish, **more}
    return {"id": "x", "choices": [choice if ids is None else {**choice, "token_ids": ids}]}


def refusal(message: str, kind: str = "BadRequestError", code: int = 400) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "code": code}}).encode()


class FakeVllm(Fake):
    """`held_back`: text lags ids by more than a token even though the stop is kept (it does so where it is not kept)."""

    max_model_len = 500
    owned_by = "vllm"
    detokenized = "prompt"

    def __init__(self, *args: Any, held_back: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held_back = held_back

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/models", self.models)
        router.add_post("/tokenize", self.tokenize)
        router.add_post("/detokenize", self.detokenize)
        router.add_post("/v1/completions", self.complete)

    async def models(self, request: web.Request) -> web.Response:
        model = {"id": MODEL, "owned_by": self.owned_by, "max_model_len": self.max_model_len, "parent": None}
        return web.json_response({"data": [model, {**model, "id": "toy-lora", "parent": MODEL}]})

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids = self.vocabulary.encode(self.prompt_of(body) if "messages" in body else body["prompt"])
        return web.json_response({"tokens": ids, "count": len(ids)})

    async def detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({self.detokenized: self.vocabulary.decode((await request.json())["tokens"])})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if len(body.get("stop") or ()) > self.max_stops:
            return web.Response(status=400, body=self.too_many(len(body["stop"])))
        if self.raw:
            return await self.play_raw(request, self.raw.popleft())
        if not body.get("stream"):
            return web.json_response(event("x", [1], "length"))
        if "max_tokens" not in body:
            raise AssertionError("max_tokens missing means 16")
        response = web.StreamResponse()
        await response.prepare(request)
        cached = await self.read(body["prompt"])
        for step in self.generate(body):
            value = self.choice(step)
            if "logprobs" in body:
                value["choices"][0]["logprobs"] = self.logprobs(step.ids, body)
            await response.write(sse(value, done=False))
            await self.step()
        usage: dict[str, Any] = {"prompt_tokens": len(body["prompt"])}
        if self.habits and self.habits.cache is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        await response.write(sse({"choices": [], "usage": usage}))
        return response

    def generate(self, body: Any) -> Iterator[Step]:
        written = self.vocabulary.decode(body["prompt"]).removeprefix(PROMPT)
        keep = body.get("include_stop_str_in_output", False)
        longest = max(map(len, body["stop"]), default=1) - 1
        held = 20 if self.held_back else 0 if keep else longest
        return self.steps(body, written, keep_stop=keep, held=held)

    def choice(self, step: Step) -> dict[str, Any]:
        return event(step.text, step.ids, step.finish, stop_reason=step.stop)

    def logprobs(self, ids: Sequence[int], body: Any) -> dict[str, Any]:
        """As vLLM does: the written token is among the candidates, whether asked for or not."""
        tops = [likeliest(i, body["logprobs"]) for i in ids]
        named = [
            {self.name(i, body): lp for i, lp in sorted(top.items(), key=lambda pair: pair[0] != written)}
            for written, top in zip(ids, tops, strict=True)
        ]
        return {
            "tokens": [self.name(i, body) for i in ids],
            "token_logprobs": [top[i] for i, top in zip(ids, tops, strict=True)],
            "top_logprobs": named,
        }

    def name(self, token_id: int, body: Any) -> str:
        return (
            f"token_id:{token_id}"
            if body.get("return_tokens_as_token_ids")
            else self.vocabulary.decode([token_id])
        )

    def too_many(self, count: int) -> bytes:
        return refusal(f"'List should have at most {self.max_stops} items after validation, not {count}'")


class FakeSglang(FakeVllm):
    owned_by = "sglang"
    detokenized = "text"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_stops", 32)
        super().__init__(*args, **kwargs)

    def routes(self, router: web.UrlDispatcher) -> None:
        super().routes(router)
        router.add_get("/get_server_info", self.server_info)

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.5", "max_req_input_len": self.max_model_len - 6})

    def generate(self, body: Any) -> Iterator[Step]:
        written = self.vocabulary.decode(body["prompt"]).removeprefix(PROMPT)
        # Nothing of the text is shown while its end may begin a stop string: here, always two characters behind.
        return self.steps(body, written, keep_stop=body.get("no_stop_trim", False), held=2)

    def choice(self, step: Step) -> dict[str, Any]:
        matched = step.stop or (EOS if step.finish == "stop" else None)
        return event(step.text, step.ids, step.finish, matched_stop=matched)

    def logprobs(self, ids: Sequence[int], body: Any) -> dict[str, Any]:
        """Candidates by their texts, those alone that were asked for."""
        num = body["logprobs"]
        tops = [likeliest(i, num) for i in ids]
        best = [sorted(top.items(), key=lambda pair: -pair[1])[:num] for top in tops]
        return {
            "tokens": [self.vocabulary.decode([i]) for i in ids],
            "token_logprobs": [top[i] for i, top in zip(ids, tops, strict=True)],
            "top_logprobs": [{self.vocabulary.decode([i]): lp for i, lp in reversed(one)} for one in best],
        }
