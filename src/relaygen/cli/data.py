"""The options that name problems, for the commands that take them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from relaygen.tasks import data
from relaygen.tasks.named import NAMED

DATA_HELP = (
    f"Problems: FILE.jsonl or FILE.csv with `problem` (and `answer`, `id`), or a name: {', '.join(NAMED)}."
    " Names come from the Hugging Face hub; NAME@FOLDER reads a copy of its repository."
)
Fields = Annotated[
    str | None,
    typer.Option(
        metavar="PROBLEM=COLUMN,...",
        help="Which columns of the file to take: problem=question,answer=solution,id=key.",
    ),
]


def load(given: str, fields: str | None) -> data.Data:
    with Console(stderr=True).status(f"reading {given}"):
        return data.load(given, fields)
