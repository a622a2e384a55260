"""Which custom_ids a job has, and which are settled. In a database of SQLite's own temporary kind: it grows on disk, not in
memory, and is gone when the process is, however that ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from relaygen.batch.lines import Asked, read
from relaygen.errors import ResourceError, UserError

_CACHE_KB = 8192


class Index:
    """Made by one reading of the file. UserError where two lines have one custom_id, or there is no line."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.num_lines = 0
        with _told():
            self._db = sqlite3.connect("", isolation_level=None)
            try:
                self._fill(path, max_bytes)
            except BaseException:
                self.close()
                raise

    def _fill(self, path: Path, max_bytes: int) -> None:
        self._db.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        self._db.execute("PRAGMA journal_mode = OFF")  # nothing is ever taken back
        self._db.execute(
            "CREATE TABLE asked (custom_id TEXT PRIMARY KEY, line INTEGER, settled INTEGER) WITHOUT ROWID"
        )
        self._db.execute("BEGIN")  # and never ended: each end would write to the disk
        for number, one in read(path, max_bytes):
            self.num_lines += 1
            if isinstance(one, Asked):
                self._add(path, one.custom_id, number)
        if not self.num_lines:
            raise UserError(f"{path}: there are no requests in it")

    def _add(self, path: Path, custom_id: str, line: int) -> None:
        added = self._db.execute("INSERT OR IGNORE INTO asked VALUES (?, ?, 0)", (custom_id, line))
        if not added.rowcount:
            first = self._db.execute("SELECT line FROM asked WHERE custom_id = ?", (custom_id,)).fetchone()[0]
            raise UserError(
                f"{path}, line {line}: the custom_id {custom_id[:100]!r} is already that of line {first}:"
                " each request needs its own"
            )

    def settle(self, custom_id: str) -> bool:
        """Whether there is such a request that was not."""
        with _told():
            found = self._db.execute(
                "UPDATE asked SET settled = 1 WHERE custom_id = ? AND NOT settled", (custom_id,)
            )
        return found.rowcount > 0

    def is_settled(self, custom_id: str) -> bool:
        with _told():
            found = self._db.execute("SELECT settled FROM asked WHERE custom_id = ?", (custom_id,)).fetchone()
        return bool(found and found[0])

    def close(self) -> None:
        self._db.close()


@contextmanager
def _told() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise ResourceError(
            f"the list of custom_ids finds no room in the temporary folder: {error}"
        ) from None
