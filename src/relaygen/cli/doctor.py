"""relaygen doctor: are these two engines fit for a relay, and what would it bring?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relaygen import profile as profiles
from relaygen.analyse.predict import Work, break_even_share, curve
from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL, Options, Relay
from relaygen.cli.models import fetching
from relaygen.engines.base import Engine
from relaygen.engines.http import Endpoint
from relaygen.engines.open import Address, is_url
from relaygen.engines.vocabulary import translation
from relaygen.errors import EngineError, RelayError
from relaygen.examine import Examination, Finding, examine, finding, pair_findings
from relaygen.models import resolve
from relaygen.profile import Profile
from relaygen.report.terminal import STYLES, printable
from relaygen.types import Author

Model = Annotated[str, typer.Option(help="As in `relaygen run`.")]
_STYLES = {"wrong": "bold red", "useless": "red", "costly": "yellow", "note": "dim"}


def doctor(
    large: Model = DEFAULT_LARGE,
    small: Model = DEFAULT_SMALL,
    profile: Annotated[
        str | None, typer.Option(help="As in `relaygen run`: its budget and penalty are judged too.")
    ] = None,
    context: Annotated[int, typer.Option(help="Context in tokens, for models on this machine.")] = 8192,
    answer_tokens: Annotated[
        int, typer.Option(min=10, help="Length of the answer in the prediction.")
    ] = 1000,
    segment_tokens: Annotated[int, typer.Option(min=1, help="Mean length of a small segment in it.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Examine two engines, and predict what relaying would bring.

    Each problem is shown with the setting that mends it, and has a level: `wrong` (answers would not be what the models
    write, or nobody answers), `useless` (slower than the large model alone), `costly`, `note`. Exit code 1 when something is
    `wrong` or `useless`, else 0. Without URLs it examines the default pair, on this machine, which takes about a minute.

    Examples:

        relaygen doctor

        relaygen doctor --large http://gpu:8000 --small http://gpu:8001 --json
    """
    chosen = profiles.load(profile) if profile else None
    specs: dict[Author, str] = {}
    with fetching() as progress:
        for author, spec in ((Author.LARGE, large), (Author.SMALL, small)):
            specs[author] = spec if is_url(spec) else str(resolve(spec, progress))
    with Console(stderr=True).status("examining both engines") as status:
        visit = asyncio.run(_examine(specs, Options(context_tokens=context), status.update))
    models = {a: visit.found[a].info.model if a in visit.found else specs[a] for a in Author}
    used = chosen or profiles.pick(models[Author.LARGE], models[Author.SMALL])
    report = _report(visit, used, answer_tokens, segment_tokens)
    if json:
        sys.stdout.buffer.write(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
    else:
        _print(Console(highlight=False), report)
    if not report["fit"]:
        raise typer.Exit(1)


@dataclass(slots=True)
class _Visit:
    """What was found at each engine, or why there is none; `vocabulary` None: not compared."""

    found: dict[Author, Examination] = field(default_factory=dict[Author, Examination])
    failed: dict[Author, Finding] = field(default_factory=dict[Author, Finding])
    vocabulary: str | None = None


async def _examine(specs: Mapping[Author, str], options: Options, say: Any) -> _Visit:
    visit = _Visit()
    engines: dict[Author, Engine] = {}
    async with AsyncExitStack() as stack:
        for author, spec in specs.items():
            relay = Relay(specs[Author.LARGE], specs[Author.SMALL], policy=author.value, options=options)
            try:
                await stack.enter_async_context(relay)
                engines[author] = relay.pair.engines[author]
            except RelayError as error:
                if not is_url(spec):
                    raise
                visit.failed[author] = _no_answer(error, spec)
        # One after the other: on one machine they would slow each other down.
        for author, engine in engines.items():
            say(f"examining the {author.value} model, {printable(engine.info.model)}")
            try:
                visit.found[author] = await examine(engine)
            except EngineError as error:
                visit.failed[author] = _no_answer(error, specs[author])
        if len(visit.found) == 2:
            visit.vocabulary = await _vocabulary(engines)
    return visit


def _no_answer(error: RelayError, spec: str) -> Finding:
    first = spec.split(",")[0]  # of several replicas
    address = Endpoint(Address.parse(first).url).address if is_url(first) else first
    return finding("no-answer", error=error, address=address)


async def _vocabulary(engines: Mapping[Author, Engine]) -> str:
    large, small = engines[Author.LARGE], engines[Author.SMALL]
    if large.info.text_only or small.info.text_only:
        return "unknown: text only"
    found = await translation(small, large)
    return "different" if found is None else "identical but for special tokens" if found else "identical"


# ---- the report


def _report(visit: _Visit, profile: Profile, answer_tokens: int, segment_tokens: int) -> dict[str, Any]:
    found = visit.found
    prompt_tokens = found[Author.LARGE].prompt_tokens if Author.LARGE in found else 100
    work = Work(answer_tokens, prompt_tokens, segment_tokens)
    problems = [*visit.failed.items(), *((a, f) for a, one in found.items() for f in one.findings)]
    problems += pair_findings(
        found,
        vocabulary_differs=visit.vocabulary == "different",
        answer_tokens=profile.limits.max_tokens,
        repeat_penalty=profile.sampling.values().repeat_penalty,
        work=work,
    )
    predicted: list[tuple[float, float]] = []
    break_even = None
    if len(found) == 2:
        speeds = found[Author.LARGE].speed, found[Author.SMALL].speed
        predicted, break_even = curve(*speeds, work), break_even_share(*speeds, work)
    return {
        "fit": not any(f.is_serious for _, f in problems),
        "profile": profile.name,
        **{a.value: _engine(found[a]) if a in found else {"reachable": False} for a in Author},
        "vocabulary": visit.vocabulary,
        "problems": [
            {"engine": author.value, "name": f.name, "level": f.level, "what": f.what, "cure": f.cure}
            for author, f in problems
        ],
        "predicted": [{"small_share": share, "speedup": round(gain, 3)} for share, gain in predicted],
        "break_even_share": break_even,
    }


def _engine(one: Examination) -> dict[str, Any]:
    info, speed = one.info, one.speed
    return {
        "reachable": True,
        "model": info.model,
        "address": info.address,
        "dialect": info.dialect,
        "version": one.version,
        "context_tokens": info.context_tokens,
        "token_ids": not info.text_only,
        "stop_strings": one.stops,
        "cached_share": None if one.cached_share is None else round(one.cached_share, 3),
        "decode_ms": round(speed.decode_ms, 3),
        "read_base_ms": round(speed.read_base_ms, 3),
        "read_token_ms": round(speed.read_token_ms, 4),
        "own_ms": round(speed.own_ms, 3),
        "first_token_ms": round(one.first_token_ms, 1),
        "first_token_prompt_tokens": one.prompt_tokens,
        "honours_seed": one.honours_seed,
        "penalty_counts": one.penalty_counts,
        "keeps_connections": one.keeps_connections,
        "template": not any(f.is_serious and "template" in f.name for f in one.findings),
    }


def _rows(e: dict[str, Any]) -> dict[str, str]:
    """The table's column of one engine, of its JSON object."""
    return {
        "model": e["model"],
        "server": f"{e['dialect']} {e['version'] or '(version unknown)'} at {e['address']}",
        "context": f"{e['context_tokens']} tokens",
        "token ids": "in and out" if e["token_ids"] else "none: text only",
        "stop strings": e["stop_strings"],
        "prefix cache": _cache(e["cached_share"]),
        "decode": f"{e['decode_ms']:.1f} ms a token",
        "read n new tokens": f"{e['read_base_ms']:.1f} + {e['read_token_ms']:.2f} n ms",
        "first token": f"{e['first_token_ms']:.0f} ms, for {e['first_token_prompt_tokens']} new tokens",
        "our own, a request": f"{e['own_ms']:.1f} ms",
        "chat template": "sane" if e["template"] else "wrong",
        "seed": "repeats the text" if e["honours_seed"] else "does not repeat the text",
        "repetition penalty": f"counts {e['penalty_counts'] or 'an unknown part of the text'}",
        "connections": {True: "kept", False: "closed", None: "unknown"}[e["keeps_connections"]],
    }


def _cache(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%} of a repeated prefix"


def _print(console: Console, report: dict[str, Any]) -> None:
    reached = {a: _rows(report[a.value]) for a in Author if report[a.value]["reachable"]}
    table = Table("", *(f"[{STYLES[author]}]{author.value}[/]" for author in Author), box=None)
    table.add_row("reachable", *("yes" if author in reached else "[red]no[/]" for author in Author))
    for name in next(iter(reached.values()), ()):
        table.add_row(name, *(Text(printable(reached[a][name]) if a in reached else "-") for a in Author))
    table.add_row("vocabularies", report["vocabulary"] or "not compared")
    table.add_row("profile", Text(report["profile"]))
    console.print(table)
    if report["predicted"]:
        _print_prediction(console, report)
    for problem in report["problems"]:
        style = _STYLES[problem["level"]]
        head = Text.assemble(
            "\n", (problem["level"], style), f" ({problem['engine']}): {printable(problem['what'])}"
        )
        console.print(head, Text(f"  cure: {problem['cure']}"), sep="\n", soft_wrap=True)
    if not report["problems"]:
        console.print("\n[green]nothing found[/]")


def _print_prediction(console: Console, report: dict[str, Any]) -> None:
    console.print("\nPredicted speed-up over the large model alone, by the small model's share:")
    for point in report["predicted"]:
        bar = "█" * min(60, round(point["speedup"] * 20))
        style = "green" if point["speedup"] >= 1 else "red"
        console.print(f"  {point['small_share']:.0%}  [{style}]{bar}[/] {point['speedup']:.2f}x")
    share = report["break_even_share"]
    console.print(f"Break-even: from a share of {share:.0%} on." if share else "Break-even: none.")
