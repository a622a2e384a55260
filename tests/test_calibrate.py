"""relaygen calibrate: traces and scores that survive a kill, the choice, and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import pytest_asyncio

from relaygen import profile as profiles
from relaygen import trace
from relaygen.analyse import scored
from relaygen.analyse.calibration import Question, as_profile, both, choose
from relaygen.calibrate import Writing, same_settings, score_trace, score_traces, write_traces
from relaygen.engines.base import Engine
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.errors import UserError
from relaygen.tasks.wordproblems import generate
from relaygen.trace import Trace
from relaygen.types import Sampling
from tests.asking import engine_of
from tests.conftest import start
from tests.scored_traces import corpus
from tests.test_scoring import ObedientLlamaCpp, ScoringVllm

PROBLEMS = generate(3)
WRITING = Writing(Sampling(temperature=0.7, seed=5), max_tokens=12, concurrency=2)


def nothing() -> None:
    pass


def opens(
    engine: Engine, count: list[int] | None = None
) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Engine]:
        if count is not None:
            count.append(1)
        yield engine

    return opened


# --- traces and scores


@pytest_asyncio.fixture
async def invariant(smollm2: Path) -> AsyncGenerator[LlamaCppEngine]:
    """Else what else is in a batch moves the margins, of one short trace by 0.02 on average and more."""
    async with AsyncExitStack() as stack:
        yield await start(stack, smollm2, context_tokens=2048, num_slots=2, batch_invariant=True)


@pytest.mark.weights
async def test_a_cut_file_goes_on_where_it_was(invariant: LlamaCppEngine, tmp_path: Path) -> None:
    path, read = tmp_path / "traces.jsonl", tmp_path / "scored.jsonl"
    own = tmp_path / "own.jsonl"
    whole = await write_traces(opens(invariant), PROBLEMS, path, WRITING, scored_path=own, on_done=nothing)
    assert [one.id for one in whole] == [problem.id for problem in PROBLEMS]
    assert all(one.problem == p.problem and one.pieces for one, p in zip(whole, PROBLEMS, strict=True))
    scores = await score_traces(opens(invariant), whole, read, is_own=True, concurrency=2, on_done=nothing)
    assert [one.token_ids for one in scores] == [one.token_ids for one in whole]
    assert all(0 <= margin <= 1 for one in scores for margin in one.margins)
    while_written = {one.id: one for one in scored.read(own)}
    for one in scores:  # the same figures while it is written, and of what is written
        margins = while_written[one.id].margins
        assert fmean(abs(a - b) for a, b in zip(one.margins, margins, strict=True)) < 0.02
        assert while_written[one.id].scorer == one.scorer == one.model
    before = path.read_bytes(), read.read_bytes()
    for file in (path, read):
        file.write_bytes(file.read_bytes()[:-9])  # the last line is cut
    kept = [file.read_bytes().rsplit(b"\n", 1)[0] for file in (path, read)]
    opened: list[int] = []
    again = await write_traces(opens(invariant, opened), PROBLEMS, path, WRITING, on_done=nothing)
    assert [one.problem for one in again] == [one.problem for one in whole]
    await score_traces(opens(invariant, opened), again, read, is_own=True, concurrency=2, on_done=nothing)
    assert len(opened) == 2
    for file, lines, old in zip((path, read), kept, before, strict=True):
        assert file.read_bytes().startswith(lines + b"\n")
        assert file.read_bytes().count(b"\n") == old.count(b"\n") == 3
    await write_traces(opens(invariant, opened), PROBLEMS, path, WRITING, on_done=nothing)
    assert len(opened) == 2  # nothing was left to do


async def test_ids_of_another_vocabulary_are_refused() -> None:
    async with engine_of(ScoringVllm()) as engine:
        ids = await engine.tokenize("So, 2.")
        good = await score_trace(engine, Trace("a", "So, 2.", "L", "1+1?", token_ids=tuple(ids)))
        other = Trace("b", "So, 2.", "L", "1+1?", token_ids=tuple(i + 1 for i in ids))
        with pytest.raises(UserError, match="trace b: its token_ids do not spell its text to toy"):
            await score_trace(engine, other)
        assert (await score_trace(engine, other, is_own=True)).token_ids == good.token_ids
        bare = await score_trace(engine, Trace("c", "So, 2.", "L", "1+1?"))
        assert (bare.token_ids, bare.margins) == (good.token_ids, good.margins)
        with pytest.raises(UserError, match="trace d: no `problem` in it"):
            await score_trace(engine, Trace("d", "So, 2."))


async def test_the_first_error_ends_all(tmp_path: Path) -> None:
    traces = [Trace(str(n), "So, 2.", "L", "" if n == 1 else "1+1?") for n in range(9)]
    async with engine_of(ObedientLlamaCpp()) as engine:
        with pytest.raises(UserError, match="trace 1: no `problem`"):
            await score_traces(
                opens(engine), traces, tmp_path / "s.jsonl", is_own=False, concurrency=3, on_done=nothing
            )


def test_a_folder_belongs_to_one_calibration(tmp_path: Path) -> None:
    same_settings(tmp_path / "new", {"large": "a"})
    same_settings(tmp_path / "new", {"large": "a"})
    with pytest.raises(UserError, match="holds the traces of another calibration"):
        same_settings(tmp_path / "new", {"large": "b"})


# --- the choice

OPENERS = {"So|,": 0.95, "Thus|,": 0.9, "Wait|,": 0.5, "Zudem|,": 0.93}
BASE = profiles.load("generic")


@pytest.mark.parametrize("method", ["budget", "ci", "paper"])
def test_the_profile_holds_the_choice_and_its_evidence(method: Any) -> None:
    traces, question = corpus(OPENERS), Question(method, share=0.3)
    found = choose(traces, BASE, question)
    made = as_profile(
        found, BASE, question, name="mine", scored=traces, data="made-up problems", day=date(2026, 12, 2)
    )
    assert profiles.parse(profiles.dump(made), "mine.toml") == made
    assert "So," in made.cues
    assert not {"Wait,", "Wait"} & set(made.cues)
    assert ("Zudem" in " ".join(made.cues)) == (
        method != "paper"
    )  # the traces suggest it, the paper's list does not
    assert made.limits == BASE.limits
    evidence = made.evidence
    assert evidence["date"] == date(2026, 12, 2)
    assert (evidence["problems"], evidence["traces"], evidence["scored_by"]) == (20, 40, "S")
    assert evidence["cues"]["So,"][3] == pytest.approx(0.92, abs=0.05)
    if method == "budget":
        assert evidence["expected"]["share"] == pytest.approx(0.3, abs=0.05)
    assert evidence["held_out"]["held_back"]["margin"] > evidence["all_tokens"]["margin"]


def test_too_few_problems_and_other_languages() -> None:
    with pytest.raises(UserError, match="of 5 problems, too few"):
        choose(corpus(OPENERS, traces=10), BASE, Question())
    german = choose(corpus({"Also|,": 0.7, "Deshalb|,": 0.95}, words=(" die", " Zahl")), BASE, Question("ci"))
    assert "Deshalb," in german.selection.cues
    foreign = corpus({"所以|，": 0.95}, words=("的", "数"), end="。", gap="")
    found = choose(foreign, BASE, Question("ci"))
    assert any("所以" in cue for cue in found.selection.cues)
    assert any("is their language English?" in warning for warning in found.warnings)
    with pytest.raises(UserError, match="no cue passed"):
        choose(foreign, BASE, Question("paper"))
    assert any("only 20 problems" in warning for warning in found.warnings)
    assert not any("open formulas" in warning for warning in found.warnings)


def test_cues_that_are_no_words_come_with_a_warning() -> None:
    found = choose(corpus({"So|,": 0.8, "\\[|": 0.97}), BASE, Question(share=0.3))
    assert "\\[" in found.selection.cues
    assert any(warning.startswith("'\\\\[' open formulas") for warning in found.warnings)


def test_two_scorers_are_as_sure_as_the_less_sure_one() -> None:
    first, second = corpus(OPENERS), corpus(OPENERS, seed=0, rest=0.6)
    for a, b, one in zip(first, second, both(first, second), strict=True):
        assert one.margins == tuple(map(min, a.margins, b.margins))
        assert one.scorer == "S and S"
    with pytest.raises(UserError, match="different vocabularies"):
        both(first, corpus(OPENERS, sentences=10))


# --- the command


def command(tmp_path: Path, *args: str) -> list[str]:
    pair = ["--large", "smollm2-135m", "--small", "smollm2-135m", "--out", str(tmp_path / "pair.toml")]
    return [sys.executable, "-m", "relaygen", "calibrate", *pair, *args]


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("smollm2")
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    args = command(tmp_path, "--problems", "10", "--max-tokens", "24", "--context", "256", "--json")
    folder = tmp_path / "pair.calibration"
    for name in ("traces.jsonl", "scored-small.jsonl"):
        with subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while len(lines(folder / name)) < 3:
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        assert not (tmp_path / "pair.toml").exists()
    kept = {name: (folder / name).read_bytes() for name in ("traces.jsonl", "scored-small.jsonl")}
    html = tmp_path / "pair.html"
    done = subprocess.run([*args, "--html", str(html)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr  # too little text to choose from is no fault of the run
    if done.returncode == 0:
        assert json.loads(done.stdout)["cues"] == list(profiles.load(tmp_path / "pair.toml").cues)
        assert "<svg" in html.read_text()
    else:
        assert "no cue passed" in done.stderr
    for name, before in kept.items():
        assert (folder / name).read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    ids = [p.id for p in generate(10)]
    assert sorted(one.id for one in trace.read(folder / "traces.jsonl")) == sorted(ids)
    assert sorted(one.id for one in scored.read(folder / "scored-small.jsonl")) == sorted(ids)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--out", "pair.txt"], "must be a .toml file"),
        (["--problems", "3"], "3 problems are too few"),
        (["--traces", "none.jsonl"], "cannot read none.jsonl"),
        (["--traces", "empty.jsonl"], "there are no traces in it"),
        (["--traces", "twice.jsonl"], "two of the traces have the id '1'"),
        (["--data", "few.jsonl", "--problems", "30"], "holds 1 problems, not 30"),
        (["--profile", "none"], "unknown profile"),
        (["--html", "no/where.html"], "its folder is not there"),
    ],
)
@pytest.mark.usefixtures("smollm2")
def test_bad_input_is_one_line(tmp_path: Path, args: list[str], message: str) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "twice.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    (tmp_path / "few.jsonl").write_text('{"problem": "1+1?"}\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command(tmp_path, *args), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.search(re.escape(message), done.stderr), done.stderr
    assert "Traceback" not in done.stderr
