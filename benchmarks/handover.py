"""What relaying itself costs on the default pair: wall time against the time the engines report, and own time a hand-over.

    python -m benchmarks.handover [--problems 6] [--max-tokens 160]

Relay and large alone take turns, problem by problem, in one run. "Engines" is the sum of llama.cpp's own prompt and decode
times over all turns; "own" is everything else: our code, HTTP on loopback, the operating system. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from relaygen import Relay, Result, Sampling
from relaygen.core.policy import alone
from relaygen.report.summary import large_alone_ms
from relaygen.run import Run
from relaygen.types import Author, Message

PROBLEMS = (
    "A baker fills 7 trays with 12 rolls each and sells 61 rolls. How many rolls are left?",
    "Mia reads 18 pages a day. Her book has 252 pages. After how many days is she through?",
    "A train covers 150 km in 2.5 hours. How far does it get in 4 hours at the same speed?",
    "A shirt costs 40 dollars. It is marked down by 15 percent, then by 10 percent more. What does it cost now?",
    "Tom has 3 times as many marbles as Ann. Together they have 64. How many has Tom?",
    "A tank holds 900 litres and loses 4.5 litres an hour. How full is it after 2 days, in litres?",
    "What is the sum of all odd numbers from 1 to 49?",
    "Five workers build a wall in 12 days. How many days would eight workers need?",
)


async def measure(num_problems: int, max_tokens: int) -> list[tuple[Result, Result]]:
    console = Console(stderr=True)
    results: list[tuple[Result, Result]] = []
    sampling = Sampling(temperature=0)
    async with Relay() as relay:
        await relay.generate("Say hello.", max_tokens=8, sampling=sampling)  # pages in the weights
        for number, problem in enumerate(PROBLEMS[:num_problems], 1):
            console.print(f"problem {number} of {num_problems}")
            relayed = await relay.generate(problem, max_tokens=max_tokens, sampling=sampling)
            pair = relay._pair  # pyright: ignore[reportPrivateUsage]
            assert pair
            run = Run(
                pair,
                [Message("user", problem)],
                policy=alone(Author.LARGE),
                sampling=sampling,
                max_tokens=max_tokens,
            )
            async for _ in run.events():
                pass
            results.append((relayed, run.result()))
    return results


def row(number: int, relayed: Result, large: Result) -> dict[str, Any]:
    timings = relayed.timings
    requests = timings.large.requests + timings.small.requests
    return {
        "problem": number,
        "tokens": relayed.usage.completion_tokens,
        "small_share": round(relayed.usage.small_share, 3),
        "handovers": relayed.handovers,
        "wall_s": round(timings.total_ms / 1000, 2),
        "wall_over_engines": round(timings.total_ms / timings.engines_ms, 4),
        "own_ms_per_request": round(timings.own_ms / requests, 2),
        "prefill_ms_per_handover": round(
            (timings.large.handover_prefill_ms + timings.small.handover_prefill_ms)
            / max(1, relayed.handovers),
            1,
        ),
        "large_alone_s": round(large.timings.total_ms / 1000, 2),
        "large_alone_tokens": large.usage.completion_tokens,
        "large_alone_estimated_s": round((large_alone_ms(relayed) or 0) / 1000, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=6, choices=range(1, len(PROBLEMS) + 1))
    parser.add_argument("--max-tokens", type=int, default=160)
    options = parser.parse_args()
    results = asyncio.run(measure(options.problems, options.max_tokens))
    rows = [row(n, *pair) for n, pair in enumerate(results, 1)]
    table = Table(*rows[0])
    for one in rows:
        table.add_row(*map(str, one.values()))
    Console(width=200).print(table)
    medians = {
        key: statistics.median(one[key] for one in rows if one["handovers"])
        for key in ("wall_over_engines", "own_ms_per_request", "prefill_ms_per_handover", "small_share")
    }
    print(json.dumps({"benchmark": "handover", "cpu": platform.processor(), "median": medians, "rows": rows}))


if __name__ == "__main__":
    main()
