"""How sure a scorer is after each cue: the statistics behind the choice of cues. Pure.

A cue *occurs* where a relay would hand over if it were the large model's turn: `core.matcher` decides, look-ahead and word
borders included. Of several cues decided at one character the longest counts, as at run time: "So, it is" is an occurrence
of `So,`, not of `So`. The tokens that would be handed over are those after the token that decided, to the end of the
sentence; like at run time the token that was only needed to see that end is not among them.

Traces are taken one at a time. What is kept is a few numbers for each occurrence and each trace, so the memory does not grow
with the text between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from relaygen.analyse.figures import is_figure
from relaygen.analyse.interval import Estimate, contrast, mean
from relaygen.analyse.released import ReleasedRules
from relaygen.analyse.rules import RelayRules
from relaygen.analyse.scored import ScoredTrace
from relaygen.errors import UserError

Objective = Literal["margin", "agreement", "figures"]
OBJECTIVES: tuple[Objective, ...] = ("margin", "agreement", "figures")  # the columns of every array of sums
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Traces:
    """One row a trace. Tokens are counted through all traces: those of a trace begin at number `begin`."""

    begin: Ints
    tokens: Ints
    sums: Floats  # (traces, objectives): of the values of their tokens
    problem: Ints  # equal for equal problems


@dataclass(frozen=True, slots=True)
class Occurrences:
    """One row an occurrence, in the order in which a relay meets them. The cue lies in the tokens `first` to `last`; it would
    hand over the tokens `start` to `stop`. `before` and `after` are the sums (as of Traces) of all tokens up to there, so
    any stretch is a difference. Rows of one `place` are cues decided at the same character, the longest first."""

    place: Ints
    cue: Ints
    trace: Ints
    first: Ints
    last: Ints
    start: Ints
    stop: Ints
    before: Floats
    after: Floats

    def __len__(self) -> int:
        return len(self.cue)

    def at(self, rows: NDArray[np.bool_] | Ints) -> Occurrences:
        return Occurrences(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class CueStats:
    """`tokens` are those that the cue would hand over, each counted once; `share` is their part of all tokens.
    The deltas are to the rest: the other tokens of the traces that the cue is in. `full_agreement` is the share of the
    segments in which the scorer agrees with every token. `figures` is the share of tokens that are no figure that the scorer
    would change (`analyse.figures`): near 1, and its distance from 1 is what counts."""

    cue: str
    occurrences: int
    traces: int
    tokens: int
    share: float
    margin: Estimate
    margin_delta: Estimate
    agreement: Estimate
    agreement_delta: Estimate
    figures: Estimate
    figures_delta: Estimate
    full_agreement: float

    def mean(self, objective: Objective) -> Estimate:
        return getattr(self, objective)

    def delta(self, objective: Objective) -> Estimate:
        return getattr(self, f"{objective}_delta")


@dataclass(frozen=True)
class MarginTable:
    cues: tuple[str, ...]
    plain: bool
    traces: Traces
    found: Occurrences
    level: float = 0.95  # of every interval

    @property
    def num_tokens(self) -> int:
        return int(self.traces.tokens.sum())

    def overall(self, objective: Objective) -> Estimate:
        """The mean of all tokens."""
        sums = self.traces.sums[:, OBJECTIVES.index(objective)]
        return mean(self.traces.tokens.astype(float), sums, self.level)

    @cached_property
    def rows_of(self) -> Sequence[Ints]:
        """The rows of `found` of each cue, in their order."""
        order = np.argsort(self.found.cue, kind="stable")
        bounds = np.searchsorted(self.found.cue[order], np.arange(len(self.cues) + 1))
        return [order[low:high] for low, high in pairwise(bounds.tolist())]

    @cached_property
    def longest(self) -> NDArray[np.bool_]:
        """Of each row of `found`: whether it is the cue that counts at its place."""
        place = self.found.place
        return np.concatenate([[True], place[1:] != place[:-1]]) if len(place) else np.zeros(0, bool)

    @cached_property
    def stats(self) -> dict[str, CueStats]:
        """Of the cues that occur."""
        out: dict[str, CueStats] = {}
        for cue, rows in zip(self.cues, self.rows_of, strict=True):
            if len(rows := rows[self.longest[rows]]):
                out[cue] = self.of(cue, rows)
        return out

    def of(self, cue: str, rows: Ints) -> CueStats:
        """Of some rows of `found`, at least one, in order."""
        found = self.found.at(rows)
        in_traces, cluster = np.unique(found.trace, return_inverse=True)

        def by_trace(values: Floats) -> Floats:
            return np.bincount(cluster, values, len(in_traces)).astype(np.float64)

        tokens = by_trace(_new(found.start, found.stop))
        all_tokens = self.traces.tokens[in_traces].astype(float)
        estimates: list[Estimate] = []
        for column in range(len(OBJECTIVES)):
            sums = by_trace(_new(found.before[:, column], found.after[:, column]))
            whole = all_tokens, self.traces.sums[in_traces, column]
            estimates += [
                mean(tokens, sums, self.level),
                contrast((tokens, sums), whole, self.level),
            ]
        agreed: Ints = (found.after - found.before)[:, OBJECTIVES.index("agreement")].astype(np.int64)
        return CueStats(
            cue,
            len(rows),
            len(in_traces),
            int(tokens.sum()),
            float(tokens.sum()) / self.num_tokens,
            *estimates,
            full_agreement=np.count_nonzero(agreed == found.stop - found.start) / len(rows),
        )

    def lengths_of(self, cues: Collection[str]) -> Ints:
        """In tokens, of the segments of these cues."""
        found = self.found.at(self.longest & np.isin(self.cues, list(cues))[self.found.cue])
        return found.stop - found.start

    def halves(self, seed: int = 0) -> tuple[MarginTable, MarginTable]:
        """Two tables with half of the problems each (the first gets the odd one): one to choose on, the other to say what the
        choice is worth. Traces of one problem stay together."""
        problems = np.unique(self.traces.problem)
        if len(problems) < 2:
            raise UserError(
                "the traces are of one problem only: to hold half of the problems back, at least 2 are needed"
            )
        drawn = np.random.default_rng(seed).permutation(problems)
        first = np.isin(self.traces.problem, drawn[: (len(drawn) + 1) // 2])
        return self._with(first), self._with(~first)

    def _with(self, chosen: NDArray[np.bool_]) -> MarginTable:
        traces = Traces(*(getattr(self.traces, field.name)[chosen] for field in fields(Traces)))
        found = self.found.at(chosen[self.found.trace])
        numbers = np.cumsum(chosen) - 1
        return MarginTable(
            self.cues, self.plain, traces, replace(found, trace=numbers[found.trace]), self.level
        )


def _new(before: NDArray[Any], after: NDArray[Any]) -> Floats:
    """What each stretch of a running amount adds to the ones above it: nothing is counted twice."""
    reached = np.maximum.accumulate(after)
    reached = np.concatenate([before[:1], reached[:-1]])
    return np.maximum(0.0, after - np.maximum(before, reached))


def collect(
    scored: Iterable[ScoredTrace],
    cues: Sequence[str],
    *,
    plain: bool = False,
    ends: Sequence[str] = (),
    max_small_tokens: int | None = 200,
    level: float = 0.95,
) -> MarginTable:
    """`ends` are the texts that end the reasoning (</think>, answer cues): what follows the first of them is left out, since
    the answer stage needs no cue. `max_small_tokens` is the profile's cap on a small turn. `plain` finds cues and segments as
    the script of the released code does (`analyse.released`)."""
    cues = tuple(dict.fromkeys(cues))
    rules = ReleasedRules(cues) if plain else RelayRules(cues, max_small_tokens)
    ending = RelayRules(ends, None)
    problems: dict[str, int] = {}
    traces = list[tuple[int, int, Floats, int]]()
    found = list[tuple[NDArray[np.int64], Floats]]()
    place = begin = 0
    total = np.zeros(len(OBJECTIVES))
    for number, trace in enumerate(scored):
        length = ending.reasoning_tokens(trace)
        sums = np.zeros((length + 1, len(OBJECTIVES)))
        for column, values in enumerate(_values(trace)):
            np.cumsum(values[:length], out=sums[1:, column])
        rows = rules.rows(trace, length)
        if len(rows):
            tokens = rows[:, 2:]
            running = np.hstack([sums[rows[:, 4]], sums[rows[:, 5]]]) + np.tile(total, 2)
            head = np.column_stack([rows[:, 0] + place, rows[:, 1], np.full(len(rows), number)])
            found.append((np.hstack([head, tokens + begin]), running))
            place = int(head[-1, 0]) + 1
        problem = problems.setdefault(trace.problem or trace.id, len(problems))
        traces.append((begin, length, sums[-1].copy(), problem))  # a view would keep the sums of every token
        begin += length
        total = total + sums[-1]
    if not begin:
        raise UserError("there are no scored tokens to calibrate on: record and score some traces first")
    return MarginTable(cues, plain, _traces(traces), _occurrences(found), level)


def _values(trace: ScoredTrace) -> tuple[Sequence[float] | Floats, ...]:
    """Of each token, by objective."""
    kept = np.ones(len(trace.agree))
    for place in np.flatnonzero(np.equal(trace.agree, 0)).tolist():
        kept[place] = not is_figure(trace.token_texts[place])
    return trace.margins, trace.agree, kept


def _traces(rows: Sequence[tuple[int, int, Floats, int]]) -> Traces:
    begin, tokens, sums, problem = (np.array(column) for column in zip(*rows, strict=True))
    return Traces(begin, tokens, sums, problem)


def _occurrences(found: Sequence[tuple[Ints, Floats]]) -> Occurrences:
    size = len(OBJECTIVES)
    ints = np.concatenate([np.zeros((0, 7), np.int64), *(rows for rows, _ in found)])
    sums = np.concatenate([np.zeros((0, 2 * size)), *(running for _, running in found)])
    place, cue, trace, first, last, start, stop = ints.T.copy()
    return Occurrences(
        place, cue, trace, first, last, start, stop, before=sums[:, :size].copy(), after=sums[:, size:].copy()
    )
