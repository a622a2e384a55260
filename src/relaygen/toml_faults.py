"""What is wrong in a TOML file, in words, and on which line. A line is named where it is certain, and none rather than a
wrong one.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from pydantic import BaseModel
from pydantic_core import ErrorDetails

_MAX_SHOWN_CHARS = 64
_MAX_KEY_PARTS = 32

KeyPath = tuple[int | str, ...]


class Fault(ValueError):
    """Found by a validator. `path` leads from the validated field to the part at fault."""

    def __init__(self, message: str, path: KeyPath = ()) -> None:
        super().__init__(printable(message))  # pydantic cannot carry half of a surrogate pair
        self.path = path


def printable(text: str) -> str:
    """One line, whatever the file holds, and nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(value: object) -> str:
    match value:
        case str():
            cut = value if len(value) <= _MAX_SHOWN_CHARS else f"{value[:_MAX_SHOWN_CHARS]}…"
            return json.dumps(cut, ensure_ascii=False)
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if value.bit_length() <= 64 else "a number of over 64 bits"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"a {type(value).__name__}"


def did_you_mean(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word[:_MAX_SHOWN_CHARS], known, 1)
    return f" (did you mean {shown(near[0])}?)" if near else ""


_PART = r"""(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[\w-]++)"""
_DEEP_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_MAX_KEY_PARTS},}}+")


def deep_key_line(text: str) -> int | None:
    """The line of a key like a.b.c... of more than _MAX_KEY_PARTS parts: tomllib takes the square of
    their number over one, 7 s for 8,000 parts. No sentence or list of numbers looks like that."""
    found = _DEEP_KEY.search(text)
    return text.count("\n", 0, found.start()) + 1 if found else None


def syntax(message: str, text: str) -> tuple[str, int | None, str]:
    """What tomllib says, its line, and its column in words."""
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if not found:
        return message, None, ""
    what = message[: found.start()]
    what = what[:1].lower() + what[1:]
    if found[1]:
        return what, int(found[1]), f" (column {found[2]})"
    return what, text.rstrip().count("\n") + 1, " (at the end of the file)"


# What the value should have been, by pydantic's name of the error.
_KINDS = {
    "string_type": "text in quotes",
    "string_unicode": "valid Unicode",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}
_BOUNDS = {"greater_than_equal": ("ge", "at least"), "less_than_equal": ("le", "at most")}


def explain(errors: Sequence[ErrorDetails], tables: Mapping[KeyPath, type[BaseModel]]) -> tuple[KeyPath, str]:
    """The path of the part to look at, and what is wrong with it. Of several faults the first, but a misspelt
    key before the missing one. `tables` are the models by their paths: their keys are suggested."""
    error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    path, context = error["loc"], error.get("ctx", {})
    keys = [part for part in path if isinstance(part, str)]
    name, kind, value = ".".join(keys), error["type"], error["input"]
    place = f" in [{'.'.join(keys[:-1])}]" if keys[:-1] else ""
    if kind == "extra_forbidden":
        near = did_you_mean(keys[-1], tuple(tables[path[:-1]].model_fields))
        return path, f"unknown key {shown(keys[-1])}{place}{near}"
    if kind == "missing":
        return path[:-1], f"the key {shown(keys[-1])} is missing{place}"
    if isinstance(fault := context.get("error"), Fault):
        joint = " " if str(fault).startswith("must") else ": "
        return (*path, *fault.path), f"{name}{joint}{fault}"
    item = f"an item of {name}" if isinstance(path[-1], int) else name
    if kind in _KINDS:
        return path, f"{item} must be {_KINDS[kind]}, not {shown(value)}"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return path, f"{item} must be {words} {context[bound]}, not {shown(value)}"
    if kind == "literal_error":
        return path, f"{item} must be {context['expected']}, not {shown(value)}"
    if kind == "string_too_short":
        return path, f"{item} must not be empty"
    if kind == "string_too_long":
        return path, f"{item} must be {context['max_length']} characters or fewer"
    return path, f"{item}: {error['msg']}"  # pydantic's own words


_LOCATE_CHARS = 2**18  # reading effort spent on finding a line; a profile of 100 lines takes a tenth of it


class _GiveUp(Exception):
    pass


class _Reader:
    """Reads pieces of a valid TOML text with tomllib itself, so that nothing about TOML is guessed here."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self._left = _LOCATE_CHARS

    def read(self, start: int, stop: int, closing: str = "") -> Mapping[str, object] | None:
        chunk = "\n".join([*self.lines[start:stop], closing])
        self._left -= len(chunk)
        if self._left < 0:
            raise _GiveUp
        try:
            return tomllib.loads(chunk)
        except (ValueError, RecursionError):
            return None

    def statements(self) -> Iterator[tuple[int, int, Mapping[str, object]]]:
        """(first line, line after the last, value). A statement ends with the line that completes it."""
        start = 0
        for stop in range(1, len(self.lines) + 1):
            value = self.read(start, stop)
            if value is not None:
                yield start, stop, value
                start = stop


def line_of(text: str, path: KeyPath) -> int | None:
    """The line, from 1, of a key or a list item in a valid TOML text; None where it cannot be told."""
    depth = next((n for n, part in enumerate(path) if isinstance(part, int)), len(path))
    keys, index = path[:depth], next((part for part in path if isinstance(part, int)), None)
    reader = _Reader(text)
    table: KeyPath = ()  # of the last [header]
    try:
        for start, stop, value in reader.statements():
            header = reader.lines[start].lstrip(" \t").startswith("[")
            if header:
                table = _innermost(value)
            inside = keys if header else keys[len(table) :] if keys[: len(table)] == table else ()
            found = _descend(value, inside) if inside else None
            if found is None:
                continue
            if index is None:
                return start + 1
            if not isinstance(found, list):
                continue
            if not header:
                return _line_of_item(reader, start, stop, inside, index) + 1
            if index == 0:
                return start + 1
            index -= 1  # each [[header]] is one item
    except _GiveUp:
        pass
    return None


def _line_of_item(reader: _Reader, start: int, stop: int, keys: KeyPath, index: int) -> int:
    """The line, from 0, on which the item is complete: the list closed there has it. Else the key's line."""
    closed = None
    for end in range(start + 1, stop):
        closed = reader.read(start, end, "]")
        items = _descend(closed, keys)
        if isinstance(items, list) and len(cast("list[object]", items)) > index:
            return end - 1
    return start if closed is None else stop - 1


def _innermost(header: object) -> KeyPath:
    path: list[int | str] = []
    while isinstance(header, dict) and header:
        ((key, header),) = cast("dict[str, object]", header).items()
        path.append(key)
    # The keys below a [[header]] belong to one of several tables; -1 matches none of their paths.
    return (*path, -1) if isinstance(header, list) else tuple(path)


def _descend(value: object, keys: KeyPath) -> object:
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = cast("dict[object, object]", value).get(key)
    return value
