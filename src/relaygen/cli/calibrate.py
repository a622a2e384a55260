"""relaygen calibrate: find the cues of a pair."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relaygen import profile as profiles
from relaygen import trace
from relaygen.analyse.figures import num_changed
from relaygen.analyse.scored import ScoredTrace
from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL
from relaygen.calibrate import Writing, digest, same_settings, score_traces, write_traces
from relaygen.cli.data import DATA_HELP, Fields, load
from relaygen.cli.models import fetching
from relaygen.cli.progress import counting
from relaygen.cli.run import MODEL_HELP
from relaygen.engines.base import Engine
from relaygen.engines.open import is_url, open_engine
from relaygen.errors import UserError
from relaygen.local import LocalSettings
from relaygen.models import quiet, resolve
from relaygen.profile import Profile
from relaygen.report.terminal import STYLES, printable
from relaygen.tasks.problems import Problem
from relaygen.tasks.wordproblems import generate
from relaygen.trace import Trace
from relaygen.types import Author

DEFAULT_PROBLEMS = 60
Bar = Callable[[str, int], Callable[[], None]]  # the name of a bar and its length -> what moves it on


@dataclass(frozen=True, slots=True)
class _Job:
    """What is measured, and where its results are kept."""

    specs: dict[Author, str]
    scorers: tuple[Author, ...]
    base: Profile
    problems: Sequence[Problem]
    recorded: Sequence[Path]
    folder: Path
    writing: Writing
    settings: LocalSettings


def calibrate(
    large: Annotated[str, typer.Option(help=f"Writes the traces. {MODEL_HELP}")] = DEFAULT_LARGE,
    small: Annotated[str, typer.Option(help=f"Scores them. {MODEL_HELP}")] = DEFAULT_SMALL,
    out: Annotated[Path, typer.Option(metavar="PAIR.toml", help="The profile to write.")] = Path("pair.toml"),
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help=f"{DATA_HELP} Default: word problems of our own."),
    ] = None,
    fields: Fields = None,
    problems: Annotated[
        int | None,
        typer.Option(min=1, help=f"How many. Default: all of --data, or {DEFAULT_PROBLEMS} of our own."),
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="TRACES.jsonl", help="Recorded traces (`text`, `problem`) in place of new ones."
        ),
    ] = None,
    scorer: Annotated[
        Literal["small", "large", "both"],
        typer.Option(help="Whose margins count. The code released with the paper takes the small model's."),
    ] = "small",
    select: Annotated[
        Literal["budget", "ci", "paper"],
        typer.Option(
            help="`budget`: the surest cues for a wanted share. `ci`: every cue that is surely above the rest."
            " `paper`: as the code released with the paper does."
        ),
    ] = "budget",
    share: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="The small model's part of the tokens, for `budget`.")
    ] = 0.4,
    objective: Annotated[
        Literal["margin", "agreement", "figures"],
        typer.Option(
            help="What makes a cue sure: the mean margin of what it hands over; how often the scorer would have written the"
            " same token (`agreement`); or how seldom another number or operator (`figures`)."
        ),
    ] = "margin",
    mine: Annotated[
        bool, typer.Option(help="Look for further cues in the traces themselves (not for `paper`).")
    ] = True,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Limits, sampling and markers are taken from it. Default: picked by the models' names."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=16, help="Of a trace.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="Of the problems, and of the sampling.")] = 0,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Traces are kept here, and a run goes on from them. Default: PAIR.calibration"
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Traces at once.")] = 4,
    context: Annotated[
        int, typer.Option(min=256, help="Context in tokens of a trace, for models on this machine.")
    ] = 2048,
    threads: Annotated[int | None, typer.Option(min=1, help="As in `relaygen run`.")] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="OUT.html", help="A report with plots.")] = None,
) -> None:
    """Find the cues of a pair of models, and write them into a profile with the evidence.

    The large model solves problems; the scorer reads its traces and tells how sure it is of each token; cues after which
    it is sure are chosen. A run that was stopped goes on where it was.

    Examples:

        relaygen calibrate --out pair.toml --share 0.4 --html pair.html

        relaygen calibrate --large http://gpu:8000 --small http://gpu:8001 --data amc23.jsonl --select ci --out mine.toml
    """
    if find_spec("numpy") is None:
        raise UserError('calibrating needs numpy: pip install "relaygen[eval]"')
    from relaygen.analyse.calibration import HELD_OUT, MIN_PROBLEMS, Question, as_profile, both, choose
    from relaygen.report.calibration import write_page

    if html and not html.parent.is_dir():
        raise UserError(f"cannot write {html}: its folder is not there")
    if out.suffix != ".toml" or out.is_dir() or not out.parent.is_dir():
        raise UserError(f"--out {out} must be a .toml file in a folder that is there")
    chosen = _problems(data, fields, problems, seed) if not traces else []
    if not traces and len(chosen) < MIN_PROBLEMS:
        raise UserError(f"{len(chosen)} problems are too few to tell cues apart: give {MIN_PROBLEMS} or more")
    specs = {Author.LARGE: large, Author.SMALL: small}
    base = profiles.load(profile) if profile else profiles.pick(large, small)
    job = _Job(
        specs,
        (Author.SMALL, Author.LARGE) if scorer == "both" else (Author(scorer),),
        base,
        chosen,
        traces or (),
        work or out.with_suffix(".calibration"),
        Writing(replace(base.sampling.values(), seed=seed), max_tokens, concurrency),
        LocalSettings(context, concurrency, threads=threads),
    )
    _fetch(job)
    console = Console(stderr=True, highlight=False)
    scored = asyncio.run(_measure(job, console))
    read_by = scored[0] if len(scored) == 1 else both(*scored)
    question = Question(select, share, objective, mine)
    with console.status("choosing"):
        found = choose(read_by, base, question)
    source = _source(data, traces, seed)
    made = as_profile(found, base, question, name=out.stem, scored=read_by, data=source, day=date.today())
    _write(out, profiles.dump(made))
    if html:
        selection = replace(
            found.selection, held_out=found.tried.held_out, warnings=(*found.warnings, *found.tried.warnings)
        )
        facts = [("written by", read_by[0].model), ("read by", read_by[0].scorer), ("problems", source)]
        write_page(
            html, found.table, selection, title=f"Calibration: {made.name}", facts=facts, made=[HELD_OUT]
        )
    report = {
        "profile": str(out),
        "cues": made.cues,
        "evidence": made.evidence,
        "warnings": found.warnings,
        "held_out_warnings": found.tried.warnings,
        "curve": [asdict(point) for point in found.selection.curve],
    }
    if json:
        sys.stdout.buffer.write(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        _print(Console(highlight=False), made, found.warnings, out)


# --- what was given


def _problems(data: str | None, fields: str | None, count: int | None, seed: int) -> list[Problem]:
    if data is None:
        if fields:
            raise UserError("--fields is for the file that --data names")
        return generate(count or DEFAULT_PROBLEMS, seed)
    found = load(data, fields).problems
    if count and count > len(found):
        raise UserError(f"{data} holds {len(found)} problems, not {count}")
    return found[:count]


def _source(data: str | None, traces: Sequence[Path] | None, seed: int) -> str:
    if traces:
        return f"recorded traces ({', '.join(path.name for path in traces)})"
    return (
        f"the problems of {Path(data).name}"
        if data
        else f"word problems of relaygen.tasks.wordproblems, seed {seed}"
    )


def _recorded(files: Sequence[Path]) -> list[Trace]:
    found = list(chain.from_iterable(map(trace.read, files)))
    seen: set[str] = set()
    for one in found:
        if one.id in seen:
            raise UserError(f"two of the traces have the id {one.id!r}")
        seen.add(one.id)
    return found


def _fetch(job: _Job) -> None:
    """Before the event loop runs, so that Ctrl-C ends a download at once."""
    with fetching() as bars:
        for author, spec in job.specs.items():
            if not is_url(spec) and (author in job.scorers or not job.recorded):
                resolve(spec, bars)


# --- measuring


async def _measure(job: _Job, console: Console) -> list[list[ScoredTrace]]:
    """What each scorer thinks of the traces."""
    same_settings(job.folder, _settings(job))
    with _bars(console) as bar:
        traces = _recorded(job.recorded) if job.recorded else await _written(job, bar)
        scored: list[list[ScoredTrace]] = []
        for author in job.scorers:
            path = _scored_path(job, author)
            on_done = bar(f"read by the {author} model", len(traces))
            found = await score_traces(
                partial(_engine, job, author),
                traces,
                path,
                is_own=not job.recorded,
                concurrency=job.writing.concurrency,
                on_done=on_done,
            )
            scored.append(found)
        return scored


async def _written(job: _Job, bar: Bar) -> list[Trace]:
    on_done = bar("written by the large model", len(job.problems))
    return await write_traces(
        partial(_engine, job, Author.LARGE),
        job.problems,
        job.folder / "traces.jsonl",
        job.writing,
        scored_path=_scored_path(job, Author.LARGE) if Author.LARGE in job.scorers else None,
        on_done=on_done,
    )


def _scored_path(job: _Job, author: Author) -> Path:
    return job.folder / f"scored-{author}.jsonl"


def _settings(job: _Job) -> dict[str, Any]:
    """What must be equal for a run to be resumed."""
    models = {author.value: spec for author, spec in job.specs.items()}
    if job.recorded:
        return {"traces": [str(path) for path in job.recorded], **models}
    return {
        **models,
        "problems": len(job.problems),
        "problems_sha256": digest(job.problems),
        "sampling": asdict(job.writing.sampling),
        "max_tokens": job.writing.max_tokens,
    }


def _engine(job: _Job, author: Author) -> AbstractAsyncContextManager[Engine]:
    return open_engine(
        job.specs[author],
        name=f"the {author} model",
        settings=job.settings,
        api_key=os.environ.get(f"RELAYGEN_{author.value.upper()}_API_KEY"),
        progress=quiet,
    )


@contextmanager
def _bars(console: Console) -> Generator[Bar]:
    with counting(console) as progress:

        def bar(what: str, total: int) -> Callable[[], None]:
            task = progress.add_task(what, total=total)
            return lambda: progress.advance(task)

        yield bar


# --- what was found


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _print(console: Console, made: Profile, warnings: Sequence[str], out: Path) -> None:
    facts, held = made.evidence["expected"], made.evidence["held_out"]["held_back"]
    everywhere = made.evidence["all_tokens"]
    table = Table("", "these traces", "held-out half", "every token", box=None, header_style="dim")
    for name, label in (("share", "small share"), ("margin", "margin"), ("agreement", "agreement")):
        table.add_row(
            label,
            f"{facts[name]:.1%}",
            f"{held[name]:.1%}",
            f"{everywhere[name]:.1%}" if name != "share" else "",
        )
    table.add_row(
        "figures changed in 1,000",
        *(f"{num_changed(one['figures']):.1f}" for one in (facts, held, everywhere)),
    )
    console.print(table)
    cues = Table(
        "cue", "times", "traces", "margin", "interval", "agreement", "figures", box=None, header_style="dim"
    )
    for cue, row in made.evidence["cues"].items():
        if cue != "columns":
            times, traces, _, margin, low, high, agreement, figures = row
            name = Text(printable(repr(cue)), STYLES[Author.LARGE])
            cues.add_row(
                name,
                f"{times:,}",
                f"{traces:,}",
                f"{margin:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{agreement:.3f}",
                f"{num_changed(figures):.1f}",
            )
    console.print("", cues)
    for warning in warnings:
        console.print(Text(f"\n{printable(warning)}", "dim"))
    console.print(
        f"\n{len(made.cues)} cues are in {out}. What they do to answers:"
        f" relaygen eval --strategies large,small,segment@{out} ...",
        soft_wrap=True,
    )
