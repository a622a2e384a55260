"""Figures of replayed traces: shares, turns, cues, and what the relay would take in time. Pure.

Every amount is kept in characters and in tokens. Tokens are what a share is said in, as soon as all the traces tell theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from relaygen.analyse.predict import Speed, Work, alone_ms, break_even_share
from relaygen.analyse.replay import Replayer
from relaygen.analyse.turns import Turn
from relaygen.core.policy import Policy
from relaygen.core.relay import CHARS_PER_TOKEN
from relaygen.trace import Trace
from relaygen.types import Author, Reason

Unit = Literal["tokens", "characters"]
Speeds = Mapping[Author, Speed]


@dataclass(slots=True)
class Amount:
    """Of some turns."""

    turns: int = 0
    chars: int = 0
    tokens: int = 0

    def add(self, turn: Turn) -> None:
        self.turns += 1
        self.chars += turn.num_chars
        self.tokens += turn.num_tokens

    def size(self, unit: Unit) -> int:
        return self.tokens if unit == "tokens" else self.chars


class Tally:
    """The figures of one trace, or of many."""

    def __init__(self, speeds: Speeds | None = None) -> None:
        self.num_traces = 0
        self.handovers = 0
        self.total = Amount()
        self.by_author = {author: Amount() for author in Author}
        self.segments = Amount()  # of the small model, before the answer
        self.answers = Amount()
        self.cues: dict[str, Amount] = {}  # what each handed over
        self.ends: dict[Author, Counter[Reason | None]] = {author: Counter() for author in Author}
        self.time = _Time(speeds) if speeds else None
        self._counted = True

    def add(self, trace: Trace, turns: Sequence[Turn]) -> None:
        self.num_traces += 1
        self._counted = self._counted and bool(trace.pieces)
        before: Turn | None = None
        for turn in turns:
            self.total.add(turn)
            self.by_author[turn.author].add(turn)
            self.ends[turn.author][turn.reason] += 1
            if turn.answer:
                self.answers.add(turn)
            elif turn.author is Author.SMALL:
                self.segments.add(turn)
            if before:
                self.handovers += before.author is not turn.author
                if before.cue:
                    self.cues.setdefault(before.cue, Amount()).add(turn)
            before = turn
        if self.time:
            self.time.add(trace, turns)

    @property
    def unit(self) -> Unit:
        return "tokens" if self._counted and self.num_traces else "characters"

    def share(self, part: Amount, unit: Unit | None = None) -> float:
        unit = unit or self.unit
        return part.size(unit) / (self.total.size(unit) or 1)

    @property
    def mean_segment(self) -> float | None:
        return self.segments.size(self.unit) / self.segments.turns if self.segments.turns else None


@dataclass(frozen=True, slots=True)
class Replayed:
    """One trace. Its text and `turns` are left out where nobody will look at them."""

    trace: Trace
    tally: Tally
    turns: Sequence[Turn]


@dataclass(frozen=True, slots=True)
class Replay:
    whole: Tally
    each: Sequence[Replayed]
    unused_cues: Sequence[str]

    def mean_and_deviation(self) -> tuple[float, float | None]:
        """Of the large model's share, where every trace weighs the same. One trace has no deviation."""
        tallies = [one.tally for one in self.each]
        shares = [tally.share(tally.by_author[Author.LARGE], self.whole.unit) for tally in tallies]
        return fmean(shares), stdev(shares) if len(shares) > 1 else None


def replay_all(
    policy: Policy, traces: Iterable[Trace], speeds: Speeds | None = None, *, keep_text: bool = False
) -> Replay:
    """At least one trace."""
    whole, each, replayer = Tally(speeds), list[Replayed](), Replayer(policy)
    for trace in traces:
        turns, tally = replayer.turns(trace), Tally(speeds)
        tally.add(trace, turns)
        whole.add(trace, turns)
        if not keep_text:
            trace, turns = replace(trace, text="", token_ids=(), pieces=()), ()
        each.append(Replayed(trace, tally, turns))
    unused = [cue for cue in (*policy.cues, *policy.answer_cues) if cue not in whole.cues]
    return Replay(whole, each, unused)


class _Time:
    """Milliseconds, by the arithmetic of `predict`, but turn by turn. Tokens that nobody counted are CHARS_PER_TOKEN long,
    and the prompt is the problem alone."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self.alone_ms = self.relay_ms = 0.0
        self._traces = self._segments = 0
        self._tokens = self._prompt_tokens = self._segment_tokens = 0.0

    def add(self, trace: Trace, turns: Sequence[Turn]) -> None:
        chars_per_token = len(trace.text) / trace.num_tokens if trace.num_tokens else CHARS_PER_TOKEN
        prompt_tokens = len(trace.problem) / chars_per_token
        unread = dict.fromkeys(Author, prompt_tokens)
        for turn in turns:
            speed = self._speeds[turn.author]
            tokens = turn.num_tokens or turn.num_chars / chars_per_token
            self.relay_ms += speed.own_ms + speed.read_ms(unread[turn.author])
            self.relay_ms += max(0.0, tokens - 1) * speed.decode_ms  # the first one comes out of reading
            unread[turn.author] = 1  # its own last one
            unread[turn.author.other] += tokens
            self._tokens += tokens
            if turn.author is Author.SMALL and not turn.answer:
                self._segments += 1
                self._segment_tokens += tokens
        self._traces += 1
        self._prompt_tokens += prompt_tokens
        num_tokens = sum(turn.num_tokens for turn in turns) or len(trace.text) / chars_per_token
        self.alone_ms += alone_ms(self._speeds[Author.LARGE], Work(max(1.0, num_tokens), prompt_tokens))

    @property
    def speedup(self) -> float:
        return self.alone_ms / self.relay_ms if self.relay_ms else 1.0

    @property
    def break_even_share(self) -> float | None:
        """Of the small model, in segments as long as these."""
        if not self._segment_tokens:
            return None
        traces = self._traces
        work = Work(
            self._tokens / traces, self._prompt_tokens / traces, self._segment_tokens / self._segments
        )
        return break_even_share(self._speeds[Author.LARGE], self._speeds[Author.SMALL], work)
