"""Well-known problem sets by name, read with `datasets` from the Hugging Face hub, or from a folder that was fetched from it.

Each brings how it is asked and graded. Columns and splits are those of the hub's own pages
(https://huggingface.co/datasets/REPOSITORY).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, cast

from relaygen.errors import UserError
from relaygen.tasks.problems import Problem, Row, checked

MATHS = "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
CHOICE = "{problem}\n\nPlease reason step by step, and put the letter of your choice within \\boxed{}."

Texts = Mapping[str, str]
_LETTERS = "ABCD"
_GPQA = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def _plain(row: Texts, problem: str, answer: str) -> tuple[str, str]:
    return row[problem], row[answer]


def _gsm8k(row: Texts, problem: str, answer: str) -> tuple[str, str]:
    """The answer column is a worked solution with the number after `####`."""
    _, mark, number = row[answer].rpartition("####")
    return row[problem], number.strip().replace(",", "") if mark else ""


def _gpqa(row: Texts, problem: str, *options: str) -> tuple[str, str]:
    """The options in an order drawn from the question alone, so that it is the same in every run."""
    texts = [row[option].strip() for option in options]
    order = list(range(len(texts)))
    Random(row[problem]).shuffle(order)  # noqa: S311 - no secret depends on it
    lines = [f"{letter}) {texts[n]}" for letter, n in zip(_LETTERS, order, strict=True)]
    return "\n".join([row[problem].strip(), "", *lines]), _LETTERS[order.index(0)]


@dataclass(frozen=True, slots=True)
class Named:
    """`columns` are handed to `make`, which gives the problem and its answer."""

    repository: str
    config: str | None
    split: str
    columns: tuple[str, ...]
    make: Callable[..., tuple[str, str]] = _plain
    grading: str = "math"
    prompt: str = MATHS


NAMED = {
    # Cobbe et al. 2021, arXiv:2110.14168; 1,319 problems.
    "gsm8k": Named("openai/gsm8k", "main", "test", ("question", "answer"), _gsm8k),
    # 500 of Hendrycks et al. 2021, chosen by Lightman et al. 2023, arXiv:2305.20050.
    "math500": Named("HuggingFaceH4/MATH-500", None, "test", ("problem", "answer")),
    # American Invitational Mathematics Examination 2025, I and II; 30 problems.
    "aime25": Named("math-ai/aime25", None, "test", ("problem", "answer")),
    # American Mathematics Competition 12, 2023, those with whole numbers as answers; 40 problems.
    "amc23": Named("math-ai/amc23", None, "test", ("question", "answer")),
    # Rein et al. 2023, arXiv:2311.12022; 198 questions. Gated: its terms have to be accepted on the hub.
    "gpqa-diamond": Named("Idavidrein/gpqa", "gpqa_diamond", "train", _GPQA, _gpqa, "choice", CHOICE),
}
NOT_OFFERED = {
    "ifeval": "its prompts have no reference answers but programs that check them, which relaygen does not have:"
    " check the answers of a run (answers.jsonl) with the programs of its authors",
}


def load(name: str, folder: Path | None = None) -> list[Problem]:
    """All problems of one of NAMED, from the hub (or its cache on this machine), or from a copy of its repository in
    `folder`. UserError where it cannot be had."""
    named = NAMED[name]
    if find_spec("datasets") is None:
        raise UserError(f'reading {name} needs the library datasets: pip install "relaygen[eval]"')
    if folder and not folder.is_dir():
        raise UserError(f"there is no folder {folder} to read {name} from")
    rows, found = _rows(name, named, folder)
    where = f"{name} ({folder or named.repository})"
    if missing := [column for column in named.columns if column not in found]:
        raise UserError(f"{where}: there is no column {missing[0]!r}; there is: {', '.join(found)}")
    texts = ({c: "" if row[c] is None else str(row[c]) for c in named.columns} for row in rows)
    made = [named.make(row, *named.columns) for row in texts]
    for number, (problem, answer) in enumerate(made, 1):
        if not problem or not answer:
            raise UserError(f"{where}: problem {number} has no {'answer' if problem else 'text'}")
    return checked([Problem(f"{name}-{n}", *pair) for n, pair in enumerate(made, 1)], where)


def _rows(name: str, named: Named, folder: Path | None) -> tuple[Iterable[Row], list[str]]:
    import datasets  # takes seconds to load
    from datasets.exceptions import DatasetNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries
    datasets.disable_progress_bars()
    source = str(folder or named.repository)
    try:
        table = cast("Any", datasets).load_dataset(source, named.config, split=named.split)
    except DatasetNotFoundError as error:
        raise UserError(
            f"cannot fetch {name}: {_line(error)} Accept its terms at https://huggingface.co/datasets/{named.repository}"
            " if it has some, and log in: hf auth login"
        ) from None
    except Exception as error:  # whatever the library, the hub's client and the file formats may raise
        if folder:
            raise UserError(
                f"cannot read {name} from {folder}: {_line(error)} It must be a copy of the repository {named.repository}"
            ) from None
        raise UserError(
            f"cannot fetch {name}: {_line(error)} Where the hub can be reached: hf download {named.repository}"
            f" --repo-type dataset --local-dir FOLDER; then give --data {name}@FOLDER"
        ) from None
    return table, list(table.column_names)


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".") + "."
