"""Generations <-> JSON Lines: the joint between what ran and what is said about it.

One line is one generation, with `format` first. Readers take lines of this format version and plain recorded traces, which
have at least `text`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from relaygen.errors import UserError
from relaygen.types import EngineTimings, Result

FORMAT = 1


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
