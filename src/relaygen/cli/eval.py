"""`relaygen eval`: what is lost and won, on the user's own problems and pair."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console

from relaygen import profile as profiles
from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL, Options, Relay
from relaygen.cli.data import DATA_HELP, Fields, load
from relaygen.cli.made import command, environment, how_it_was_made, what_was_compared
from relaygen.cli.models import fetching
from relaygen.cli.progress import counting, opened
from relaygen.errors import EngineError, UserError
from relaygen.measure import Line, Plan, Strategy, measure, sessions
from relaygen.models import resolve
from relaygen.profile import Profile
from relaygen.strategies import POLICIES, check
from relaygen.tasks.problems import Problem
from relaygen.types import Sampling

if TYPE_CHECKING:
    from relaygen.analyse.grade import Grader


def evaluate_strategies(
    data: Annotated[str, typer.Option(metavar="FILE|NAME", help=DATA_HELP)],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the answers and the tables go.")],
    strategies: Annotated[
        str,
        typer.Option(
            help=f"Comma-separated POLICY or POLICY@PROFILE: {', '.join(POLICIES)}. "
            "`relay` is segment; `random` without a number takes the share of the relay before it."
        ),
    ] = "large,small,relay,random",
    large: Annotated[str, typer.Option(help="As for `run`.")] = DEFAULT_LARGE,
    small: Annotated[str, typer.Option(help="As for `run`.")] = DEFAULT_SMALL,
    fields: Fields = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take the first so many problems only.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers a problem.")] = 1,
    grading: Annotated[
        str | None,
        typer.Option(
            help="math, choice, exact, or FILE.py:FUNCTION. Default: that of a name; math for a file."
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="What is asked, with {problem} in it. Default: reasoning, and the answer in a box."
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0, which is greedy, where not said; else as `run`.")
    ] = None,
    seed: Annotated[int, typer.Option(help="All draws follow from it.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Budget of an answer, over both models.")] = 1024,
    concurrency: Annotated[int, typer.Option(min=1, help="Generations at once.")] = 1,
    context_tokens: Annotated[int, typer.Option(help="Of a generation, for models on this machine.")] = 4096,
    prices: Annotated[
        str | None, typer.Option(metavar="LARGE,SMALL", help="Of a million written tokens, for the cost.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Compare strategies on problems with answers: accuracy, share, speed. Killed runs go on where they stopped.

    Examples:

        relaygen eval --data problems.jsonl --out first-look --limit 20

        relaygen eval --data gsm8k --limit 100 --out gsm8k

        relaygen eval --data mine.csv --fields problem=question,answer=solution --out mine

        relaygen eval --data problems.jsonl --out full --strategies large,small,relay@mine.toml,random,relay+margin:0.3
    """
    if not all(map(find_spec, ("numpy", "matplotlib"))):
        raise UserError('evaluating needs numpy, matplotlib and math-verify: pip install "relaygen[eval]"')
    from relaygen.analyse.evaluate import Prices, evaluate
    from relaygen.analyse.grade import Grader
    from relaygen.report.evaluation import as_json, markdown, table
    from relaygen.report.evaluation_page import page
    from relaygen.report.html import write

    if prompt is not None and "{problem}" not in prompt:
        raise UserError("--prompt must hold {problem}")
    price = Prices(*_pair(prices)) if prices else None
    parts = [_part(name) for name in strategies.split(",")]
    taken = load(data, fields)
    problems = taken.problems[:limit]
    asked, graded_by = prompt or taken.prompt, grading or taken.grading
    relay = Relay(large, small, options=Options(context_tokens=context_tokens, num_slots=concurrency))
    with fetching() as progress:
        for model in relay.local_models:
            resolve(model, progress)

    def plan(profile: Profile) -> Plan:
        chosen = [Strategy(name, policy, own or profile) for name, policy, own in parts]
        sampling = _sampling(profile, temperature, seed)
        return Plan(problems, chosen, samples, asked, sampling, max_tokens, concurrency)

    with Grader(graded_by) as grader:
        _check_references(grader, graded_by, problems)
        lines, failures = asyncio.run(_measure(relay, plan, out))
        with Console(stderr=True).status("grading"):
            found = evaluate(lines, grader.grade, prices=price)
    made = {
        "data": data,
        **orjson.loads((out / "settings.json").read_bytes()),
        "grading": graded_by,
        "prices": prices,
        "answers_sha256": hashlib.sha256((out / "answers.jsonl").read_bytes()).hexdigest(),
        "sessions": sessions(out),
    }
    report: dict[str, Any] = {
        "rows": as_json(found.rows),
        "baseline": found.baseline,
        "left_out": found.left_out,
        "failed": failures,
        "made": {name: value for name, value in made.items() if name != "strategies"},
    }
    with Console(stderr=True).status("writing the report"):
        (out / "table.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        (out / "table.md").write_text(markdown(found.rows), encoding="utf-8")
        title = f"{taken.name}: {len(parts)} strategies side by side"
        facts, details = what_was_compared(made), how_it_was_made(made)
        write(out / "report.html", page(found, title=title, facts=facts, made=details, failures=failures))
    if json:
        sys.stdout.buffer.write(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        console = Console(highlight=False)
        console.print(table(found.rows))
        if found.left_out:
            console.print(
                f"\n{len(found.left_out)} problems are left out: not every strategy has answered them"
            )
        console.print(f"\nEvery answer: {out / 'report.html'}", soft_wrap=True, markup=False)
    if failures:
        first = failures[0]
        raise EngineError(
            f"{len(failures)} generations failed, and are not counted; the first: {first}. Run again to retry"
        )


async def _measure(
    relay: Relay, plan_for: Callable[[Profile], Plan], out: Path
) -> tuple[list[Line], list[str]]:
    console = Console(stderr=True, highlight=False)
    async with opened(relay, console):
        plan = plan_for(relay.profile)
        engines = {author.value: engine.info for author, engine in relay.pair.engines.items()}
        session = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command(sys.argv[1:]),
            "concurrency": plan.concurrency,
            "environment": environment({author: info.dialect for author, info in engines.items()}),
        }
        models = {author: info.model for author, info in engines.items()}
        with counting(console) as bar:
            task = bar.add_task("answers", total=plan.num_generations)
            return await measure(
                relay.pair, plan, out, models=models, session=session, on_done=lambda: bar.advance(task)
            )


def _part(name: str) -> tuple[str, str, Profile | None]:
    """The name as given, the policy, and the profile where one is named."""
    policy, _, profile = name.strip().partition("@")
    if policy == "relay" or policy.startswith("relay+"):
        policy = "segment" + policy.removeprefix("relay")
    if policy != "random":
        check(policy)
    return name.strip(), policy, profiles.load(profile) if profile else None


def _sampling(profile: Profile, temperature: float | None, seed: int) -> Sampling:
    if temperature is None:
        return Sampling(temperature=0, seed=seed)
    return replace(profile.sampling.values(), temperature=temperature, seed=seed)


def _pair(text: str) -> tuple[float, float]:
    try:
        large, small = map(float, text.split(","))
    except ValueError:
        large = small = -1.0
    if large < 0 or small < 0:
        raise UserError(f"--prices must be two numbers, LARGE,SMALL, not {text!r}")
    return large, small


def _check_references(grader: Grader, grading: str, problems: Sequence[Problem]) -> None:
    """Before the work: a reference that cannot be graded by would end it after hours."""
    if absent := next((problem.id for problem in problems if not problem.answer), None):
        raise UserError(f"the problem {absent!r} has no answer to grade by")
    if grading in ("math", "choice"):
        with Console(stderr=True).status("reading the references"):
            for problem in problems:
                grader.grade("", problem.answer)
