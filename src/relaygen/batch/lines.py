"""One request a line and one answer a line, in OpenAI's batch format.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

Either `response` or `error` is null. What has a response is settled: answered, or refused (4xx). What has an error is not: the
line could not be read, or the engines failed; it is tried again when the job is resumed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import orjson

from relaygen.errors import UserError

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. Whether its method, url and body can be served is for the answerer to say."""

    custom_id: str
    method: object
    url: object
    body: object


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that is no request, and why."""

    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The line for the file of answers (its end included), and what to count. `message`: why the engines failed."""

    kind: Literal["answered", "refused", "failed", "unreadable"]
    line: bytes
    large_tokens: int = 0
    small_tokens: int = 0
    message: str = ""


def read(path: Path, max_bytes: int) -> Iterator[tuple[int, Asked | Fault]]:
    """The requests of a file with the numbers of their lines. Blank lines are passed over; one of more than `max_bytes` is a
    Fault, and never in memory as a whole."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(raw_lines(file, max_bytes), 1):
                if line is None:
                    yield number, Fault(f"line {number}: longer than {max_bytes} bytes")
                elif content := (line.removeprefix(_BOM) if number == 1 else line).strip():
                    yield number, _parse(content, number)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def raw_lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """Lines with their ends; None for one that is longer."""
    while line := file.readline(max_bytes + 1):
        if len(line) <= max_bytes or line.endswith(b"\n"):
            yield line
            continue
        while (rest := file.readline(max_bytes)) and not rest.endswith(b"\n"):
            pass
        yield None


def _parse(line: bytes, number: int) -> Asked | Fault:
    try:
        value: object = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Fault(f"line {number}: not JSON: {error.msg} (column {error.colno})")
    if not isinstance(value, dict):
        return Fault(f"line {number}: not a JSON object")
    fields = cast("dict[str, object]", value)
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return Fault(f"line {number}: custom_id must be given, as a string")
    return Asked(custom_id, fields.get("method"), fields.get("url"), fields.get("body"))


def settled(custom_id: str, status: int, body: Mapping[str, Any]) -> bytes:
    """The line of an answer or a refusal."""
    token = secrets.token_hex(12)
    response = {"status_code": status, "request_id": f"req_{token}", "body": body}
    return _line(token, custom_id, response, None)


def unsettled(custom_id: str | None, code: str, message: str) -> bytes:
    """The line of what was neither answered nor refused."""
    return _line(secrets.token_hex(12), custom_id, None, {"code": code, "message": message})


def _line(token: str, custom_id: str | None, response: Any, error: Any) -> bytes:
    line = {"id": f"batch_req_{token}", "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
