"""Ollama: /api/generate with raw text, since it takes and gives no token ids.

The prompt is rendered by Ollama itself, with a field that it does not document (`_debug_render_only`). Its stop strings are
not used: they are cut from the text, and nothing says which of them it was. So turns end by closing the stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from relaygen.engines.align import INCOMPLETE
from relaygen.engines.answers import ODD, count, text, unknown_shape
from relaygen.engines.base import EngineInfo, Request, Tools
from relaygen.engines.http import Endpoint, Http
from relaygen.engines.logprobs import refuse
from relaygen.engines.sse import MAX_EVENT_BYTES, EventTooLongError
from relaygen.errors import EngineCutError, EngineProtocolError, UserError
from relaygen.types import Chunk, Message, Piece, TurnEnd

# Both models of a pair have to stay in memory between hand-overs.
_KEEP_ALIVE = "30m"


class OllamaEngine:
    @classmethod
    async def connect(cls, endpoint: Endpoint, model: str | None, context_tokens: int) -> OllamaEngine:
        """`context_tokens` are what Ollama is told to hold, if the model can: its own default is small."""
        http = Http(endpoint)
        try:
            try:
                name = _choose(
                    endpoint, [text(m["name"]) for m in (await http.get("/api/tags"))["models"]], model
                )
                facts: Mapping[str, Any] = (await http.post("/api/show", {"model": name}))["model_info"]
                trained = count(facts[f"{facts['general.architecture']}.context_length"])
            except ODD:
                raise EngineProtocolError(
                    f"{endpoint.name} at {endpoint.address} does not answer like Ollama", engine=endpoint.name
                ) from None
        except BaseException:
            await http.close()
            raise
        context = min(context_tokens, trained)
        return cls(http, EngineInfo(name, endpoint.address, "Ollama", context, text_only=True))

    def __init__(self, http: Http, info: EngineInfo) -> None:
        self._http = http
        self._info = info

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def http(self) -> Http:
        return self._http

    async def close(self) -> None:
        await self._http.close()

    async def render(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, list[int]]:
        chat = [m.to_json() for m in messages]
        # One token, in case that it does not know the field and answers.
        body: dict[str, Any] = {
            "messages": chat,
            "stream": False,
            "_debug_render_only": True,
            **self._common(num_predict=1),
        }
        if tools:
            body["tools"] = tools
        answer = await self._http.post("/api/chat", body)
        try:
            return text(answer["_debug_info"]["rendered_template"]), []
        except ODD:
            raise UserError(f"{self._info} does not show its chat template: update Ollama") from None

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        raise EngineProtocolError(f"{self._info} has no token ids", engine=self._info.model)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[OllamaEngine]:
        yield self

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        refuse(self._info, request)
        sampling = request.sampling
        options = {
            "num_predict": request.max_tokens,
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
        body = {
            "prompt": request.text,
            "raw": True,
            "think": False,
            "stream": True,
            **self._common(**options),
        }
        if request.schema is not None:
            body["format"] = request.schema or "json"
        try:
            async with aclosing(self._http.stream("/api/generate", body, parser=Lines())) as events:
                async for event in events:
                    shown = text(event["response"])
                    if event["done"]:
                        shown = shown.rstrip(INCOMPLETE)
                        yield Chunk((Piece(shown),) if shown else (), _turn_end(self._info, event))
                        return
                    if shown:
                        yield Chunk((Piece(shown),))
        except ODD as error:
            raise unknown_shape(self._info, "sent an event of", error) from None
        raise EngineCutError(
            f"{self._info} ended the stream without a finish reason", engine=self._info.model
        )

    def _common(self, **options: Any) -> dict[str, Any]:
        return {
            "model": self._info.model,
            "keep_alive": _KEEP_ALIVE,
            # By default a text that is too long loses its middle, and nobody is told.
            "truncate": False,
            "shift": False,
            "options": {"num_ctx": self._info.context_tokens, **options},
        }


class Lines:
    """Bytes -> lines of JSON. Parts of a line are joined once, so that a long one costs linear time."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        first, *others = chunk.split(b"\n")
        self._rest.append(first)
        self._size += len(first)
        if self._size > MAX_EVENT_BYTES:
            raise EventTooLongError(f"a line of more than {MAX_EVENT_BYTES} bytes")
        if not others:
            return []
        *lines, rest = [b"".join(self._rest), *others]
        self._rest, self._size = [rest], len(rest)
        return [line for line in lines if line.strip()]


def _choose(endpoint: Endpoint, names: Sequence[str], wanted: str | None) -> str:
    """A name without a tag means the tag `latest`."""
    if wanted in names:
        return wanted or ""
    if f"{wanted}:latest" in names:
        return f"{wanted}:latest"
    if wanted is None and len(names) == 1:
        return names[0]
    known = ", ".join(names) or "none"
    how = f"run `ollama pull {wanted}`" if wanted else f"say which, as {endpoint.address}#NAME"
    raise UserError(f"{endpoint.name} at {endpoint.address} has these models: {known}; {how}")


def _turn_end(info: EngineInfo, event: Mapping[str, Any]) -> TurnEnd:
    reason = event.get("done_reason")
    if reason not in ("stop", "length"):
        raise EngineCutError(f"{info} gave the request up ({reason})", engine=info.model)
    return TurnEnd(
        "eos" if reason == "stop" else "length",
        prefill_tokens=count(event.get("prompt_eval_count", 0)),
        prefill_ms=event.get("prompt_eval_duration", 0) / 1e6,
        decode_tokens=count(event.get("eval_count", 0)),
        decode_ms=event.get("eval_duration", 0) / 1e6,
    )
