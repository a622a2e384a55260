"""The metrics of several workers as one: each tells its own counts, and here they are added up. Pure.

What ended workers have counted stays in the sums, so that no counter ever goes back: Prometheus would take that for a restart
and count the rest anew. What they had at work does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from relaygen.types import Author

Sample = tuple[str, dict[str, str], float]  # name, labels, value
Family = tuple[
    str, str, str, list[Sample]
]  # name, documentation, type, samples: plain, so that it can be sent

SHARE = "relaygen_small_share"
_LEAST = frozenset(("relaygen_replica_alive",))  # 0 while any worker has it out
_Key = tuple[str, tuple[tuple[str, str], ...]]


def counts(registry: Collector) -> list[Family]:
    """All that `registry` shows now, without the times at which counters were made."""
    return [
        (
            family.name,
            family.documentation,
            family.type,
            [(s.name, dict(s.labels), s.value) for s in family.samples if not s.name.endswith("_created")],
        )
        for family in registry.collect()
    ]


def single(name: str, documentation: str, kind: str, value: float) -> Family:
    """A family of one value without labels."""
    suffix = "_total" if kind == "counter" else ""
    return name, documentation, kind, [(name + suffix, {}, value)]


@dataclass
class _Sum:
    documentation: str
    kind: str
    values: dict[_Key, float] = field(default_factory=dict[_Key, float])


class Totals(Collector):
    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}

    def add(self, families: Iterable[Family]) -> None:
        for name, documentation, kind, samples in families:
            known = self._sums.setdefault(name, _Sum(documentation, kind)).values
            for sample, labels, value in samples:
                key = sample, tuple(sorted(labels.items()))
                if name in _LEAST:
                    known[key] = min(value, known.get(key, value))
                else:
                    known[key] = value + known.get(key, 0.0)

    def add_ended(self, families: Iterable[Family]) -> None:
        """Of a worker that is no more."""
        self.add(family for family in families if family[2] != "gauge")

    def text(self, living: Iterable[Iterable[Family]]) -> bytes:
        """As Prometheus reads it: these sums and the counts of the `living` workers. The sums stay as they are."""
        everything = Totals()
        everything.add(counts(self))
        for families in living:
            everything.add(families)
        registry = CollectorRegistry()
        registry.register(everything)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        self._share_anew()
        for name, total in self._sums.items():
            metric = Metric(name, total.documentation, total.kind)
            for (sample, labels), value in total.values.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric

    def _share_anew(self) -> None:
        """A share is no sum of shares."""
        tokens, share = self._sums.get("relaygen_tokens"), self._sums.get(SHARE)
        if tokens and share:
            small = tokens.values.get(("relaygen_tokens_total", (("author", Author.SMALL.value),)), 0.0)
            total = sum(tokens.values.values())
            share.values = {(SHARE, ()): small / total if total else 0.0}
