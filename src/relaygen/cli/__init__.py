"""The command line: one thin file per command. Only here is anything printed, and only here does the process exit."""

from __future__ import annotations

import sys

import click
import typer

from relaygen import __version__
from relaygen.cli import models, run
from relaygen.errors import RelayError

app = typer.Typer(
    name="relaygen",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="One answer, two models: a large and a small LLM take turns writing.",
)
app.command("run")(run.run)
app.add_typer(models.app, name="models")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"relaygen {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Entry point. Errors become one line on stderr and the exit code of their type; Ctrl-C is 130."""
    try:
        code = app(standalone_mode=False)
    except RelayError as error:
        code = _fail(str(error), error.exit_code)
    except click.ClickException as error:
        code = _fail(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:  # the reader of our output has left
        sys.stderr.close()
        code = 141
    sys.exit(code)


def _fail(message: str, code: int) -> int:
    print(f"relaygen: {message}", file=sys.stderr)
    return code
