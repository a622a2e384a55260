"""The texts that engines play, and what of them answers a request.

A prompt picks its text: that of a trace whose problem is in the prompt, or else any, by a hash of the prompt. So all engines
with the same texts pick the same one, and whatever part of it a request already holds, they continue after it. After text that
is not the picked one they go on at the token of the same number. All of it depends on the request alone, not on what was asked
before.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Literal

from relaygen import trace
from relaygen.simulate.vocabulary import ASSISTANT_ID, END_ID, Vocabulary, words
from relaygen.trace import Trace

_WINDOW = 256  # characters that are first searched for stop strings


@dataclass(frozen=True, slots=True)
class Script:
    """Tokens; `offsets` are the places of their borders in `text`, one more than tokens."""

    ids: list[int]
    text: str
    offsets: list[int]
    problem: str = ""

    def token_text(self, index: int, end: int) -> str:
        """Of the token `index`, up to the place `end` of the text."""
        return self.text[self.offsets[index] : min(end, self.offsets[index + 1])]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a request is answered: the tokens `start` to `end` of a script. After "eos" the end-of-text token follows. `stop`
    is the stop string or id that ended it, `stop_place` where it begins and ends in the text."""

    script: Script
    start: int
    end: int
    finish: Literal["eos", "stop", "length"]
    stop: str | int | None = None
    stop_place: tuple[int, int] = (0, 0)

    @property
    def num_tokens(self) -> int:
        return self.end - self.start + (self.finish == "eos")

    @property
    def ids(self) -> list[int]:
        return self.script.ids[self.start : self.end] + [END_ID] * (self.finish == "eos")

    @property
    def last_id(self) -> int:
        return END_ID if self.finish == "eos" else self.script.ids[self.end - 1]

    def shown_to(self, *, keep_stop: bool) -> int:
        """Where the shown text ends: after the stop string or before it."""
        return self.script.offsets[self.end] if self.stop is None else self.stop_place[1 if keep_stop else 0]

    def text(self, shown_to: int) -> str:
        return self.script.text[self.script.offsets[self.start] : shown_to]

    def last_text(self, shown_to: int) -> str:
        """What shows with the last token: its own text, and the text before the stop string of tokens that this begins in."""
        if self.finish == "eos":
            return ""
        offsets = self.script.offsets
        border = offsets[bisect_right(offsets, shown_to) - 1]
        return self.script.text[min(border, offsets[self.end - 1]) : shown_to]


class Library:
    def __init__(self, traces: Collection[Trace], seed: int = 0) -> None:
        cut = [[piece.text for piece in t.pieces] or list(words(t.text)) for t in traces]
        self.vocabulary = Vocabulary([*cut, *(words(t.problem) for t in traces)])
        self.scripts = [
            self._script([p for p in parts if p], t.problem) for parts, t in zip(cut, traces, strict=True)
        ]
        self._seed = seed

    @classmethod
    def read(cls, path: Path | None = None, seed: int = 0) -> Library:
        """Of a file of traces; None for the texts that come with this package."""
        if path is None:
            with resources.as_file(resources.files("relaygen.simulate") / "texts.jsonl") as built_in:
                return cls(list(trace.read(built_in)), seed)
        return cls(list(trace.read(path)), seed)

    def continuation(self, ids: Sequence[int]) -> tuple[Script, int]:
        """The script that goes on after `ids`, and the token at which it does."""
        answer = _after_last(ids, ASSISTANT_ID) or len(ids)  # without a template all of it is the prompt
        script = self._pick(self.vocabulary.decode(ids[:answer]))
        written = list(ids[answer:])
        if script.ids[: len(written)] == written:
            return script, len(written)
        text = self.vocabulary.decode(written)
        if not script.text.startswith(text):
            return script, min(len(written), len(script.ids))
        # The same text in other tokens: what is left of a token that is begun is spelt anew.
        index = bisect_right(script.offsets, len(text)) - 1
        begun = (
            script.text[len(text) : script.offsets[index + 1]] if script.offsets[index] < len(text) else ""
        )
        return (self._tail(script, index + 1, begun), 0) if begun else (script, index)

    def _pick(self, prompt: str) -> Script:
        choice = [s for s in self.scripts if s.problem and s.problem in prompt] or self.scripts
        digest = hashlib.blake2b(f"{self._seed}:{prompt}".encode(errors="replace"), digest_size=8).digest()
        return choice[int.from_bytes(digest, "big") % len(choice)]

    def _script(self, parts: Sequence[str], problem: str) -> Script:
        ids: list[int] = []
        widths: list[int] = []
        for part in parts:
            spelt = self.vocabulary.spell(part)
            ids += spelt
            widths += [0] * (len(spelt) - 1) + [len(part)]  # a part of several tokens shows with the last
        return Script(ids, "".join(parts), [0, *accumulate(widths)], problem)

    def _tail(self, script: Script, start: int, begun: str) -> Script:
        """`begun`, then the tokens of `script` from `start` on."""
        rest = (script.token_text(n, len(script.text)) for n in range(start, len(script.ids)))
        return self._script([*begun, *rest], script.problem)


def stretch(
    script: Script,
    start: int,
    max_tokens: int,
    stops: Sequence[str] = (),
    stop_ids: Collection[int] = (),
) -> Stretch:
    """The tokens of `script` from `start` on, to the first stop (a string within them or a whole token), to `max_tokens`, or
    to the end."""
    end = min(len(script.ids), start + max_tokens)
    finish: Literal["eos", "length"] = "eos" if end - start < max_tokens else "length"
    at = next((n for n in range(start, end) if script.ids[n] in stop_ids), None) if stop_ids else None
    limit = script.offsets[end if at is None else at]
    if found := _first_stop(script.text, script.offsets[start], limit, stops):
        (begins, ends), stop = found
        return Stretch(script, start, bisect_left(script.offsets, ends), "stop", stop, (begins, ends))
    if at is not None:
        place = script.offsets[at], script.offsets[at + 1]
        return Stretch(script, start, at + 1, "stop", script.ids[at], place)
    return Stretch(script, start, end, finish)


def _first_stop(text: str, begin: int, end: int, stops: Sequence[str]) -> tuple[tuple[int, int], str] | None:
    """The stop string that is complete first, the longest of those, and its place. Searched in growing windows: most end a
    text soon."""
    longest = max(map(len, stops), default=0)
    low, width = begin, _WINDOW
    while low < end and longest:
        high = min(end, low + width)
        found: list[tuple[tuple[int, int], str]] = []
        for stop in stops:
            at = text.find(stop, max(begin, low - longest + 1), high) if stop else -1
            if at >= 0:
                high = at + len(stop)  # nothing that is complete later counts
                found.append(((at, high), stop))
        if found:
            return min(found, key=lambda one: (one[0][1], one[0][0]))
        low, width = high, width * 4
    return None


def _after_last(ids: Sequence[int], wanted: int) -> int:
    """The place after the last `wanted`; 0 when there is none."""
    try:
        return len(ids) - list(reversed(ids)).index(wanted)
    except ValueError:
        return 0
