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
from relaygen.errors import UserError

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
    seconds_interval: Interval
    cost: float | None
    cut: int  # answers that ended at the token budget

    @property
    def name(self) -> str:
        """For people: with the share that a `random` took."""
        return self.policy if self.strategy == "random" else self.strategy

    @property
    def num_answers(self) -> int:
        return sum(self.verdicts.values())

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A line of measure.py with its grade."""

    line: Line
    grade: Grade

    @property
    def id(self) -> str:
        return self.line["id"]

    @property
    def num_tokens(self) -> int:
        usage = self.line["usage"]
        return usage["large_tokens"] + usage["small_tokens"]

    @property
    def seconds(self) -> float:
        return self.line.get("timings", {}).get("total_ms", 0.0) / 1000

    @property
    def handovers(self) -> int:
        authors = [segment["author"] for segment in self.line["segments"]]
        return sum(a != b for a, b in pairwise(authors))

    @property
    def is_right(self) -> bool:
        return self.grade.verdict is Verdict.RIGHT

    @property
    def is_cut(self) -> bool:
        return self.line["finish_reason"] == "length"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`answers` are those that count, by strategy, in the order of `rows`. `left_out`: the problems that do not, since not
    all strategies have answered them. `baseline` is a strategy, or empty where nothing was answered."""

    rows: list[Row]
    answers: dict[str, list[Answer]]
    baseline: str
    left_out: list[str]


def evaluate(lines: Sequence[Line], judge: Judge, *, prices: Prices | None = None) -> Evaluation:
    """In the order of the lines' strategies. The baseline is `large`, or the first one where there is no `large`; only
    problems that all strategies have answered count, so that they are compared on the same ones."""
    by_strategy: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_strategy[line["strategy"]].append(line)
    seen = [{line["id"] for line in of} for of in by_strategy.values()]
    shared = set[str].intersection(*seen) if seen else set[str]()
    answers = {
        name: [Answer(line, judge(final(line), line["reference"])) for line in of if line["id"] in shared]
        for name, of in by_strategy.items()
    }
    baseline = "large" if "large" in answers else next(iter(answers), "")
    rows = [
        _row(
            name,
            by_strategy[name][0]["policy"],
            of,
            None if name == baseline else answers[baseline],
            judge,
            prices,
        )
        for name, of in answers.items()
    ]
    left_out = list(dict.fromkeys(line["id"] for line in lines if line["id"] not in shared))
    return Evaluation(rows, answers, baseline, left_out)


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
    strategy: str,
    policy: str,
    answers: Sequence[Answer],
    baseline: Sequence[Answer] | None,
    judge: Judge,
    prices: Prices | None,
) -> Row:
    usages = [answer.line["usage"] for answer in answers]
    large, small = (sum(usage[f"{who}_tokens"] for usage in usages) for who in ("large", "small"))
    count = max(1, len(answers))
    right = _by_problem(answers, lambda answer: answer.is_right)
    difference = None if baseline is None else right - _by_problem(baseline, lambda answer: answer.is_right)
    return Row(
        strategy,
        policy,
        Counter(answer.grade.verdict for answer in answers),
        _mean(right),
        bootstrap(right),
        None if difference is None else _mean(difference),
        None if difference is None else bootstrap(difference),
        None if baseline is None else _agreement(answers, baseline, judge),
        small / max(1, large + small),
        sum(answer.handovers for answer in answers) / count,
        (large + small) / count,
        sum(answer.seconds for answer in answers) / count,
        bootstrap(_by_problem(answers, lambda answer: answer.seconds)),
        (large * prices.large + small * prices.small) / 1e6 / count if prices else None,
        sum(answer.is_cut for answer in answers),
    )


def _by_problem(answers: Sequence[Answer], value: Callable[[Answer], float]) -> NDArray[np.float64]:
    """The mean of each problem's samples, in the order of the problems' ids."""
    samples: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        samples[answer.id].append(value(answer))
    return np.array([np.mean(samples[name]) for name in sorted(samples)], dtype=float)


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _agreement(answers: Sequence[Answer], baseline: Sequence[Answer], judge: Judge) -> float | None:
    """Over the answers where one was found in the baseline's text."""
    found = {(one.id, one.line["sample"]): one.grade.found for one in baseline}
    told = [
        agrees
        for one in answers
        if (other := found.get((one.id, one.line["sample"])))
        and (agrees := _agrees(final(one.line), other, judge)) is not None
    ]
    return sum(told) / len(told) if told else None


def _agrees(answer: str, other: str, judge: Judge) -> bool | None:
    try:
        return judge(answer, other).verdict is Verdict.RIGHT
    except UserError:  # what stands in a model's text need not be readable as a reference
        return None
