"""Problem sets: what a model is asked, and what is right. Files of them, as JSON Lines or CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, Field, ValidationError

from relaygen.errors import UserError, one_line
from relaygen.files import lines

Row = Mapping[str, Any]


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


def parse_fields(text: str) -> dict[str, str]:
    """`problem=question,answer=solution` -> field of ours to column of theirs. UserError for anything else."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        ours, equals, theirs = (word.strip() for word in part.partition("="))
        if not equals or not theirs or ours not in _Line.model_fields or ours in fields:
            raise UserError(
                f"--fields {text!r}: give each of {', '.join(_Line.model_fields)} at most once, as in"
                " problem=question,answer=solution"
            )
        fields[ours] = theirs
    return fields


def read(path: Path, fields: Mapping[str, str] | None = None) -> list[Problem]:
    """CSV with a head where the name ends in .csv, else JSON Lines: `problem` and any of `id`, `answer`, or what `fields`
    calls them. Every fault is a UserError that names file and line."""
    rows = _csv if path.suffix.lower() == ".csv" else _json_lines
    try:
        problems = [
            _problem(row, path.stem, number, fields or {}, f"{path}, line {number}")
            for number, row in rows(path)
        ]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return checked(problems, str(path))


def checked(problems: list[Problem], where: str) -> list[Problem]:
    """The same. UserError where there are none, or two with one id."""
    if not problems:
        raise UserError(f"{where}: there are no problems in it")
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise UserError(f"{where}: two problems have the id {problem.id!r}")
        seen.add(problem.id)
    return problems


def columns(row: Row) -> str:
    """In words, on one line, and not all of a thousand."""
    names = ", ".join(row)[:300] or "nothing"
    return one_line(names)


def _json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    for number, line in lines(path):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: not a problem: no JSON, {error.msg}") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: not a problem: no JSON object")
        yield number, row


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            head = next(reader, list[str]())
            if len(set(head)) < len(head):
                raise UserError(f"{path}: two columns have the same name: {', '.join(head)}")
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(head):
                    raise UserError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells under {len(head)} columns"
                    )
                yield reader.line_num, dict(zip(head, cells, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{path}, after line {reader.line_num}: not CSV in UTF-8: {error}") from None


def _problem(row: Row, name: str, number: int, fields: Mapping[str, str], where: str) -> Problem:
    for theirs in fields.values():
        if theirs not in row:
            raise UserError(
                f"{where}: there is no {theirs!r}, which --fields names; there is: {columns(row)}"
            )
    ours = {field: row.get(fields.get(field, field)) for field in _Line.model_fields}
    if "problem" not in fields and "problem" not in row:
        raise UserError(
            f'{where}: not a problem: "problem": field required; there is: {columns(row)}.'
            " Name what to take: --fields problem=COLUMN,answer=COLUMN"
        )
    try:
        found = _Line.model_validate(ours)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, what = str(first["loc"][0]), first["msg"]
        key = fields.get(field, field)
        raise UserError(f'{where}: not a problem: "{key}": {what[:1].lower()}{what[1:]}') from None
    return Problem(
        f"{name}-{number}" if found.id is None or found.id == "" else str(found.id),
        found.problem,
        "" if found.answer is None else str(found.answer),
    )
