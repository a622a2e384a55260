"""llama-server, in this process or elsewhere: its native /completion, with token ids both ways (llamacpp_stream.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from relaygen.engines.answers import ODD, count, text, token_ids, understanding, unknown_shape
from relaygen.engines.base import EngineInfo, Request, Tools
from relaygen.engines.http import Endpoint, Http
from relaygen.engines.llamacpp_stream import Reader
from relaygen.errors import EngineCutError, EngineProtocolError
from relaygen.types import Chunk, Message

T = TypeVar("T")
_REPLACEMENT = "\ufffd"


class LlamaCppEngine:
    """`connect` makes one. With `pinned` each session has a slot of its own: for servers that nobody else uses."""

    def __init__(self, http: Http, info: EngineInfo, num_slots: int, *, pinned: bool) -> None:
        self._http = http
        self._info = info
        self._texts: dict[int, str] = {}  # of single ids; grows to the size of the vocabulary at most
        self._slots: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(num_slots if pinned else 0):
            self._slots.put_nowait(slot)
        self._pinned = pinned

    @classmethod
    async def connect(cls, endpoint: Endpoint, *, pinned: bool = False) -> LlamaCppEngine:
        http = Http(endpoint)
        try:
            props = await http.get("/props")
            try:
                context = count(props["default_generation_settings"]["n_ctx"])
                slots = count(props["total_slots"])
                model = str(props.get("model_alias") or props["model_path"]).rsplit("/", 1)[-1]
            except ODD:
                raise EngineProtocolError(
                    f"{endpoint.name} at {endpoint.address} does not answer like a llama-server",
                    engine=endpoint.name,
                ) from None
        except BaseException:
            await http.close()
            raise
        return cls(http, EngineInfo(model, endpoint.address, "llama-server", context), slots, pinned=pinned)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def http(self) -> Http:
        return self._http

    async def close(self) -> None:
        await self._http.close()

    async def render(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, list[int]]:
        body: dict[str, Any] = {"messages": [m.to_json() for m in messages]}
        if tools:
            body["tools"] = tools
        prompt = await self._field("/apply-template", body, "prompt", text)
        return prompt, await self._ids(prompt, add_special=True, parse_special=True)

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        return await self._ids(text, add_special=False, parse_special=special)

    async def _ids(self, text: str, **options: bool) -> list[int]:
        return await self._field("/tokenize", {"content": text, **options}, "tokens", token_ids)

    async def _detokenize(self, ids: Sequence[int]) -> str:
        return await self._field("/detokenize", {"tokens": ids}, "content", text)

    async def _field(self, path: str, body: Mapping[str, Any], name: str, read: Callable[[Any], T]) -> T:
        answer = await self._http.post(path, body)
        with understanding(self._info, path):
            return read(answer[name])

    async def text_of(self, token_id: int) -> str | None:
        """The text of one id; None when it is not whole characters."""
        known = self._texts.get(token_id)
        if known is None:
            known = self._texts[token_id] = await self._detokenize([token_id])
        return None if _REPLACEMENT in known else known

    def is_text_of(self, token_id: int | None, text: str) -> bool:
        """True when `text` is already known to be the text of `token_id`."""
        return token_id is not None and self._texts.get(token_id) == text

    def learn(self, token_id: int, text: str) -> None:
        self._texts[token_id] = text

    async def spell(self, ids: Sequence[int]) -> str:
        """The text of `ids`, with U+FFFD for what is no whole character."""
        if len(ids) == 1:
            return await self.text_of(ids[0]) or self._texts[ids[0]]
        return await self._detokenize(ids)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[LlamaCppSession]:
        if not self._pinned:
            yield LlamaCppSession(self, self._http, None)
            return
        slot = await self._slots.get()
        try:
            yield LlamaCppSession(self, self._http, slot)
        finally:
            self._slots.put_nowait(slot)


class LlamaCppSession:
    def __init__(self, engine: LlamaCppEngine, http: Http, slot: int | None) -> None:
        self._engine = engine
        self._http = http
        self._slot = slot

    @property
    def place(self) -> dict[str, int]:
        """What a request must say to be computed where this session's prefix is."""
        return {} if self._slot is None else {"id_slot": self._slot}

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        reader = Reader(self._engine, request.top_logprobs)
        # The server closes the connection after a stream without saying so; saying it first avoids a failed reuse.
        events = self._http.stream("/completion", self._body(request), {"Connection": "close"})
        try:
            async for event in events:
                chunk = await reader.read(event)
                if chunk.pieces or chunk.end:
                    yield chunk
                if chunk.end:
                    return
        except ODD as error:
            raise unknown_shape(self._engine.info, "sent an event of", error) from None
        finally:
            await events.aclose()
        raise EngineCutError(
            f"{self._engine.info} ended the stream without a finish reason", engine=self._engine.info.model
        )

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "prompt": request.ids,
            "n_predict": request.max_tokens,
            "stop": request.stops,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            # All of the sampler, neutral values too: the server's own defaults are others.
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "typical_p": 1.0,
            "repeat_penalty": sampling.repeat_penalty,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": request.seed,
        }
        if request.top_logprobs is not None:  # 0 would be none at all, without that of the written token
            body |= {"n_probs": max(1, request.top_logprobs), "post_sampling_probs": False}
        if request.schema is not None:
            body["json_schema"] = request.schema or {"type": "object"}
        return body | self.place
