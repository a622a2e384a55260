"""/v1/completions with token ids both ways: what vLLM and SGLang have in common. Their differences are in vllm.py and
sglang.py.

The prompt is rendered once by the server's own chat template; from then on ids are sent and ids come back. The stop string
that ended a request stays in the text, so that the server holds no text back for it.

A JSON schema goes out as `response_format`: both servers have long known it here, while their own fields for it have changed
names, and vLLM takes no notice of a field that it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from relaygen.engines.affinity import Affinity
from relaygen.engines.align import Aligner
from relaygen.engines.answers import ODD, count, text, token_ids, understanding, unknown_shape
from relaygen.engines.base import EngineInfo, Request, Tools
from relaygen.engines.http import Endpoint, Http
from relaygen.engines.logprobs import columns, ranked
from relaygen.engines.stops import MANY, StopChoice
from relaygen.errors import EngineCutError, EngineError, EngineProtocolError, UserError
from relaygen.types import Candidate, Chunk, Message, Piece, TokenLogprob, TurnEnd

T = TypeVar("T")
_AFTER_FINISH_S = 2.0
_TAIL = 64  # characters: longer than any stop string


class CompletionsEngine:
    """`connect` makes one. The class attributes say how a dialect differs."""

    dialect: ClassVar[str]
    in_step: ClassVar[bool]  # a single id beside text is the id of that text
    detokenized: ClassVar[str]  # the field that holds the text in the answer of /detokenize
    stop_field: ClassVar[str]  # the field that says what ended the request
    keep_stop: ClassVar[Mapping[str, bool]]  # has the stop string kept in the text
    name_ids: ClassVar[Mapping[str, bool]] = {}  # has candidates named by their ids

    def __init__(self, http: Http, info: EngineInfo, max_stops: int = MANY) -> None:
        self.http = http
        self.stops = StopChoice(max_stops)
        self._info = info
        self._anchor: tuple[list[int], str] | None = None
        self._texts: dict[int, str] = {}  # of single ids; grows to the size of the vocabulary at most

    @classmethod
    async def connect(cls, endpoint: Endpoint, model: str | None = None) -> Self:
        """`model` is needed only where the server has several."""
        http = Http(endpoint)
        try:
            try:
                return await cls.open(http, await served_model(http, model))
            except ODD:
                raise EngineProtocolError(
                    f"{endpoint.name} at {endpoint.address} does not answer like {cls.dialect}",
                    engine=endpoint.name,
                ) from None
        except BaseException:
            await http.close()
            raise

    @classmethod
    async def open(cls, http: Http, model: Mapping[str, Any]) -> Self:
        """An engine for the entry `model` of /v1/models."""
        raise NotImplementedError

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def close(self) -> None:
        await self.http.close()

    async def render(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, list[int]]:
        chat = [m.to_json() for m in messages]
        given = {"tools": tools} if tools else {}
        ids = await self._tokenize(messages=chat, add_generation_prompt=True, **given)
        return await self._detokenize(ids), ids

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        return await self._tokenize(prompt=text, add_special_tokens=False) if text else []

    async def _tokenize(self, **body: Any) -> list[int]:
        return await self._field("/tokenize", body, "tokens", token_ids)

    async def _detokenize(self, ids: Sequence[int]) -> str:
        body = {"tokens": ids, "skip_special_tokens": False}
        return await self._field("/detokenize", body, self.detokenized, text)

    async def _field(self, path: str, body: Mapping[str, Any], name: str, read: Callable[[Any], T]) -> T:
        answer = await self.http.post(path, {"model": self._info.model, **body})
        with understanding(self._info, path):
            return read(answer[name])

    async def spell(self, ids: Sequence[int]) -> str:
        """The text of `ids` in the middle of a text: some tokenisers take the blank off the very first token, so it is
        read after another."""
        if len(ids) == 1 and (known := self._texts.get(ids[0])) is not None:
            return known
        if self._anchor is None:
            anchor = await self.tokenize("a")
            self._anchor = anchor, await self._detokenize(anchor)
        anchor, before = self._anchor
        text = (await self._detokenize([*anchor, *ids])).removeprefix(before)
        if len(ids) == 1:
            self._texts[ids[0]] = text
        return text

    async def candidates(self, top: Mapping[str, float]) -> list[Candidate]:
        """From their log probabilities by the server's names for them: texts, unless the dialect says otherwise."""
        return [Candidate(text, logprob) for text, logprob in top.items()]

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[CompletionsSession]:
        yield CompletionsSession(self)


class CompletionsSession:
    """The prefix cache of these servers knows no sessions: an equal prefix is found whoever wrote it. A router in front of
    several does, and must not change the server in the middle of one."""

    def __init__(self, engine: CompletionsEngine) -> None:
        self._engine = engine
        self._affinity = Affinity()

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        engine = self._engine
        strings, ids = engine.stops.pick(request.stops)
        request = replace(request, stop_ids=(*request.stop_ids, *ids))
        reader = _Reader(engine, request)
        before, last = "", list[Piece]()
        try:
            stream = engine.http.stream(
                "/v1/completions", self._body(request, strings), affinity=self._affinity
            )
            async with aclosing(stream) as events:
                async for event in events:
                    if pieces := reader.read_plain(event) or await reader.read(event):
                        before = (before + "".join(piece.text for piece in last))[-_TAIL:]
                        last = pieces
                        if not reader.finish:
                            yield Chunk(tuple(pieces))
                    if reader.finish:
                        await reader.rest(events)
                        break
        except EngineError:
            if not reader.finish:  # what fails after the finish reason does no harm
                raise
        except GeneratorExit:  # the caller has seen the end of the turn, or wants no more
            engine.stops.learn(request.stops, before, last)
            raise
        except ODD as error:
            raise unknown_shape(engine.info, "sent an event of", error) from None
        if reader.stopped:
            engine.stops.learn(request.stops, before, last)
        yield reader.end()

    def _body(self, request: Request, stops: Sequence[str]) -> dict[str, Any]:
        engine = self._engine
        body: dict[str, Any] = {
            **completion_body(engine.info.model, request),
            "prompt": request.ids,
            "stop": stops,
            "return_token_ids": True,
            **engine.keep_stop,
            # 0 is "off" for us, -1 is for both of these servers.
            "top_k": request.sampling.top_k or -1,
            "min_p": request.sampling.min_p,
            "repetition_penalty": request.sampling.repeat_penalty,
        }
        if request.stop_ids:
            body["stop_token_ids"] = request.stop_ids
        if request.top_logprobs is not None:
            body |= {"logprobs": request.top_logprobs, **engine.name_ids}
        if request.schema is not None:
            body["response_format"] = _response_format(request.schema)
        return body


class _Reader:
    """Events of one request -> pieces, and what ended it. The pieces of the finishing event go out with the end, so that
    the caller waits for the little that still follows and the connection can be used again."""

    def __init__(self, engine: CompletionsEngine, request: Request) -> None:
        self._engine = engine
        self._request = request
        scored = request.top_logprobs is not None
        self._aligner = Aligner(engine.spell, in_step=engine.in_step, scored=scored)
        self._num_tokens = 0
        self._usage: dict[str, Any] = {}
        self._last: list[Piece] = []
        self.finish: Literal["eos", "stop", "length"] | None = None
        self.stopped = False  # by one of our stops

    def read_plain(self, event: Any) -> list[Piece]:
        """The usual event, one token with its text and nothing else, without a coroutine: this runs once a token. Nothing
        where it takes `read`."""
        choices = event["choices"]
        if not choices or choices[0].get("finish_reason") or event.get("usage") or choices[0].get("logprobs"):
            return []
        ids = choices[0].get("token_ids")
        piece = self._aligner.plain(ids, choices[0]["text"]) if ids else None
        if piece is None:
            return []
        self._num_tokens += 1
        return [piece]

    async def read(self, event: Any) -> list[Piece]:
        self._usage = event.get("usage") or self._usage
        if not event["choices"]:  # usage comes last, without a choice
            return []
        choice = event["choices"][0]
        shown = text(choice["text"])
        ids = token_ids(choice.get("token_ids") or [])
        if shown and not self._num_tokens and not ids:
            raise self.error(EngineProtocolError, f"gives no token ids: a newer {self._engine.dialect} does")
        self._num_tokens += len(ids)
        await self._aligner.add(ids, shown, await self._logprobs(choice))
        reason = choice.get("finish_reason")
        if not reason:
            return await self._aligner.ready()
        if reason not in ("stop", "length"):
            raise self.error(EngineCutError, f"gave the request up ({reason})")
        stop = choice.get(self._engine.stop_field)
        self.stopped = isinstance(stop, str) or stop in self._request.stop_ids
        # Another number is the id of a token that ends the text; nothing means the model's usual one.
        self.finish = "length" if reason == "length" else "stop" if self.stopped else "eos"
        self._last = await self._aligner.end(eos=self.finish == "eos", cut=self.stopped)
        return self._last

    async def rest(self, events: AsyncGenerator[Any]) -> None:
        """What follows the finish reason: usage, and the end. It is not worth a long wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_AFTER_FINISH_S):
                async for event in events:
                    await self.read(event)

    async def _logprobs(self, choice: Mapping[str, Any]) -> list[TokenLogprob]:
        num, value = self._request.top_logprobs, choice.get("logprobs")
        if num is None or not value:
            return []
        rows = [
            (logprob, await self._engine.candidates(top) if num else []) for logprob, top in columns(value)
        ]
        return [ranked(logprob, candidates, num) for logprob, candidates in rows]

    def end(self) -> Chunk:
        if not self.finish:
            raise self.error(EngineCutError, "ended the stream without a finish reason")
        with understanding(self._engine.info, "(the usage)"):
            usage = self._usage
            # Without these details (a server flag) nobody knows how much of the prompt was really read.
            details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
            cached = count(details.get("cached_tokens") or 0)
            prefill = count(usage.get("prompt_tokens", cached)) - cached if details else 0
        end = TurnEnd(self.finish, prefill, cached, decode_tokens=self._num_tokens)
        return Chunk(tuple(self._last), end)

    def error(self, kind: type[EngineError], what: str) -> EngineError:
        return kind(f"{self._engine.info} {what}", engine=self._engine.info.model)


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    if not schema:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def completion_body(model: str, request: Request) -> dict[str, Any]:
    """What every /v1/completions knows. All is said, neutral values too: servers disagree about defaults, and vLLM and
    SGLang take some from the model's generation_config.json. max_tokens missing means 16."""
    return {
        "model": model,
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed,
    }


async def served_model(http: Http, wanted: str | None) -> Mapping[str, Any]:
    """The entry of /v1/models called `wanted`, or the only one there is (not counting adapters of it)."""
    models: list[dict[str, Any]] = (await http.get("/v1/models"))["data"]
    names = [text(model["id"]) for model in models if not model.get("parent")]
    name = wanted or (names[0] if len(names) == 1 else None)
    for model in models:
        if model["id"] == name:
            return model
    known = ", ".join(names) or "none"
    endpoint = http.endpoint
    raise UserError(
        f"{endpoint.name} at {endpoint.address} serves {known}: "
        + (f"{wanted} is not there" if wanted else f"say which, as {endpoint.address}#NAME")
    )
