"""Problems x strategies x samples -> answers, in a folder. A run that was killed goes on where it stopped.

    settings.json    what was asked, and of whom; a run is resumed with the same settings only
    journal.jsonl    one line a finished generation, as they finish: a trace with strategy, problem and times
    answers.jsonl    the same in order and without times: equal bytes for equal answers, however often the run was killed
    sessions.jsonl   one line a start that had something to do: with what command, on what machine

A generation that failed is no answer: it is tried again, twice now and once more with each resumption.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from relaygen import strategies, trace
from relaygen.errors import EngineError, RelayError, UserError
from relaygen.profile import Profile
from relaygen.run import Pair, Run
from relaygen.tasks.problems import Problem
from relaygen.types import Message, Reason, Result, Sampling
from relaygen.waiting import together

_TRIES = 3
Key = tuple[str, str, int]  # strategy, problem, sample
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A policy with a profile. The policy `random` without a number takes the share that the first relaying strategy before
    it gave to the small model."""

    name: str
    policy: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class Plan:
    """`prompt` holds {problem}. `max_tokens` is the budget over both models, `concurrency` how many generations run at
    once."""

    problems: Sequence[Problem]
    strategies: Sequence[Strategy]
    samples: int = 1
    prompt: str = "{problem}"
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0, seed=0))
    max_tokens: int = 2048
    concurrency: int = 1

    @property
    def num_generations(self) -> int:
        return len(self.problems) * len(self.strategies) * self.samples

    def settings(self) -> Line:
        """What must be equal for a run to be resumed: all that an answer depends on but the models."""
        texts = orjson.dumps([[p.id, p.problem, p.answer] for p in self.problems])
        return {
            "problems": len(self.problems),
            "problems_sha256": hashlib.sha256(texts).hexdigest(),
            "strategies": {s.name: [s.policy, s.profile.model_dump(mode="json")] for s in self.strategies},
            "samples": self.samples,
            "prompt": self.prompt,
            "sampling": {name: getattr(self.sampling, name) for name in self.sampling.__slots__},
            "max_tokens": self.max_tokens,
        }


class Journal:
    """The lines of a run by key. A last line that was cut by a kill is taken off the file."""

    def __init__(self, folder: Path, settings: Line) -> None:
        self._path = folder / "journal.jsonl"
        self.answers_path = folder / "answers.jsonl"
        self.lines: dict[Key, Line] = {}
        self._sessions_path = folder / "sessions.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _same_settings(folder / "settings.json", settings)
            self._read()
            self._file = self._path.open("ab")
        except OSError as error:
            raise UserError(f"cannot keep the answers in {folder}: {error.strerror}") from None

    def add(self, line: Line) -> None:
        try:
            self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            self._file.flush()
        except OSError as error:
            raise UserError(f"cannot write to {self._path}: {error.strerror}") from None
        self.lines[_key(line)] = line

    def note(self, session: Line) -> None:
        with self._sessions_path.open("ab") as file:
            file.write(orjson.dumps(session, option=orjson.OPT_APPEND_NEWLINE))

    @property
    def is_noted(self) -> bool:
        return self._sessions_path.exists()

    def close(self, order: Sequence[Key]) -> None:
        """Write answers.jsonl, the answers in this order."""
        self._file.close()
        part = self.answers_path.with_suffix(".part")
        with part.open("wb") as file:
            for key in order:
                if line := self.lines.get(key):
                    file.write(orjson.dumps(_without_times(line), option=orjson.OPT_APPEND_NEWLINE))
        part.replace(self.answers_path)

    def share(self, strategy: str) -> float:
        """The small model's share of all the tokens of a strategy, 0 to 1."""
        usages = [line["usage"] for (name, _, _), line in self.lines.items() if name == strategy]
        small, large = (sum(usage[f"{who}_tokens"] for usage in usages) for who in ("small", "large"))
        return small / (small + large) if small else 0.0

    def _read(self) -> None:
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self._path, whole)
        for number, text in enumerate(data[:whole].splitlines(), 1):
            try:
                line: Line = orjson.loads(text)
                self.lines[_key(line)] = line
            except (orjson.JSONDecodeError, KeyError, TypeError):
                raise UserError(f"{self._path}, line {number}: not a line of a journal") from None


async def measure(
    pair: Pair,
    plan: Plan,
    folder: Path,
    *,
    models: Mapping[str, str],
    session: Mapping[str, Any] | None = None,
    on_done: Callable[[], None],
) -> tuple[list[Line], list[str]]:
    """Make what is not in `folder` yet. Returns the lines in order, and what failed in spite of all tries. `session` is kept
    with the answers: where and how they were made, which may differ from one start to the next."""
    journal = Journal(folder, {**plan.settings(), "models": dict(models)})
    failures: list[str] = []
    order = [(s.name, p.id, n) for s in plan.strategies for p in plan.problems for n in range(plan.samples)]
    try:
        if session and not (journal.is_noted and all(key in journal.lines for key in order)):
            journal.note(dict(session))
        for strategy in plan.strategies:
            policy = _policy(strategy, plan, journal)
            await _work(pair, plan, strategy, policy, journal, failures, on_done)
    finally:
        journal.close(order)
    return [journal.lines[key] for key in order if key in journal.lines], failures


async def _work(
    pair: Pair,
    plan: Plan,
    strategy: Strategy,
    policy: str,
    journal: Journal,
    failures: list[str],
    on_done: Callable[[], None],
) -> None:
    jobs = iter([(p, n) for p in plan.problems for n in range(plan.samples)])

    async def worker() -> None:
        for problem, sample in jobs:
            if (strategy.name, problem.id, sample) not in journal.lines:
                try:
                    result = await _answer(pair, plan, strategy, policy, problem, sample)
                except RelayError as error:
                    failures.append(f"{strategy.name}, {problem.id}: {error}")
                else:
                    journal.add(_line(strategy.name, policy, problem, sample, result))
            on_done()

    async with together() as tasks:
        for _ in range(plan.concurrency):
            tasks.create_task(worker())


async def _answer(
    pair: Pair, plan: Plan, strategy: Strategy, policy: str, problem: Problem, sample: int
) -> Result:
    made = strategies.make_policy(policy, strategy.profile)
    sampling = replace(plan.sampling, seed=_seed(plan.sampling.seed or 0, problem.id, sample))
    for tries_left in reversed(range(_TRIES)):
        run = Run(
            pair,
            [Message("user", plan.prompt.replace("{problem}", problem.problem))],
            policy=made,
            sampling=sampling,
            max_tokens=plan.max_tokens,
            metadata={"profile": strategy.profile.name},
        )
        try:
            async with aclosing(run.events()) as events:
                async for _ in events:
                    pass
            result = run.result()
            if (len(made.authors) == 2 and result.metadata["policy"] != made.name) or _small_failed(result):
                raise EngineError(
                    result.warnings[-1]
                )  # an answer of the large model alone says nothing of relaying
            return result
        except RelayError as error:
            if not (error.retryable and tries_left):
                raise
            await asyncio.sleep(1.0)
    raise AssertionError("the last try returns or raises")


def sessions(folder: Path) -> list[Line]:
    """What `measure` was told of each start."""
    found: list[Line] = []
    path = folder / "sessions.jsonl"
    for text in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(orjson.JSONDecodeError):  # cut by a kill
            found.append(orjson.loads(text))
    return found


def _small_failed(result: Result) -> bool:
    return any(segment.reason is Reason.SMALL_FAILED for segment in result.segments)


def _policy(strategy: Strategy, plan: Plan, journal: Journal) -> str:
    if strategy.policy != "random":
        return strategy.policy
    for other in plan.strategies:
        if other is strategy:
            break
        if other.policy not in ("large", "small"):
            return f"random:{journal.share(other.name):.4f}"
    raise UserError(
        "random without a number takes the share of a relaying strategy: name one before it, or give random:0.4"
    )


def _seed(seed: int, problem: str, sample: int) -> int:
    """The same for all strategies, so that they are compared on equal draws; below 2**31."""
    digest = hashlib.blake2b(f"{seed}:{problem}:{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def _line(strategy: str, policy: str, problem: Problem, sample: int, result: Result) -> Line:
    asked = {"id": problem.id, "problem": problem.problem, "reference": problem.answer}
    return {"strategy": strategy, "policy": policy, "sample": sample, **asked, **trace.to_json(result)}


def _key(line: Line) -> Key:
    return line["strategy"], line["id"], line["sample"]


def _without_times(line: Line) -> Line:
    return {name: value for name, value in line.items() if name != "timings"}


def _same_settings(path: Path, settings: Line) -> None:
    if not path.exists():
        path.write_bytes(orjson.dumps(settings, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        return
    known: Line = orjson.loads(path.read_bytes())
    if changed := ", ".join(_different(known, orjson.loads(orjson.dumps(settings)))):
        raise UserError(f"{path.parent} holds a run with other settings ({changed}): choose another folder")


def _different(old: Line, new: Line) -> Iterator[str]:
    return (name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
