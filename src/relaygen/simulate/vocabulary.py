"""A tokeniser of words, made from the texts that are to be played: two engines with the same texts have the same ids.

Ids under 256 are bytes, then come the special tokens, then the words in the order in which they were met. Words are cut
as byte-pair tokenisers cut text before they merge: a word takes the blank before it, digits stand alone, punctuation takes
the line breaks after it. What is no word of the texts is spelt in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

END = "<|end|>"
ASSISTANT = "<|assistant|>"
SPECIALS = (END, "<|system|>", "<|user|>", ASSISTANT)
END_ID = 256
ASSISTANT_ID = 256 + SPECIALS.index(ASSISTANT)

_WORD = re.compile(
    r"</?think>"  # as models have them: one token, but ordinary text
    r"| ?[^\W\d_]+|\d| ?(?:(?!</?think>)[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s"
)
_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")


def words(text: str) -> Iterator[str]:
    """They add up to `text`."""
    return (found[0] for found in _WORD.finditer(text))


class Vocabulary:
    def __init__(self, texts: Iterable[Iterable[str]]) -> None:
        """`texts` are given as their words."""
        known = dict.fromkeys(word for text in texts for word in text if word)
        first = 256 + len(SPECIALS)
        self._ids = {word: first + n for n, word in enumerate(known)}
        self._texts = [*SPECIALS, *known]

    def __len__(self) -> int:
        return 256 + len(self._texts)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """`special`: the names of special tokens stand for them."""
        if not special:
            return [i for word in words(text) for i in self.spell(word)]
        parts = _SPECIAL.split(text)  # every second one is a name
        ids = self.encode(parts[0])
        for name, between in zip(parts[1::2], parts[2::2], strict=True):
            ids += [256 + SPECIALS.index(name), *self.encode(between)]
        return ids

    def spell(self, word: str) -> Sequence[int]:
        known = self._ids.get(word)
        return word.encode() if known is None else (known,)

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """Bytes that are no characters become U+FFFD. IndexError for an id that is none."""
        return b"".join(self._bytes(i, special) for i in ids).decode(errors="replace")

    def _bytes(self, token_id: int, special: bool) -> bytes:
        if token_id < 0:
            raise IndexError(token_id)
        if token_id < 256:
            return bytes((token_id,))
        if token_id < 256 + len(SPECIALS) and not special:
            return b""
        return self._texts[token_id - 256].encode()
