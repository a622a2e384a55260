"""relaygen run: one question, one answer."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from relaygen import profile as profiles
from relaygen import trace
from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL, Options, Relay, as_messages
from relaygen.cli.models import fetching
from relaygen.errors import RelayError, UserError
from relaygen.models import resolve
from relaygen.report.terminal import TextWriter, summary
from relaygen.strategies import POLICIES
from relaygen.types import Message, Result, Sampling

MODEL_HELP = (
    "A name of `relaygen models list`, the path of a .gguf file, or the URL of a server (with commas between them:"
    " several servers of one model)."
)

_MAX_QUESTION_BYTES = 8 * 2**20


def run(
    prompt: Annotated[
        str, typer.Argument(help="The question; `-` reads it from standard input.", metavar="QUESTION")
    ],
    large: Annotated[str, typer.Option(help=f"The large model. {MODEL_HELP}")] = DEFAULT_LARGE,
    small: Annotated[str, typer.Option(help=f"The small model. {MODEL_HELP}")] = DEFAULT_SMALL,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="A built-in profile or a .toml file. Default: picked by the models' names."),
    ] = None,
    cues: Annotated[
        Path | None, typer.Option(help="A file of cues, one a line, in place of the profile's.")
    ] = None,
    policy: Annotated[str, typer.Option(help=f"Who writes when: {', '.join(POLICIES)}.")] = "segment",
    max_tokens: Annotated[
        int | None, typer.Option(help="Token budget of the answer. Default: the profile's.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the profile's.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: the profile's.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0 is off. Default: the profile's.")] = None,
    min_p: Annotated[float | None, typer.Option(help="0 is off. Default: the profile's.")] = None,
    repeat_penalty: Annotated[float | None, typer.Option(help="1 is off. Default: the profile's.")] = None,
    seed: Annotated[int | None, typer.Option(help="For the same answer again.")] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="Speculative decoding inside the large engine with this model; `small` is the small one."
        ),
    ] = None,
    context: Annotated[int, typer.Option(help="Context in tokens, for models on this machine.")] = 8192,
    threads: Annotated[
        int | None, typer.Option(help="Threads a model, on this machine. Default: all cores.")
    ] = None,
    prewarm: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="The model that is not writing reads along, K tokens behind at most. For servers with power to spare.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="The longest silence of a server before it is given up.")
    ] = Options().silence_s,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and no text before.")
    ] = False,
    trace_file: Annotated[
        Path | None,
        typer.Option("--trace", help="Append the generation to this JSON Lines file.", metavar="FILE"),
    ] = None,
) -> None:
    """Answer QUESTION with two models in turn.

    The text goes to standard output as it is written, the summary to standard error.

    Examples:

        relaygen run "What is 17 * 23?"

        relaygen run --large http://gpu:8080 --small qwen2.5-coder-0.5b "..."

        relaygen run --json --temperature 0 - < question.txt | jq .answer
    """
    messages = as_messages(_stdin() if prompt == "-" else prompt, system)
    chosen = profiles.load(profile) if profile else None
    if cues:
        chosen = (chosen or profiles.pick(large, small)).model_copy(update={"cues": profiles.load_cues(cues)})
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"--max-tokens must be 1 or more, not {max_tokens}")
    changes: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "seed": seed,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    replace(Sampling(), **changes)  # raises before anything is loaded
    if trace_file:
        trace.check_writable(trace_file)
    if not timeout > 0:
        raise UserError(f"--timeout must be more than 0, not {timeout:g}")
    options = Options(
        context_tokens=context, threads=threads, draft=draft, prewarm_tokens=prewarm, silence_s=timeout
    )
    relay = Relay(large, small, profile=chosen, policy=policy, options=options)
    # What can be said about the input has been said. Downloads come before the event loop runs, so that Ctrl-C ends
    # them at once.
    with fetching() as bars:
        for model in relay.local_models:
            resolve(model, bars)
    err = Console(stderr=True)
    writer = None if json else TextWriter(Console(highlight=False))
    result, error = asyncio.run(_generate(relay, messages, max_tokens, changes, writer, err))
    if json:
        sys.stdout.buffer.write(orjson.dumps(trace.to_json(result), option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
    elif result.segments or error is None:
        err.print()  # the text may have ended within a line
        err.print(summary(result))
    if trace_file:
        trace.append(trace_file, result, problem=messages[-1].content)
    if error:
        raise error
    if result.finish_reason == "stopped":
        raise typer.Exit(130)


async def _generate(
    relay: Relay,
    messages: list[Message],
    max_tokens: int | None,
    changes: dict[str, Any],
    writer: TextWriter | None,
    err: Console,
) -> tuple[Result, RelayError | None]:
    status = err.status("loading the models") if err.is_terminal else None
    if status:
        status.start()
    try:
        await relay.__aenter__()
    finally:
        if status:
            status.stop()
    try:
        sampling = replace(relay.profile.sampling.values(), **changes)
        run = relay.stream(messages, max_tokens=max_tokens, sampling=sampling)
        if writer:
            writer.legend(run.models)
        error = None
        try:
            async with aclosing(run.events()) as events:
                async for event in events:
                    if writer:
                        writer.event(event)
        except asyncio.CancelledError:  # Ctrl-C: both engines have been stopped, what there is is shown
            pass
        except RelayError as failure:
            error = failure
        if writer:
            writer.end()
        return (error.partial if error and error.partial else run.result()), error
    finally:
        await relay.__aexit__(None, None, None)


def _stdin() -> str:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise UserError("standard input is closed")
    try:
        data = sys.stdin.buffer.read(_MAX_QUESTION_BYTES + 1)
        if len(data) > _MAX_QUESTION_BYTES:
            raise UserError(f"standard input holds more than {_MAX_QUESTION_BYTES:,} bytes")
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"standard input is not UTF-8 (byte {error.start} is {error.object[error.start]:#04x})"
        ) from None
