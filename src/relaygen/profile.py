"""Profiles: what a pair of models needs, as data. A TOML file holds the cues, the think markers, floors and budgets, and the
measurements they came from; `docs/profiles.md` shows one.

Every fault in a file is a ProfileError of one line that names the file and the line of the fault.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from relaygen.errors import ProfileError
from relaygen.types import Sampling

FORMAT = 1
MAX_BYTES = 2**20
GENERIC = "generic"


def _cue(text: str) -> str:
    if not text.strip():
        raise ValueError("a cue must not be empty")
    return text


def _distinct(cues: tuple[str, ...]) -> tuple[str, ...]:
    for index, cue in enumerate(cues):
        if cue in cues[:index]:
            raise ValueError(f"the cue {_quoted(cue)} is listed twice")
    return cues


Cue = Annotated[str, Field(max_length=64), AfterValidator(_cue)]
Cues = Annotated[tuple[Cue, ...], AfterValidator(_distinct)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Think(_Table):
    """The markers around the thinking stage."""

    open: Cue
    close: Cue


class Limits(_Table):
    """In tokens; `max_repeats` in equal small segments in a row, after which the large model goes on alone."""

    min_large_tokens: int = Field(5, ge=0)
    max_small_tokens: int = Field(200, ge=1)
    max_repeats: int = Field(3, ge=1)
    max_tokens: int = Field(4096, ge=1)


class SamplingTable(_Table):
    temperature: float = Field(0.6, ge=0, le=100)
    top_p: float = Field(0.95, gt=0, le=1)
    top_k: int = Field(20, ge=0)
    min_p: float = Field(0.0, ge=0, lt=1)
    repeat_penalty: float = Field(1.0, gt=0, le=100)

    def values(self) -> Sampling:
        return Sampling(**self.model_dump())


class Phase(_Table):
    """Cues of the policy `phase`, matched in lower case."""

    answer: Cues = ("answer:", "solution:", "result:", "therefore,", "thus,", "finally,")
    consolidation: Cues = ("in conclusion", "to summarize", "simplifying", "therefore")
    calculation: Cues = ()


class Profile(_Table):
    """`large` and `small` are parts of model names by which `pick` finds the profile. `answer_cues` start the answer stage
    in a text without thinking; `answer_by` writes it. `evidence` says where all this comes from."""

    format: Literal[1] = FORMAT
    name: str = Field(min_length=1, max_length=100)
    about: str = ""
    large: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    cues: Cues
    answer_cues: Cues = ()
    answer_by: Literal["large", "small"] = "small"
    think: Think | None = None
    limits: Limits = Limits.model_validate({})
    sampling: SamplingTable = SamplingTable.model_validate({})
    phase: Phase = Phase()
    evidence: dict[str, Any] = Field(default_factory=dict[str, Any])


def builtin_names() -> tuple[str, ...]:
    return tuple(sorted(f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml")))


def load(spec: str | Path) -> Profile:
    """A built-in profile by name, or a file: whatever has a path separator or ends in .toml."""
    if isinstance(spec, Path) or spec.endswith(".toml") or "/" in spec or "\\" in spec:
        return parse(_read(Path(spec)), str(spec))
    if spec in builtin_names():
        return parse((_folder() / f"{spec}.toml").read_text("utf-8"), f"{spec}.toml")
    raise ProfileError(f"unknown profile {_quoted(spec)}{_close(spec, builtin_names())}; there are: {', '.join(builtin_names())}")


def pick(large_model: str, small_model: str) -> Profile:
    """The built-in profile made for these models, by parts of their names (the longest win); else `generic`."""

    def fit(parts: tuple[str, ...], model: str) -> int:
        return max((len(part) for part in parts if part.lower() in model.lower()), default=0)

    best, best_score = GENERIC, 0
    for name in builtin_names():
        profile = load(name)
        large, small = fit(profile.large, large_model), fit(profile.small, small_model)
        if large and small and large + small > best_score:
            best, best_score = name, large + small
    return load(best)


def parse(text: str, source: str) -> Profile:
    """`source` names the text in errors."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column \d+\)$", str(error))
        what = re.sub(r" \(at .*\)$", "", str(error))
        raise ProfileError(f"{source}{f', line {found.group(1)}' if found else ''}: not TOML: {what}") from None
    except RecursionError:
        raise ProfileError(f"{source}: nested too deeply") from None
    if "format" in values and values["format"] != FORMAT:
        raise ProfileError(
            f"{_at(source, text, ('format',))}: format {values['format']!r} is not known; this release reads format {FORMAT}"
        )
    try:
        return Profile.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = first["loc"]
        raise ProfileError(f"{_at(source, text, path, first.get('input'))}: {_explain(first, path)}") from None


def load_cues(path: Path) -> tuple[str, ...]:
    """A plain list of cues: one a line, `#` comments, blank lines skipped. Spaces at the end count; a cue may be written as
    a JSON string to show them: "So "."""
    cues: list[str] = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            cue = json.loads(line) if line.startswith('"') else line
        except json.JSONDecodeError:
            raise ProfileError(f"{path}, line {number}: the quotes are not closed") from None
        if not isinstance(cue, str) or not cue.strip() or len(cue) > 64 or cue in cues:
            raise ProfileError(f"{path}, line {number}: a cue must be 1 to 64 characters long, and listed once")
        cues.append(cue)
    if not cues:
        raise ProfileError(f"{path}: no cues in it")
    return tuple(cues)


def dump(profile: Profile) -> str:
    """TOML that parses back to the same profile."""
    return "\n".join(_toml(profile.model_dump(exclude_none=True), ())) + "\n"


def _toml(values: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    tables = {k: v for k, v in values.items() if isinstance(v, dict)}
    if path:
        yield f"\n[{'.'.join(map(_quoted, path))}]"
    for key, value in values.items():
        if key not in tables:
            yield f"{key if re.fullmatch(r'[A-Za-z0-9_-]+', key) else _quoted(key)} = {_value(value)}"
    for key, table in tables.items():
        yield from _toml(table, (*path, key))


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, dict):
        inner = ", ".join(f"{_quoted(k)} = {_value(v)}" for k, v in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return f"{{{inner}}}"
    return str(value)


def _quoted(text: str) -> str:
    """As a TOML basic string: JSON's escapes, and DEL, which TOML does not allow as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _folder() -> Any:
    return resources.files("relaygen") / "profiles"


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ProfileError(f"{path}: larger than {MAX_BYTES // 2**20} MiB, so hardly a profile")
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not UTF-8 (byte {error.start})") from None
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _explain(error: Any, path: tuple[int | str, ...]) -> str:
    name = ".".join(str(part) for part in path if isinstance(part, str))
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {_quoted(name)}{_close(str(path[-1]), _keys(path[:-1]))}"
        case "missing":
            return f"the key {_quoted(name)} is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case _:
            return f"{name}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _keys(path: tuple[int | str, ...]) -> tuple[str, ...]:
    model: type[BaseModel] = Profile
    for part in path:
        model = {"think": Think, "limits": Limits, "sampling": SamplingTable, "phase": Phase}.get(str(part), model)
    return tuple(model.model_fields)


def _close(word: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {_quoted(near[0])}?)" if near else ""


def _at(source: str, text: str, path: tuple[int | str, ...], value: Any = None) -> str:
    """`source, line N` where the fault can be found in the text; else `source`."""
    keys = [part for part in path if isinstance(part, str)]
    lines = text.splitlines()
    start = 0
    for depth, key in enumerate(keys):
        pattern = re.compile(rf"""\s*\[?\s*(?:[\w."-]+\.)?["']?{re.escape(key)}["']?\s*(?:=|\])""")
        found = next((n for n in range(start, len(lines)) if pattern.match(lines[n])), None)
        if found is None:
            break
        start = found
        if depth == len(keys) - 1:
            return f"{source}, line {_item_line(lines, start, path, value) + 1}"
    return source


def _item_line(lines: list[str], start: int, path: tuple[int | str, ...], value: Any) -> int:
    """Within a list the line of the item itself: of the second one, if it is listed twice."""
    items = [value] if isinstance(path[-1], int) else []
    if isinstance(value, (list, tuple)):
        items = [v for i, v in enumerate(value) if v in value[:i]][:1]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for item in items:
        spelt = [_quoted(item), f"'{item}'"] if isinstance(item, str) else [str(item)]
        hits = [n for n in range(start, len(lines)) for s in spelt for _ in range(lines[n].count(s))]
        if hits:
            return hits[1] if isinstance(value, (list, tuple)) and len(hits) > 1 else hits[0]
    return start
