"""Problem sets: our own word problems, and reading files of others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from relaygen.errors import UserError
from relaygen.tasks import problems
from relaygen.tasks.data import load
from relaygen.tasks.wordproblems import KINDS, MOST, generate
from tests.conftest import shared_lines


def numbers(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", text)]


# How a reader would find the answer, by trying; another way than the one that made the problem.
SOLVERS: dict[str, Callable[[list[int]], list[int]]] = {
    "coins": lambda n: [five for five in range(n[0] + 1) if 2 * (n[0] - five) + 5 * five == n[3]],
    "digits": lambda n: [
        10 * a + b for a in range(1, 10) for b in range(10) if a + b == n[0] and 9 * (a - b) == n[1]
    ],
    "lamps": lambda n: [next(s for s in range(1, 10**6) if all(s % every == 0 for every in n))],
    "numbers": lambda n: [a * (n[0] - a) for a in range(n[0]) if a - (n[0] - a) == n[1]],
    "yeast": lambda n: [n[0] * 2 ** (n[2] // n[1])],
    "remainder": lambda n: [math.prod([n[0]] * n[1]) % n[2]],
    "ages": lambda n: [age for age in range(100) if age * (n[0] + 1) + 2 * n[1] == n[2]],
    "growth": lambda n: [before for before in range(10**4) if before * (100 + n[0]) == n[1] * 100],
    "mast": lambda n: [rope for rope in range(1000) if rope**2 == n[0] ** 2 + n[1] ** 2],
    "field": lambda n: [w * n[0] * w for w in range(200) if 2 * w + 2 * n[0] * w == n[1]],
    "seats": lambda n: [sum(n[0] + n[1] * row for row in range(n[2]))],
    "average": lambda n: [t for t in range(1000) if n[0] * n[1] + t == n[2] * (n[0] + 1)],
}


@pytest.mark.parametrize("kind", SOLVERS)
def test_answers_are_right(kind: str) -> None:
    found = [p for p in generate(300) if p.id.startswith(f"{kind}-")]
    assert len(found) > 5
    for problem in found:
        assert SOLVERS[kind](numbers(problem.problem)) == [int(problem.answer)], problem


def test_the_same_seed_gives_the_same_problems_and_all_differ() -> None:
    found = generate(MOST, seed=3)
    assert found == generate(MOST, seed=3)
    assert found[:40] == generate(40, seed=3)
    assert found[0].problem != generate(1, seed=4)[0].problem
    assert len({p.problem for p in found}) == len({p.id for p in found}) == MOST
    assert {p.id.split("-")[0] for p in found} == {kind.__name__.strip("_") for kind in KINDS}


def test_as_many_as_there_are() -> None:
    for count in (0, MOST + 1):
        with pytest.raises(UserError, match=f"1 to {MOST} word problems"):
            generate(count)


def test_they_are_not_the_problems_that_pairs_are_tested_on() -> None:
    """No eight words in a row in common."""

    def runs(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"[a-z]+|\d+", text.lower())
        return {tuple(words[i : i + 8]) for i in range(len(words) - 7)}

    theirs = {
        run
        for name in ("gsm8k-dev.jsonl", "math500-dev.jsonl")
        for line in shared_lines(name)
        for run in runs(line["problem"])
    }
    assert not theirs & {run for problem in generate(MOST) for run in runs(problem.problem)}


def test_files_of_problems(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('\ufeff{"problem": "1+1?", "answer": 2}\n\n{"id": 7, "problem": "2+2?", "more": []}\n')
    assert problems.read(path) == [
        problems.Problem("own-1", "1+1?", "2"),
        problems.Problem("7", "2+2?"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no problems in it"),
        ('{"problem": "a"}\n{"question": "b"}', 'line 2: not a problem: "problem": field required'),
        ('{"problem": ""}', "at least 1 character"),
        (
            '{"question": "a", "key": 1}',
            "there is: question, key. Name what to take: --fields problem=COLUMN",
        ),
        ('{"problem": "a", "answer": [1]}', 'line 1: not a problem: "answer": '),
        ("[]", "line 1: not a problem"),
        ('{"problem": "a', "line 1: not a problem"),
        ('{"id": 1, "problem": "a"}\n{"id": "1", "problem": "b"}', "two problems have the id '1'"),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        problems.read(path)
    assert str(path) in str(caught.value)
    with pytest.raises(UserError, match=r"cannot read .*No such file"):
        problems.read(tmp_path / "none")


def test_csv_with_columns_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "own.CSV"
    path.write_text('\ufeffkey,question,solution\r\na,"1+1, or\n""two""?",2\r\n\r\n,2+2?,\r\n', newline="")
    found = load(str(path), "problem=question, answer=solution,id=key")
    assert found.problems == [
        problems.Problem("a", '1+1, or\n"two"?', "2"),
        problems.Problem("own-5", "2+2?"),
    ]
    assert (found.name, found.grading) == ("own.CSV", "math")
    path.write_text("problem,answer\n1+1?,2\n")
    assert load(str(path)).problems == [problems.Problem("own-2", "1+1?", "2")]


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("", None, "no problems in it"),
        ("problem,answer\n", None, "no problems in it"),
        (
            "question\n1?\n",
            None,
            'line 2: not a problem: "problem": field required; there is: question. Name',
        ),
        ("q,a\n1?,2\n", "problem=Q", "line 2: there is no 'Q', which --fields names; there is: q, a"),
        (
            "q,a\n1?,2\n,3\n",
            "problem=q",
            'line 3: not a problem: "q": string should have at least 1 character',
        ),
        ("problem,a\n1?,2,3\n", None, "line 2: 3 cells under 2 columns"),
        ("a,a\n", None, "two columns have the same name: a, a"),
        ('problem\n"1\n', None, "after line 2: not CSV in UTF-8: unexpected end of data"),
        ("problem\n\udcff\n", None, "not CSV in UTF-8"),
    ],
)
def test_faults_of_csv(tmp_path: Path, text: str, fields: str | None, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load(str(path), fields)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields", ["problem", "problem=", "question=problem", "problem=a,problem=b", "id=a,"]
)
def test_fields_that_say_nothing(tmp_path: Path, fields: str) -> None:
    with pytest.raises(UserError, match="give each of problem, id, answer at most once"):
        load(str(tmp_path / "p.jsonl"), fields)


@pytest.mark.parametrize(
    ("data", "fields", "message"),
    [
        ("gsm", None, "neither a file nor one of the known names, gsm8k, math500, aime25"),
        ("gsm8k", "problem=question", "the columns of gsm8k are known"),
        ("gsm8k@", None, "after the @ comes the folder with a copy of openai/gsm8k"),
        ("gsm8k@nowhere", None, "there is no folder nowhere to read gsm8k from"),
        ("ifeval", None, "ifeval is not offered: its prompts have no reference answers"),
    ],
)
def test_names_that_give_nothing(data: str, fields: str | None, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load(data, fields)
