"""Problem sets by name, read by the real `datasets` from folders laid out as the repositories of the hub are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from relaygen.errors import UserError
from relaygen.tasks.data import Data, load
from relaygen.tasks.named import NAMED
from tests.conftest import shared_lines

datasets: Any = pytest.importorskip("datasets")

CARD = "---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {file}\n---\n"
GPQA = {
    "Question": "Which is heaviest?\n",
    "Correct Answer": "lead\n",
    "Incorrect Answer 1": "foam",
    "Incorrect Answer 2": "cork",
    "Incorrect Answer 3": "silk",
    "Explanation": "Density.",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def lay_out(folder: Path, name: str, rows: list[dict[str, Any]], form: str = "parquet") -> Path:
    """Files and card as in the repository of that name."""
    named = NAMED[name]
    file = folder / f"{named.config or 'data'}/{named.split}-00000-of-00001.{form}"
    file.parent.mkdir(parents=True)
    table = datasets.Dataset.from_list(rows)
    {"parquet": table.to_parquet, "csv": table.to_csv, "jsonl": table.to_json}[form](file)
    card = CARD.format(config=named.config or "default", split=named.split, file=file.relative_to(folder))
    (folder / "README.md").write_text(card)
    return folder


def read(folder: Path, name: str, rows: list[dict[str, Any]], form: str = "parquet") -> Data:
    return load(f"{name}@{lay_out(folder / 'copy', name, rows, form)}")


def test_gsm8k_takes_the_number_after_the_solution(tmp_path: Path) -> None:
    solution = "She sells 9 * 130 = <<9*130=1170>>1,170 #1.\n#### 1,170"
    found = read(tmp_path, "gsm8k", [{"question": "How much?", "answer": solution}])
    (problem,) = found.problems
    assert (problem.id, problem.problem, problem.answer) == ("gsm8k-1", "How much?", "1170")
    assert found.grading == "math"
    assert "\\boxed{}" in found.prompt


@pytest.mark.parametrize(
    ("name", "column", "form"),
    [("math500", "problem", "jsonl"), ("aime25", "problem", "jsonl"), ("amc23", "question", "parquet")],
)
def test_maths_as_it_stands(tmp_path: Path, name: str, column: str, form: str) -> None:
    rows = [
        {column: line["problem"], "answer": line["answer"], "more": "x"}
        for line in shared_lines("amc23.jsonl" if name == "amc23" else "math500-dev.jsonl")[:9]
    ]
    found = read(tmp_path, name, rows, form).problems
    assert [(p.problem, p.answer) for p in found] == [(row[column], row["answer"]) for row in rows]
    assert len({p.id for p in found}) == 9


def test_gpqa_is_asked_by_letters_in_an_order_of_its_own(tmp_path: Path) -> None:
    rows = [{**GPQA, "Question": f"Which is heaviest? ({n})"} for n in range(40)]
    found = read(tmp_path, "gpqa-diamond", rows, "csv")
    assert found.grading == "choice"
    assert "letter" in found.prompt
    for problem in found.problems:
        options = dict(re.findall(r"(?m)^([A-D])\) (.+)$", problem.problem))
        assert sorted(options.values()) == ["cork", "foam", "lead", "silk"]
        assert options[problem.answer] == "lead"
    assert {problem.answer for problem in found.problems} == set("ABCD")
    fewer = load(f"gpqa-diamond@{lay_out(tmp_path / 'fewer', 'gpqa-diamond', rows[20:], 'csv')}").problems
    assert [p.problem for p in fewer] == [p.problem for p in found.problems[20:]]


def test_another_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no column 'question'; there is: problem, answer"):
        read(tmp_path, "gsm8k", [{"problem": "a", "answer": "#### 1"}])


def test_a_row_without_an_answer_is_not_passed_over(tmp_path: Path) -> None:
    for number, answer in enumerate(("18", "18 ####", None)):
        rows = [{"question": "a", "answer": "#### 1"}, {"question": "b", "answer": answer}]
        with pytest.raises(UserError, match="problem 2 has no answer"):
            read(tmp_path / str(number), "gsm8k", rows)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    other = lay_out(tmp_path / "copy", "math500", [{"problem": "a", "answer": "1"}])
    for name in ("gsm8k", "gpqa-diamond"):
        with pytest.raises(
            UserError, match=f"cannot read {name} from .* must be a copy of the repository"
        ) as caught:
            load(f"{name}@{other}")
        assert "\n" not in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="cannot read gsm8k from"):
        load(f"gsm8k@{tmp_path / 'empty'}")


def test_a_hub_out_of_reach_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="hf download openai/gsm8k --repo-type dataset") as caught:
        load("gsm8k")
    assert "data gsm8k@FOLDER" in str(caught.value)
    assert "\n" not in str(caught.value)
