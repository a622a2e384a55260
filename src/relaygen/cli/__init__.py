"""The command line: one thin file per command. Only here is anything printed, and only here does the process exit."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path

import typer

from relaygen import __version__
from relaygen.cli import (
    batch,
    bench,
    calibrate,
    doctor,
    eval,
    launch,
    models,
    profiles,
    replay,
    run,
    serve,
    simulate,
)
from relaygen.errors import RelayError
from relaygen.report.terminal import printable

app = typer.Typer(
    name="relaygen",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="One answer, two models: a large and a small LLM take turns writing.",
)
app.command("run")(run.run)
app.command("serve")(serve.serve)
app.command("batch")(batch.batch)
app.command("doctor")(doctor.doctor)
app.command("launch")(launch.launch)
app.command("replay")(replay.replay)
app.command("eval")(eval.evaluate_strategies)
app.command("bench")(bench.measure_speed)
app.command("calibrate")(calibrate.calibrate)
app.command("simulate")(simulate.simulate)
app.add_typer(models.app, name="models")
app.add_typer(profiles.app, name="profiles")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"relaygen {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point. Our errors become one line on stderr and the exit code of their type; wrong usage is 2, Ctrl-C 130."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (>&-): what is written is not wanted
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A model may write what the encoding of the terminal does not have.
            stream.reconfigure(errors="replace")
    try:
        app()
    except RelayError as error:
        # An engine's own words may be in it.
        print(f"relaygen: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:  # of standard output: wherever else, it has become an error of ours
        print(f"relaygen: cannot write: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit tries again
        sys.exit(1)
