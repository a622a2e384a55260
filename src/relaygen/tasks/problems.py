"""Problem sets: what a model is asked, and what is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from relaygen.errors import UserError


@dataclass(frozen=True, slots=True)
class Problem:
    """`answer` is empty where nobody knows it."""

    id: str
    problem: str
    answer: str = ""


class _Line(BaseModel):
    problem: str = Field(min_length=1)
    id: str | int | None = None
    answer: str | int | float | None = None


def read(path: Path) -> list[Problem]:
    """JSON Lines with `problem` and any of `id`, `answer`. Every fault is a UserError that names file and line."""
    problems = list(_read(path))
    if not problems:
        raise UserError(f"{path}: there are no problems in it")
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise UserError(f"{path}: two problems have the id {problem.id!r}")
        seen.add(problem.id)
    return problems


def _read(path: Path) -> Iterator[Problem]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if content := line.removeprefix(b"\xef\xbb\xbf").strip():
                    yield _problem(content, path, number)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _problem(line: bytes, path: Path, number: int) -> Problem:
    try:
        found = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, what = ".".join(map(str, first["loc"])), first["msg"]
        named = f'"{key}": ' if key else ""
        raise UserError(
            f"{path}, line {number}: not a problem: {named}{what[:1].lower()}{what[1:]}"
        ) from None
    return Problem(
        f"{path.stem}-{number}" if found.id is None else str(found.id),
        found.problem,
        "" if found.answer is None else str(found.answer),
    )
