"""Does reading along pay? The relay with pre-warm off and on, in turn, on the same problems.

    python -m benchmarks.prewarm [--large URL --small URL] [--every 8] [--segment 20] [--problems 4] [--max-tokens 160]

Hand-overs come every `--segment` tokens, so that there is something to warm. Pre-warm takes reading out of the hand-overs
(`handover_ms`: the engines' reading at each) and does it beside the writing (`prewarm_ms`); it pays where that costs the
writing model less (`decode_ms`: a step of the large one). On a shared CPU it steals cores; on two GPUs it should be free.
The order of the two changes from problem to problem. The last line is JSON.
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
from relaygen import Relay, Result
from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL, Options
from relaygen.core.policy import alternate
from relaygen.tasks.prompts import PROMPTS


async def measure(options: argparse.Namespace, console: Console) -> list[tuple[Result, Result]]:
    """(off, on) for each problem."""
    results: list[tuple[Result, Result]] = []
    async with Relay(options.large, options.small, options=Options(threads=options.threads)) as relay:
        await relay.generate("Say hello.", max_tokens=8, sampling=GREEDY)  # pages in the weights

        async def answer(problem: str, every: int | None) -> Result:
            policy = alternate(options.segment)
            return await write(relay.pair, problem, policy, options.max_tokens, prewarm_tokens=every)

        for number, problem in enumerate(PROMPTS[: options.problems]):
            console.print(f"problem {number + 1} of {options.problems}")
            order = (None, options.every) if number % 2 == 0 else (options.every, None)
            # Another first word, or the second run would find the prompt in the caches.
            runs = {every: await answer(f"({n}) {problem}", every) for n, every in enumerate(order)}
            results.append((runs[None], runs[options.every]))
    return results


def row(name: str, results: list[Result]) -> dict[str, Any]:
    handovers = sum(r.handovers for r in results)
    timings = [r.timings for r in results]
    read_ms = sum(t.large.handover_prefill_ms + t.small.handover_prefill_ms for t in timings)
    steps = [t.large.decode_ms_per_token for t in timings if t.large.decode_ms_per_token]
    prewarm_ms = sum(t.large.prewarm_ms + t.small.prewarm_ms for t in timings)
    return {
        "prewarm": name,
        "ms_per_token": round(
            sum(t.total_ms for t in timings) / sum(r.usage.completion_tokens for r in results), 1
        ),
        "handover_ms": round(read_ms / max(1, handovers), 1),
        "decode_ms": round(statistics.median(steps), 1) if steps else None,
        "prewarm_ms": round(prewarm_ms / max(1, handovers), 1),
        "handovers": handovers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", default=DEFAULT_LARGE)
    parser.add_argument("--small", default=DEFAULT_SMALL)
    parser.add_argument("--every", type=int, default=8, help="tokens behind, at most")
    parser.add_argument("--segment", type=int, default=20, help="tokens a turn")
    parser.add_argument("--problems", type=int, default=4, choices=range(1, len(PROMPTS) + 1))
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--threads", type=int, help="a model, on this machine")
    options = parser.parse_args()
    results = asyncio.run(measure(options, Console(stderr=True)))
    rows = [row("off", [off for off, _ in results]), row(f"every {options.every}", [on for _, on in results])]
    table = Table(*rows[0])
    for one in rows:
        table.add_row(*map(str, one.values()))
    Console(width=140).print(table)
    speedup = round(rows[0]["ms_per_token"] / rows[1]["ms_per_token"], 3)
    print(json.dumps({"benchmark": "prewarm", "every": options.every, "rows": rows, "speedup": speedup}))


if __name__ == "__main__":
    main()
