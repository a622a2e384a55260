"""Measuring: killed and resumed runs give the same bytes; failures are no answers; and what the table is made of."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from relaygen import profile
from relaygen.analyse.evaluate import Prices, bootstrap, evaluate
from relaygen.analyse.grade import Grade, Verdict
from relaygen.engines.scripted import ScriptedEngine
from relaygen.errors import EngineCutError, EngineRefusedError, UserError
from relaygen.measure import Plan, Strategy, measure, sessions
from relaygen.report.evaluation import as_json, markdown, table
from relaygen.run import Pair
from relaygen.tasks.problems import Problem
from relaygen.types import Author

GENERIC = profile.load("generic")
TEXT = ["We", *" add| these| up| right| now.| Thus|,| it| is| 18|.| The| end|.".split("|")]
PROBLEMS = [Problem(f"p{n}", f"What is {n} + {n}?", "18") for n in range(5)]


class Killed(Exception): ...


def pair(**faults: Any) -> Pair:
    return Pair(
        {
            Author.LARGE: ScriptedEngine(TEXT, name="l"),
            Author.SMALL: ScriptedEngine(TEXT, name="s", **faults),
        }
    )


def plan(*policies: str, **options: Any) -> Plan:
    return Plan(PROBLEMS, [Strategy(name, name, GENERIC) for name in policies], **options)


async def run(
    folder: Path, plan: Plan, *, kill_after: int | None = None, pair_: Pair | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if done == kill_after:
            raise Killed

    return await measure(pair_ or pair(), plan, folder, models={"large": "l", "small": "s"}, on_done=count)


ALL = plan("large", "small", "segment", "random", samples=2, concurrency=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 39), min_size=1, max_size=4), st.binary(max_size=30))
def test_a_killed_run_goes_on_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], torn: bytes
) -> None:
    whole, folder = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    asyncio.run(run(whole, ALL))
    for kill in kills:
        with pytest.raises(ExceptionGroup):
            asyncio.run(run(folder, ALL, kill_after=kill))
        with (folder / "journal.jsonl").open("ab") as journal:
            journal.write(torn.replace(b"\n", b""))  # a line that was being written
    lines, failures = asyncio.run(run(folder, ALL))
    assert len(lines) == ALL.num_generations == 40
    assert not failures
    assert (folder / "answers.jsonl").read_bytes() == (whole / "answers.jsonl").read_bytes()
    journal = [orjson.loads(line) for line in (folder / "journal.jsonl").read_bytes().splitlines()]
    assert len(journal) == 40  # nothing twice


async def test_nothing_is_asked_again(tmp_path: Path) -> None:
    await run(tmp_path, ALL)
    again = pair()
    await run(tmp_path, ALL, pair_=again)
    assert all(isinstance(e, ScriptedEngine) and not e.requests for e in again.engines.values())


async def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    await run(tmp_path, plan("large"))
    with pytest.raises(UserError, match=r"other settings \(max_tokens\): choose another folder"):
        await run(tmp_path, plan("large", max_tokens=7))


async def test_random_takes_the_share_of_the_relay_before_it(tmp_path: Path) -> None:
    lines, _ = await run(tmp_path, plan("segment", "random"))
    small = sum(line["usage"]["small_tokens"] for line in lines if line["strategy"] == "segment")
    total = small + sum(line["usage"]["large_tokens"] for line in lines if line["strategy"] == "segment")
    assert lines[-1]["policy"] == f"random:{small / total:.4f}"
    assert small


async def test_random_alone_has_no_share_to_take(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"name one before it, or give random:0\.4"):
        await run(tmp_path, plan("large", "random"))


async def test_a_failure_is_tried_again_and_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_: float) -> None: ...

    monkeypatch.setattr("relaygen.measure.asyncio.sleep", at_once)
    once = pair(fail_at=9, error=EngineCutError("cut"), failures=2)
    lines, failures = await run(tmp_path / "a", plan("segment"), pair_=once)
    assert (len(lines), failures) == (5, [])
    assert not any(line["warnings"] for line in lines)
    never = pair(fail_at=9, error=EngineRefusedError("no"), failures=10**6)
    lines, failures = await run(tmp_path / "b", plan("segment"), pair_=never)
    assert lines == []
    assert failures[0].startswith("segment, p0: ")
    lines, failures = await run(tmp_path / "b", plan("segment"))
    assert (len(lines), failures) == (5, [])


def test_a_damaged_journal_is_refused_by_line(tmp_path: Path) -> None:
    asyncio.run(run(tmp_path, plan("large")))
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"nonsense\n" + journal.read_bytes())
    with pytest.raises(UserError, match=r"journal\.jsonl, line 1: not a line of a journal"):
        asyncio.run(run(tmp_path, plan("large")))


# ---- the table


def line(strategy: str, problem: str, text: str, **more: Any) -> dict[str, Any]:
    return {
        "strategy": strategy, "policy": strategy, "id": problem, "sample": 0, "reference": "1", "text": text,
        "reasoning": "", "answer": text, "finish_reason": "stop", "segments": [{"author": "large"}, {"author": "small"}],
        "usage": {"large_tokens": 6, "small_tokens": 4}, "timings": {"total_ms": 500.0}, **more,
    }  # fmt: skip


def judge(answer: str, reference: str) -> Grade:
    return (
        Grade(Verdict.NONE)
        if not answer
        else Grade(Verdict("right" if answer == reference else "wrong"), answer)
    )


def test_rows() -> None:
    lines = [line("large", f"p{n}", "1" if n < 6 else "2") for n in range(10)]
    lines += [line("relay", f"p{n}", "1" if n < 5 else "2" if n < 9 else "") for n in range(10)]
    lines += [line("relay", "p99", "1")]  # which large has not answered
    found = evaluate(lines, judge, prices=Prices(2.0, 1.0))
    large, relay = found.rows
    assert (found.baseline, found.left_out) == ("large", ["p99"])
    assert (large.pass_at_1, large.difference, large.agreement) == (0.6, None, None)
    assert (relay.pass_at_1, relay.num_answers, relay.agreement) == (0.5, 10, 0.8)
    assert relay.difference == pytest.approx(-0.1)
    assert relay.difference_interval is not None
    assert relay.difference_interval[0] < 0 <= relay.difference_interval[1]
    assert relay.verdicts == {Verdict.RIGHT: 5, Verdict.WRONG: 4, Verdict.NONE: 1}
    assert (relay.small_share, relay.handovers, relay.tokens, relay.tokens_per_s) == (0.4, 1.0, 10.0, 20.0)
    assert relay.cost == pytest.approx(16e-6)
    assert markdown([large, relay]).count("\n") == 4
    assert as_json([relay])[0]["none"] == 1


def test_strategies_that_share_no_problem() -> None:
    found = evaluate([line("large", "a", "1"), line("relay", "b", "1")], judge)
    assert [(row.strategy, row.num_answers) for row in found.rows] == [("large", 0), ("relay", 0)]
    assert found.left_out == ["a", "b"]
    assert evaluate([], judge).rows == []


def test_an_answer_that_is_no_reference_is_left_out_of_the_agreement() -> None:
    def strict(answer: str, reference: str) -> Grade:
        if reference == "nonsense":
            raise UserError("cannot be read")
        return judge(answer, reference)

    lines = [
        line("large", "a", "nonsense"),
        line("large", "b", "1"),
        line("relay", "a", "1"),
        line("relay", "b", "1"),
    ]
    assert evaluate(lines, strict).rows[1].agreement == 1.0


def test_the_terminal_shows_a_cost_where_there_are_prices() -> None:
    def shown(prices: Prices | None) -> str:
        console = Console(width=100, file=io.StringIO())
        console.print(table(evaluate([line("[b]large", "a", "1")], judge, prices=prices).rows))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    assert "[b]large" in shown(None)
    assert "cost" not in shown(None)
    assert "0.016" in shown(Prices(2.0, 1.0))


async def test_a_start_is_noted_once_if_it_has_something_to_do(tmp_path: Path) -> None:
    async def start(name: str, kill_after: int | None = None) -> None:
        def count() -> None:
            nonlocal kill_after
            kill_after = kill_after and kill_after - 1
            if kill_after == 0:
                raise Killed

        models = {"large": "l", "small": "s"}
        await measure(pair(), ALL, tmp_path, models=models, session={"command": name}, on_done=count)

    with pytest.raises(ExceptionGroup):
        await start("first", kill_after=3)
    await start("second")
    with (tmp_path / "sessions.jsonl").open("ab") as file:
        file.write(b'{"comm')
    await start("third")
    assert [session["command"] for session in sessions(tmp_path)] == ["first", "second"]


def test_the_interval_covers_what_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        low, high = bootstrap((rng.random(100) < 0.6).astype(float))
        covered += low <= 0.6 <= high
    assert 0.90 <= covered / 200 <= 0.99
