"""Answers of several strategies to the same problems -> what each wins and loses. Needs numpy (extra `eval`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relaygen.analyse.grade import Grade, Verdict

Line = Mapping[str, Any]  # of measure.py
Judge = Callable[[str, str], Grade]
Interval = tuple[float, float]

_RESAMPLES = 10_000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million written tokens, in any currency."""

    large: float
    small: float


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy. `pass_at_1`: the mean over problems of the share of right samples, with its interval over problems;
    `difference` is the paired one to the baseline (None for the baseline itself). Fractions are 0 to 1, means are over
    answers. `agreement`: how often the answer equals the baseline's, where that has one."""

    strategy: str
    policy: str
    verdicts: Mapping[Verdict, int]
    pass_at_1: float
    interval: Interval
    difference: float | None
    difference_interval: Interval | None
    agreement: float | None
    small_share: float
    handovers: float
    tokens: float
    seconds: float
    cost: float | None
    cut: int  # answers that ended at the token budget

    @property
    def num_answers(self) -> int:
        return sum(self.verdicts.values())

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def evaluate(lines: Sequence[Line], judge: Judge, *, prices: Prices | None = None) -> list[Row]:
    """Rows in the order of the lines' strategies. The baseline is `large`, or the first one where there is no `large`; only
    problems that all strategies have answered count, so that they are compared on the same ones."""
    by_strategy: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_strategy[line["strategy"]].append(line)
    shared = set[str].intersection(*({line["id"] for line in of} for of in by_strategy.values()))
    by_strategy = {name: [line for line in of if line["id"] in shared] for name, of in by_strategy.items()}
    grades = {
        name: [judge(final(line), line["reference"]) for line in of] for name, of in by_strategy.items()
    }
    right = {name: _by_problem(of, grades[name]) for name, of in by_strategy.items()}
    baseline = "large" if "large" in by_strategy else next(iter(by_strategy), "")
    return [
        _row(
            of,
            grades[name],
            right[name],
            None if name == baseline else right[baseline],
            None if name == baseline else _agreement(of, by_strategy[baseline], grades[baseline], judge),
            prices,
        )
        for name, of in by_strategy.items()
    ]


def final(line: Line) -> str:
    """The text in which to look for the answer."""
    return line["answer"] if line["reasoning"] else line["text"]


def bootstrap(values: NDArray[np.float64]) -> Interval:
    """Percentile interval of the mean, drawing problems with replacement (Efron 1979): 95 %, fixed seed."""
    if not len(values):
        return 0.0, 0.0
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (_RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def _row(
    lines: Sequence[Line],
    grades: Sequence[Grade],
    right: NDArray[np.float64],
    baseline: NDArray[np.float64] | None,
    agreement: float | None,
    prices: Prices | None,
) -> Row:
    large, small = (sum(line["usage"][f"{who}_tokens"] for line in lines) for who in ("large", "small"))
    count = max(1, len(lines))
    return Row(
        lines[0]["strategy"] if lines else "",
        lines[0]["policy"] if lines else "",
        Counter(grade.verdict for grade in grades),
        float(right.mean()) if len(right) else 0.0,
        bootstrap(right),
        None if baseline is None else float((right - baseline).mean()),
        None if baseline is None else bootstrap(right - baseline),
        agreement,
        small / max(1, large + small),
        sum(_handovers(line) for line in lines) / count,
        (large + small) / count,
        sum(line.get("timings", {}).get("total_ms", 0.0) for line in lines) / count / 1000,
        (large * prices.large + small * prices.small) / 1e6 / count if prices else None,
        sum(line["finish_reason"] == "length" for line in lines),
    )


def _by_problem(lines: Sequence[Line], grades: Sequence[Grade]) -> NDArray[np.float64]:
    """The share of right samples of each problem, in the order of their ids."""
    samples: dict[str, list[bool]] = defaultdict(list)
    for line, grade in zip(lines, grades, strict=True):
        samples[line["id"]].append(grade.verdict is Verdict.RIGHT)
    return np.array([np.mean(samples[name]) for name in sorted(samples)], dtype=float)


def _agreement(
    lines: Sequence[Line], baseline: Sequence[Line], grades: Sequence[Grade], judge: Judge
) -> float | None:
    """Over the answers where one was found in the baseline's text."""
    found = {(line["id"], line["sample"]): grade.found for line, grade in zip(baseline, grades, strict=True)}
    told = [
        judge(final(line), other).verdict is Verdict.RIGHT
        for line in lines
        if (other := found.get((line["id"], line["sample"])))
    ]
    return sum(told) / len(told) if told else None


def _handovers(line: Line) -> int:
    authors = [segment["author"] for segment in line["segments"]]
    return sum(a != b for a, b in pairwise(authors))
