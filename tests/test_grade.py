"""Grading: references against themselves in several notations, what cannot be graded, and answers that hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relaygen.analyse.grade import Grader, Verdict
from relaygen.errors import UserError
from tests.conftest import shared_lines


@pytest.fixture(scope="module")
def math() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


@pytest.mark.parametrize(
    ("answer", "reference", "verdict"),
    [
        ("so it is \\boxed{18}.", "18", "right"),
        ("She makes $18 every day.", "18", "right"),
        ("The answer is 17.", "18", "wrong"),
        ("\\boxed{27}", "27.0", "right"),
        ("\\boxed{(3, \\pi/2)}", "\\left( 3, \\frac{\\pi}{2} \\right)", "right"),
        ("#### 70,000", "70000", "right"),
        ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}", "right"),
        ("It is hard to say.", "18", "none"),
        ("", "18", "none"),
    ],
)
def test_maths(math: Grader, answer: str, reference: str, verdict: str) -> None:
    assert math.grade(answer, reference).verdict == verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gsm8k-dev", "math500-dev", "amc23"])
def test_each_reference_agrees_with_itself_in_several_notations(math: Grader, name: str) -> None:
    notations = (
        "\\boxed{{{}}}",
        "So the answer is $\\boxed{{{}}}$.",
        "The final answer is: ${}$",
        "\\[ \\boxed{{{}}} \\]",
    )
    failed = [
        (line["id"], notation, told)
        for line in shared_lines(f"{name}.jsonl")
        for notation in notations
        if (told := math.grade(notation.format(line["answer"]), str(line["answer"])).verdict) != "right"
    ]
    assert failed == []


@pytest.mark.parametrize(
    ("kind", "answer", "reference", "verdict"),
    [
        ("choice", "I choose \\boxed{B}", "B", "right"),
        ("choice", "The answer is (C)", "(B)", "wrong"),
        ("choice", "A or B? The correct answer is **D**.", "D", "right"),
        ("choice", "First (A) fails. Then (B) holds.\n\nB", "B", "right"),
        ("choice", "\\boxed{\\text{(E)}}", "E", "right"),
        ("choice", "no idea", "B", "none"),
        ("exact", "Paris \\boxed{ LYON }", "Lyon", "right"),
        ("exact", "Paris", "Lyon", "wrong"),
        ("exact", " ", "Lyon", "none"),
    ],
)
def test_letters_and_equality(kind: str, answer: str, reference: str, verdict: str) -> None:
    with Grader(kind) as grader:
        assert grader.grade(answer, reference).verdict == verdict


def test_a_function_of_the_users(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import time\n"
        "def judge(answer, reference):\n"
        "    print('noise')\n"
        "    if answer == 'hang': time.sleep(1000)\n"
        "    if answer == 'raise': 1 / 0\n"
        "    return None if not answer else answer == reference\n"
    )
    with Grader(f"{file}:judge", limit_s=0.5) as grader:
        assert [grader.grade(a, "4").verdict for a in ("4", "5", "")] == ["right", "wrong", "none"]
        assert grader.grade("hang", "4").verdict is Verdict.TIMEOUT
        with pytest.raises(UserError, match="ZeroDivisionError"):
            grader.grade("raise", "4")
        assert grader.grade("4", "4").verdict is Verdict.RIGHT


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("magic", "unknown way to grade 'magic': choose one of math"),
        ("nowhere.py:f", "there is no file nowhere.py"),
    ],
)
def test_a_wrong_kind_is_named(kind: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Grader(kind)
