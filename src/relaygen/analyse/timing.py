"""Passes of a bench -> what a user waits for, and where the time of a hand-over goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from relaygen.types import Result


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation, in milliseconds: first_token_ms + gaps_ms + handovers_ms + tail_ms = total_ms. The prompts' rendering
    is part of first_token_ms; the tail is what comes after the last token."""

    result: Result
    total_ms: float
    first_token_ms: float
    gaps_ms: tuple[float, ...]  # between two reads that brought tokens of one model
    handovers_ms: tuple[float, ...]  # from the last token of one model to the first of the other
    tail_ms: float


@dataclass(frozen=True, slots=True)
class Pass:
    """One group of prompts by one way, all at once. `number` is the same for all ways of a group."""

    way: str
    number: int
    wall_ms: float
    samples: tuple[Sample, ...]

    @property
    def tokens(self) -> int:
        return sum(sample.result.usage.completion_tokens for sample in self.samples)


@dataclass(frozen=True, slots=True)
class Spread:
    """The values' median, least and greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True, slots=True)
class Handover:
    """Means over hand-overs, in milliseconds; engines + network + own = whole. `engines` is their own report of reading (with
    the first new token), None where some request came without one; then network and own are None too. `network`: one
    round trip of a small request. `own` is the rest: our code, and what the servers do beside the model."""

    whole: float
    engines: float | None
    network: float | None
    own: float | None


@dataclass(frozen=True, slots=True)
class Way:
    """Times in milliseconds. `gap` is between two reads of one model that brought tokens; `tokens_per_s` of one answer, and
    `throughput` of all that were written at once, over the whole wall time. `untimed`: the part of the requests that came
    without times by the engine."""

    name: str
    answers: int
    tokens: int
    small_share: float
    handovers: int
    untimed: float
    first_token: Spread | None
    gap: Spread | None
    gap_p99: float | None
    handover: Spread | None
    split: Handover | None
    tokens_per_s: Spread | None
    throughput: float


def way(passes: Sequence[Pass], round_trip_ms: float | None) -> Way:
    """Of the passes of one way. `round_trip_ms`: of the two engines, the mean."""
    samples = [sample for one in passes for sample in one.samples]
    gaps = [gap for sample in samples for gap in sample.gaps_ms]
    handovers = [ms for sample in samples for ms in sample.handovers_ms]
    engines = [e for s in samples for e in (s.result.timings.large, s.result.timings.small)]
    requests, untimed = (sum(e.requests for e in engines), sum(e.untimed_requests for e in engines))
    tokens = sum(one.tokens for one in passes)
    return Way(
        passes[0].way,
        len(samples),
        tokens,
        sum(s.result.usage.small_tokens for s in samples) / tokens if tokens else 0.0,
        len(handovers),
        untimed / requests if requests else 0.0,
        Spread.of([s.first_token_ms for s in samples]),
        Spread.of(gaps),
        statistics.quantiles(gaps, n=100, method="inclusive")[-1] if len(gaps) > 1 else None,
        Spread.of(handovers),
        _split(samples, handovers, untimed, round_trip_ms),
        Spread.of([s.result.usage.completion_tokens / s.total_ms * 1000 for s in samples]),
        tokens / sum(one.wall_ms for one in passes) * 1000,
    )


def speed_up(passes: Sequence[Pass], name: str, baseline: str) -> Spread | None:
    """Wall time a token of `baseline` over that of `name`, group by group: over 1 is faster."""
    per_token = {(one.way, one.number): one.wall_ms / one.tokens for one in passes if one.tokens}
    ratios = [
        per_token[baseline, number] / ms
        for (way_name, number), ms in per_token.items()
        if way_name == name and (baseline, number) in per_token
    ]
    return Spread.of(ratios)


def _split(
    samples: Sequence[Sample], handovers: Sequence[float], untimed: int, round_trip_ms: float | None
) -> Handover | None:
    if not handovers:
        return None
    whole = statistics.fmean(handovers)
    if untimed or round_trip_ms is None:
        return Handover(whole, None, None, None)
    timings = [s.result.timings for s in samples]
    engines = sum(t.large.handover_prefill_ms + t.small.handover_prefill_ms for t in timings) / len(handovers)
    return Handover(whole, engines, round_trip_ms, whole - engines - round_trip_ms)
