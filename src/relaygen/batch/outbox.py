"""The file of answers. Opening it resumes the job: a last line that was cut by a kill is taken off, lines with an error are taken
out, and what is left is settled. One process at a time has it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from relaygen.batch.index import Index
from relaygen.batch.lines import Outcome, raw_lines
from relaygen.errors import UserError

_MAX_BYTES = 2**30  # of a line that we would have written


class Outbox:
    """`num_settled` requests have been answered before, `num_refused` of them with a refusal."""

    def __init__(self, path: Path, index: Index) -> None:
        self._path = path
        self.num_settled = self.num_refused = 0
        try:
            self._file = _locked(path)
            try:
                self._resume(index)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise UserError(f"cannot keep the answers in {path}: {error.strerror}") from None

    def add(self, outcome: Outcome) -> None:
        try:
            self._file.write(outcome.line)
            self._file.flush()
        except OSError as error:
            raise UserError(f"cannot write to {self._path}: {error.strerror}. Run again to go on") from None

    def close(self) -> None:
        self._file.close()

    def _resume(self, index: Index) -> None:
        whole = num_unsettled = 0
        for number, text in enumerate(raw_lines(self._rewound(), _MAX_BYTES), 1):
            if text is not None and not text.endswith(b"\n"):
                break
            line = self._line(text, number)
            whole += len(text or b"")
            if line["response"] is None:
                num_unsettled += 1
                continue
            if not index.settle(line["custom_id"]):
                raise UserError(
                    f"{self._path}, line {number}: answers {line['custom_id'][:100]!r}, which is not asked,"
                    " or was answered above: choose another file"
                )
            self.num_settled += 1
            self.num_refused += line["response"]["status_code"] != 200
        self._file.truncate(whole)
        if num_unsettled:
            self._take_out_unsettled()

    def _line(self, text: bytes | None, number: int) -> dict[str, Any]:
        try:
            line: dict[str, Any] = orjson.loads(text or b"")
            valid = isinstance(line["response"] or line["error"], dict)
            if line["response"] is not None:
                valid = valid and isinstance(line["custom_id"], str) and "status_code" in line["response"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            line, valid = {}, False
        if not valid:
            raise UserError(f"{self._path}, line {number}: not a line of answers: choose another file")
        return line

    def _take_out_unsettled(self) -> None:
        """Through a file beside it, so that a kill leaves the old one or the new one."""
        part = self._path.with_name(self._path.name + ".part")
        part.unlink(missing_ok=True)
        kept = _locked(part)
        for text in raw_lines(self._rewound(), _MAX_BYTES):
            if text and orjson.loads(text)["response"] is not None:
                kept.write(text)
        kept.flush()
        part.replace(self._path)
        self._file.close()
        self._file = kept

    def _rewound(self) -> BinaryIO:
        self._file.seek(0)
        return self._file


def _locked(path: Path) -> BinaryIO:
    file = path.open("a+b")
    try:
        fcntl = importlib.import_module("fcntl")
    except ModuleNotFoundError:  # Windows
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(f"{path} is being written by another job: wait for its end") from None
    return file
