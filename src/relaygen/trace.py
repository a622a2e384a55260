"""Generations <-> JSON Lines: the joint between what ran and what is said about it.

One line is one generation, with `format` first. `read` takes lines of this format version, and plain recorded traces: at
least `text`, and any of id, model, problem, num_tokens, token_ids, and token_texts (the text of each id).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import BaseModel, Field, ValidationError

from relaygen.errors import UserError
from relaygen.files import lines
from relaygen.types import EngineTimings, Piece, Result

FORMAT = 1


# --- writing


def to_json(result: Result) -> dict[str, Any]:
    """The object that --json prints and a trace line holds. Times in milliseconds."""
    timings = result.timings
    return {
        "format": FORMAT,
        "text": result.text,
        "reasoning": result.reasoning,
        "answer": result.answer,
        "finish_reason": result.finish_reason,
        "segments": [
            {
                "author": s.author.value,
                "text": s.text,
                "token_ids": list(s.token_ids),
                "reason": s.reason.value,
                "cue": s.cue,
            }
            for s in result.segments
        ],
        "usage": {**asdict(result.usage), "small_share": round(result.usage.small_share, 4)},
        "timings": {
            "total_ms": round(timings.total_ms, 3),
            "own_ms": round(timings.own_ms, 3),
            "large": _engine(timings.large),
            "small": _engine(timings.small),
        },
        "warnings": list(result.warnings),
        "metadata": dict(result.metadata),
    }


def _engine(timings: EngineTimings) -> dict[str, Any]:
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(timings).items()}


def append(path: Path, result: Result, **fields: Any) -> None:
    """Add one line to `path`; `fields` (problem, id, ...) come first. The line is written at once, and whole."""
    _append(path, orjson.dumps({**fields, **to_json(result)}, option=orjson.OPT_APPEND_NEWLINE))


def check_writable(path: Path) -> None:
    """Raises UserError now rather than after the work."""
    _append(path, b"")


def _append(path: Path, data: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(data)
    except OSError as error:
        raise UserError(f"cannot write the trace to {path}: {error.strerror}") from None


# --- reading


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded generation. `num_tokens` is 0 where nobody counted, `pieces` empty where the text of the single tokens is
    not known."""

    id: str
    text: str
    model: str = ""
    problem: str = ""
    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()


def read(path: Path) -> Iterator[Trace]:
    """The traces of a file, one at a time. Every fault is a UserError that names file and line."""
    empty = True
    for number, line in lines(path):
        empty = False
        yield _trace(line, f"{path.name}:{number}", f"{path}, line {number}")
    if empty:
        raise UserError(f"{path}: there are no traces in it")


class _Plain(BaseModel):
    text: str = Field(min_length=1)
    id: str | int | None = None
    model: str | None = None
    problem: str | None = None
    num_tokens: int | None = Field(None, ge=0)
    token_ids: tuple[int, ...] | None = None
    token_texts: tuple[str, ...] | None = None


class _Segment(BaseModel):
    token_ids: tuple[int, ...]


class _Metadata(BaseModel):
    models: dict[str, str] = Field(default_factory=dict[str, str])


class _Ours(_Plain):
    segments: tuple[_Segment, ...]
    metadata: _Metadata


def _trace(line: bytes, name: str, where: str) -> Trace:
    try:
        value: object = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: not a trace, which is a JSON object")
    fields = cast("dict[str, Any]", value)
    version = fields.get("format", FORMAT)
    if version != FORMAT:
        shown = orjson.dumps(version).decode()[:20]
        raise UserError(
            f"{where}: trace format {shown} is not known: this release of relaygen reads format {FORMAT}"
        )
    if not fields.get("text"):
        raise UserError(f'{where}: no "text" in it')
    try:
        found = (_Ours if "format" in fields else _Plain).model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, what = ".".join(map(str, first["loc"])), first["msg"]
        raise UserError(f'{where}: "{key}": {what[:1].lower()}{what[1:]}') from None
    ids, model = found.token_ids or (), found.model or ""
    if isinstance(found, _Ours):
        ids = ids or tuple(i for segment in found.segments for i in segment.token_ids)
        model = model or " + ".join(found.metadata.models.values())
    texts = found.token_texts or ()  # none, or as many as ids
    if texts and (len(texts) != len(ids) or "".join(texts) != found.text):
        raise UserError(f'{where}: "token_texts" must hold one text an id, which add up to "text"')
    return Trace(
        id=name if found.id is None else str(found.id),
        text=found.text,
        model=model,
        problem=found.problem or "",
        num_tokens=len(ids) or found.num_tokens or 0,
        token_ids=ids,
        pieces=tuple(Piece(text, (i,)) for text, i in zip(texts, ids, strict=False)),
    )
