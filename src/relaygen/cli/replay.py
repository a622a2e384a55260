"""relaygen replay: what a profile would do to recorded traces."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
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
from relaygen.analyse.predict import Speed
from relaygen.analyse.tally import Amount, Replay, Speeds, Tally, replay_all
from relaygen.errors import UserError
from relaygen.report.html import write as write_page
from relaygen.report.replay import end_name, rows
from relaygen.report.replay_page import page
from relaygen.report.terminal import STYLES, printable
from relaygen.strategies import POLICIES, make_policy
from relaygen.types import Author

_MAX_ROWS = 20  # of a table on a screen


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="TRACES.jsonl...", help="Lines with a `text`, or of `run --trace`."),
    ],
    profile: Annotated[
        str, typer.Option(help="A built-in profile or a .toml file.", metavar="NAME|FILE")
    ] = profiles.GENERIC,
    policy: Annotated[str, typer.Option(help=f"Who writes when: {', '.join(POLICIES)}.")] = "segment",
    match: Annotated[
        Literal["words", "plain"],
        typer.Option(help="`plain`: as the code released with the paper does, inside words and at any dot."),
    ] = "words",
    speeds: Annotated[
        str | None,
        typer.Option(
            metavar="LARGE,SMALL|FILE",
            help="Predict the speed-up: tokens/s that each model writes, or what `doctor --json` printed.",
        ),
    ] = None,
    prefill: Annotated[
        str | None,
        typer.Option(metavar="LARGE,SMALL", help="With --speeds in numbers: tokens/s that each reads."),
    ] = None,
    handover_ms: Annotated[
        float, typer.Option(min=0, help="With --speeds in numbers: what a turn costs beside.")
    ] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write the texts too, coloured by author.")
    ] = None,
) -> None:
    """Show who would have written what of recorded traces, without a model.

    Examples:

        relaygen replay --profile qwen3-32b+qwen3-1.7b traces.jsonl --html traces.html

        relaygen replay traces.jsonl --speeds 25,140 --prefill 900,8000 --json
    """
    chosen = profiles.load(profile)
    rules = replace(make_policy(policy, chosen), plain=match == "plain")
    engines = _speeds(speeds, prefill, handover_ms)
    if html:
        _check_page(html, files)
    traces = chain.from_iterable(map(trace.read, files))
    found = replay_all(rules, traces, engines, keep_text=html is not None)
    title = f"{chosen.name}, policy {policy}, match {match}"
    if html:
        write_page(html, page(f"relaygen replay: {title}", rows(found), found.each))
    if json:
        report = {"profile": chosen.name, "policy": policy, "match": match, **_as_json(found)}
        sys.stdout.buffer.write(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        _print(Console(highlight=False), title, found)


# --- what was given


def _speeds(speeds: str | None, prefill: str | None, handover_ms: float) -> Speeds | None:
    if speeds is None:
        if prefill or handover_ms:
            raise UserError("--prefill and --handover-ms are of use with --speeds only")
        return None
    if not speeds[:1].isdigit() or Path(speeds).exists():
        return _of_doctor(Path(speeds))
    if prefill is None:
        raise UserError(
            "--speeds in numbers needs --prefill LARGE,SMALL too: reading is what a hand-over costs"
        )
    decode, read = _pair("--speeds", speeds), _pair("--prefill", prefill)
    return {
        author: Speed(1000 / d, 0.0, 1000 / r, handover_ms)
        for author, d, r in zip(Author, decode, read, strict=True)
    }


def _pair(option: str, text: str) -> tuple[float, float]:
    try:
        large, small = map(float, text.split(","))
    except ValueError:
        large = small = 0.0
    if not (0 < large < float("inf") and 0 < small < float("inf")):
        raise UserError(f"{option} must be two numbers of tokens/s, LARGE,SMALL, not {text!r}")
    return large, small


def _of_doctor(path: Path) -> Speeds:
    keys = ("decode_ms", "read_base_ms", "read_token_ms", "own_ms")
    try:
        found = orjson.loads(path.read_bytes())
        return {author: Speed(*(float(found[author.value][key]) for key in keys)) for author in Author}
    except OSError as error:
        raise UserError(f"cannot read the speeds from {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path} is not what `relaygen doctor --json` prints") from None


def _check_page(html: Path, files: Sequence[Path]) -> None:
    """Before the work; and never over the traces."""
    if html.resolve() in [path.resolve() for path in files]:
        raise UserError(f"--html {html} is one of the traces: give it another name")
    if html.is_dir() or not html.parent.is_dir():
        raise UserError(f"cannot write {html}: it must be a file in a folder that is there")


# --- what was found


def _as_json(found: Replay) -> dict[str, Any]:
    mean, deviation = found.mean_and_deviation()
    return {
        "traces": found.whole.num_traces,
        "by_trace": {"large_share_mean": mean, "large_share_deviation": deviation},
        **_figures(found.whole),
        "cues_unused": found.unused_cues,
        "each": [{"id": one.trace.id, "model": one.trace.model, **_figures(one.tally)} for one in found.each],
    }


def _figures(tally: Tally) -> dict[str, Any]:
    found: dict[str, Any] = {
        "unit": tally.unit,
        "length": tally.total.size(tally.unit),
        "large_share": tally.share(tally.by_author[Author.LARGE]),
        "turns": tally.total.turns,
        "handovers": tally.handovers,
        "small_segments": {"number": tally.segments.turns, "mean_length": tally.mean_segment},
        "answer_share": tally.share(tally.answers),
        "cues": {
            cue: {"count": amount.turns, "share": tally.share(amount)} for cue, amount in _by_count(tally)
        },
        "ends": {
            author.value: {end_name(reason): count for reason, count in ends.most_common()}
            for author, ends in tally.ends.items()
        },
    }
    if time := tally.time:
        found["predicted"] = {
            "speedup": time.speedup,
            "large_alone_ms": time.alone_ms,
            "relay_ms": time.relay_ms,
            "break_even_small_share": time.break_even_share,
        }
    return found


def _by_count(tally: Tally) -> list[tuple[str, Amount]]:
    return sorted(tally.cues.items(), key=lambda item: -item[1].turns)


def _print(console: Console, title: str, found: Replay) -> None:
    tally = found.whole
    console.print(Text(title, "bold"))
    facts = Table.grid(padding=(0, 2))
    for name, value in rows(found):
        facts.add_row(Text(name, "dim"), Text(value))
    console.print(facts)
    if tally.cues:
        cues = _table("cue", "times", f"share of the {tally.unit} handed over")
        for cue, amount in _by_count(tally):
            cues.add_row(_cell(repr(cue)), f"{amount.turns:,}", f"{tally.share(amount):.1%}")
        console.print("", cues)
    if found.unused_cues:
        console.print(Text(f"\nnever handed over: {' '.join(map(repr, found.unused_cues))}", "dim"))
    if len(found.each) > 1:
        each = _table("trace", "large share", "turns", "small segment", *(["speed"] if tally.time else []))
        for one in found.each[:_MAX_ROWS]:
            each.add_row(_cell(one.trace.id), *_cells(one.tally))
        console.print("", each)
    if len(found.each) > _MAX_ROWS:
        console.print(Text(f"and {len(found.each) - _MAX_ROWS:,} more: --json has them all", "dim"))


def _cells(tally: Tally) -> list[str]:
    large = tally.by_author[Author.LARGE]
    segment = "-" if tally.mean_segment is None else f"{tally.mean_segment:.0f}"
    cells = [f"{tally.share(large):.1%}", f"{tally.total.turns:,}", segment]
    return [*cells, f"{tally.time.speedup:.2f}x"] if tally.time else cells


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="dim")
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left")
    return table


def _cell(text: str) -> Text:
    return Text(printable(text), STYLES[Author.LARGE], overflow="fold")
