"""What /metrics shows, in Prometheus' text format."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from relaygen.engines.base import Engine
from relaygen.engines.replicas import Replicas
from relaygen.errors import EngineError
from relaygen.gateway.totals import SHARE
from relaygen.types import Author, Event, Finish, Reason, Switch, Token

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_SLOW_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    def __init__(self, active: Callable[[], float], queued: Callable[[], float]) -> None:
        self.registry = r = CollectorRegistry()
        self.num_tokens = dict.fromkeys(Author, 0)
        r.register(_TokenCollector(self.num_tokens))
        self._turns = Counter(
            "relaygen_turns", "Turns, by author and by why they ended.", ["author", "reason"], registry=r
        )
        self._handover = Histogram(
            "relaygen_handover_seconds",
            "From the end of a turn to the other model's first token.",
            ["to"],
            buckets=_FAST_S,
            registry=r,
        )
        self._first = Histogram(
            "relaygen_first_token_seconds",
            "From the request to its first token.",
            buckets=_SLOW_S,
            registry=r,
        )
        self.inter = Gaps("relaygen_inter_token_seconds", "Between tokens of one turn.", _FAST_S)
        r.register(self.inter)
        self._requests = Counter(
            "relaygen_requests", "Requests, by path and HTTP status.", ["path", "status"], registry=r
        )
        self._errors = Counter("relaygen_engine_errors", "Failures of engines.", ["type"], registry=r)
        self._failovers = Counter(
            "relaygen_failovers", "Generations that went on without their small model.", registry=r
        )
        Gauge("relaygen_active_generations", "Generations at work.", registry=r).set_function(active)
        Gauge("relaygen_queued_generations", "Generations waiting.", registry=r).set_function(queued)
        Gauge(SHARE, "Share of all tokens by the small model.", registry=r).set_function(self._share)
        self.handover = {author: self._handover.labels(author.value) for author in Author}
        self.first = self._first

    def watch(self, engines: Mapping[Author, Engine]) -> None:
        """Shows the replicas of those that have some."""
        groups = {author: engine for author, engine in engines.items() if isinstance(engine, Replicas)}
        if groups:
            self.registry.register(_ReplicaCollector(groups))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def request(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def error(self, error: BaseException) -> None:
        if isinstance(error, EngineError):
            self._errors.labels(type(error).__name__).inc()

    def turn(self, event: Switch | Finish) -> None:
        self._turns.labels(event.author.value, event.reason.value).inc()
        if event.reason is Reason.SMALL_FAILED:
            self._failovers.inc()

    def _share(self) -> float:
        total = sum(self.num_tokens.values())
        return self.num_tokens[Author.SMALL] / total if total else 0.0


class _TokenCollector(Collector):
    """Plain numbers, read when somebody asks: the library's counters take a lock, which is dear once a token."""

    def __init__(self, num_tokens: Mapping[Author, int]) -> None:
        self._num_tokens = num_tokens

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily("relaygen_tokens", "Completion tokens written.", labels=("author",))
        for author, number in self._num_tokens.items():
            family.add_metric((author.value,), number)
        yield family


class Gaps(Collector):
    """A histogram of seconds, in plain numbers too."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float]) -> None:
        self._name, self._documentation = name, documentation
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._buckets, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        names = [*(str(float(bound)) for bound in self._buckets), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum_s)


class _ReplicaCollector(Collector):
    """Read from the engines when somebody asks: they count for themselves."""

    def __init__(self, groups: Mapping[Author, Replicas]) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        labels = ("author", "address")
        alive = GaugeMetricFamily("relaygen_replica_alive", "1, or 0 while it is taken out.", labels=labels)
        active = GaugeMetricFamily("relaygen_replica_sessions", "Generations that keep to it.", labels=labels)
        failures = CounterMetricFamily(
            "relaygen_replica_failures", "Requests that failed there.", labels=labels
        )
        failovers = CounterMetricFamily(
            "relaygen_replica_failovers", "Of those, the ones that another replica took over.", labels=labels
        )
        for author, group in self._groups.items():
            for replica in group.replicas:
                where = (author.value, replica.address)
                alive.add_metric(where, replica.alive)
                active.add_metric(where, replica.active)
                failures.add_metric(where, replica.failures)
                failovers.add_metric(where, replica.failovers)
        yield from (alive, active, failures, failovers)


class Watch:
    """The metrics of one generation, from its events. `begun`: when its request came, by time.perf_counter."""

    def __init__(self, metrics: Metrics, begun: float) -> None:
        self._metrics = metrics
        self._begun = begun
        self._last: float | None = None  # when the last token came
        self._handed_over: float | None = None
        self.first_token_s: float | None = None

    def note(self, events: Sequence[Event]) -> None:
        now = time.perf_counter()
        number, author = 0, None
        for event in events:
            if isinstance(event, Token):
                number += len(event.token_ids) or 1
                author = event.author
            else:
                self._count(number, author, now)
                number = 0
                self._metrics.turn(event)
                if isinstance(event, Switch) and event.to is not event.author:
                    self._handed_over = now
        self._count(number, author, now)

    def _count(self, number: int, author: Author | None, now: float) -> None:
        if not number or author is None:
            return
        self._metrics.num_tokens[author] += number
        if self._last is None:
            self.first_token_s = now - self._begun
            self._metrics.first.observe(self.first_token_s)
        elif self._handed_over is not None:
            self._metrics.handover[author].observe(now - self._handed_over)
        else:
            self._metrics.inter.observe((now - self._last) / number)
        self._last, self._handed_over = now, None
