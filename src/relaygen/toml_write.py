"""Values -> TOML that parses back to the same values (tomllib only reads)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from typing import cast


def dumps(values: Mapping[str, object]) -> str:
    """`values` hold what TOML can hold: no None. Tuples become lists; long lists one item a line."""
    return "\n".join(_table(values, ())) + "\n"


def _table(values: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    if path:
        yield f"\n[{'.'.join(map(_key, path))}]"
    tables = {
        key: cast("Mapping[str, object]", value) for key, value in values.items() if isinstance(value, dict)
    }
    for key, value in values.items():
        if key not in tables:
            yield _pair(key, value)
    for key, table in tables.items():
        yield from _table(table, (*path, key))


def _pair(key: str, value: object) -> str:
    line = f"{_key(key)} = {_value(value)}"
    if len(line) <= 100 or not isinstance(value, (list, tuple)):
        return line
    items = cast("Sequence[object]", value)
    return "\n".join([f"{_key(key)} = [", *(f"    {_value(item)}," for item in items), "]"])


def _value(value: object) -> str:
    match value:
        case str():
            return _string(value)
        case bool():
            return "true" if value else "false"
        case date() | time():
            return value.isoformat()
        case list() | tuple():
            return f"[{', '.join(map(_value, cast('Sequence[object]', value)))}]"
        case dict():
            table = cast("Mapping[str, object]", value)
            return f"{{{', '.join(f'{_key(key)} = {_value(item)}' for key, item in table.items())}}}"
        case _:
            return repr(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _string(text: str) -> str:
    """A TOML basic string. It escapes as JSON does, but for DEL, which TOML does not allow as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
