"""relaygen doctor: are these two engines fit for a relay, and what would it bring?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from relaygen.analyse.predict import Work, break_even_share, curve
from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL, Relay
from relaygen.cli.models import fetching
from relaygen.engines.open import is_url
from relaygen.examine import Examination, Problem, examine
from relaygen.models import resolve
from relaygen.report.terminal import STYLES
from relaygen.types import Author

Model = Annotated[str, typer.Option(help="As in `relaygen run`.")]


def doctor(
    large: Model = DEFAULT_LARGE,
    small: Model = DEFAULT_SMALL,
    answer_tokens: Annotated[
        int, typer.Option(min=10, help="Length of the answer in the prediction.")
    ] = 1000,
    segment_tokens: Annotated[int, typer.Option(min=1, help="Mean length of a small segment in it.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Examine two engines, and predict what relaying would bring.

    Exit code 0: fit; 1: there are problems, each shown with what mends it. Without URLs it examines the default pair, on this
    machine, which takes about a minute.

    Examples:

        relaygen doctor

        relaygen doctor --large http://gpu:8000 --small http://gpu:8001 --json
    """
    specs: dict[str, str] = {}
    with fetching() as progress:
        for author, spec in (("large", large), ("small", small)):
            specs[author] = spec if is_url(spec) else str(resolve(spec, progress))
    err = Console(stderr=True)
    with err.status("examining both engines"):
        found, vocabulary = asyncio.run(_examine(Relay(specs["large"], specs["small"])))
    problems = [(author, problem) for author, one in found.items() for problem in one.problems]
    if vocabulary == "different":
        problems.append(
            (
                Author.SMALL,
                Problem(
                    "the two models have different vocabularies: segments pass as text, which costs a tokenisation each",
                    "take two models of one family",
                ),
            )
        )
    work = Work(answer_tokens, found[Author.LARGE].prompt_tokens, segment_tokens)
    speeds = found[Author.LARGE].speed, found[Author.SMALL].speed
    report = {
        **{author.value: _as_json(one) for author, one in found.items()},
        "vocabulary": vocabulary,
        "problems": [{"engine": author.value, "what": p.what, "cure": p.cure} for author, p in problems],
        "predicted": [
            {"small_share": share, "speedup": round(gain, 3)} for share, gain in curve(*speeds, work)
        ],
        "break_even_share": break_even_share(*speeds, work),
    }
    if json:
        sys.stdout.buffer.write(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        _print(Console(highlight=False), found, report)
    if problems:
        raise typer.Exit(1)


async def _examine(relay: Relay) -> tuple[Mapping[Author, Examination], str]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(relay)
        # One after the other: on one machine they would slow each other down.
        found = {author: await examine(engine) for author, engine in relay.pair.engines.items()}
        translation = relay.pair.translations[Author.SMALL]
        level = "different" if translation is None else "other special tokens" if translation else "identical"
        return found, level


def _as_json(one: Examination) -> dict[str, Any]:
    speed = one.speed
    return {
        "model": one.info.model,
        "address": one.info.address,
        "dialect": one.info.dialect,
        "context_tokens": one.info.context_tokens,
        "decode_ms": round(speed.decode_ms, 3),
        "read_base_ms": round(speed.read_base_ms, 3),
        "read_token_ms": round(speed.read_token_ms, 4),
        "own_ms": round(speed.own_ms, 3),
        "first_token_ms": round(one.first_token_ms, 1),
        "first_token_prompt_tokens": one.prompt_tokens,
        "cached_share": None if one.cached_share is None else round(one.cached_share, 3),
    }


def _print(console: Console, found: Mapping[Author, Examination], report: dict[str, Any]) -> None:
    table = Table("", *(f"[{STYLES[author]}]{author}" for author in found), box=None)
    rows: list[tuple[str, str]] = [
        ("model", "{model}"),
        ("server", "{dialect} at {address}"),
        ("context", "{context_tokens} tokens"),
        ("decode", "{decode_ms:.1f} ms a token"),
        ("read n new tokens", "{read_base_ms:.1f} + {read_token_ms:.2f} n ms"),
        ("first token", "{first_token_ms:.0f} ms, for a new prompt of {first_token_prompt_tokens} tokens"),
        ("our own, a request", "{own_ms:.1f} ms"),
    ]
    for name, pattern in rows:
        table.add_row(name, *(pattern.format(**report[author.value]) for author in found))
    cached = [report[author.value]["cached_share"] for author in found]
    table.add_row("prefix cache", *("does not work" if c is None or c < 0.6 else "works" for c in cached))
    table.add_row("vocabularies", report["vocabulary"])
    console.print(table)
    console.print("\nPredicted speed-up over the large model alone, by the small model's share:")
    for point in report["predicted"]:
        bar = "█" * round(point["speedup"] * 20)
        style = "green" if point["speedup"] >= 1 else "red"
        console.print(f"  {point['small_share']:.0%}  [{style}]{bar}[/] {point['speedup']:.2f}x")
    share = report["break_even_share"]
    console.print(
        f"Break-even: from a share of {share:.0%} on."
        if share
        else "Break-even: none; with these engines relaying never pays."
    )
    for problem in report["problems"]:
        console.print(
            f"\n[red]problem[/] ({problem['engine']}): {problem['what']}\n  cure: {problem['cure']}"
        )
