"""Files of others, read with a limit: a wrong path may be a device without end, or one line of gigabytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from relaygen.errors import UserError

MAX_LINE_BYTES = 64 * 2**20
MAX_BYTES = 2**20
_BOM = b"\xef\xbb\xbf"


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1. UserError where one cannot be read."""
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(
                        f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} bytes: is it the right file?"
                    )
                if content := line.removeprefix(_BOM).strip():
                    yield number, content
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def whole(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """A small file. UserError where it cannot be read, or is larger."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)  # not by its size: a pipe has none
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > max_bytes:
        raise UserError(f"{path} is larger than {max_bytes:,} bytes: is it the right file?")
    return data
