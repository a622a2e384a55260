"""llama-server's stream: events -> pieces.

It gives one id per event, but the text beside it is not always that id's text:
  - while the text might be the beginning of a stop string it is held back (ids come with empty text);
  - when a stop string is found, it and all after it is cut from the text, while the ids are complete;
  - while a character is incomplete nothing is sent at all, ids included; only `tokens_predicted` jumps. The ids are found
    again, their log probabilities are lost (nan).
`Reader` puts ids and text together again, so that a piece's text is exactly the text of its ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relaygen.engines.answers import count, text, token_ids
from relaygen.engines.base import EngineInfo
from relaygen.engines.logprobs import UNKNOWN, ranked
from relaygen.errors import EngineProtocolError, UserError
from relaygen.types import Candidate, Chunk, Piece, TokenLogprob, TurnEnd

_MAX_LOST = 1024  # tokens in a row of which no id was sent: a character has four at most, drafts add some


class Speller(Protocol):
    """What the reader asks of the engine."""

    @property
    def info(self) -> EngineInfo: ...

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]: ...

    async def text_of(self, token_id: int) -> str | None:
        """The text of one id; None when it is not whole characters."""
        ...

    def is_text_of(self, token_id: int | None, text: str) -> bool:
        """True when `text` is already known to be the text of `token_id`."""
        ...

    def learn(self, token_id: int, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Token:
    """Without an id it was never sent."""

    id: int | None = None
    logprob: TokenLogprob = UNKNOWN


class Reader:
    """Events of one request -> pieces. `_held` are tokens whose text is not settled yet; `_text` is what the server has shown
    of it."""

    def __init__(self, engine: Speller, top_logprobs: int | None) -> None:
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
        predicted = count(event["tokens_predicted"])
        lost = predicted - self._num_tokens - len(tokens)
        if lost > _MAX_LOST:
            raise ValueError(f"{lost} tokens without ids")
        self._held += [_Token()] * lost + tokens
        self._num_tokens = predicted
        self._text += text(event["content"])
        if len(self._held) == 1 and self._engine.is_text_of(self._held[0].id, self._text):
            confirmed += await self._settle()
        return Chunk(tuple(confirmed))

    def _tokens(self, event: Any) -> list[_Token]:
        ids = token_ids(event["tokens"])
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
        if not held:
            # Cannot be, unless the server spells an id in two ways; the text shown to the user is right.
            if not pieces:
                raise ValueError("text without tokens")
            last = pieces.pop()
            return [*pieces, last._replace(text=last.text + text)]
        return [*pieces, self._piece(text, await self._known(held, text))]

    async def _known(self, held: list[_Token], text: str) -> list[_Token]:
        """The tokens of `text`. Those that were never sent are found by tokenising it again: that gives the ids the model
        wrote wherever it writes as the tokeniser would, and a true spelling of the text anyway."""
        if all(token.id is not None for token in held):
            return held
        if text.isascii():  # no character was incomplete: the event of a token has not come
            raise ValueError("an event is missing")
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
            pieces = await self._spelt(text(event.get("stopping_word") or ""))
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
    return bytes(list(top["bytes"])).decode(
        errors="replace"
    )  # of a bare number bytes() would make as many zeros


_FINISH: dict[str, Any] = {"eos": "eos", "word": "stop", "limit": "length"}


def _turn_end(event: Any, finish: Any) -> TurnEnd:
    timings = event["timings"]
    return TurnEnd(
        finish,
        prefill_tokens=count(timings["prompt_n"]),
        cached_tokens=count(timings["cache_n"]),
        prefill_ms=float(timings["prompt_ms"]),
        decode_tokens=count(timings["predicted_n"]),
        decode_ms=float(timings["predicted_ms"]),
        draft_tokens=count(timings.get("draft_n", 0)),
        draft_accepted_tokens=count(timings.get("draft_n_accepted", 0)),
    )
