"""What one engine has seen, as token ids, or as text where it takes no ids. Pure.

Ids are the truth: the prompt is rendered once, then ids are appended as they were generated, by whichever model. Nothing
is tokenised again when the two models share a vocabulary. How the other model's ids are read is the *translation*:

    {}            one vocabulary: ids are passed as they are
    {17: 23}      one base vocabulary, other special tokens: those ids are exchanged, the rest passed as they are
    None          different vocabularies: the text of each new segment is tokenised by this engine, and only that
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Ledger:
    def __init__(self, prompt_ids: Sequence[int], translation: Mapping[int, int] | None) -> None:
        self.ids = list(prompt_ids)
        self.prompt_tokens = len(prompt_ids)
        self._translation = translation
        self._untold: list[str] = []

    def write(self, token_ids: Sequence[int], text: str, *, own: bool) -> None:
        """Append what was written, by this engine itself (`own`) or by the other."""
        if own:
            self.ids.extend(token_ids)
        elif self._translation is None:
            self._untold.append(text)
        else:
            self.ids.extend(self._translation.get(i, i) for i in token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def text(self) -> str:
        """All of it as text; kept only for an engine that needs it."""
        return ""

    @property
    def untold_text(self) -> str:
        """What the other model wrote and this engine has not yet tokenised. Empty when the vocabularies agree."""
        return "".join(self._untold)

    def settle(self, ids: Sequence[int]) -> None:
        """Append `ids`, this engine's own tokens for `untold_text`."""
        self.ids.extend(ids)
        self._untold.clear()


# Of UTF-8, rather too few than too many: English has about 4, code and digits 3, Chinese 4.
BYTES_PER_TOKEN = 3


class TextLedger(Ledger):
    """For an engine that takes text only. How many tokens it makes of that is estimated."""

    def __init__(self, prompt: str) -> None:
        super().__init__((), None)
        self._parts: list[str] = []
        self._num_bytes = 0
        self.write((), prompt, own=True)
        self.prompt_tokens = self.num_tokens

    def write(self, token_ids: Sequence[int], text: str, *, own: bool) -> None:
        self._parts.append(text)
        self._num_bytes += len(text.encode(errors="replace"))

    @property
    def num_tokens(self) -> int:
        return -(-self._num_bytes // BYTES_PER_TOKEN)

    @property
    def text(self) -> str:
        return "".join(self._parts)
