"""Ids, text and log probabilities of one stream, put together again: a piece's text is exactly the text of its ids.

Servers that stream ids and text side by side let them drift apart:
  - ids of an incomplete character come with empty text, or with the text of what precedes it in the same token;
  - text that might begin a stop string is held back while its ids are shown;
  - a stop string cuts the text where it ends, inside a token or before further tokens of the same chunk;
  - several tokens come in one chunk (speculative decoding), with one text for all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from relaygen.types import Piece, TokenLogprob

INCOMPLETE = "\ufffd"  # what tokenisers write for bytes that are not yet a character
_MAX_CHARS_PER_TOKEN = 32  # more than this in a first text is looked into

Spell = Callable[[Sequence[int]], Awaitable[str]]


class Aligner:
    """`spell` gives the text of ids, as it would stand in the middle of a text. With `in_step` a single id beside text is
    taken to be the id of that text without asking. With `scored` each id has a log probability, which may come later."""

    def __init__(self, spell: Spell, *, in_step: bool, scored: bool = False) -> None:
        self._spell = spell
        self._in_step = in_step
        self._scored = scored
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._text = ""
        self._first = True

    def plain(self, ids: Sequence[int], text: str) -> Piece | None:
        """The piece of one id whose text is certain at once: what add and ready would give. None, and nothing taken, where
        there is something to find out."""
        if (
            self._first
            or self._scored
            or not self._in_step
            or len(ids) != 1
            or type(ids[0]) is not int
            or type(text) is not str
            or not text
            or self._ids
            or self._text
        ):
            return None
        return Piece(text, (ids[0],))

    async def add(self, ids: Sequence[int], text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        if text and self._first:
            text = await self._without_prompt([*self._ids, *ids], text)
            self._first = False
        self._ids += ids
        self._text += text
        self._logprobs += logprobs

    async def ready(self) -> list[Piece]:
        """The pieces that are certain by now."""
        if self._scored and len(self._logprobs) < len(self._ids):
            return []
        if self._in_step and len(self._ids) == 1 and self._text:
            return [self._take(1, self._text)]
        return await self._settle()

    async def end(self, *, eos: bool, cut: bool) -> list[Piece]:
        """The rest. `eos`: the last id is the end-of-text token. `cut`: the text may stop short of the ids. The ids of a
        character that was not completed are left out: they were never shown, and no request may end inside one. ValueError
        when the log probabilities are not those of the ids."""
        if eos and self._ids:
            last = self._ids.pop()
            del self._logprobs[len(self._ids) :]
            if self._text:  # the end token shows only where a model's tokeniser takes it for an ordinary one
                self._text = self._text.removesuffix(await self._spell([last]))
        if self._scored and len(self._logprobs) != len(self._ids):
            raise ValueError(f"{len(self._logprobs)} log probabilities for {len(self._ids)} token ids")
        if self._ids and (cut or not self._in_step):
            spelt = await self._spell(self._ids)
            if spelt.startswith(self._text.rstrip(INCOMPLETE)):
                self._text = spelt.rstrip(INCOMPLETE)
        pieces = await self._settle()
        if self._text and self._ids:  # cannot be, unless the server spells an id in two ways
            pieces.append(self._take(len(self._ids), self._text))
        elif self._ids and INCOMPLETE not in await self._spell(self._ids):
            pieces.append(self._take(len(self._ids), ""))  # special tokens, which have no text
        return pieces

    async def _settle(self) -> list[Piece]:
        pieces: list[Piece] = []
        while self._ids and self._text:
            for count in range(1, len(self._ids) + 1):
                spelt = await self._spell(self._ids[:count])
                if self._text.startswith(spelt):
                    pieces.append(self._take(count, spelt))
                    break
                if INCOMPLETE not in spelt:
                    if spelt.startswith(self._text):
                        return pieces  # the rest of it is held back
                    # A special token (no text in the stream, but a name when spelt), or a spelling of the server's own.
                    return [*pieces, self._take(len(self._ids), self._text)]
            else:
                return pieces  # an incomplete character
        return pieces

    def _take(self, count: int, text: str) -> Piece:
        piece = Piece(text, tuple(self._ids[:count]), tuple(self._logprobs[:count]))
        self._ids = self._ids[count:]
        self._logprobs = self._logprobs[count:]
        self._text = self._text[len(text) :]
        return piece

    async def _without_prompt(self, ids: Sequence[int], text: str) -> str:
        """vLLM puts the whole prompt before the first text if the prompt ends like an incomplete character (#48853)."""
        if len(text) > _MAX_CHARS_PER_TOKEN * len(ids):
            spelt = await self._spell(ids)
            if spelt and text.endswith(spelt):
                return spelt
        return text
