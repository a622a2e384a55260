"""What a policy would do to a text that is already written: who would have written which part. Pure.

The text is given to `core.relay.Generation` as if the model whose turn it is had just written it. For the large model's own
text that is exact; beyond, it is an estimate, since the small model would have gone on with other words. For the same reason
the guard against a small model in a loop is off: what this text repeats, the small model did not.

Where the text of the single tokens is known, a text is taken token by token. Else characters are counted, CHARS_PER_TOKEN to
a token, and turns are cut between any two of them: for the usual policies by `turns`, which is much faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from relaygen.analyse.turns import Turn, TurnFinder, knows
from relaygen.core.policy import Policy, State
from relaygen.core.relay import CHARS_PER_TOKEN, Generation
from relaygen.trace import Trace
from relaygen.types import Chunk, Piece, Switch, Token

_NEVER = 2**60
_READ_PIECES = 64  # at a time; those behind the end of a turn are read again
_STRETCH_CHARS = 32  # of quiet text in one piece: a cap on a turn may be passed by so much


class Replayer:
    """Of one policy, for any number of traces."""

    def __init__(self, policy: Policy) -> None:
        self._policy = replace(policy, max_repeats=_NEVER)
        self._finder = TurnFinder(policy) if knows(policy) else None

    def turns(self, trace: Trace) -> list[Turn]:
        """They add up to the text of the trace."""
        opened = _opened(self._policy, trace.text)
        if trace.pieces:
            return self._written(self._policy, trace.pieces, opened, counted=True)
        if self._finder:
            return list(self._finder.find(trace.text, opened=opened))
        policy = _in_characters(self._policy)
        return self._written(policy, list(_cut(trace.text, policy)), opened, counted=False)

    def _written(self, policy: Policy, pieces: Sequence[Piece], opened: bool, *, counted: bool) -> list[Turn]:
        generation = Generation(policy, max_tokens=_NEVER, opened=opened)
        return list(_turns(generation, pieces, counted=counted))


def replay(policy: Policy, trace: Trace) -> list[Turn]:
    """The turns add up to the text of the trace."""
    return Replayer(policy).turns(trace)


def _turns(generation: Generation, pieces: Sequence[Piece], *, counted: bool) -> Iterator[Turn]:
    piece = end = tokens = 0  # what has been written, in pieces, characters and tokens
    while piece < len(pieces) and generation.next_ask():
        state, first, start = generation.state, tokens, end
        last: Switch | None = None
        while piece < len(pieces) and not generation.turn_over:
            for event in generation.feed(Chunk(tuple(pieces[piece : piece + _READ_PIECES]))):
                if isinstance(event, Token):
                    piece, end, tokens = piece + 1, end + len(event.text), tokens + len(event.token_ids)
                elif isinstance(event, Switch):
                    last = event
        yield Turn(
            generation.policy.author(state),
            start,
            end,
            tokens - first if counted else 0,
            state is State.ANSWER,
            last.reason if last else None,
            last.cue if last else None,
        )


def _opened(policy: Policy, text: str) -> bool:
    """Whether the prompt had opened the thinking, as some chat templates do: then only its end is in the text."""
    opening, close = policy.think or ("", "")
    return bool(close) and close in text and not text.lstrip().startswith(opening)


# --- text of which only the characters are known


def _in_characters(policy: Policy) -> Policy:
    """Every limit of the policy, in characters."""

    def chars(tokens: int | None) -> int | None:
        return None if tokens is None else tokens * CHARS_PER_TOKEN

    return replace(
        policy,
        min_large_tokens=policy.min_large_tokens * CHARS_PER_TOKEN,
        max_large_tokens=chars(policy.max_large_tokens),
        max_small_tokens=chars(policy.max_small_tokens),
    )


def _cut(text: str, policy: Policy) -> Iterator[Piece]:
    """`text` in pieces that count as many tokens as they have characters.

    Character by character it would be right, and take a minute for 5 MB. So it is that only where a matcher may come to a
    decision; the quiet stretches between go in whole.
    """
    decisive = _decisive(policy)
    at = 0
    found = decisive.search(text)
    while found:
        start, end = found.span()
        yield from _quiet(text, at, start)
        at = max(at, start)
        yield from (Piece(char, (0,)) for char in text[at : end + 1])
        at = max(at, min(end + 1, len(text)))
        found = decisive.search(text, start + 1)  # the next one may begin within this one
    yield from _quiet(text, at, len(text))


def _quiet(text: str, start: int, end: int) -> Iterator[Piece]:
    for at in range(start, end, _STRETCH_CHARS):
        part = text[at : min(at + _STRETCH_CHARS, end)]
        yield Piece(part, (0,) * len(part))


# Where a sentence may end: a mark or what may close behind it, then white space; a blank line; a mark of an unspaced script.
_ENDS = (r"[^\w\s,:;=+-](?=\s)", r"_(?=\s)", r"\n[ \t\r]*(?=\n)", "[。！？｡]")
_PLAIN_ENDS = ("[.!?]", r"\n\n")


def _decisive(policy: Policy) -> re.Pattern[str]:
    """Matches what may lead to a decision at one of its characters or the one after it; rather too much than too little."""
    words = (*policy.cues, *policy.answer_cues, *(policy.think or ()))
    cues = (re.escape(word) for word in sorted(words, key=len, reverse=True))
    ends = _PLAIN_ENDS if policy.plain else _ENDS
    return re.compile("|".join((*cues, *ends)), re.IGNORECASE if policy.ignore_case else 0)
