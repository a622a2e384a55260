"""relaygen launch: two servers for a pair of models, started as a relay needs them."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.text import Text

from relaygen import profile as profiles
from relaygen.errors import UserError
from relaygen.launch import EngineName, Plan, Settings, Speculation, plan, run_both
from relaygen.models.served import Served, find_served_pair, named
from relaygen.report.terminal import STYLES, printable
from relaygen.types import Author

_PROMPT_TOKENS = 4096  # that the context holds besides the longest answer of the profile


def launch(
    pair: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAIR]",
            help="A pair or profile by name (default, qwen3-8b, qwen3-32b, r1-distill-qwen-32b+1.5b), or LARGE/SMALL.",
        ),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Which server.")] = "vllm",
    large: Annotated[
        str | None, typer.Option(help="Any model that the server can load, in place of PAIR.")
    ] = None,
    small: Annotated[str | None, typer.Option(help="The small one; with --large.")] = None,
    speculate: Annotated[
        Speculation,
        typer.Option(
            help="Speculative decoding in the large server: with an Eagle-3 head, where one is known; with the small model."
        ),
    ] = "head",
    gpus: Annotated[str | None, typer.Option(help="One for both, or LARGE,SMALL.", metavar="0|0,1")] = None,
    context: Annotated[
        int | None, typer.Option(min=256, help="Context in tokens. Default: the profile's answers, and 4096.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Generations at once, for llama-server.")] = 4,
    host: Annotated[str, typer.Option(help="Where the servers listen.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=1, max=65534, help="Of the large one; the small one has the next. (8000 is `relaygen serve`.)"
        ),
    ] = 8001,
    execute: Annotated[
        bool, typer.Option("--exec", help="Run both servers here, until Ctrl-C; they must be installed.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Print the commands that start both servers of a pair with all that a relay needs, or run them.

    Examples:

        relaygen launch qwen3-32b --engine vllm

        relaygen launch qwen3-32b/qwen3-0.6b --engine sglang --gpus 0,1

        relaygen launch --large Qwen/Qwen3-14B --small Qwen/Qwen3-0.6B --exec
    """
    if json and execute:
        raise UserError("--json prints the commands and --exec runs them: not both")
    models = _models(pair, large, small)
    profile = profiles.pick(models[0].repo, models[1].repo)
    settings = Settings(
        context_tokens=context or profile.limits.max_tokens + _PROMPT_TOKENS,
        host=host,
        port=port,
        slots=slots,
        gpus=tuple(gpus.split(",")) if gpus else (),
        speculation=speculate,
    )
    found = plan(engine, *models, settings)
    if execute:
        _run(found)
    elif json:
        _print_json(found, profile.name)
    else:
        print(_text(found))


def _models(pair: str | None, large: str | None, small: str | None) -> tuple[Served, Served]:
    if pair and not (large or small):
        return find_served_pair(pair)
    if large and small and not pair:
        return named(large), named(small)
    raise UserError("name a PAIR (relaygen launch qwen3-32b), or give both --large and --small")


def _text(found: Plan) -> str:
    """For a shell: copyable as it is, what is for people in comments."""
    lines = [f"# {note}" for note in found.notes]
    lines.append("# The large model's server first; the other once it is ready:")
    for command in found.commands:
        lines += ["", f"# {command.author.value}", str(command)]
    lines += ["", "# then:", *_uses(found)]
    return "\n".join(lines)


def _uses(found: Plan) -> list[str]:
    ask = f'relaygen run {found.models} "What is 17 * 23?"'
    return [f"relaygen doctor {found.models}", ask, f"relaygen serve {found.models}"]


def _print_json(found: Plan, profile: str) -> None:
    servers = [
        {"engine": c.author.value, "env": dict(c.env), "argv": c.argv, "url": c.url, "ready": c.health}
        for c in found.commands
    ]
    value = {"profile": profile, "servers": servers, "notes": found.notes, "use": _uses(found)}
    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def _run(found: Plan) -> None:
    err = Console(stderr=True, highlight=False)

    def say(author: Author, line: str) -> None:
        err.print(Text.assemble((f"{author.value:5} | ", STYLES[author]), printable(line)), soft_wrap=True)

    def ready() -> None:
        err.print("\n[bold]Both are ready.[/] Ctrl-C stops them. In another terminal:")
        for line in _uses(found):
            err.print(Text(f"    {line}"), soft_wrap=True)

    try:
        asyncio.run(run_both(found.commands, say, ready))
    except KeyboardInterrupt:
        err.print("both servers have been stopped")
        raise typer.Exit(130) from None
    except ExceptionGroup as group:  # of a task group: the first is the one that counts
        raise group.exceptions[0] from None
