"""`relaygen eval`: from problems to a table, and bad input in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROBLEMS = (
    '{"id": "a", "problem": "What is 2 + 3?", "answer": "5"}\n'
    '{"id": "b", "problem": "What is 6 * 7?", "answer": "42"}\n'
)


def relaygen_eval(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relaygen", "eval", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "problems.jsonl"
    file.write_text(PROBLEMS)
    return file


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", "Solve it."], "--prompt must hold {problem}"),
        (["--strategies", "large,fast"], "unknown policy 'fast'"),
        (["--strategies", "random:2"], "the policy random needs a number between 0 and 1"),
        (["--strategies", "relay@nowhere"], "nowhere"),
        (["--prices", "1;2"], "--prices must be two numbers"),
        (["--grading", "magic"], "unknown way to grade 'magic'"),
        (["--large", "no-such-model"], "no-such-model"),
    ],
)
def test_bad_options_are_one_line(problems: Path, tmp_path: Path, options: list[str], message: str) -> None:
    done = relaygen_eval("--data", problems, "--out", tmp_path / "out", *options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_no_problems(tmp_path: Path) -> None:
    done = relaygen_eval("--data", tmp_path / "absent.jsonl", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("relaygen: cannot read")


@pytest.mark.slow
@pytest.mark.weights
def test_from_problems_to_a_table(problems: Path, tmp_path: Path, smollm2: Path) -> None:
    out = tmp_path / "out"
    options = [
        "--data",
        problems,
        "--out",
        out,
        "--large",
        smollm2,
        "--small",
        smollm2,
        "--max-tokens",
        "40",
        "--json",
    ]
    options += [
        "--strategies",
        "large,relay,random,relay+margin:0.3",
        "--concurrency",
        "2",
        "--prices",
        "2,1",
    ]
    done = relaygen_eval(*options)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["strategy"] for row in rows] == ["large", "relay", "random", "relay+margin:0.3"]
    assert all(row["answers"] == 2 for row in rows)
    answers = (out / "answers.jsonl").read_bytes()
    assert len(answers.splitlines()) == 8
    assert (out / "table.md").read_text().startswith("| strategy |")
    again = relaygen_eval(*options)
    assert json.loads(again.stdout)["rows"] == rows
    assert (out / "answers.jsonl").read_bytes() == answers
