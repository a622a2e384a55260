"""Who writes next: one table of transitions, and the settings that make it a policy. Pure.

    LARGE   the large model writes; cues are watched
    SMALL   the small model writes to the end of its sentence
    ANSWER  the answer stage: `answer_by` writes to the end
    ALONE   one model writes to the end; nothing is watched
    DONE

`segment` is the paper's policy (arXiv 2602.06454). `phase` is the one-way form: answer and consolidation cues start the
answer stage for good, calculation marks hand over to the end of the sentence. `large` and `small` write alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from relaygen.types import Author, Reason


class State(StrEnum):
    LARGE = "large"
    SMALL = "small"
    ANSWER = "answer"
    ALONE = "alone"
    DONE = "done"


Table = Mapping[tuple[State, Reason], State]

# Reasons that end a generation in any state. EOS in SMALL is the exception, below: within the reasoning the small
# model's wish to stop is only the end of its segment; whether the text is finished is for the large model to say.
_ENDS: Table = {
    (state, reason): State.DONE
    for state in (State.LARGE, State.SMALL, State.ANSWER, State.ALONE)
    for reason in (Reason.EOS, Reason.LENGTH, Reason.STOPPED, Reason.ERROR)
}

RELAY_TABLE: Table = {
    **_ENDS,
    (State.LARGE, Reason.CUE): State.SMALL,
    (State.LARGE, Reason.ANSWER): State.ANSWER,
    (State.SMALL, Reason.SENTENCE): State.LARGE,
    (State.SMALL, Reason.CAP): State.LARGE,
    (State.SMALL, Reason.EOS): State.LARGE,
    (State.SMALL, Reason.ANSWER): State.ANSWER,
    (State.SMALL, Reason.REPETITION): State.ALONE,
    (State.SMALL, Reason.SMALL_FAILED): State.ALONE,
    (State.ANSWER, Reason.SMALL_FAILED): State.ALONE,
}

ALONE_TABLE: Table = _ENDS

ALTERNATE_TABLE: Table = {
    **_ENDS,
    (State.LARGE, Reason.CAP): State.SMALL,
    (State.SMALL, Reason.CAP): State.LARGE,
    (State.SMALL, Reason.SMALL_FAILED): State.ALONE,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """A table, where it starts, and what is watched. Lengths in tokens; a cap of None means none."""

    name: str
    table: Table = field(repr=False)
    start: State
    cues: tuple[str, ...] = ()
    answer_cues: tuple[str, ...] = ()
    think: tuple[str, str] | None = None  # the markers that open and close the thinking stage
    answer_cues_in_thinking: bool = False
    ignore_case: bool = False
    plain: bool = False  # match as the released code does: cues inside words, any dot ends a sentence
    sentence_ends: bool = True
    answer_by: Author = Author.SMALL
    alone_by: Author = Author.LARGE
    min_large_tokens: int = 5  # the released code's min_tokens: without it the pair ping-pongs on cues
    max_large_tokens: int | None = None
    max_small_tokens: int | None = None
    max_repeats: int = 3

    @property
    def authors(self) -> frozenset[Author]:
        """Who may have to write."""
        return frozenset((self.alone_by,)) if self.start is State.ALONE else frozenset(Author)

    def author(self, state: State) -> Author:
        return {
            State.LARGE: Author.LARGE,
            State.SMALL: Author.SMALL,
            State.ANSWER: self.answer_by,
            State.ALONE: self.alone_by,
        }[state]

    def after(self, state: State, reason: Reason) -> State | None:
        """The state that follows, or None when this policy does not react to `reason` in this state."""
        return self.table.get((state, reason))

    def cap(self, state: State) -> int | None:
        return {State.LARGE: self.max_large_tokens, State.SMALL: self.max_small_tokens}.get(state)


def segment(
    cues: tuple[str, ...],
    *,
    answer_cues: tuple[str, ...] = (),
    think: tuple[str, str] | None = None,
    answer_by: Author = Author.SMALL,
    min_large_tokens: int = 5,
    max_small_tokens: int | None = 200,
    max_repeats: int = 3,
) -> Policy:
    """The paper's policy. The answer stage starts where the thinking ends; in a text without thinking, at an
    answer cue."""
    return Policy(
        "segment",
        RELAY_TABLE,
        State.LARGE,
        cues=cues,
        answer_cues=answer_cues,
        think=think,
        answer_by=answer_by,
        min_large_tokens=min_large_tokens,
        max_small_tokens=max_small_tokens,
        max_repeats=max_repeats,
    )


def phase(
    answer: tuple[str, ...],
    consolidation: tuple[str, ...],
    calculation: tuple[str, ...] = (),
    *,
    think: tuple[str, str] | None = None,
    max_small_tokens: int | None = 200,
) -> Policy:
    """The one-way form. Its cues are looked for at every token, not every 10 to 20: that costs microseconds, and the
    result then does not depend on where a look happens to fall."""
    return Policy(
        "phase",
        RELAY_TABLE,
        State.LARGE,
        cues=calculation,
        answer_cues=answer + consolidation,
        answer_cues_in_thinking=True,
        think=think,
        ignore_case=True,
        max_small_tokens=max_small_tokens,
    )


def alone(author: Author, *, think: tuple[str, str] | None = None) -> Policy:
    """One model writes everything: the baselines `large` and `small`."""
    return Policy(author.value, ALONE_TABLE, State.ALONE, think=think, alone_by=author)


def alternate(turn_tokens: int, *, think: tuple[str, str] | None = None) -> Policy:
    """A hand-over every `turn_tokens` tokens, whatever the text says: for the identity test."""
    return Policy(
        "alternate",
        ALTERNATE_TABLE,
        State.LARGE,
        think=think,
        sentence_ends=False,
        max_large_tokens=turn_tokens,
        max_small_tokens=turn_tokens,
    )
