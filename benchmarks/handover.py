"""What relaying itself costs on the default pair: wall time against the time the engines report, and own time a hand-over.

    python -m benchmarks.handover [--problems 5] [--max-tokens 100]

Three runs take turns, problem by problem: the relay by its cues, the relay with a hand-over every 10 tokens, and large alone.
"Engines" is the sum of llama.cpp's own prompt and decode times over all turns; "own" is everything else: our code, HTTP on
loopback, the operating system. A hand-over is a request; what it costs of our own is measured in the second run. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.greedy import GREEDY, write
from relaygen import Author, Relay, Result
from relaygen.core.policy import alone, alternate
from relaygen.tasks.prompts import PROMPTS

Runs = tuple[Result, Result, Result]


async def measure(num_problems: int, max_tokens: int) -> list[Runs]:
    console = Console(stderr=True)
    results: list[Runs] = []
    async with Relay() as relay:
        await relay.generate("Say hello.", max_tokens=8, sampling=GREEDY)  # pages in the weights
        for number, problem in enumerate(PROMPTS[:num_problems], 1):
            console.print(f"problem {number} of {num_problems}")
            relayed, often, large = [
                await write(relay.pair, problem, policy, max_tokens)
                for policy in (relay.policy, alternate(10), alone(Author.LARGE))
            ]
            results.append((relayed, often, large))
    return results


def row(number: int, runs: Runs) -> dict[str, Any]:
    relayed, often, large = runs
    timings = relayed.timings
    own_ms = often.timings.large.own_ms + often.timings.small.own_ms
    requests = often.timings.large.requests + often.timings.small.requests
    read_ms = often.timings.large.handover_prefill_ms + often.timings.small.handover_prefill_ms
    return {
        "problem": number,
        "small_share": round(relayed.usage.small_share, 3),
        "handovers": relayed.handovers,
        "wall_s": round(timings.total_ms / 1000, 2),
        "wall_over_engines": round(timings.total_ms / timings.engines_ms, 4),
        "large_alone_s": round(large.timings.total_ms / 1000, 2),
        "often_handovers": often.handovers,
        "often_wall_over_engines": round(often.timings.total_ms / often.timings.engines_ms, 4),
        "engine_ms_per_handover": round(read_ms / often.handovers, 1),
        "own_ms_per_handover": round(own_ms / requests, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=5, choices=range(1, len(PROMPTS) + 1))
    parser.add_argument("--max-tokens", type=int, default=100)
    options = parser.parse_args()
    results = asyncio.run(measure(options.problems, options.max_tokens))
    rows = [row(n, runs) for n, runs in enumerate(results, 1)]
    table = Table(*rows[0])
    for one in rows:
        table.add_row(*map(str, one.values()))
    Console(width=200).print(table)
    medians = {key: statistics.median(one[key] for one in rows) for key in rows[0] if key != "problem"}
    print(json.dumps({"benchmark": "handover", "median": medians, "rows": rows}))


if __name__ == "__main__":
    main()
