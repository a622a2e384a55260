"""What relaying adds to the engines' own time at the speeds of a GPU, and how its cost grows with the length of the text.

    python -m benchmarks.simulated [--max-tokens 1000] [--generations 1 8 32]

Simulated engines in a process of their own: large 25 tokens/s and 8,000 prefill, small 170 and 40,000, a step 1 % longer for
each further request, 0.5 ms of network a request. They play recorded traces where those are beside the repository, and a few
texts of the simulator's own where not.

First table: relays by the cues of the paper, and with 200 hand-overs in each text, over both dialects, with several
generations at once. "Engines" is the sum of what the servers counted by their own clocks (/metrics), from the arrival of each
request to its last token, waiting for a step in flight included; "wall" is the sum over the generations as their caller sees
them. The speed-up is per token against the large model alone, measured in the same run.

Second table: one text of up to 32,000 tokens at engines a hundred times as fast, so that our own cost shows: CPU time of this
process a token. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.simulator import count_tokens, recorded, simulators
from relaygen import Author, Message, Relay, Result, Sampling
from relaygen.core.policy import Policy, alone, alternate
from relaygen.run import Run

LARGE, SMALL = "25:8000:0.01", "170:40000:0.01"
FAST_LARGE, FAST_SMALL = "2500:800000", "17000:4000000"
PROFILE = "qwen3-32b+qwen3-1.7b"
HANDOVERS = 200
LENGTHS = (1000, 2000, 4000, 8000, 16_000, 32_000)
ALONE_TOKENS = 400
SECONDS = (
    "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum",
    "prompt_seconds_total",
    "tokens_predicted_seconds_total",
)


async def engine_ms(urls: dict[str, str]) -> float:
    """What both servers have counted so far."""
    total = 0.0
    async with aiohttp.ClientSession() as client:
        for url in urls.values():
            async with client.get(f"{url}/metrics") as response:
                for line in (await response.text()).splitlines():
                    name, _, value = line.partition(" ")
                    total += (
                        float(value) * 1000 if name.partition("{")[0].partition(":")[2] in SECONDS else 0.0
                    )
    return total


async def generate(relay: Relay, policy: Policy, prompt: str, max_tokens: int) -> Result:
    run = Run(
        relay.pair,
        [Message("user", prompt)],
        policy=policy,
        sampling=Sampling(temperature=0, seed=1),
        max_tokens=max_tokens,
    )
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
    return run.result()


async def together(
    relay: Relay, policy: Policy, problems: list[str], num_generations: int, max_tokens: int
) -> list[Result]:
    prompts = [f"{problems[n % len(problems)]} ({n})" for n in range(num_generations)]
    return await asyncio.gather(*(generate(relay, policy, prompt, max_tokens) for prompt in prompts))


async def case(
    urls: dict[str, str], problems: list[str], policy: str, num_generations: int, max_tokens: int
) -> dict[str, Any]:
    async with Relay(urls["large"], urls["small"], profile=PROFILE) as relay:
        await generate(relay, relay.policy, "to warm up", 50)
        begun = await engine_ms(urls)
        results = await together(
            relay, chosen(relay, policy, max_tokens), problems, num_generations, max_tokens
        )
        engines = await engine_ms(urls) - begun
        large = await together(
            relay, alone(Author.LARGE), problems, num_generations, min(ALONE_TOKENS, max_tokens)
        )
    wall = sum(result.timings.total_ms for result in results)
    handovers = sum(result.handovers for result in results)
    return {
        "relay": policy,
        "at_once": num_generations,
        "tokens_each": max_tokens,
        "handovers_each": round(handovers / num_generations, 1),
        "small_share": round(sum(r.usage.small_share for r in results) / num_generations, 3),
        "wall_s": round(wall / 1000 / num_generations, 2),
        "engines_s": round(engines / 1000 / num_generations, 2),
        "wall_over_engines": round(wall / engines, 4),
        "own_ms_per_handover": round((wall - engines) / handovers, 2),
        "speedup": round(ms_per_token(large) / ms_per_token(results), 3),
    }


def chosen(relay: Relay, policy: str, max_tokens: int) -> Policy:
    if policy == "by cues":
        return relay.policy
    both = (
        max_tokens * 2 // HANDOVERS
    )  # a turn of each: seven tenths of it by the large model, as in the paper
    by_large = max(1, round(both * 0.7))
    return replace(alternate(1), max_large_tokens=by_large, max_small_tokens=both - by_large)


def ms_per_token(results: list[Result]) -> float:
    return sum(r.timings.total_ms for r in results) / sum(r.usage.completion_tokens for r in results)


async def growth(urls: dict[str, str], problem: str, lengths: list[int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with Relay(urls["large"], urls["small"], profile=PROFILE) as relay:
        await generate(relay, relay.policy, problem, 500)
        for length in lengths:
            begun, cpu = await engine_ms(urls), time.process_time()
            result = await generate(relay, relay.policy, f"{problem} {length}", length)
            cpu_ms = (time.process_time() - cpu) * 1000
            wall, engines = result.timings.total_ms, await engine_ms(urls) - begun
            rows.append(
                {
                    "tokens": result.usage.completion_tokens,
                    "handovers": result.handovers,
                    "wall_s": round(wall / 1000, 2),
                    "engines_s": round(engines / 1000, 2),
                    "own_cpu_ms": round(cpu_ms),
                    "own_cpu_us_per_token": round(cpu_ms * 1000 / result.usage.completion_tokens, 1),
                }
            )
    return rows


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-tokens", type=int, default=1000)
    parser.add_argument("--generations", type=int, nargs="+", default=[1, 8, 32])
    options = parser.parse_args()
    progress, console = Console(stderr=True), Console(width=180)
    name, traces = recorded()
    problems = [trace["problem"] for trace in traces]
    joined = " ".join(trace["text"].replace("<think>", "").replace("</think>", "") for trace in traces)
    joined *= 1 + LENGTHS[-1] // count_tokens(joined)
    long = {"problem": "All of them.", "text": f"<think>{joined}"}
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for dialect, policies in (("vllm", ("by cues", "200 times")), ("llamacpp", ("200 times",))):
            flags = ("--large", LARGE, "--small", SMALL, "--dialect", dialect)
            with simulators(Path(folder), traces, *flags) as urls:
                for policy in policies:
                    for number in options.generations:
                        progress.print(f"{dialect}, hand-overs {policy}, {number} at once")
                        row = asyncio.run(case(urls, problems, policy, number, options.max_tokens))
                        cases.append({"dialect": dialect, **row})
        progress.print("growth with the length of the text")
        with simulators(Path(folder), [long], "--large", FAST_LARGE, "--small", FAST_SMALL) as urls:
            grown = asyncio.run(growth(urls, long["problem"], list(LENGTHS)))
    show(console, cases)
    show(console, grown)
    print(json.dumps({"benchmark": "simulated", "traces": name, "cases": cases, "growth": grown}))


if __name__ == "__main__":
    main()
