"""A user's word for a speed: numbers, or the name of a model on a machine (machines.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from relaygen.errors import UserError
from relaygen.simulate.speed import Speed


@dataclass(frozen=True, slots=True)
class Machine:
    about: str
    source: str
    decode_tokens_s: float
    prefill_tokens_s: float


def machines() -> Mapping[str, Machine]:
    data = (resources.files("relaygen.simulate") / "machines.toml").read_text("utf-8")
    return {name: Machine(**fields) for name, fields in tomllib.loads(data).items()}


def parse(spec: str) -> Speed:
    """DECODE:PREFILL[:SLOPE] in tokens/s, or NAME[:SLOPE]."""
    first, *rest = spec.split(":")
    known = machines()
    if machine := known.get(first):
        numbers = [machine.decode_tokens_s, machine.prefill_tokens_s, *map(_number, rest)]
    else:
        numbers = [*map(_number, [first, *rest])]
    if None in numbers or not 2 <= len(numbers) <= 3:
        raise UserError(
            f"{spec!r} is no speed: give DECODE:PREFILL[:SLOPE] in tokens/s, as 25:8000, or one of {', '.join(known)}"
        )
    try:
        return Speed.of(*(number for number in numbers if number is not None))
    except UserError as error:
        raise UserError(f"{spec!r} is no speed: {error}") from None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
