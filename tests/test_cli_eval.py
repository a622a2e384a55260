"""`relaygen eval`: from problems to a table, and bad input in one line."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import chromium, page_at
from tests.test_replay import Seen

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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a", "problem": "What?"}', "the problem 'a' has no answer to grade by"),
        ('{"id": "a", "problem": "What?", "answer": "$$"}', "the reference answer '$$' cannot be read"),
    ],
)
def test_a_reference_that_cannot_be_graded_by(tmp_path: Path, line: str, message: str) -> None:
    """Before any model is asked: the addresses are of nobody."""
    file = tmp_path / "problems.jsonl"
    file.write_text(line)
    nobody = ("--large", "http://127.0.0.1:9", "--small", "http://127.0.0.1:9")
    done = relaygen_eval("--data", file, "--out", tmp_path / "out", *nobody)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_simulated_pair_and_its_report(problems: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "relaygen",
        "simulate",
        "--large",
        "5000:90000",
        "--small",
        "9000:90000",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as simulator:
        try:
            assert simulator.stdout
            urls = json.loads(simulator.stdout.readline())
            options = ["--data", problems, "--out", out, "--large", urls["large"], "--small", urls["small"]]
            options += [
                "--strategies",
                "large,small,relay,random",
                "--samples",
                "2",
                "--prices",
                "2,0.5",
                "--seed",
                "7",
            ]
            done = relaygen_eval(*options)
            again = relaygen_eval(*options, "--json")
        finally:
            simulator.terminate()
    assert done.returncode == 0, done.stderr
    assert "cost" in done.stdout
    assert str(out / "report.html") in done.stdout
    told = json.loads(again.stdout)
    assert told["made"]["sampling"]["seed"] == 7
    [session] = told["made"]["sessions"]  # the second start had nothing to do
    assert session["environment"]["engines"] == {"large": "vLLM", "small": "vLLM"}
    assert "--seed 7" in session["command"]
    answers = (out / "answers.jsonl").read_bytes()
    assert told["made"]["answers_sha256"] == hashlib.sha256(answers).hexdigest()
    seen = Seen()
    seen.feed((out / "report.html").read_text(encoding="utf-8"))
    by_problem = sorted((json.loads(line) for line in answers.splitlines()), key=lambda line: line["id"])
    assert seen.texts == [line["text"] for line in by_problem]
    assert seen.tags.count("svg") == 4
    with chromium() as browser, page_at(browser, (out / "report.html").as_uri()) as tab:
        expect(tab.locator(".problem:visible")).to_have_count(2)


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
    assert (out / "report.html").stat().st_size
    assert (out / "answers.jsonl").read_bytes() == answers
