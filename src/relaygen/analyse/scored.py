"""Scored traces <-> JSON Lines: the joint between the engines that read a trace and the statistics about it.

One line is one trace read by one scorer under teacher forcing. All lists have one entry a token of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from relaygen.errors import UserError
from relaygen.files import lines


@dataclass(frozen=True, slots=True)
class ScoredTrace:
    """`model` wrote the text, `scorer` read it. `token_texts` add up to `text`. `margins`: p(top-1) - p(top-2) of the scorer
    at the place of each token, 0 to 1. `agree`: 1 where its top-1 is the written token, else 0. `logprobs`: natural log
    probability of the written token, None where the server did not tell."""

    id: str
    problem: str
    model: str
    scorer: str
    text: str
    token_ids: tuple[int, ...]
    token_texts: tuple[str, ...]
    margins: tuple[float, ...]
    agree: tuple[int, ...]
    logprobs: tuple[float | None, ...]


def to_json(scored: ScoredTrace) -> dict[str, Any]:
    return asdict(scored)


def dumps(scored: ScoredTrace) -> bytes:
    """The line, with its end."""
    return orjson.dumps(scored, option=orjson.OPT_APPEND_NEWLINE)


def read(path: Path) -> Iterator[ScoredTrace]:
    """The traces of a file, one at a time. Every fault is a UserError that names file and line."""
    empty = True
    for number, line in lines(path):
        empty = False
        yield parse(line, f"{path}, line {number}")
    if empty:
        raise UserError(f"{path}: there are no scored traces in it")


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    id: str
    problem: str
    model: str
    scorer: str
    text: str = Field(min_length=1)
    token_ids: tuple[int, ...]
    token_texts: tuple[str, ...]
    margins: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    agree: tuple[Annotated[int, Field(ge=0, le=1)], ...]
    logprobs: tuple[float | None, ...]


_LISTS = ("token_texts", "margins", "agree", "logprobs")


def parse(line: bytes, where: str) -> ScoredTrace:
    """`where` names the line in errors."""
    try:
        found = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, what = ".".join(map(str, first["loc"])), first["msg"]
        named = f'"{key}": ' if key else ""
        raise UserError(f"{where}: not a scored trace: {named}{what[:1].lower()}{what[1:]}") from None
    for name in _LISTS:
        if len(getattr(found, name)) != len(found.token_ids):
            raise UserError(
                f'{where}: "{name}" must have one entry for each of the {len(found.token_ids)} ids'
            )
    if "".join(found.token_texts) != found.text:
        raise UserError(f'{where}: "token_texts" do not add up to "text"')
    return ScoredTrace(**found.model_dump())
