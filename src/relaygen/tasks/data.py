"""What `--data` may be: a file, or the name of a well-known problem set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from relaygen.errors import UserError
from relaygen.tasks import named
from relaygen.tasks.named import MATHS, NAMED, NOT_OFFERED
from relaygen.tasks.problems import Problem, parse_fields, read


@dataclass(frozen=True, slots=True)
class Data:
    """`grading` and `prompt` are those that fit it, where the user names none."""

    name: str
    problems: list[Problem]
    grading: str = "math"
    prompt: str = MATHS


def load(data: str, fields: str | None = None) -> Data:
    """`data`: FILE.jsonl, FILE.csv, one of NAMED, or NAME@FOLDER with a copy of its repository. `fields`: see parse_fields;
    for files only. Every fault is a UserError."""
    mapped = parse_fields(fields) if fields else None
    name, at, folder = data.partition("@")
    if name in NOT_OFFERED:
        raise UserError(f"{name} is not offered: {NOT_OFFERED[name]}")
    if name in NAMED:
        if mapped:
            raise UserError(f"the columns of {name} are known: --fields is for files")
        if at and not folder:
            raise UserError(
                f"--data {data}: after the @ comes the folder with a copy of {NAMED[name].repository}"
            )
        problems = named.load(name, Path(folder) if folder else None)
        return Data(name, problems, NAMED[name].grading, NAMED[name].prompt)
    path = Path(data)
    if not path.suffix and not path.exists():
        raise UserError(f"--data {data}: neither a file nor one of the known names, {', '.join(NAMED)}")
    return Data(path.name, read(path, mapped))
