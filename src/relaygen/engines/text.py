"""Any server with OpenAI's /v1/completions, and no more than that: text in, text out.

Only the fields of OpenAI's own API are sent, since a strict server refuses others: top_k, min_p and the repetition penalty
stay as the server has them. Stop strings are not used: they are cut from the text, and nothing says which of them it was. So
turns end by closing the stream.

The prompt must be rendered by the server: chat templates are programs, and one that is slightly wrong makes a model much
worse without a sign of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from relaygen.engines.align import INCOMPLETE
from relaygen.engines.answers import ODD, count, text, unknown_shape
from relaygen.engines.base import EngineInfo, Request, Tools
from relaygen.engines.completions import completion_body, served_model
from relaygen.engines.http import Endpoint, Http
from relaygen.engines.logprobs import refuse
from relaygen.errors import EngineCutError, EngineError, EngineProtocolError, EngineRefusedError, UserError
from relaygen.types import Chunk, Message, Piece, TurnEnd

# Who renders a chat without answering it: llama-server (also behind LocalAI and llamafile), and TGI.
_TEMPLATES = (("/apply-template", "prompt"), ("/chat_tokenize", "templated_text"))
# How servers call the length of their context in /v1/models.
_CONTEXT_FIELDS = (
    "max_model_len",
    "loaded_context_length",
    "max_context_length",
    "context_length",
    "context_window",
)
_FINISH: dict[str, Any] = {"stop": "eos", "eos_token": "eos", "length": "length"}


class TextEngine:
    @classmethod
    async def connect(cls, endpoint: Endpoint, model: str | None, context_tokens: int) -> TextEngine:
        """`context_tokens` are believed where the server does not tell."""
        http = Http(endpoint)
        try:
            try:
                found = await served_model(http, model)
                context = next((count(found[f]) for f in _CONTEXT_FIELDS if found.get(f)), context_tokens)
                name = str(found["id"])
            except ODD:
                raise EngineProtocolError(
                    f"{endpoint.name} at {endpoint.address} does not answer like an OpenAI-compatible server",
                    engine=endpoint.name,
                ) from None
        except BaseException:
            await http.close()
            raise
        return cls(http, EngineInfo(name, endpoint.address, "text", context, text_only=True))

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
        body: dict[str, Any] = {"model": self._info.model, "messages": [m.to_json() for m in messages]}
        if tools:
            body["tools"] = tools
        for path, field in _TEMPLATES:
            try:
                return text((await self._http.post(path, body))[field]), []
            except (EngineRefusedError, EngineProtocolError, *ODD):
                continue
        raise UserError(
            f"{self._info} does not render chats, and its template is not known here:"
            " serve the model with vLLM, SGLang, llama-server or Ollama"
        )

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        raise EngineProtocolError(f"{self._info} has no token ids", engine=self._info.model)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[TextEngine]:
        yield self

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        refuse(self._info, request)
        if request.schema is not None:
            raise UserError(
                f"{self._info} cannot keep to a JSON schema (`response_format`): use vLLM, SGLang, llama-server or Ollama"
            )
        body = {**completion_body(self._info.model, request), "prompt": request.text}
        del body["stream_options"]  # nothing of it is used, and not everybody knows it
        end: Chunk | None = None
        num_texts = 0
        try:
            async with aclosing(self._http.stream("/v1/completions", body)) as events:
                async for event in events:
                    if not event["choices"]:
                        continue
                    choice = event["choices"][0]
                    shown = text(choice.get("text") or "")
                    reason = choice.get("finish_reason")
                    num_texts += bool(shown)
                    if reason:
                        shown = shown.rstrip(INCOMPLETE)
                        end = Chunk(
                            (Piece(shown),) if shown else (),
                            TurnEnd(self._finish(reason), decode_tokens=num_texts),
                        )
                    elif shown:
                        yield Chunk((Piece(shown),))
        except ODD as error:
            raise unknown_shape(self._info, "sent an event of", error) from None
        except EngineError:
            if not end:  # what fails after the finish reason does no harm
                raise
        if not end:
            raise EngineCutError(
                f"{self._info} ended the stream without a finish reason", engine=self._info.model
            )
        yield end

    def _finish(self, reason: str) -> Any:
        if reason not in _FINISH:
            raise EngineCutError(f"{self._info} gave the request up ({reason})", engine=self._info.model)
        return _FINISH[reason]
