"""What one engine has seen, as token ids. Pure.

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
    def untold_text(self) -> str:
        """What the other model wrote and this engine has not yet tokenised. Empty when the vocabularies agree."""
        return "".join(self._untold)

    def settle(self, ids: Sequence[int]) -> None:
        """Append `ids`, this engine's own tokens for `untold_text`."""
        self.ids.extend(ids)
        self._untold.clear()
