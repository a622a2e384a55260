"""python -m relaygen.chaos: faults in front of any HTTP server."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

from relaygen.chaos.faults import Kind, plan
from relaygen.chaos.proxy import Proxy
from relaygen.errors import UserError

app = typer.Typer(add_completion=False)


@app.command()
def chaos(
    target: Annotated[str, typer.Argument(metavar="URL", help="The server, as http://127.0.0.1:8080")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed brings the same faults.")] = 0,
    rate: Annotated[float, typer.Option(min=0, max=1, help="The part of the requests that meets one.")] = 0.1,
    kind: Annotated[list[Kind] | None, typer.Option(help="Only faults of this kind. Repeatable.")] = None,
    delay: Annotated[float, typer.Option(min=0, help="Seconds of a delay.")] = 1.0,
) -> None:
    """Break connections, stall, cut, garble and refuse at random, between a client and a server.

    What befalls which request, and at which byte, depends on the seed alone. Ctrl-C stops it.

    Examples:

        python -m relaygen.chaos http://127.0.0.1:8080 --port 9090

        python -m relaygen.chaos http://gpu:8000 --rate 1 --kind stall --kind 429 --seed 7
    """
    proxy = Proxy(target, plan(seed, rate, tuple(kind or Kind)), delay)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(proxy, port))


async def _serve(proxy: Proxy, port: int) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    console = Console(highlight=False)
    try:
        async with proxy.running(port) as url:
            console.print(f"{url} -> {proxy.target}", soft_wrap=True)
            shown = 0
            while not stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 0.2)
                for number, fault in proxy.struck[shown:]:
                    console.print(f"request {number}: {fault}")
                shown = len(proxy.struck)
    except OSError as error:
        raise UserError(f"cannot listen on port {port}: {error.strerror}") from None


def main() -> None:
    try:
        app()
    except UserError as error:
        Console(stderr=True).print(str(error), markup=False, soft_wrap=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
