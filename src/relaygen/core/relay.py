"""The algorithm: who writes what, and where each turn is cut. Pure: no I/O, no clock.

    generation = Generation(policy, max_tokens=1000)
    while ask := generation.next_ask():              # who writes next, and at most how much
        for chunk in engine.write(ask):              # the engine streams
            events = generation.feed(chunk)          # tokens, switches, the finish
            if generation.turn_over: break           # closing the stream early ends the engine's work

Cuts are made on token borders. The token that completes a cue is kept, with its look-ahead: the large model wrote it, and
it is the better author. A token that was only needed to see that a sentence had ended is dropped: the small model wrote
it, and the first word of a sentence is the decision the large model is kept for. (White space with a line break in it
still belongs to the sentence.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from relaygen.core.matcher import Match
from relaygen.core.policy import Policy, State
from relaygen.core.watch import Watch
from relaygen.errors import EngineProtocolError
from relaygen.types import Author, Chunk, Event, Finish, FinishReason, Piece, Reason, Switch, Token, TurnEnd

CHARS_PER_TOKEN = 4  # how text without token ids is counted
_FIT_ONE_CHARACTER = 8  # tokens, enough for any: a shorter request may end in the middle of one
_CONTEXT = 64  # characters of earlier text that a matcher may look back on


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to an engine: `author` continues at token `position` of the answer with at most `max_tokens` tokens.

    `stops` are strings at which the server may end the request by itself, which saves the connection and the token in
    flight. They are only a help: whether a turn is over is decided in `Generation.feed`. With `margins` the two likeliest
    candidates of each token are needed. `constrained`: it is the answer that has to follow a schema.
    """

    author: Author
    max_tokens: int
    position: int
    stops: tuple[str, ...]
    margins: bool = False
    constrained: bool = False


def turn_seed(seed: int, position: int) -> int:
    """The sampler seed of a request, below 2**31. Servers restart their random stream with each request, so the same seed
    in each turn would replay the same draws."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


class Generation:
    """One answer being written by two models.

    `max_tokens` is the budget over both. `opened` says that the prompt ends with the policy's opening think marker; else
    the text is a thinking one if it begins with that marker. `seed` is for policies that draw lots.
    """

    def __init__(self, policy: Policy, *, max_tokens: int, opened: bool = False, seed: int = 0) -> None:
        self.policy = policy
        self.max_tokens = max_tokens
        self._seed = seed
        self.state = policy.start
        self.turn_over = False
        self.written_tokens = 0.0
        self._opening, self._close = policy.think or ("", "")
        self._thinking = bool(policy.think)
        self._undecided = bool(policy.think) and not opened
        self._watch = Watch(policy, thinking=self._thinking)
        self._before = ""
        self._lead_text = ""  # of the last leading turn
        self._last_round, self._repeats = ("", ""), 0
        self._idle_asks = 0
        self._begin_turn()

    @property
    def author(self) -> Author:
        """Whose turn it is."""
        return self.policy.author(self.state)

    @property
    def stage(self) -> Literal["reasoning", "answer"]:
        return "reasoning" if self._thinking else "answer"

    def next_ask(self) -> Ask | None:
        """The next request to make, or None when the generation is finished."""
        if self.state is State.DONE:
            return None
        if self.turn_over:
            self._begin_turn()
        budget = turn = self.max_tokens - self.written_tokens
        cap = self.policy.cap(self.state)
        if cap is not None:
            turn = cap - self._turn_tokens
        if self._idle_asks:
            turn = max(turn, _FIT_ONE_CHARACTER)
        self._ask = Ask(
            self.author,
            max(1, int(min(turn, budget))),
            int(self.written_tokens),
            self._watch.stops(self.state),
            self.policy.asks_margin(self.state),
            self.policy.constrained and self.state is State.ANSWER,
        )
        self._ask_tokens = 0.0
        return self._ask

    def feed(self, chunk: Chunk) -> list[Event]:
        """Take what the engine wrote. What comes after the end of a turn is ignored."""
        events: list[Event] = []
        for piece in chunk.pieces:
            if self.turn_over:
                break
            for part in (piece,) if piece.token_ids else map(Piece, piece.text):
                self._take(part, events)
                if self.turn_over:
                    break
        if chunk.end and not self.turn_over:
            self._request_ended(chunk.end, events)
        return _joined(events)

    def small_failed(self) -> list[Event] | None:
        """The small engine cannot go on. None when this policy has no use for the large model either."""
        if self.policy.after(self.state, Reason.SMALL_FAILED) is None:
            return None
        events: list[Event] = []
        self._end_turn(Reason.SMALL_FAILED, events)
        return events

    def stop(self, reason: Reason) -> list[Event]:
        """End the generation from outside: STOPPED by the caller, LENGTH by a full context, ERROR."""
        events: list[Event] = []
        if self.state is not State.DONE:
            self._end_turn(reason, events)
        return events

    # ---- one turn

    def _begin_turn(self) -> None:
        self.turn_over = False
        self._turn_tokens = self._ask_tokens = 0.0
        self._turn_text: list[str] = []
        self._turn_chars = 0
        self._floor = 0  # offset in the turn up to which cues do not count yet
        self._watch.begin(self._before)

    def _decide_thinking(self, text: str) -> None:
        """At the first text: is this a thinking one?"""
        start = (self._before + text).lstrip()
        if start.startswith(self._opening):
            self._undecided = False
        elif not self._opening.startswith(start):
            self._undecided = self._thinking = False
            self._watch.set_thinking(False)

    def _take(self, piece: Piece, events: list[Event]) -> None:
        if self._undecided:
            self._decide_thinking(piece.text)
            if self.policy.constrained and not self._thinking:
                self._end_turn(Reason.ANSWER, events)  # the piece was written before there was a schema
                return
        if self._is_unsure(piece):
            self._end_turn(Reason.UNSURE, events)  # without the token: the large model shall choose
            return
        cost = len(piece.token_ids) or 1 / CHARS_PER_TOKEN
        if self._turn_tokens + cost <= self.policy.min_large_tokens:
            self._floor = self._turn_chars + len(piece.text)
        reason, match = self._watch.look(self.state, piece.text, self._floor) or (None, None)
        if match and reason is Reason.SENTENCE and self._only_looked_ahead(match, piece.text):
            self._end_turn(Reason.SENTENCE, events)
            return
        events.append(Token(self.author, piece.text, piece.token_ids, self.stage, piece.logprobs))
        self.written_tokens += cost
        self._turn_tokens += cost
        self._ask_tokens += cost
        self._idle_asks = 0
        self._turn_text.append(piece.text)
        self._turn_chars += len(piece.text)
        self._before = (self._before + piece.text)[-_CONTEXT:]
        if match and reason is Reason.ANSWER and self._thinking and match.what == self._close:
            self._thinking = False
            self._watch.set_thinking(False)
            reason = reason if self.policy.after(self.state, reason) else None
        if reason is Reason.LOT and not self._drawn():
            self._watch.sentence_goes_on(self._before)
            reason = None
        if self.written_tokens >= self.max_tokens:
            self._end_turn(Reason.LENGTH, events)
        elif reason:
            self._end_turn(reason, events, match.what if match else None)
        elif (cap := self.policy.cap(self.state)) is not None and self._turn_tokens >= cap:
            self._end_turn(Reason.CAP, events)

    def _only_looked_ahead(self, match: Match, text: str) -> bool:
        """Whether the small model's piece `text` was needed only to see that its sentence had ended before."""
        ended_before = match.end <= self._turn_chars and not (text.isspace() and "\n" in text)
        return ended_before and self.author is Author.SMALL

    def _is_unsure(self, piece: Piece) -> bool:
        least = self.policy.min_margin
        if least is None or not piece.logprobs or not self.policy.asks_margin(self.state):
            return False
        return any(one.margin is not None and one.margin < least for one in piece.logprobs)

    def _drawn(self) -> bool:
        position = int(self.written_tokens * CHARS_PER_TOKEN)
        return turn_seed(self._seed, position) < (self.policy.chance or 0.0) * 2**31

    def _end_turn(self, reason: Reason, events: list[Event], cue: str | None = None) -> None:
        if self.state is State.FOLLOW and reason in (Reason.SENTENCE, Reason.CAP) and self._repeats_itself():
            reason = Reason.REPETITION
        following = self.policy.after(self.state, reason)
        if following is None:
            raise AssertionError(f"policy {self.policy.name}: no transition from {self.state} on {reason}")
        if self.state is State.LEAD:
            self._lead_text = "".join(self._turn_text).strip()
        author = self.author
        self.state = following
        self.turn_over = True
        if following is State.DONE:
            events.append(Finish(author, reason, _FINISH.get(reason, "stop")))
        else:
            events.append(Switch(author, self.author, reason, cue if reason in _WITH_CUE else None))

    def _repeats_itself(self) -> bool:
        """Whether the pair goes in circles: the same leading turn and the same answer to it, again and again. Equal
        segments alone are no loop: an enumeration says "it is odd." of one number after the other."""
        now = self._lead_text, "".join(self._turn_text).strip()
        self._repeats = self._repeats + 1 if now == self._last_round else 1
        self._last_round = now
        reacts = self.policy.after(self.state, Reason.REPETITION) is not None
        return reacts and bool(now[1]) and self._repeats >= self.policy.max_repeats

    def _request_ended(self, end: TurnEnd, events: list[Event]) -> None:
        """The engine ended the request before the matchers ended the turn."""
        if end.finish == "eos":
            self._end_turn(Reason.EOS, events)
            return
        # A stop string inside a word ("now " in "know "), or a request cut within a character: the turn goes on.
        if self._ask_tokens:
            return
        self._idle_asks += 1
        if end.finish == "length" and self._idle_asks > 1:
            self._end_turn(Reason.LENGTH, events)
        elif self._idle_asks > 2:
            raise EngineProtocolError(
                f"the {self.author} engine ended several requests in a row without a token"
            )


_FINISH: dict[Reason, FinishReason] = {
    Reason.LENGTH: "length",
    Reason.STOPPED: "stopped",
    Reason.ERROR: "error",
}
_WITH_CUE = frozenset((Reason.CUE, Reason.ANSWER))


def _joined(events: Iterable[Event]) -> list[Event]:
    """Neighbouring characters of one author as one event: text without ids is taken character by character."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if (
            isinstance(event, Token)
            and isinstance(last, Token)
            and not event.token_ids
            and not last.token_ids
            and last.stage == event.stage
        ):
            out[-1] = Token(event.author, last.text + event.text, (), event.stage)
        else:
            out.append(event)
    return out
