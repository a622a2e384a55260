"""What a token costs each model of the default pair: decoding, and reading in batches as a hand-over brings them.

    python -m benchmarks.speeds [--repeats 5]

Milliseconds a token by llama.cpp's own clock, medians; the two models take turns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from contextlib import AsyncExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from relaygen import models
from relaygen.engines.http import Http
from relaygen.local import LocalServer, LocalSettings

MODELS = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")
BATCHES = (8, 16, 32, 128)
DECODED = 24


async def timings(http: Http, ids: list[int], num_tokens: int) -> dict[str, Any]:
    body = {
        "prompt": ids,
        "n_predict": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": True,
    }
    return (await http.post("/completion", body))["timings"]


async def one_round(http: Http) -> dict[str, float]:
    """The context is about 200 tokens long. Each batch is new text after a prefix that is in the cache."""
    text = " ".join(f"{n} and {n * 7 % 31} make {n * 3}." for n in range(40))
    ids: list[int] = (await http.post("/tokenize", {"content": text}))["tokens"]
    row = {"decode": (await timings(http, ids[:200], DECODED))["predicted_per_token_ms"]}
    for size in BATCHES:
        await timings(http, ids[:200], 1)
        read = await timings(http, ids[:200] + ids[100 : 100 + size], 1)
        # The last token of the prefix is read again, as at every hand-over.
        row[f"read {size}"] = read["prompt_ms"] / read["prompt_n"]
    return row


async def measure(repeats: int) -> dict[str, dict[str, float]]:
    async with AsyncExitStack() as stack:
        https: dict[str, Http] = {}
        for model in MODELS:
            server = await LocalServer.start(
                models.pull(model), LocalSettings(context_tokens=2048), name=model
            )
            stack.callback(server.close)
            https[model] = Http(server.endpoint)
            stack.push_async_callback(https[model].close)
        rounds: dict[str, list[dict[str, float]]] = {model: [] for model in MODELS}
        for _ in range(repeats):
            for model in MODELS:
                rounds[model].append(await one_round(https[model]))
    return {
        model: {key: round(statistics.median(row[key] for row in rows), 1) for key in rows[0]}
        for model, rows in rounds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    figures = asyncio.run(measure(parser.parse_args().repeats))
    table = Table("ms a token", *next(iter(figures.values())))
    for model, row in figures.items():
        table.add_row(model, *map(str, row.values()))
    Console().print(table)
    print(json.dumps({"benchmark": "speeds", **figures}))


if __name__ == "__main__":
    main()
