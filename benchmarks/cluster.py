"""1,000 generations at once over 8 large and 4 small replicas: what keeping a generation on its replicas brings, and what the
loss of a replica costs.

    python -m benchmarks.cluster [--generations 1000] [--max-tokens 400] [--plot docs/cluster.svg]

No sockets and no waiting: the simulator's engine model (passes, queue, prefix cache in blocks of 16) by a virtual clock, in one
process. What is studied is the real code: engines/replicas.py places every generation, run.py and core/ relay it. "A request
each" is the same with a new session for each request, as behind a router that knows no sessions. With a loss, one large and one
small replica are gone from --loss-at on, for good. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.simulator import recorded
from benchmarks.virtual import SimulatedEngine, Texts, VirtualLoop, now
from relaygen import Author, Message, Sampling, profile
from relaygen.core.policy import Policy
from relaygen.engines.base import Engine, Request
from relaygen.engines.replicas import Replicas
from relaygen.errors import EngineError
from relaygen.run import Pair, Run
from relaygen.simulate.machines import parse
from relaygen.strategies import make_policy
from relaygen.types import Chunk

PROFILE = "qwen3-32b+qwen3-1.7b"
# of each author: replicas, speed, requests at work at once on a replica
CLUSTER = {
    Author.LARGE: (8, parse("25:8000:0.01"), 64),
    Author.SMALL: (4, parse("170:40000:0.01"), 256),
}


class RequestEach:
    """The same replicas, and a new session for each request."""

    def __init__(self, group: Replicas) -> None:
        self._group = group
        self.info, self.render, self.tokenize, self.close = (
            group.info,
            group.render,
            group.tokenize,
            group.close,
        )

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[RequestEach]:
        yield self

    async def write(self, request: Request) -> AsyncGenerator[Chunk]:
        async with self._group.session() as session, aclosing(session.write(request)) as chunks:
            async for chunk in chunks:
                yield chunk


async def case(
    texts: Texts,
    prompts: Iterable[str],
    policy: Policy,
    max_tokens: int,
    *,
    sticky: bool,
    loss_at: float | None,
) -> dict[str, Any]:
    replicas: dict[Author, list[SimulatedEngine]] = {}
    engines: dict[Author, Engine] = {}
    for author, (number, speed, max_sequences) in CLUSTER.items():
        made = [SimulatedEngine(f"{author.value} {n}", texts, speed, max_sequences) for n in range(number)]
        group = await Replicas.open(f"the {author} model", [(one.info.address, one.connect) for one in made])
        replicas[author], engines[author] = made, group if sticky else RequestEach(group)
    if loss_at is not None:
        for made in replicas.values():
            asyncio.get_running_loop().call_later(loss_at, made[0].kill)
    seconds: list[float] = []
    results = await asyncio.gather(
        *(_generate(Pair(engines), prompt, policy, max_tokens, seconds.append) for prompt in prompts)
    )
    took = now()
    for engine in engines.values():
        await engine.close()
    done = [result for result in results if result]
    tokens = sum(result.usage.completion_tokens for result in done)
    small = sum(result.usage.small_tokens for result in done)
    row: dict[str, Any] = {
        "placed": "a generation" if sticky else "a request each",
        "loss": "none" if loss_at is None else f"1 large, 1 small at {loss_at:g} s",
        "failed": len(results) - len(done),
        "small_went_on_alone": sum(bool(result.warnings) for result in done),
        "small_share": round(small / tokens, 3),
        "handovers_each": round(sum(result.handovers for result in done) / len(done), 1),
        "generation_s_median": round(median(seconds), 1),
        "generation_s_p95": round(quantiles(seconds, n=20)[-1], 1),
        "all_done_s": round(took, 1),
        "tokens_s": round(tokens / took),
    }
    for author, made in replicas.items():
        waits = [wait for one in made for wait in one.queued_s]
        read = sum(one.prompt_tokens for one in made)
        row[f"{author}_queued_ms_median"] = round(median(waits) * 1000)
        row[f"{author}_queued_ms_p99"] = round(quantiles(waits, n=100)[-1] * 1000)
        row[f"{author}_cache_hits"] = round(sum(one.cached_tokens for one in made) / read, 4)
    return {**row, "seconds": sorted(round(s, 2) for s in seconds)}


async def _generate(
    pair: Pair, prompt: str, policy: Policy, max_tokens: int, note: Callable[[float], None]
) -> Any:
    begun = now()
    sampling = Sampling(temperature=0, seed=1)
    run = Run(pair, [Message("user", prompt)], policy=policy, sampling=sampling, max_tokens=max_tokens)
    try:
        async with aclosing(run.batches()) as batches:
            async for _ in batches:
                pass
    except EngineError:
        return None
    note(now() - begun)
    return run.result()


def run_virtually(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Which part of the generations was done after how many seconds."""
    mpl.rcParams["svg.hashsalt"] = "relaygen"
    figure: Any = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        done = [n / (len(row["seconds"]) + row["failed"]) * 100 for n in range(1, len(row["seconds"]) + 1)]
        style = {"color": "C0" if row["placed"] == "a generation" else "C1"}
        lost = row["loss"] != "none"
        label = f"placed: {row['placed']}" + (", with a loss" if lost else "")
        axes.plot(row["seconds"], done, linestyle="--" if lost else "-", label=label, **style)
    axes.set(
        xlabel="seconds since the start", ylabel="generations finished, %", ylim=(0, 101), xlim=(0, None)
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--generations", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--loss-at", type=float, default=30)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    name, traces = recorded()
    policy = make_policy("segment", profile.load(PROFILE))
    # What is no word of the texts is spelt in bytes: a token a character.
    prompts = [
        f"{n:05d}".ljust(options.prompt_tokens, "#") + traces[n % len(traces)]["problem"]
        for n in range(options.generations)
    ]
    progress, rows = Console(stderr=True), list[dict[str, Any]]()
    texts = Texts(traces)
    for loss_at in (None, options.loss_at):
        for sticky in (True, False):
            progress.print(f"placed: {'a generation' if sticky else 'a request each'}, loss at {loss_at}")
            rows.append(
                run_virtually(
                    case(texts, prompts, policy, options.max_tokens, sticky=sticky, loss_at=loss_at)
                )
            )
            progress.print({name: value for name, value in rows[-1].items() if name != "seconds"})
    table = Table("", *(f"{row['placed']}, loss: {row['loss']}" for row in rows))
    for field in rows[0]:
        if field not in ("placed", "loss", "seconds"):
            table.add_row(field, *(str(row[field]) for row in rows))
    Console(width=160).print(table)
    if options.plot:
        plot(rows, options.plot)
    shown = [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
    print(json.dumps({"benchmark": "cluster", "traces": name, **vars(options), "rows": shown}, default=str))


if __name__ == "__main__":
    main()
