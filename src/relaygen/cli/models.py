"""`relaygen models`: see and manage the weights on this machine."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from relaygen import models
from relaygen.errors import UserError

app = typer.Typer(no_args_is_help=True, help="List, fetch and remove weights.")


def _known() -> list[str]:
    return list(models.CATALOGUE)


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="As shown by `relaygen models list`.", autocompletion=_known)
]


@app.command("list")
def list_models(json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """Show which models have a name, and which of them are on this machine.

    Any other model can be given as the path of a .gguf file.
    """
    entries = models.listing()
    if json:
        sys.stdout.buffer.write(
            orjson.dumps([_as_json(entry) for entry in entries], option=orjson.OPT_INDENT_2)
        )
        typer.echo()
        return
    rows = [("NAME", "SIZE", "LICENCE", "HERE", "PAIR", "")]
    for entry in entries:
        pairs = ", ".join(f"{pair.name} ({_role(pair, entry.model)})" for pair in entry.pairs)
        here = "yes" if entry.path else "-"
        size = _size(entry.model.size_bytes)
        rows.append((entry.model.name, size, entry.model.licence, here, pairs, entry.model.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    typer.echo(f"\nFolder: {models.folder()}")


@app.command()
def pull(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="As shown by `list`.", autocompletion=_known)
    ] = None,
    pair: Annotated[str | None, typer.Option(metavar="PAIR", help="Both models of a pair.")] = None,
) -> None:
    """Fetch weights. What is here already is not fetched again, and a cut download goes on where it was.

    \b
      relaygen models pull --pair default
      relaygen models pull qwen2.5-coder-0.5b smollm2-135m
    """
    wanted = list(names or ())
    if pair:
        both = models.find_pair(pair)
        wanted += [both.large, both.small]
    if not wanted:
        raise UserError("name the models to fetch, or a pair: relaygen models pull --pair default")
    for name in wanted:
        models.find(name)  # a misspelt name is said before the first gigabyte, not after
    for name in wanted:
        try:
            with fetching() as progress:
                file = models.pull(name, progress)
        except KeyboardInterrupt:
            typer.echo("stopped; the same command goes on from what has come", err=True)
            raise typer.Exit(130) from None
        typer.echo(f"{name} is here: {file}", err=True)


@app.command()
def path(name: Name) -> None:
    """Print where the weights are, and nothing else.

    \b
      llama-cli -m "$(relaygen models path qwen2.5-coder-0.5b)"
    """
    typer.echo(models.path(name))


@app.command()
def remove(name: Name) -> None:
    """Delete weights, and what a cut download left behind."""
    typer.echo(f"removed {name}: {_size(models.remove(name))} are free again", err=True)


@contextmanager
def fetching() -> Generator[models.Progress]:
    """Shows a download on stderr: a bar on a terminal, else one line; nothing if there is nothing to do."""
    console = Console(stderr=True)
    if not console.is_terminal:
        said: list[str] = []

        def line(done_bytes: int, total_bytes: int, what: str) -> None:
            if not said:
                said.append(what)
                typer.echo(f"{what} ({_size(total_bytes)})", err=True)

        yield line
        return

    columns = (BarColumn(24), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bars("{task.description}", *columns, console=console, transient=True) as bars:

        def draw(done_bytes: int, total_bytes: int, what: str) -> None:
            task = bars.task_ids[0] if bars.task_ids else bars.add_task(what, total=total_bytes)
            bars.update(task, description=what, completed=done_bytes, total=total_bytes)

        yield draw


def _as_json(entry: models.Entry) -> dict[str, object]:
    model = entry.model
    return {
        "name": model.name,
        "repo": model.repo,
        "file": model.file,
        "size_bytes": model.size_bytes,
        "sha256": model.sha256,
        "licence": model.licence,
        "path": str(entry.path) if entry.path else None,
        "pairs": {pair.name: _role(pair, model) for pair in entry.pairs},
    }


def _role(pair: models.Pair, model: models.Model) -> str:
    return "large" if model.name == pair.large else "small"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
