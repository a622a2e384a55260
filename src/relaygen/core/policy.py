"""Who writes next: one table of transitions, and the settings that make it a policy. Pure.

    LEAD    the leading model writes (the large one, where nothing else is said); cues are watched
    FOLLOW  the other one writes to the end of its sentence
    ANSWER  the answer stage: `answer_by` writes to the end
    ALONE   one model writes to the end; nothing is watched
    DONE

`segment` is the paper's policy (arXiv 2602.06454). `phase` is the one-way form: answer and consolidation cues start the
answer stage for good, calculation marks hand over to the end of the sentence. `large` and `small` write alone. `random`,
`reflect` and `margin` exist to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from relaygen.types import Author, Reason

REFLECTION_CUES = (
    "Wait", "wait", "Hmm", "Hmm,", "But wait", "Alternatively", "Alternatively,", "However", "However,", "Actually",
    "Actually,", "Let me check", "Let me double-check", "Let me verify", "Let's check", "Let's verify",
)  # fmt: skip


class State(StrEnum):
    LEAD = "lead"
    FOLLOW = "follow"
    ANSWER = "answer"
    ALONE = "alone"
    DONE = "done"


Table = Mapping[tuple[State, Reason], State]

# Reasons that end a generation in any state. EOS in FOLLOW is the exception, below: within the reasoning the small
# model's wish to stop is only the end of its segment; whether the text is finished is for the large model to say.
_ENDS: Table = {
    (state, reason): State.DONE
    for state in (State.LEAD, State.FOLLOW, State.ANSWER, State.ALONE)
    for reason in (Reason.EOS, Reason.LENGTH, Reason.STOPPED, Reason.ERROR)
}

RELAY_TABLE: Table = {
    **_ENDS,
    (State.LEAD, Reason.CUE): State.FOLLOW,
    (State.LEAD, Reason.LOT): State.FOLLOW,
    (State.LEAD, Reason.ANSWER): State.ANSWER,
    (State.LEAD, Reason.SMALL_FAILED): State.ALONE,
    (State.FOLLOW, Reason.SENTENCE): State.LEAD,
    (State.FOLLOW, Reason.CAP): State.LEAD,
    (State.FOLLOW, Reason.UNSURE): State.LEAD,
    (State.FOLLOW, Reason.EOS): State.LEAD,
    (State.FOLLOW, Reason.ANSWER): State.ANSWER,
    (State.FOLLOW, Reason.REPETITION): State.ALONE,
    (State.FOLLOW, Reason.SMALL_FAILED): State.ALONE,
    (State.ANSWER, Reason.SMALL_FAILED): State.ALONE,
}

# The small model leads: when it is unsure, or a cue says that it should be, the large one writes a sentence; whose end of
# the text is the end.
SMALL_LEADS_TABLE: Table = {
    **RELAY_TABLE,
    (State.LEAD, Reason.UNSURE): State.FOLLOW,
    (State.FOLLOW, Reason.EOS): State.DONE,
}

ALONE_TABLE: Table = _ENDS

ALTERNATE_TABLE: Table = {
    **_ENDS,
    (State.LEAD, Reason.CAP): State.FOLLOW,
    (State.FOLLOW, Reason.CAP): State.LEAD,
    (State.FOLLOW, Reason.SMALL_FAILED): State.ALONE,
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
    chance: float | None = None  # hand over at the end of a sentence by lot, this often, and not at cues
    min_margin: float | None = None  # a small turn ends before a token with a smaller p(top-1) - p(top-2)
    lead: Author = Author.LARGE
    answer_by: Author = Author.SMALL
    alone_by: Author = Author.LARGE
    # Tokens of a leading turn before cues count (the released code's min_tokens): without it the pair ping-pongs on cues.
    min_large_tokens: int = 5
    max_large_tokens: int | None = None
    max_small_tokens: int | None = None
    max_repeats: int = 3
    constrained: bool = False  # the answer follows a schema

    @property
    def authors(self) -> frozenset[Author]:
        """Who may have to write."""
        if self.start is State.ALONE:
            return frozenset((self.alone_by,))
        return frozenset((self.answer_by,)) if self.start is State.ANSWER else frozenset(Author)

    def author(self, state: State) -> Author:
        return {
            State.LEAD: self.lead,
            State.FOLLOW: self.lead.other,
            State.ANSWER: self.answer_by,
            State.ALONE: self.alone_by,
        }[state]

    def after(self, state: State, reason: Reason) -> State | None:
        """The state that follows, or None when this policy does not react to `reason` in this state."""
        return self.table.get((state, reason))

    def cap(self, state: State) -> int | None:
        if state not in (State.LEAD, State.FOLLOW):
            return None
        return self.max_large_tokens if self.author(state) is Author.LARGE else self.max_small_tokens

    def asks_margin(self, state: State) -> bool:
        """Whether the margins of the tokens are needed in this state."""
        watched = state in (State.LEAD, State.FOLLOW) and self.author(state) is Author.SMALL
        return watched and self.min_margin is not None


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
        State.LEAD,
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
        State.LEAD,
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


def constrained(policy: Policy, answer_by: Author) -> Policy:
    """`policy` for an answer that follows a schema: it begins where the thinking ends, at once in a text without
    thinking, and `answer_by` writes all of it, in one request: nobody could take over in the middle."""
    table = {**policy.table, (State.ALONE, Reason.ANSWER): State.ANSWER}
    table.pop((State.ANSWER, Reason.SMALL_FAILED), None)
    return replace(
        policy,
        table=table,
        start=policy.start if policy.think else State.ANSWER,
        answer_cues=(),
        answer_cues_in_thinking=False,
        answer_by=policy.alone_by if policy.start is State.ALONE else answer_by,
        constrained=True,
    )


def alternate(turn_tokens: int, *, think: tuple[str, str] | None = None) -> Policy:
    """A hand-over every `turn_tokens` tokens, whatever the text says: for the identity test."""
    return Policy(
        "alternate",
        ALTERNATE_TABLE,
        State.LEAD,
        think=think,
        sentence_ends=False,
        max_large_tokens=turn_tokens,
        max_small_tokens=turn_tokens,
    )


def at_random(base: Policy, small_share: float) -> Policy:
    """`base` with its cues replaced by a lot at the end of each of the large model's sentences: the control which cues have
    to beat. With sentences of one length, a chance q gives the small model q in 1 + q sentences, so up to half of them
    (all but their first words). The seed of the generation draws."""
    return replace(base, name="random", cues=(), chance=min(1.0, small_share / (1 - small_share)))


def reflect(base: Policy, cues: tuple[str, ...] = REFLECTION_CUES) -> Policy:
    """Speculative Thinking (arXiv 2504.12329): the small model leads, and the large one writes the sentence that a word of
    doubt opens. There it takes over for a fixed number of tokens, and at paragraphs only; here it is a sentence."""
    return replace(base, name="reflect", table=SMALL_LEADS_TABLE, lead=Author.SMALL, cues=cues)


def margin(base: Policy, min_margin: float) -> Policy:
    """The small model leads, and the large one writes a sentence wherever the small one's margin falls below
    `min_margin`."""
    return replace(
        base, name="margin", table=SMALL_LEADS_TABLE, lead=Author.SMALL, cues=(), min_margin=min_margin
    )


def hand_back(base: Policy, min_margin: float) -> Policy:
    """`base`, and a small turn ends early where the small model becomes unsure."""
    return replace(base, name=f"{base.name}+margin", min_margin=min_margin)
