"""`relaygen profiles`: see, compare and check what is known about pairs of models."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast

import orjson
import typer

from relaygen import profile as profiles
from relaygen.profile import Profile

app = typer.Typer(no_args_is_help=True, help="List, show, compare and check profiles.")

Spec = Annotated[str, typer.Argument(metavar="PROFILE", help="A built-in profile or a .toml file.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


@app.command("list")
def list_profiles(json: Json = False) -> None:
    """Show the built-in profiles."""
    found = [profiles.load(name) for name in profiles.builtin_names()]
    if json:
        _write([_summary(one) for one in found])
        return
    width = max(len(one.name) for one in found)
    for one in found:
        typer.echo(f"{one.name:{width}}  {len(one.cues):2} cues  {one.about}")


@app.command()
def show(profile: Spec, json: Json = False) -> None:
    """Print a profile whole, as a file that can be changed and used.

    \b
      relaygen profiles show generic > mine.toml
    """
    found = profiles.load(profile)
    if json:
        _write(found.model_dump(mode="json"))
    else:
        typer.echo(profiles.dump(found), nl=False)


@app.command()
def diff(first: Spec, second: Spec, json: Json = False) -> None:
    """Show what differs between two profiles."""
    a, b = (profiles.load(spec).model_dump(mode="json") for spec in (first, second))
    changes = _changes(a, b)
    if json:
        _write({key: {"first": old, "second": new} for key, (old, new) in changes.items()})
        return
    for key, (old, new) in changes.items():
        typer.echo(key)
        for line in _difference(old, new):
            typer.echo(f"  {line}")
    if not changes:
        typer.echo("no difference")


@app.command()
def validate(file: Spec) -> None:
    """Check a profile. The first fault is told with its line, by exit code 2."""
    found = profiles.load(file)
    typer.echo(f"{file}: valid; {found.name}, {len(found.cues)} cues")


def _summary(profile: Profile) -> dict[str, Any]:
    keys = {"name", "about", "large", "small", "cues", "answer_cues"}
    return profile.model_dump(mode="json", include=keys)


def _changes(
    first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """The values of both, by dotted key, where they differ."""
    out: dict[str, tuple[Any, Any]] = {}
    for key in {**first, **second}:
        old, new, name = first.get(key), second.get(key), f"{prefix}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            out |= _changes(cast("dict[str, Any]", old), cast("dict[str, Any]", new), f"{name}.")
        elif old != new:
            out[name] = (old, new)
    return out


def _difference(old: Any, new: Any) -> Iterator[str]:
    if not (isinstance(old, list) and isinstance(new, list)):
        yield f"- {_shown(old)}"
        yield f"+ {_shown(new)}"
        return
    before, after = cast("list[Any]", old), cast("list[Any]", new)
    gone, come = [x for x in before if x not in after], [x for x in after if x not in before]
    if gone:
        yield f"- {'  '.join(map(_shown, gone))}"
    if come:
        yield f"+ {'  '.join(map(_shown, come))}"
    if not (gone or come):
        yield "the same, in another order"


def _shown(value: Any) -> str:
    return "nothing" if value is None else orjson.dumps(value).decode()


def _write(value: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
