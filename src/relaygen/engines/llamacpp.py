"""llama-server, in this process or elsewhere: its native /completion, with token ids both ways.

Streaming gives one id per event, but the text beside it is not always that id's text:
  - while the text might be the beginning of a stop string it is held back (ids come with empty text);
  - when a stop string is found, it and all after it is cut from the text, while the ids are complete;
  - while a character is incomplete nothing is sent at all, ids included; only `tokens_predicted` jumps. The ids are found
    again, their log probabilities are lost (nan).
`_Reader` puts ids and text together again, so that a piece's text is exactly the text of its ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from relaygen.engines.base import EngineInfo, Request, Tools
from relaygen.engines.http import Endpoint, Http
from relaygen.engines.logprobs import UNKNOWN, ranked
from relaygen.errors import EngineCutError, EngineProtocolError, UserError
from relaygen.types import Candidate, Chunk, Message, Piece, TokenLogprob, TurnEnd

_REPLACEMENT = "\ufffd"


class LlamaCppEngine:
    """`connect` makes one. With `pinned` each session has a slot of its own: for servers that nobody else uses."""

    def __init__(self, http: Http, info: EngineInfo, num_slots: int, *, pinned: bool) -> None:
        self._http = http
        self._info = info
        self._texts: dict[int, str] = {}  # of single ids; grows to the size of the vocabulary at most
        self._slots: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(num_slots):
            self._slots.put_nowait(slot)
        self._pinned = pinned

    @classmethod
    async def connect(cls, endpoint: Endpoint, *, pinned: bool = False) -> LlamaCppEngine:
        http = Http(endpoint)
        try:
            props = await http.get("/props")
            try:
                context = int(props["default_generation_settings"]["n_ctx"])
                slots = int(props["total_slots"])
                model = str(props.get("model_alias") or props["model_path"]).rsplit("/", 1)[-1]
            except (KeyError, TypeError, ValueError):
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
        text: str = (await self._http.post("/apply-template", body))["prompt"]
        return text, await self._ids(text, add_special=True, parse_special=True)

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        return await self._ids(text, add_special=False, parse_special=special)

    async def _ids(self, text: str, **options: bool) -> list[int]:
        return (await self._http.post("/tokenize", {"content": text, **options}))["tokens"]

    async def text_of(self, token_id: int) -> str | None:
        """The text of one id; None when it is not whole characters."""
        text = self._texts.get(token_id)
        if text is None:
            text = (await self._http.post("/detokenize", {"tokens": [token_id]}))["content"]
            self._texts[token_id] = text
        return None if _REPLACEMENT in text else text

    def is_text_of(self, token_id: int | None, text: str) -> bool:
        """True when `text` is already known to be the text of `token_id`."""
        return token_id is not None and self._texts.get(token_id) == text

    def learn(self, token_id: int, text: str) -> None:
        self._texts[token_id] = text

    async def spell(self, ids: Sequence[int]) -> str:
        """The text of `ids`, with U+FFFD for what is no whole character."""
        if len(ids) == 1:
            return await self.text_of(ids[0]) or self._texts[ids[0]]
        return (await self._http.post("/detokenize", {"tokens": ids}))["content"]

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
        reader = _Reader(self._engine, request.top_logprobs)
        # The server closes the connection after a stream without saying so; saying it first avoids a failed reuse.
        events = self._http.stream("/completion", self._body(request), {"Connection": "close"})
        try:
            async for event in events:
                chunk = await reader.read(event)
                if chunk.pieces or chunk.end:
                    yield chunk
                if chunk.end:
                    return
        except (KeyError, TypeError, ValueError) as error:
            raise EngineProtocolError(
                f"{self._engine.info} sent an event of an unknown shape ({error!r})",
                engine=self._engine.info.model,
            ) from None
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


@dataclass(frozen=True, slots=True)
class _Token:
    """Without an id it was never sent."""

    id: int | None = None
    logprob: TokenLogprob = UNKNOWN


class _Reader:
    """Events of one request -> pieces. `_held` are tokens whose text is not settled yet; `_text` is what the server has shown
    of it."""

    def __init__(self, engine: LlamaCppEngine, top_logprobs: int | None) -> None:
        self._engine = engine
        self._top_logprobs = top_logprobs
        self._held: list[_Token] = []
        self._text = ""
        self._num_tokens = 0

    async def read(self, event: Any) -> Chunk:
        if event["stop"]:
            return await self._end(event)
        confirmed = await self._confirm()
        tokens = self._tokens(event)
        predicted = int(event["tokens_predicted"])
        self._held += [_Token()] * (predicted - self._num_tokens - len(tokens)) + tokens
        self._num_tokens = predicted
        self._text += event["content"]
        if len(self._held) == 1 and self._engine.is_text_of(self._held[0].id, self._text):
            confirmed += await self._settle()
        return Chunk(tuple(confirmed))

    def _tokens(self, event: Any) -> list[_Token]:
        ids: list[int] = event["tokens"]
        if self._top_logprobs is None:
            return [_Token(token_id) for token_id in ids]
        rows = event.get("completion_probabilities")
        if not rows or not rows[0]["top_logprobs"]:
            raise UserError(
                f"{self._engine.info} gives no log probabilities: run it without speculative decoding, or ask for none"
            )
        return [
            _Token(token_id, _logprob(row, self._top_logprobs))
            for token_id, row in zip(ids, rows, strict=True)
        ]

    async def _confirm(self) -> list[Piece]:
        """The next event has come, so the last one was not cut by a stop string: its text is right as shown."""
        return await self._settle() if self._text else []

    async def _settle(self) -> list[Piece]:
        """`_held` as pieces, their text being `_text`."""
        held, text = self._held, self._text
        self._held, self._text = [], ""
        pieces: list[Piece] = []
        if len(held) == 1 and held[0].id is not None:
            self._engine.learn(held[0].id, text)
            return [self._piece(text, held)]
        while held and held[0].id is not None:
            shown = await self._engine.text_of(held[0].id)
            if shown is None or not text.startswith(shown):
                break
            pieces.append(self._piece(shown, held[:1]))
            held, text = held[1:], text[len(shown) :]
        if not text:
            # Ids without text are special tokens; they stay until it is clear that they do not end the text.
            self._held = held
            return pieces
        if (
            not held
        ):  # cannot be, unless the server spells an id in two ways; the text shown to the user is right
            last = pieces.pop()
            return [*pieces, last._replace(text=last.text + text)]
        return [*pieces, self._piece(text, await self._known(held, text))]

    async def _known(self, held: list[_Token], text: str) -> list[_Token]:
        """The tokens of `text`. Those that were never sent are found by tokenising it again: that gives the ids the model
        wrote wherever it writes as the tokeniser would, and a true spelling of the text anyway."""
        if all(token.id is not None for token in held):
            return held
        ids = await self._engine.tokenize(text)
        if len(ids) != len(held):
            return [_Token(token_id) for token_id in ids]
        return [t if t.id == token_id else _Token(token_id) for t, token_id in zip(held, ids, strict=True)]

    def _piece(self, text: str, tokens: Sequence[_Token]) -> Piece:
        ids = tuple(token.id for token in tokens if token.id is not None)
        scored = self._top_logprobs is not None
        return Piece(text, ids, tuple(token.logprob for token in tokens) if scored else ())

    async def _end(self, event: Any) -> Chunk:
        kind = event["stop_type"]
        if kind not in _FINISH:
            raise EngineProtocolError(f"{self._engine.info} ended with stop_type {kind!r}")
        if kind == "eos" and self._held and self._held[-1].id is not None:
            self._held.pop()
        if kind != "word" and self._text:  # shown as it is: no stop string has cut it
            pieces = await self._settle()
            if kind == "limit":
                pieces += [self._piece("", [token]) for token in self._held if token.id is not None]
        else:
            pieces = await self._spelt(event.get("stopping_word") or "")
        return Chunk(tuple(pieces), _turn_end(event, _FINISH[kind]))

    async def _spelt(self, stopping_word: str = "") -> list[Piece]:
        """`_held` as pieces by the text of each id: the server's text stops short (a stop string was cut off, or text was
        being held back when the request ended)."""
        pieces: list[Piece] = []
        for position, token in enumerate(self._held):
            text = None if token.id is None else await self._engine.text_of(token.id)
            if text is None:
                # A character in several tokens: it is known only if it was the stop string.
                done = "".join(p.text for p in pieces)
                rest = (self._text + stopping_word)[len(done) :]
                if rest:
                    pieces.append(self._piece(rest, await self._known(self._held[position:], rest)))
                break
            pieces.append(self._piece(text, [token]))
        self._held, self._text = [], ""
        return pieces


def _logprob(row: Any, num: int) -> TokenLogprob:
    tops = [Candidate(_text(top), float(top["logprob"]), int(top["id"])) for top in row["top_logprobs"]]
    return ranked(row["logprob"], tops, num)


def _text(top: Any) -> str:
    return bytes(top["bytes"]).decode(errors="replace")


_FINISH: dict[str, Any] = {"eos": "eos", "word": "stop", "limit": "length"}


def _turn_end(event: Any, finish: Any) -> TurnEnd:
    timings = event["timings"]
    return TurnEnd(
        finish,
        prefill_tokens=int(timings["prompt_n"]),
        cached_tokens=int(timings["cache_n"]),
        prefill_ms=float(timings["prompt_ms"]),
        decode_tokens=int(timings["predicted_n"]),
        decode_ms=float(timings["predicted_ms"]),
        draft_tokens=int(timings.get("draft_n", 0)),
        draft_accepted_tokens=int(timings.get("draft_n_accepted", 0)),
    )
