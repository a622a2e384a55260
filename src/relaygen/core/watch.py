"""What is looked for in the text of each state: cues, answer cues, the closing think marker, the ends of sentences. Pure."""

from __future__ import annotations

from relaygen.core.matcher import (
    PLAIN_SENTENCE_STOPS,
    SENTENCE_STOPS,
    CueMatcher,
    Match,
    PlainSentenceMatcher,
    SentenceMatcher,
    server_stops,
)
from relaygen.core.policy import Policy, State
from relaygen.types import Reason


class Watch:
    """The matchers of one generation. `begin` starts a turn; `look` takes its text piece by piece, and tells what is decided
    first in the piece, and by which match."""

    def __init__(self, policy: Policy, *, thinking: bool) -> None:
        self._policy = policy
        self._close = policy.think[1] if policy.think else ""
        self._think = CueMatcher([self._close] if self._close else [])
        self._cues = CueMatcher(policy.cues, ignore_case=policy.ignore_case, borders=not policy.plain)
        self._sentences = PlainSentenceMatcher() if policy.plain else SentenceMatcher()
        self.set_thinking(thinking)

    def set_thinking(self, thinking: bool) -> None:
        """Answer cues count outside the thinking only, unless the policy says otherwise."""
        policy, borders = self._policy, not self._policy.plain
        answers = policy.answer_cues if policy.answer_cues_in_thinking or not thinking else ()
        self._thinking = thinking
        self._answers = CueMatcher(answers, ignore_case=policy.ignore_case, borders=borders)
        close = (self._close,) if thinking and self._close else ()
        ends = PLAIN_SENTENCE_STOPS if policy.plain else SENTENCE_STOPS
        by_lot = ends if policy.chance is not None else ()
        self._stops = {
            State.LEAD: server_stops((*policy.cues, *answers, *close), borders=borders) + by_lot,
            State.FOLLOW: server_stops((*answers, *close), borders=borders) + ends,
        }

    def stops(self, state: State) -> tuple[str, ...]:
        """Strings at which a server may end a request in this state."""
        return self._stops.get(state, ())

    def begin(self, before: str) -> None:
        for matcher in (self._cues, self._answers, self._think, self._sentences):
            matcher.begin(before)

    def sentence_goes_on(self, before: str) -> None:
        """The end of a sentence was found, and the turn goes on: look for the next."""
        self._sentences.begin(before)

    def look(self, state: State, text: str, floor: int) -> tuple[Reason, Match] | None:
        """Cues that end within the first `floor` characters of the turn do not count."""
        policy = self._policy
        if not self._thinking and state in (State.ANSWER, State.ALONE):
            return None
        found: list[tuple[Reason, Match | None]] = []
        if self._thinking:
            found.append((Reason.ANSWER, self._think.feed(text)))
        if state is State.LEAD:
            found.append((Reason.ANSWER, self._answers.feed(text)))
            found.append((Reason.CUE, self._cues.feed(text, floor)))
            if policy.chance is not None:
                found.append((Reason.LOT, self._sentences.feed(text)))
        elif state is State.FOLLOW and policy.sentence_ends:
            found.append((Reason.ANSWER, self._answers.feed(text)))
            found.append((Reason.SENTENCE, self._sentences.feed(text)))
        decided = [(reason, match) for reason, match in found if match]
        return min(decided, key=lambda one: one[1].decided, default=None)
