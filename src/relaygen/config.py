"""Settings of `relaygen serve`: flag before environment before relaygen.toml before default. Each default is written once, here.

The file is flat: `port = 8000`. In the environment the same key is RELAYGEN_PORT, lists separated by commas. An unknown
key of the file is an error that names its line. API keys are no settings: they come from a file or from RELAYGEN_API_KEYS.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL, Options, Relay
from relaygen.errors import UserError
from relaygen.files import whole
from relaygen.toml_faults import deep_key_line, did_you_mean, shown

FILE = Path("relaygen.toml")
_PREFIX = "RELAYGEN_"
_OPTIONS = Options()

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Bytes = Annotated[int, Field(ge=1, le=2**40)]


class Settings(BaseModel):
    """Sizes in bytes, times in seconds (`_s`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # several addresses, as a list or with commas between them: replicas of one model
    large: str | tuple[str, ...] = DEFAULT_LARGE
    small: str | tuple[str, ...] = DEFAULT_SMALL
    profile: str | None = None
    policy: str = "segment"
    # models on this machine
    context_tokens: Annotated[int, Field(ge=16)] = _OPTIONS.context_tokens
    slots: Count = 4  # generations at once
    threads: Count | None = _OPTIONS.threads
    draft: str | None = _OPTIONS.draft
    silence_s: Seconds = _OPTIONS.silence_s  # of a server, before it is given up
    # where it listens, and for whom
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    api_keys_file: Path | None = None
    auth: bool | None = None  # None: asked for unless only this machine can connect
    cors_origins: tuple[str, ...] = ()
    # how much at once, and how long
    workers: Annotated[int, Field(ge=1, le=256)] = 1  # processes; the next two are divided among them
    max_active: Count = 256  # generations; models on this machine have `slots` as well
    max_queued: Annotated[int, Field(ge=0)] = 64
    max_choices: Count = 8  # `n` of a request
    max_body_bytes: Bytes = 8 * 2**20
    max_header_bytes: Bytes = 64 * 2**10
    max_messages: Count = 2000
    receive_s: Seconds = 30  # for a request to arrive, headers and body each
    write_s: Seconds = 30  # for a client to read what is ready
    generation_s: Seconds = 1800
    grace_s: Seconds = 20  # after SIGTERM
    log_prompts: bool = False

    def relay(self) -> Relay:
        """The pair, not open yet."""
        return Relay(
            self.large,
            self.small,
            profile=self.profile,
            policy=self.policy,
            options=Options(
                self.context_tokens, self.slots, self.threads, self.draft, silence_s=self.silence_s
            ),
        )


def load(
    path: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any], *, default_file: Path = FILE
) -> Settings:
    """`path` None: `default_file`, if there is one. `flags` that are None were not given."""
    if path is None and default_file.exists():
        path = default_file
    values, source = _read(path) if path else ({}, "")
    origin = dict.fromkeys(values, str(path))
    for key in Settings.model_fields:
        if (text := environ.get(_PREFIX + key.upper())) is not None:
            values[key] = _split(text) if _is_list(key) else text
            origin[key] = _PREFIX + key.upper()
    for key, value in flags.items():
        if value is not None:
            values[key] = value
            origin[key] = "--" + key.replace("_", "-")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, what = str(first["loc"][0]), first["msg"]
        where = origin.get(key, "settings")
        if path and where == str(path):
            where = f"{path}, line {_line_of(source, key)}"
        raise UserError(f"{where}: {key}: {what[:1].lower()}{what[1:]}") from None


def _read(path: Path) -> tuple[dict[str, Any], str]:
    try:
        text = whole(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8") from None
    if line := deep_key_line(text):
        raise UserError(f"{path}, line {line}: a key of too many parts")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not TOML: {error}") from None
    known = tuple(Settings.model_fields)
    for key in values:
        if key not in known:
            hint = did_you_mean(key, known)
            raise UserError(f"{path}, line {_line_of(text, key)}: unknown key {shown(key)}{hint}")
    return values, text


def _line_of(text: str, key: str) -> int:
    """The file is flat, so a key stands at the beginning of its line."""
    start = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    return next((number for number, line in enumerate(text.splitlines(), 1) if start.match(line)), 1)


def _is_list(key: str) -> bool:
    return get_origin(cast("object", Settings.model_fields[key].annotation)) is tuple


def _split(text: str) -> list[str]:
    return [part for part in (part.strip() for part in text.split(",")) if part]
