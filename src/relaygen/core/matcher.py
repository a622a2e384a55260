"""Cues and sentence ends in a stream of text. Pure.

Both matchers keep one rule: a match is *decided* at a certain character, and what is decided depends on the characters
up to that one only. So the result cannot depend on how the stream was cut into chunks.

A matcher works on one turn at a time. `begin(before)` starts a turn; `before` is text already written, seen only as the
left neighbour of what follows. Offsets in a Match count characters from the start of the turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from relaygen.core.text import is_word, lower_same_length


@dataclass(frozen=True, slots=True)
class Match:
    """`what` was found ending at offset `end`; the text up to offset `decided` (>= end) was needed to know."""

    what: str
    end: int
    decided: int


class CueMatcher:
    """Finds the first of some cues, as whole words.

    An edge of a cue that is a letter or a digit must be a word border: `now` is not found in "know" or "known", and is
    found in "now," one character later, when the comma has come. An edge that is anything else ("So,", "So ", "</think>")
    needs no border. Of the cues decided at the same character the longest wins.

    `borders=False` is how the code released with the paper matches: `now` is found in "know", as soon as its last letter
    has come.
    """

    def __init__(self, cues: Iterable[str], *, ignore_case: bool = False, borders: bool = True) -> None:
        self._lower = ignore_case
        self._borders = borders
        self._original = {lower_same_length(cue) if ignore_case else cue: cue for cue in cues}
        by_length = sorted(self._original, key=len, reverse=True)
        self._bordered = tuple(cue for cue in by_length if borders and is_word(cue[-1]))
        self._free = tuple(cue for cue in by_length if not (borders and is_word(cue[-1])))
        self._free_last = frozenset(cue[-1] for cue in self._free)
        self._decisive = _decisive(self._free_last, {cue[-1] for cue in self._bordered})
        self._keep = max(map(len, by_length), default=0) + 1
        self.begin()

    def begin(self, before: str = "") -> None:
        self._tail = before[-1:]
        self._offset = -len(self._tail)  # of the first character of the tail

    def feed(self, text: str, ignore_until: int = 0) -> Match | None:
        """The first match decided in `text`; cues that end at or before offset `ignore_until` do not count."""
        if not self._original:
            return None
        buffer = self._tail + (lower_same_length(text) if self._lower else text)
        for found in self._decisive.finditer(buffer, len(self._tail)):
            match = self._at(buffer, found.start(), ignore_until)
            if match:
                return match
        kept = buffer[-self._keep :]
        self._offset += len(buffer) - len(kept)
        self._tail = kept
        return None

    def _at(self, buffer: str, index: int, ignore_until: int) -> Match | None:
        char = buffer[index]
        best: tuple[str, int] | None = None
        if char in self._free_last and buffer.endswith(self._free, 0, index + 1):
            best = self._longest(self._free, buffer, index + 1, ignore_until)
        if not is_word(char) and buffer.endswith(self._bordered, 0, index):
            bordered = self._longest(self._bordered, buffer, index, ignore_until)
            if bordered and (best is None or len(bordered[0]) > len(best[0])):
                best = bordered
        if best is None:
            return None
        return Match(self._original[best[0]], best[1] + self._offset, index + 1 + self._offset)

    def _longest(
        self, cues: tuple[str, ...], buffer: str, end: int, ignore_until: int
    ) -> tuple[str, int] | None:
        if end + self._offset <= ignore_until:
            return None
        for cue in cues:
            start = end - len(cue)
            if start + self._offset < 0 or not buffer.startswith(cue, start):
                continue
            if self._borders and start > 0 and is_word(cue[0]) and is_word(buffer[start - 1]):
                continue
            return cue, end
        return None


def _decisive(free_last: Iterable[str], bordered_last: Iterable[str]) -> re.Pattern[str]:
    """The only characters at which a cue can be decided: the last one of a cue without border, and the one behind the last
    one of a cue with border. Looking at these alone is what makes a token cheap."""
    last, before = ("".join(map(re.escape, chars)) for chars in (free_last, bordered_last))
    parts = [*([f"[{last}]"] if last else ()), *([f"(?<=[{before}])."] if before else ())]
    return re.compile("|".join(parts) or r"(?!)", re.DOTALL)


_CLOSERS = frozenset("\"')]}*_`$»”’")
_UNSPACED_ENDS = frozenset("。！？｡")
_SPACE_OR_END = re.compile("[\\s。！？｡]")
_ABBREVIATIONS = frozenset("cf vs Dr Mr Mrs Ms Prof Fig Eq approx resp".split())
_DOTTED = re.compile(r"(?:^|\W)(?:[A-Za-z]\.)+[A-Za-z]$")  # e.g. i.e. U.S.
_LIST_NUMBER = re.compile(r"(?:^|\n)[\s#>*-]*(?:\d{1,3}|[A-Za-z])$")  # "1." opens a list item
_LAST_WORD = re.compile(r"(\\?[A-Za-z0-9]*)$")
_KEEP = 32


class SentenceMatcher:
    """Finds the end of a sentence: one of . ! ? before white space (closing quotes and brackets may stand between), or a
    blank line. The dots of 3.14, "1." opening a list item, "e.g." and `\\left.`, and the mark of 5! end no sentence.

    White space after the mark is look-ahead: `end` lies before it. A blank line belongs to the sentence it ends.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self, before: str = "") -> None:
        self._tail = before[-_KEEP:]
        self._offset = -len(self._tail)

    def feed(self, text: str) -> Match | None:
        buffer = self._tail + text
        for found in _SPACE_OR_END.finditer(buffer, len(self._tail)):
            index, char = found.start(), found.group()
            at = index + self._offset
            if char in _UNSPACED_ENDS:
                return Match(char, at + 1, at + 1)
            mark = self._mark_before(buffer, index)
            if mark:
                return Match(mark, at, at + 1)
            if char == "\n" and self._blank_line(buffer, index):
                return Match("\n\n", at + 1, at + 1)
        kept = buffer[-_KEEP:]
        self._offset += len(buffer) - len(kept)
        self._tail = kept
        return None

    def _blank_line(self, buffer: str, index: int) -> bool:
        line = buffer[max(0, -self._offset) : index].rstrip(" \t\r")  # of this turn only
        return line.endswith("\n")

    def _mark_before(self, buffer: str, index: int) -> str | None:
        """The mark that ends a sentence at the white space at `index`, if one does."""
        at = index - 1
        while at >= 0 and buffer[at] in _CLOSERS:
            at -= 1
        if at + self._offset < 0 or buffer[at] not in ".!?":
            return None
        mark, left = buffer[at], buffer[:at]
        word = _word_before(left)
        if mark == "." and (
            word in _ABBREVIATIONS
            or word in ("\\left", "\\right")
            or _DOTTED.search(left)
            or _LIST_NUMBER.search(left)
        ):
            return None
        if mark == "!" and (word.isdigit() or len(word) == 1 or left.endswith(")")):
            return None  # a factorial
        return mark


def _word_before(left: str) -> str:
    found = _LAST_WORD.search(left)
    return found.group(1) if found else ""


class PlainSentenceMatcher:
    """How the code released with the paper ends a sentence: at any of . ! ? or a blank line, at once. So does the dot of
    3.14. Kept to compare with."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, before: str = "") -> None:
        self._offset = 0
        self._last = ""  # character of this turn

    def feed(self, text: str) -> Match | None:
        for char in text:
            self._offset += 1
            if char in ".!?":
                return Match(char, self._offset, self._offset)
            if char == self._last == "\n":
                return Match("\n\n", self._offset, self._offset)
            self._last = char
        return None


def server_stops(cues: Iterable[str], *, borders: bool = True) -> tuple[str, ...]:
    """Stop strings that make a server stop where CueMatcher decides, carrying the character of look-ahead.

    A superset of the truth on purpose: a server matches inside words too, and such a false stop only continues the turn.
    A cue before a rarer border than these is still found by the matcher, which then closes the stream.
    """
    stops: dict[str, None] = {}
    for cue in cues:
        for border in _BORDERS if borders and is_word(cue[-1]) else ("",):
            stops[cue + border] = None
    return tuple(stops)


_BORDERS = (" ", ",", ".", "\n", ":", ";", "?", "!", "'", "’", ")", "-", "*", '"')
SENTENCE_STOPS = tuple(
    mark + closer + space for mark in ".!?" for closer in ("", ")", '"', "**", "$") for space in " \n"
) + ("\n\n", "。", "！", "？")
PLAIN_SENTENCE_STOPS = (".", "!", "?", "\n\n")
