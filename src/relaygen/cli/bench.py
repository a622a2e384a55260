"""`relaygen bench`: how fast a pair answers, against its large model alone."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from relaygen import profile as profiles
from relaygen.analyse.timing import Pass, Spread, Way, speed_up, way
from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL, Options, Relay
from relaygen.bench import Plan, bench, round_trip_ms
from relaygen.cli.data import DATA_HELP, Fields, load
from relaygen.cli.models import fetching
from relaygen.cli.progress import counting, opened
from relaygen.cli.run import MODEL_HELP
from relaygen.core.policy import alone
from relaygen.errors import UserError
from relaygen.models import resolve
from relaygen.report.bench import table
from relaygen.strategies import POLICIES
from relaygen.tasks.prompts import PROMPTS
from relaygen.types import Author

_LARGE_ALONE = "large alone"


def measure_speed(
    large: Annotated[str, typer.Option(help=f"The large model. {MODEL_HELP}")] = DEFAULT_LARGE,
    small: Annotated[str, typer.Option(help=f"The small model. {MODEL_HELP}")] = DEFAULT_SMALL,
    profile: Annotated[
        str | None,
        typer.Option(help="A built-in profile or a .toml file. Default: picked by the models' names."),
    ] = None,
    policy: Annotated[str, typer.Option(help=f"Who writes when: {', '.join(POLICIES)}.")] = "segment",
    data: Annotated[
        str | None, typer.Option(metavar="FILE|NAME", help=f"Default: a few word problems. {DATA_HELP}")
    ] = None,
    fields: Fields = None,
    prompts: Annotated[int, typer.Option(min=1, help="The first so many.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Each prompt is written so often by each way.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=1, help="Budget of an answer, over both models.")] = 200,
    concurrency: Annotated[int, typer.Option(min=1, help="Answers at once.")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="For the same draws again.")] = 0,
    context: Annotated[int, typer.Option(help="Context in tokens, for models on this machine.")] = 4096,
    draft: Annotated[
        str | None,
        typer.Option(help="As for `run`: speculative decoding inside the large engine, in both ways."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time a pair against its large model alone: first token, gaps, hand-overs, tokens/s.

    Both ways take turns within one run, prompt by prompt, so that a machine that slows down slows both.

    Examples:

        relaygen bench

        relaygen bench --large http://gpu:8000 --small http://gpu:8001 --concurrency 32 --max-tokens 2000 --rounds 5
    """
    texts: list[str] = [p.problem for p in load(data, fields).problems] if data else list(PROMPTS)
    options = Options(context_tokens=context, num_slots=concurrency, draft=draft)
    chosen = profiles.load(profile) if profile else None
    relay = Relay(large, small, profile=chosen, policy=policy, options=options)
    if policy == "large":
        raise UserError("--policy large is what the others are compared with: choose another one")
    with fetching() as bars:
        for model in relay.local_models:
            resolve(model, bars)

    def plan() -> Plan:
        sampling = replace(relay.profile.sampling.values(), temperature=temperature, seed=seed)
        policies = {policy: relay.policy, _LARGE_ALONE: alone(Author.LARGE)}
        return Plan(policies, texts[:prompts], rounds, concurrency, max_tokens, sampling)

    passes, trip = asyncio.run(_bench(relay, plan))
    ways = [way([p for p in passes if p.way == name], trip) for name in (policy, _LARGE_ALONE)]
    ratio = speed_up(passes, policy, _LARGE_ALONE)
    if json:
        sys.stdout.buffer.write(orjson.dumps(_as_json(ways, ratio), option=orjson.OPT_APPEND_NEWLINE))
    else:
        Console(highlight=False).print(table(ways, ratio))


async def _bench(relay: Relay, plan_for_open: Callable[[], Plan]) -> tuple[list[Pass], float | None]:
    console = Console(stderr=True, highlight=False)
    async with opened(relay, console):
        plan = plan_for_open()
        with counting(console) as bar:
            task = bar.add_task("passes", total=len(plan.groups()) * len(plan.ways))
            passes = await bench(relay.pair, plan, on_done=lambda: bar.advance(task))
        trips = [await round_trip_ms(engine) for engine in relay.pair.engines.values()]
    known = [trip for trip in trips if trip is not None]
    return passes, statistics.fmean(known) if len(known) == len(trips) else None


def _as_json(ways: list[Way], ratio: Spread | None) -> dict[str, Any]:
    return {"ways": [asdict(one) for one in ways], "speed_up": asdict(ratio) if ratio else None}
