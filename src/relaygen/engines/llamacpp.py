"""llama-server, in this process or elsewhere: its native /completion, with token ids both ways.

Streaming gives one id per event, but the text beside it is not always that id's text:
  - while the text might be the beginning of a stop string it is held back (ids come with empty text);
  - when a stop string is found, it and all after it is cut from the text, while the ids are complete;
  - while a character is incomplete nothing is sent at all, ids included; only `tokens_predicted` jumps.
`_Reader` puts ids and text together again, so that a piece's text is exactly the text of its ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from relaygen.engines.base import EngineInfo, Request, Tools
from relaygen.engines.http import Endpoint, Http
from relaygen.errors import EngineCutError, EngineProtocolError
from relaygen.types import Chunk, Message, Piece, TurnEnd

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

    def is_text_of(self, token_id: int, text: str) -> bool:
        """True when `text` is already known to be the text of `token_id`."""
        return self._texts.get(token_id) == text

    def learn(self, token_id: int, text: str) -> None:
        self._texts[token_id] = text

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

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        reader = _Reader(self._engine)
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
        if self._slot is not None:
            body["id_slot"] = self._slot
        return body


class _Reader:
    """Events of one request -> pieces. `_held` are ids whose text is not settled yet; a None in it stands for an id that
    was never sent. `_text` is what the server has shown of their text."""

    def __init__(self, engine: LlamaCppEngine) -> None:
        self._engine = engine
        self._held: list[int | None] = []
        self._text = ""
        self._num_tokens = 0

    async def read(self, event: Any) -> Chunk:
        if event["stop"]:
            return await self._end(event)
        confirmed = await self._confirm()
        ids: list[int] = event["tokens"]
        predicted = int(event["tokens_predicted"])
        self._held += [None] * (predicted - self._num_tokens - len(ids)) + ids
        self._num_tokens = predicted
        self._text += event["content"]
        if len(self._held) == 1 and self._engine.is_text_of(ids[0], self._text):
            confirmed += await self._settle()
        return Chunk(tuple(confirmed))

    async def _confirm(self) -> list[Piece]:
        """The next event has come, so the last one was not cut by a stop string: its text is right as shown."""
        return await self._settle() if self._text else []

    async def _settle(self) -> list[Piece]:
        """`_held` as pieces, their text being `_text`."""
        held, text = self._held, self._text
        self._held, self._text = [], ""
        pieces: list[Piece] = []
        if len(held) == 1 and held[0] is not None:
            self._engine.learn(held[0], text)
            return [Piece(text, (held[0],))]
        while held and (known := held[0]) is not None:
            shown = await self._engine.text_of(known)
            if shown is None or not text.startswith(shown):
                break
            pieces.append(Piece(shown, (known,)))
            held, text = held[1:], text[len(shown) :]
        if not text:
            # Ids without text are special tokens; they stay until it is clear that they do not end the text.
            self._held = held
            return pieces
        if (
            not held
        ):  # cannot be, unless the server spells an id in two ways; the text shown to the user is right
            last = pieces.pop()
            return [*pieces, Piece(last.text + text, last.token_ids)]
        return [*pieces, Piece(text, await self._ids_of(held, text))]

    async def _ids_of(self, held: list[int | None], text: str) -> tuple[int, ...]:
        """The ids of `text`. Those that were never sent are found by tokenising it again: that gives the ids the model
        wrote wherever it writes as the tokeniser would, and a true spelling of the text anyway."""
        known = [i for i in held if i is not None]
        return tuple(known if len(known) == len(held) else await self._engine.tokenize(text))

    async def _end(self, event: Any) -> Chunk:
        kind = event["stop_type"]
        if kind not in _FINISH:
            raise EngineProtocolError(f"{self._engine.info} ended with stop_type {kind!r}")
        if kind == "eos" and self._held and self._held[-1] is not None:
            self._held.pop()
        if kind != "word" and self._text:  # shown as it is: no stop string has cut it
            pieces = await self._settle()
            if kind == "limit":
                pieces += [Piece("", (token_id,)) for token_id in self._held if token_id is not None]
        else:
            pieces = await self._spelt(event.get("stopping_word") or "")
        return Chunk(tuple(pieces), _turn_end(event, _FINISH[kind]))

    async def _spelt(self, stopping_word: str = "") -> list[Piece]:
        """`_held` as pieces by the text of each id: the server's text stops short (a stop string was cut off, or text was
        being held back when the request ended)."""
        pieces: list[Piece] = []
        for position, token_id in enumerate(self._held):
            text = None if token_id is None else await self._engine.text_of(token_id)
            if token_id is None or text is None:
                # A character in several tokens: it is known only if it was the stop string.
                done = "".join(p.text for p in pieces)
                rest = (self._text + stopping_word)[len(done) :]
                if rest:
                    pieces.append(Piece(rest, await self._ids_of(self._held[position:], rest)))
                break
            pieces.append(Piece(text, (token_id,)))
        self._held, self._text = [], ""
        return pieces


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
