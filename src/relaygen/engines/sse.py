"""Server-sent events: bytes -> the data of each event. Pure; the result does not depend on how the bytes were cut.

Lines end in LF, CR or CRLF, and nothing else: U+2028 and U+0085 may stand inside a JSON string. Comment lines (servers
send ": ping"), other fields and a byte-order mark are skipped; several data lines of one event are joined by LF.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventTooLongError(ValueError):
    """More than MAX_EVENT_BYTES without the end of an event."""


class DamagedEventError(ValueError):
    """A field's name is not ASCII. Unknown fields are skipped, but no server sends such a one: it was "data", and to skip it
    would lose a token."""


class SSEParser:
    def __init__(self) -> None:
        # An unfinished line, in parts: joined once, so that long lines cost linear time.
        self._rest: list[bytes] = []
        self._size = 0
        self._data: list[bytes] = []
        self._first = True
        self._skip_lf = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes."""
        if chunk.startswith(b"data: ") and chunk.find(b"\n\n") == len(chunk) - 2 and self._whole(chunk):
            return [chunk[6:-2]]
        if self._skip_lf and chunk:  # the LF of a CRLF that was cut in two
            self._skip_lf = False
            chunk = chunk.removeprefix(b"\n")
        events: list[bytes] = []
        start = 0
        for found in _LINE_END.finditer(chunk):
            self._rest.append(chunk[start : found.start()])
            start = found.end()
            self._line(b"".join(self._rest), events)
            self._rest.clear()
        self._skip_lf = chunk.endswith(b"\r")
        if start < len(chunk):
            self._rest.append(chunk[start:])
            self._size += len(chunk) - start
        if self._size > MAX_EVENT_BYTES:
            raise EventTooLongError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _whole(self, chunk: bytes) -> bool:
        """Whether `chunk` is one event of one line, and nothing is unfinished: so it is nearly always."""
        clean = not (self._rest or self._data or self._skip_lf) and b"\r" not in chunk
        clean = clean and chunk.find(b"\n") == len(chunk) - 2
        self._first = self._first and not clean
        return clean

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
            self._size = 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
        elif not field.isascii():
            raise DamagedEventError("an event with a damaged field name")
