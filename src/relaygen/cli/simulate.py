"""relaygen simulate: two engine servers with chosen speeds, for tests, measurements and plans."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import typer
from rich.console import Console
from rich.table import Table

from relaygen.errors import UserError
from relaygen.simulate.llamacpp import SimulatedLlamaServer
from relaygen.simulate.machines import machines, parse
from relaygen.simulate.plan import Plan, plan
from relaygen.simulate.precise import event_loop
from relaygen.simulate.script import Library
from relaygen.simulate.server import Settings, SimulatedServer
from relaygen.simulate.speed import Speed
from relaygen.simulate.vllm import SimulatedVllm
from relaygen.types import Author

_SERVERS: dict[str, type[SimulatedServer]] = {"vllm": SimulatedVllm, "llamacpp": SimulatedLlamaServer}
_SPEED_HELP = "DECODE:PREFILL[:SLOPE] in tokens/s, or a name of --machines."


def simulate(
    large: Annotated[str, typer.Option(metavar="SPEED", help=_SPEED_HELP)] = "paper-large",
    small: Annotated[str, typer.Option(metavar="SPEED", help="The same.")] = "paper-small",
    traces: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl", help="Recorded generations to play. Default: a few texts of our own."
        ),
    ] = None,
    dialect: Annotated[
        Literal["vllm", "llamacpp"], typer.Option(help="Which server they talk like.")
    ] = "vllm",
    large_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    small_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    network_ms: Annotated[float, typer.Option(min=0, help="What a request is on its way.")] = 0.5,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Requests at work at once, a server; llama-server's slots.")
    ] = 256,
    max_queue: Annotated[
        int | None,
        typer.Option(min=0, help="More than so many waiting are refused (503). Default: no limit."),
    ] = None,
    context: Annotated[int, typer.Option(min=16, help="Context in tokens.")] = 40_960,
    max_stops: Annotated[int, typer.Option(min=0, help="Stop strings that vLLM takes.")] = 4,
    seed: Annotated[int, typer.Option(help="Which text answers which prompt.")] = 0,
    show_machines: Annotated[
        bool, typer.Option("--machines", help="Show the known machines, and where their speeds are from.")
    ] = False,
    show_plan: Annotated[
        bool,
        typer.Option("--plan", help="Show what relaying would bring at these speeds, and serve nothing."),
    ] = False,
    answer_tokens: Annotated[int, typer.Option(min=10, help="With --plan: length of the answer.")] = 9000,
    segment_tokens: Annotated[
        int, typer.Option(min=1, help="With --plan: mean length of a small turn.")
    ] = 20,
    json: Annotated[
        bool, typer.Option("--json", help="For machines: one line, printed when both are ready.")
    ] = False,
) -> None:
    """Serve a pair of simulated engines until Ctrl-C.

    They play recorded texts at the speeds of a machine that you may not have: a step takes longer with more requests at work
    (SLOPE: by which part, for each further one), prompts are read at PREFILL, known prefixes are not read again. The same
    prompt always gets the same answer, from either.

    Examples:

        relaygen simulate

        relaygen simulate --large 25:8000:0.01 --small 170:40000:0.01 --traces traces.jsonl --dialect llamacpp

        relaygen simulate --large qwen3-32b@h20 --small qwen3-1.7b@h20 --plan
    """
    if show_machines:
        _print_machines(json)
        return
    speeds = {Author.LARGE: parse(large), Author.SMALL: parse(small)}
    if show_plan:
        _print_plan(
            plan(speeds[Author.LARGE], speeds[Author.SMALL], answer_tokens, segment_tokens, network_ms), json
        )
        return
    library = Library.read(traces, seed)
    ports = {Author.LARGE: large_port, Author.SMALL: small_port}
    if large_port and large_port == small_port:
        raise UserError("the two servers need two ports")

    def server(author: Author, speed: Speed) -> SimulatedServer:
        name = f"simulated-{author.value}"
        settings = Settings(name, speed, network_ms, max_batch, max_queue, context, max_stops)
        return _SERVERS[dialect](settings, library)

    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_serve(server, speeds, ports, json))


async def _serve(server: Any, speeds: dict[Author, Speed], ports: dict[Author, int], json: bool) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for author, port in ports.items():
            try:
                running = server(author, speeds[author]).running(port)
                urls[author.value] = await stack.enter_async_context(running)
            except OSError as error:
                raise UserError(f"cannot listen on port {port}: {error.strerror}") from None
        if json:
            sys.stdout.buffer.write(orjson.dumps(urls, option=orjson.OPT_APPEND_NEWLINE))
            sys.stdout.buffer.flush()
        else:
            console = Console(highlight=False)
            console.print(f"large  {urls['large']}\nsmall  {urls['small']}\n")
            console.print(
                f'relaygen run --large {urls["large"]} --small {urls["small"]} "Count the tulips."',
                soft_wrap=True,
            )
        await stop.wait()


def _print_machines(json: bool) -> None:
    known = machines()
    if json:
        data = {name: {field: getattr(m, field) for field in m.__slots__} for name, m in known.items()}
        sys.stdout.buffer.write(orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        return
    table = Table("name", "decode", "prefill", "what", "source", box=None)
    for name, m in known.items():
        table.add_row(name, f"{m.decode_tokens_s:g}", f"{m.prefill_tokens_s:g}", m.about, m.source)
    console = Console(highlight=False)
    console.print(table)


def _print_plan(found: Plan, json: bool) -> None:
    if json:
        sys.stdout.buffer.write(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        return
    console = Console(highlight=False)
    console.print(
        f"An answer of {found.answer_tokens:,} tokens by the large model alone: {found.alone_s:,.1f} s\n"
    )
    table = Table("share of the small model", "time", "speed-up", box=None)
    for column in table.columns:
        column.justify = "right"
    for row in found.rows:
        table.add_row(f"{row.small_share:.0%}", f"{row.relay_s:,.1f} s", f"{row.speedup:.2f}x")
    console.print(table)
