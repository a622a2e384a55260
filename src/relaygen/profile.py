"""Profiles: what a pair of models needs, as data. A TOML file holds the cues, the think markers, floors and
budgets, and the measurements they came from; `dump` shows every key, `profiles/` holds the built-in ones.

Every fault in a file or a name is a ProfileError of one line. It names the line of the fault where that is
certain, and no line rather than a wrong one. Values are taken as written: "5" is no number and `true` no 1.
Only a Profile built in code can raise pydantic's own ValidationError.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
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

from relaygen import toml_write
from relaygen.errors import ProfileError, UserError
from relaygen.toml_faults import (
    Fault,
    KeyPath,
    deep_key_line,
    did_you_mean,
    explain,
    line_of,
    printable,
    shown,
    syntax,
)
from relaygen.types import Sampling

FORMAT = 1
GENERIC = "generic"
MAX_BYTES = 2**20
MAX_CUE_CHARS = 64
MAX_CUES = 1000  # each one is looked for at every word
_MAX_INT = 2**31 - 1  # no server takes more
_MAX_DEPTH = 16  # of tables and lists in [evidence]
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def _cue(text: str) -> str:
    if not text.strip():
        raise Fault("a cue must not be empty")
    if len(text) > MAX_CUE_CHARS:
        raise Fault(f"the cue {shown(text)} is longer than {MAX_CUE_CHARS} characters")
    return text


def _distinct(cues: tuple[str, ...]) -> tuple[str, ...]:
    if len(cues) > MAX_CUES:
        raise Fault(f"must be {MAX_CUES} cues or fewer, not {len(cues)}")
    seen: set[str] = set()
    for index, cue in enumerate(cues):
        if cue in seen:
            raise Fault(f"the cue {shown(cue)} is listed twice", (index,))
        seen.add(cue)
    return cues


def _one_line(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", text):
        raise Fault("must be one line, without control characters")
    return text


def _plain(value: object, path: KeyPath = ()) -> Any:
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
            raise Fault(f"nested deeper than {_MAX_DEPTH}", path[:1])
        case _:
            raise Fault(f"{shown(value)} is not a value that a profile can hold", path)


def _plain_key(key: object, path: KeyPath) -> str:
    if not isinstance(key, str):
        raise Fault(f"the key {shown(key)} is not text", path)
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
            raise Fault("open and close must differ")
        return self


class Limits(_Table):
    """In tokens. After `max_repeats` equal rounds in a row (a large turn and the small segment after it) the large
    model goes on alone. `max_tokens` is the budget over both models."""

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
            raise Fault(str(error).removeprefix(f"{info.field_name} ")) from None
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


_TABLES: Mapping[KeyPath, type[BaseModel]] = {
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
        raise ProfileError(printable(f"unknown profile {shown(spec)}{did_you_mean(spec, names)}; {known}"))
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
    if line := deep_key_line(text):
        raise _error(source, line, "a key of too many parts")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, line, column = syntax(str(error), text)
        raise _error(source, line, f"not TOML: {what}{column}") from None
    except RecursionError:
        raise _error(source, None, "not a profile: nested too deeply") from None
    except ValueError:  # the one thing that Python refuses within valid TOML
        raise _error(source, None, "a number in it has too many digits") from None
    version = values.get("format", FORMAT)
    if type(version) is not int or version != FORMAT:  # first of all: another format may have other keys
        message = f"format {shown(version)} is not known: this release of relaygen reads format {FORMAT}"
        raise _error(source, line_of(text, ("format",)), message)
    try:
        return Profile.model_validate(values)
    except ValidationError as error:
        path, message = explain(error.errors(include_url=False), _TABLES)
        raise _error(source, line_of(text, path), message) from None


def load_cues(path: str | Path) -> tuple[str, ...]:
    """A list of cues in plain text: one a line; blank lines and `#` comments are skipped. Spaces count, at
    the end too; to show them, or for a cue that starts with " or #, write the cue as a JSON string: "So "."""
    cues: dict[str, None] = {}
    for number, raw in enumerate(_read(Path(path)).split("\n"), 1):
        line = raw.removesuffix("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            cue = _cue(_plain(json.loads(line) if line.startswith('"') else line))
            if cue in cues:
                raise Fault(f"the cue {shown(cue)} is listed twice")
            if len(cues) == MAX_CUES:
                raise Fault(f"there are more than {MAX_CUES} cues")
            cues[cue] = None
        except json.JSONDecodeError:
            message = f"{shown(line)} starts with a quote, so it must be one JSON string"
            raise _error(str(path), number, message) from None
        except Fault as fault:
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
    return toml_write.dumps(profile.model_dump(exclude_none=True))


def _error(source: str, line: int | None, message: str) -> ProfileError:
    where = source if line is None else f"{source}, line {line}"
    return ProfileError(printable(f"{where}: {message}"))
