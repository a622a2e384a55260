"""relaygen batch: a file of requests in, a file of answers out."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import TextColumn

from relaygen import config
from relaygen.batch.index import Index
from relaygen.batch.job import Answer, Requests, Tally, work
from relaygen.batch.lines import read
from relaygen.batch.outbox import Outbox
from relaygen.cli.models import fetching
from relaygen.cli.progress import counting, opened
from relaygen.config import Settings
from relaygen.errors import EngineError, UserError
from relaygen.models import resolve

_REMOTE = 64  # requests at work at once, where not said


def batch(
    requests: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="The requests, one a line.")],
    answers: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="The answers, as they are finished.")],
    file: Annotated[
        Path | None, typer.Option("--config", help="Settings. Default: relaygen.toml, if there is one.")
    ] = None,
    large: Annotated[str | None, typer.Option(help="As for `serve`.")] = None,
    small: Annotated[str | None, typer.Option(help="As for `serve`.")] = None,
    profile: Annotated[str | None, typer.Option(help="As for `serve`.")] = None,
    policy: Annotated[str | None, typer.Option(help="As for `serve`.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="In place of the `model` of each request: relaygen, relaygen:large, …"),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help=f"Requests at work at once. Default: {_REMOTE} a process; with a model on this machine 4.",
        ),
    ] = None,
    ray: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            metavar="N",
            help="Spread the work over N processes of the Ray cluster of RAY_ADDRESS, or of one started here.",
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Context in tokens, for models on this machine.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Answer a file of requests in OpenAI's batch format. A job that was killed goes on where it stopped.

    Each line is {"custom_id", "method": "POST", "url": "/v1/chat/completions", "body"}; bodies are answered, or refused, as by
    `relaygen serve`. What the engines could not answer is tried again by the next call.

    Exit code: 0 when all is answered, 2 when some were refused or could not be read, 5 when engines failed.

    Examples:

        relaygen batch in.jsonl out.jsonl

        relaygen batch in.jsonl out.jsonl --large http://gpu1:8000,http://gpu2:8000 --small http://gpu3:8001 --concurrency 200

        RAY_ADDRESS=head:6379 relaygen batch in.jsonl out.jsonl --large http://gpu1:8000 --small http://gpu3:8001 --ray 8

        relaygen batch from-openai.jsonl out.jsonl --model relaygen --json
    """
    flags: dict[str, Any] = {
        "large": large,
        "small": small,
        "profile": profile,
        "policy": policy,
        "context_tokens": context,
        "slots": concurrency,
    }
    settings = config.load(file, os.environ, flags)
    if answers.exists() and requests.exists() and answers.samefile(requests):
        raise UserError(f"{answers} holds the requests: name another file for the answers")
    relay = settings.relay()
    at_once = concurrency or (settings.slots if relay.local_models else _REMOTE * (ray or 1))
    err = Console(stderr=True, highlight=False)
    tally, begun = Tally(), time.perf_counter()
    with err.status("reading the requests"):
        index = Index(requests, settings.max_body_bytes)
    with closing(index), closing(Outbox(answers, index)) as outbox:
        if outbox.num_settled:
            err.print(f"{outbox.num_settled:,} of {index.num_lines:,} requests are settled already")
        if outbox.num_settled < index.num_lines:
            answering = _answering(settings, model, ray, at_once, relay.local_models)
            with fetching() as bars:
                for local in relay.local_models:
                    resolve(local, bars)
            todo = read(requests, settings.max_body_bytes)
            asyncio.run(_work(todo, index, outbox, answering, at_once, tally, err))
    refused = outbox.num_refused + tally.refused
    if json:
        summary = {
            "requests": index.num_lines,
            "settled_before": outbox.num_settled,
            **asdict(tally),
            "refused": refused,
            "small_share": round(tally.usage.small_share, 4),
            "seconds": round(time.perf_counter() - begun, 3),
        }
        sys.stdout.buffer.write(orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    _judge(answers, tally, refused)


async def _work(
    todo: Requests,
    index: Index,
    outbox: Outbox,
    answering: AbstractAsyncContextManager[Answer],
    concurrency: int,
    tally: Tally,
    err: Console,
) -> None:
    async with opened(answering, err) as answer:
        begun = time.perf_counter()
        with counting(err, TextColumn("{task.fields[speed]}")) as bar:
            task = bar.add_task("answers", total=index.num_lines - outbox.num_settled, speed="")

            def on_done() -> None:
                speed = tally.usage.completion_tokens / (time.perf_counter() - begun)
                bar.update(
                    task, advance=1, speed=f"{speed:,.0f} tokens/s, {tally.usage.small_share:.0%} small"
                )

            await work(todo, index, outbox, answer, concurrency=concurrency, tally=tally, on_done=on_done)


def _answering(
    settings: Settings, model: str | None, ray: int | None, concurrency: int, local: Sequence[str]
) -> AbstractAsyncContextManager[Answer]:
    if find_spec("prometheus_client") is None:
        raise UserError('relaygen batch needs the extra `serve`: pip install "relaygen[serve]"')
    from relaygen.batch.answer import answering

    if ray:
        if local:
            raise UserError(
                f"{local[0]!r} would be loaded into each process: with --ray, --large and --small are addresses of servers"
            )
        from relaygen.batch.cluster import answering_on_ray

        return answering_on_ray(settings, model, processes=ray, concurrency=concurrency)
    return answering(settings, model)


def _judge(answers: Path, tally: Tally, refused: int) -> None:
    """The exit code, and why it is not 0."""
    if tally.failed:
        raise EngineError(f"{tally.failed:,} requests failed; the last: {tally.failure}. Run again to retry")
    if refused or tally.unreadable:
        raise UserError(
            f"{refused:,} requests were refused and {tally.unreadable:,} lines could not be read:"
            f" {answers} says why"
        )
