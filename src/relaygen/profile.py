"""Profiles: what a pair of models needs, as data. A TOML file holds the cues, the think markers, floors and
budgets, and the measurements they came from; `dump` shows every key, `profiles/` holds the built-in ones.

Every fault in a file or a name is a ProfileError of one line. It names the line of the fault where that is
certain, and no line rather than a wrong one. Values are taken as written: "5" is no number and `true` no 1.
Only a Profile built in code can raise pydantic's own ValidationError.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from relaygen.errors import ProfileError, UserError
from relaygen.types import Sampling

FORMAT = 1
GENERIC = "generic"
MAX_BYTES = 2**20
MAX_CUE_CHARS = 64
_MAX_INT = 2**31 - 1  # no server takes more
_MAX_DEPTH = 16  # of tables and lists in [evidence]
_SURROGATE = re.compile(r"[\ud800-\udfff]")

_KeyPath = tuple[int | str, ...]


class _Fault(ValueError):
    """Found by a validator. `path` leads from the validated field to the part at fault."""

    def __init__(self, message: str, path: _KeyPath = ()) -> None:
        super().__init__(_printable(message))  # pydantic cannot carry half of a surrogate pair
        self.path = path


def _cue(text: str) -> str:
    if not text.strip():
        raise _Fault("a cue must not be empty")
    if len(text) > MAX_CUE_CHARS:
        raise _Fault(f"the cue {_shown(text)} is longer than {MAX_CUE_CHARS} characters")
    return text


def _distinct(cues: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    for index, cue in enumerate(cues):
        if cue in seen:
            raise _Fault(f"the cue {_shown(cue)} is listed twice", (index,))
        seen.add(cue)
    return cues


def _one_line(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", text):
        raise _Fault("must be one line, without control characters")
    return text


def _plain(value: object, path: _KeyPath = ()) -> Any:
    """The value as TOML would give it back; a fault where it could not."""
    match value:
        case bool() | date() | time():
            return value
        case str() if not _SURROGATE.search(value):
            return value
        case int() if -(2**63) <= value < 2**63:
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple() if len(path) < _MAX_DEPTH:
            items = cast("Sequence[object]", value)
            return [_plain(item, (*path, index)) for index, item in enumerate(items)]
        case dict() if len(path) < _MAX_DEPTH:
            table = cast("Mapping[object, object]", value)
            return {_plain_key(key, path): _plain(item, (*path, str(key))) for key, item in table.items()}
        case list() | tuple() | dict():
            raise _Fault(f"nested deeper than {_MAX_DEPTH}", path[:1])
        case _:
            raise _Fault(f"{_shown(value)} is not a value that a profile can hold", path)


def _plain_key(key: object, path: _KeyPath) -> str:
    if not isinstance(key, str):
        raise _Fault(f"the key {_shown(key)} is not text", path)
    return cast("str", _plain(key, path))


Cue = Annotated[str, AfterValidator(_cue)]
# TOML has lists only: of all the values, these alone change their type.
Cues = Annotated[tuple[Cue, ...], Strict(False), AfterValidator(_distinct)]
Fragments = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Strict(False)]
Line = Annotated[str, AfterValidator(_one_line)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Think(_Table):
    """The markers around the thinking stage."""

    open: str = Field(min_length=1, max_length=MAX_CUE_CHARS)
    close: str = Field(min_length=1, max_length=MAX_CUE_CHARS)

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.open == self.close:
            raise _Fault("open and close must differ")
        return self


class Limits(_Table):
    """In tokens. After `max_repeats` equal small segments in a row the large model goes on alone.
    `max_tokens` is the budget over both models."""

    min_large_tokens: int = Field(5, ge=0, le=_MAX_INT)
    max_small_tokens: int = Field(200, ge=1, le=_MAX_INT)
    max_repeats: int = Field(3, ge=1, le=_MAX_INT)
    max_tokens: int = Field(4096, ge=1, le=_MAX_INT)


_SAMPLING = Sampling()


class SamplingTable(_Table):
    """Sampling without the seed: defaults and ranges are its."""

    temperature: float = _SAMPLING.temperature
    top_p: float = _SAMPLING.top_p
    top_k: int = Field(
        _SAMPLING.top_k, ge=0, le=_MAX_INT
    )  # before Sampling, which could not print a huge one
    min_p: float = _SAMPLING.min_p
    repeat_penalty: float = _SAMPLING.repeat_penalty

    @field_validator("*")
    @classmethod
    def _in_range(cls, value: float, info: ValidationInfo) -> float:
        try:
            Sampling(**{str(info.field_name): cast("Any", value)})
        except UserError as error:
            raise _Fault(str(error).removeprefix(f"{info.field_name} ")) from None
        return value

    def values(self) -> Sampling:
        return Sampling(**self.model_dump())


class Phase(_Table):
    """Cues of the policy `phase`, matched in lower case."""

    answer: Cues = ("answer:", "solution:", "result:", "therefore,", "thus,", "finally,")
    consolidation: Cues = ("in conclusion", "to summarize", "simplifying", "therefore")
    calculation: Cues = ()


class Profile(_Table):
    """`large` and `small` are parts of model names, by which `pick` finds the profile. `answer_cues` start
    the answer stage in a text without thinking; `answer_by` writes it. `evidence` says where all this comes
    from."""

    format: Literal[1] = FORMAT
    name: Line = Field(min_length=1, max_length=100)
    about: Line = ""
    large: Fragments = ()
    small: Fragments = ()
    cues: Cues
    answer_cues: Cues = ()
    answer_by: Literal["small", "large"] = "small"
    think: Think | None = None
    limits: Limits = Limits.model_validate({})
    sampling: SamplingTable = SamplingTable.model_validate({})
    phase: Phase = Phase()
    evidence: Annotated[dict[str, Any], AfterValidator(_plain)] = Field(default_factory=dict[str, Any])


_TABLES: Mapping[_KeyPath, type[BaseModel]] = {
    (): Profile,
    ("think",): Think,
    ("limits",): Limits,
    ("sampling",): SamplingTable,
    ("phase",): Phase,
}


# --- finding and reading


def builtin_names() -> tuple[str, ...]:
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load(spec: str | Path) -> Profile:
    """A built-in profile by its name, or a file: a Path, or text with a path separator or a final .toml."""
    if isinstance(spec, Path) or spec.endswith(".toml") or "/" in spec or "\\" in spec:
        return parse(_read(Path(spec)), str(spec))
    names = builtin_names()
    if spec not in names:
        known = f"there are {', '.join(names)}, and files, which end in .toml"
        raise ProfileError(_printable(f"unknown profile {_shown(spec)}{_did_you_mean(spec, names)}; {known}"))
    return parse((_folder() / f"{spec}.toml").read_text("utf-8"), f"{spec}.toml")


def pick(large_model: str, small_model: str) -> Profile:
    """The built-in profile made for both models, by parts of their names (the longest win, of equals the
    first by name); else `generic`."""
    best, best_score = load(GENERIC), 0
    for name in builtin_names():
        profile = load(name)
        large, small = _fit(profile.large, large_model), _fit(profile.small, small_model)
        if large and small and large + small > best_score:
            best, best_score = profile, large + small
    return best


def _fit(fragments: tuple[str, ...], model: str) -> int:
    """Length of the longest fragment in the name: not inside a word ("Qwen3-8B" is not in "Qwen3-8Bit"), and
    whichever way the parts are joined ("qwen3:8b")."""

    def plain(name: str) -> str:
        return re.sub(r"[\s_:]+", "-", name.casefold())

    found = (
        f for f in fragments if re.search(rf"(?<![a-z0-9]){re.escape(plain(f))}(?![a-z0-9])", plain(model))
    )
    return max(map(len, found), default=0)


def parse(text: str, source: str) -> Profile:
    """`source` names the text in errors."""
    if lone := _SURROGATE.search(text):  # never in a decoded file; neither tomllib nor pydantic expects one
        raise _error(source, text.count("\n", 0, lone.start()) + 1, "not Unicode: half of a surrogate pair")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, line, column = _syntax(str(error), text)
        raise _error(source, line, f"not TOML: {what}{column}") from None
    except RecursionError:
        raise _error(source, None, "not a profile: nested too deeply") from None
    except ValueError:  # the one thing that Python refuses within valid TOML
        raise _error(source, None, "a number in it has too many digits") from None
    version = values.get("format", FORMAT)
    if type(version) is not int or version != FORMAT:  # first of all: another format may have other keys
        message = f"format {_shown(version)} is not known: this release of relaygen reads format {FORMAT}"
        raise _error(source, _line_of(text, ("format",)), message)
    try:
        return Profile.model_validate(values)
    except ValidationError as error:
        path, message = _explain(error.errors(include_url=False))
        raise _error(source, _line_of(text, path), message) from None


def load_cues(path: str | Path) -> tuple[str, ...]:
    """A list of cues in plain text: one a line; blank lines and `#` comments are skipped. Spaces count, at
    the end too; to show them, or for a cue that starts with " or #, write the cue as a JSON string: "So "."""
    cues: list[str] = []
    for number, raw in enumerate(_read(Path(path)).split("\n"), 1):
        line = raw.removesuffix("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            cues.append(_cue(_plain(json.loads(line) if line.startswith('"') else line)))
            _distinct(tuple(cues))
        except json.JSONDecodeError:
            message = f"{_shown(line)} starts with a quote, so it must be one JSON string"
            raise _error(str(path), number, message) from None
        except _Fault as fault:
            raise _error(str(path), number, str(fault)) from None
    if not cues:
        raise _error(str(path), None, "there are no cues in it")
    return tuple(cues)


def _folder() -> Traversable:
    return resources.files("relaygen") / "profiles"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # not by its size: a pipe has none
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _error(str(path), None, f"cannot be read: {why[:1].lower()}{why[1:]}") from None
    if len(data) > MAX_BYTES:
        raise _error(
            str(path), None, f"larger than {MAX_BYTES // 2**20} MiB, so not a profile or a list of cues"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # error.object: the data without a byte order mark, which is on line 1 anyway
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _error(str(path), line, "not UTF-8") from None


# --- writing


def dump(profile: Profile) -> str:
    """TOML that parses back to the same profile."""
    return "\n".join(_table(profile.model_dump(exclude_none=True), ())) + "\n"


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


# --- errors: what to say, and on which line


def _error(source: str, line: int | None, message: str) -> ProfileError:
    where = source if line is None else f"{source}, line {line}"
    return ProfileError(_printable(f"{where}: {message}"))


def _printable(text: str) -> str:
    """One line, whatever the file holds, and nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _shown(value: object) -> str:
    match value:
        case str():
            cut = value if len(value) <= MAX_CUE_CHARS else f"{value[:MAX_CUE_CHARS]}…"
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


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word[:MAX_CUE_CHARS], known, 1)
    return f" (did you mean {_shown(near[0])}?)" if near else ""


def _syntax(message: str, text: str) -> tuple[str, int | None, str]:
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


def _explain(errors: Sequence[ErrorDetails]) -> tuple[_KeyPath, str]:
    """The path of the part to look at, and what is wrong with it. Of several faults the first, but a misspelt
    key before the missing one."""
    error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    path, context = error["loc"], error.get("ctx", {})
    keys = [part for part in path if isinstance(part, str)]
    name, kind, value = ".".join(keys), error["type"], error["input"]
    place = f" in [{'.'.join(keys[:-1])}]" if keys[:-1] else ""
    if kind == "extra_forbidden":
        near = _did_you_mean(keys[-1], tuple(_TABLES[path[:-1]].model_fields))
        return path, f"unknown key {_shown(keys[-1])}{place}{near}"
    if kind == "missing":
        return path[:-1], f"the key {_shown(keys[-1])} is missing{place}"
    if isinstance(fault := context.get("error"), _Fault):
        joint = " " if str(fault).startswith("must") else ": "
        return (*path, *fault.path), f"{name}{joint}{fault}"
    item = f"an item of {name}" if isinstance(path[-1], int) else name
    if kind in _KINDS:
        return path, f"{item} must be {_KINDS[kind]}, not {_shown(value)}"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return path, f"{item} must be {words} {context[bound]}, not {_shown(value)}"
    if kind == "literal_error":
        return path, f"{item} must be {context['expected']}, not {_shown(value)}"
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


def _line_of(text: str, path: _KeyPath) -> int | None:
    """The line, from 1, of a key or a list item in a valid TOML text; None where it cannot be told."""
    depth = next((n for n, part in enumerate(path) if isinstance(part, int)), len(path))
    keys, index = path[:depth], next((part for part in path if isinstance(part, int)), None)
    reader = _Reader(text)
    table: _KeyPath = ()  # of the last [header]
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


def _line_of_item(reader: _Reader, start: int, stop: int, keys: _KeyPath, index: int) -> int:
    """The line, from 0, on which the item is complete: the list closed there has it. Else the key's line."""
    closed = None
    for end in range(start + 1, stop):
        closed = reader.read(start, end, "]")
        items = _descend(closed, keys)
        if isinstance(items, list) and len(cast("list[object]", items)) > index:
            return end - 1
    return start if closed is None else stop - 1


def _innermost(header: object) -> _KeyPath:
    path: list[int | str] = []
    while isinstance(header, dict) and header:
        ((key, header),) = cast("dict[str, object]", header).items()
        path.append(key)
    # The keys below a [[header]] belong to one of several tables; -1 matches none of their paths.
    return (*path, -1) if isinstance(header, list) else tuple(path)


def _descend(value: object, keys: _KeyPath) -> object:
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = cast("dict[object, object]", value).get(key)
    return value
