"""The process that grades, so that an answer on which the algebra hangs can be given up: `python -m` this.

JSON lines in, [kind, answer, reference]; JSON lines out, [one of Verdict's values, the answer that was found], or
{"error": ...}. A kind is one of "math", "choice", "exact", or "FILE.py:FUNCTION".
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, cast

Told = tuple[str, str]

# The most certain first: boxed, said to be the answer, the last letter in brackets or alone on a line.
_CHOSEN = tuple(
    re.compile(pattern)
    for pattern in (
        r"\\boxed\s*\{\s*(?:\\text\s*\{)?\s*\(?([A-J])\b",
        r"(?i:answer|choice|option)\W{0,4}(?:(?i:is)\W{0,5})?\b([A-J])\b",
        r"\(([A-J])\)",
        r"(?m)^\W*([A-J])\W*$",
    )
)
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")


def _math(answer: str, reference: str) -> Told:
    from math_verify import parse, verify

    # The library's time limits rest on signals; ours is the end of this process.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    gold = cast("list[Any]", parse(_wrapped(reference), parsing_timeout=None))  # pyright: ignore[reportArgumentType]
    found = cast("list[Any]", parse(answer, parsing_timeout=None))  # pyright: ignore[reportArgumentType]
    if not gold:
        raise ValueError(f"the reference answer {reference!r} cannot be read")
    if not found:
        return "none", ""
    return ("right" if verify(gold, found, timeout_seconds=None) else "wrong"), str(found[-1])


def _choice(answer: str, reference: str) -> Told:
    for pattern in _CHOSEN:
        if found := pattern.findall(answer):
            letter = found[-1]
            return ("right" if letter == reference.strip().strip("().").upper() else "wrong"), letter
    return "none", ""


def _wrapped(reference: str) -> str:
    """LaTeX is read between dollars only."""
    return reference if "$" in reference or "\\boxed" in reference else f"${reference}$"


def _exact(answer: str, reference: str) -> Told:
    boxed = _BOXED.findall(answer)
    given = (boxed[-1] if boxed else answer).strip()
    if not given:
        return "none", ""
    return ("right" if given.casefold() == reference.strip().casefold() else "wrong"), given


@cache
def _function(kind: str) -> Callable[[str, str], Any]:
    """The user's own: takes answer and reference, returns True, False, or None where it cannot tell."""
    path, _, name = kind.rpartition(":")
    spec = importlib.util.spec_from_file_location("grading", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _own(kind: str, answer: str, reference: str) -> Told:
    told = _function(kind)(answer, reference)
    return ("none" if told is None else "right" if told else "wrong"), ""


def _verdict(kind: str, answer: str, reference: str) -> Told:
    match kind:
        case "math":
            return _math(answer, reference)
        case "choice":
            return _choice(answer, reference)
        case "exact":
            return _exact(answer, reference)
        case _:
            return _own(kind, answer, reference)


def main() -> None:
    out = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no verdict
    for line in sys.stdin:
        try:
            told: Any = _verdict(*json.loads(line))
        except Exception as error:  # whatever algebra or the user's code may raise
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=out, flush=True)


if __name__ == "__main__":
    main()
