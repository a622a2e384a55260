"""Is an answer right? By math-verify, choice letters, equality, or a function of the user's, each with a time limit."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from relaygen.errors import UserError

KINDS = ("math", "choice", "exact", "FILE.py:FUNCTION")
_START_S = 60.0  # the algebra library takes seconds to load, on a busy machine many


class Verdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    NONE = "none"  # no answer was found in the text
    TIMEOUT = "timeout"  # the grader took too long


@dataclass(frozen=True, slots=True)
class Grade:
    """`found` is the answer as it stands in the text; empty where there is none, or where the user's function judges."""

    verdict: Verdict
    found: str = ""


class Grader:
    """`kind` is one of KINDS; `limit_s` is for one answer. Used by `with`; not from several threads at once.

    `grade` raises UserError where the reference or the user's function is at fault."""

    def __init__(self, kind: str = "math", *, limit_s: float = 10.0) -> None:
        self._kind = _checked(kind)
        self._limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._warm = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop()

    def grade(self, answer: str, reference: str) -> Grade:
        process = self._process or self._start()
        assert process.stdin
        try:
            process.stdin.write(json.dumps([self._kind, answer, reference]) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=self._limit_s if self._warm else _START_S)
        except queue.Empty:
            self._stop()
            return Grade(Verdict.TIMEOUT)
        except OSError:
            line = ""
        if not line:
            self._stop()
            raise UserError("the grader died; what it printed stands above")
        self._warm = True
        told = json.loads(line)
        if isinstance(told, dict):
            raise UserError(f"cannot grade by {self._kind}: {told['error']}")
        verdict, found = told
        return Grade(Verdict(verdict), found)

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "relaygen.analyse.grading_worker"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        lines = self._lines = queue.Queue[str]()

        def read() -> None:
            assert process.stdout
            for line in process.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        self._process, self._warm = process, False
        return process

    def _stop(self) -> None:
        if process := self._process:
            self._process = None
            process.kill()
            process.communicate()


def _checked(kind: str) -> str:
    path, colon, name = kind.rpartition(":")
    if colon and path.endswith(".py"):
        if not Path(path).is_file():
            raise UserError(f"there is no file {path} to grade by")
        if not name.isidentifier():
            raise UserError(f"{kind}: after the colon comes the name of a function")
        return kind
    if kind not in KINDS:
        raise UserError(f"unknown way to grade {kind!r}: choose one of {', '.join(KINDS)}")
    if kind != "exact" and find_spec("math_verify") is None:
        raise UserError(f'grading by {kind} needs math-verify: pip install "relaygen[eval]"')
    return kind
