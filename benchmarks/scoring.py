"""How fast a model on this machine reads traces under teacher forcing: token by token, and as batches over slots.

    python -m benchmarks.scoring [--model smollm2-135m] [--slots 1,4,8] [--tokens 64]

`one by one` asks for each token by itself, `N slots` lets llama.cpp write N texts at once under a grammar. Tokens per second
of wall time, the reading of the prompts included. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import AsyncExitStack

from rich.console import Console
from rich.table import Table

from relaygen import models
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.engines.scoring import score, score_next
from relaygen.local import LocalServer, LocalSettings
from relaygen.tasks.wordproblems import generate
from relaygen.types import Message


async def measure(model: str, slots: list[int], num_tokens: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for count in slots:
        async with AsyncExitStack() as stack:
            settings = LocalSettings(context_tokens=512, num_slots=count)
            server = await LocalServer.start(models.pull(model), settings, name=model)
            stack.callback(server.close)
            engine = await LlamaCppEngine.connect(server.endpoint, pinned=True)
            stack.push_async_callback(engine.close)
            traces = [await trace(engine, number, num_tokens) for number in range(2 * max(slots))]
            if count == slots[0]:
                figures["one by one"] = await one_by_one(engine, *traces[-1])
            figures[f"{count} slots"] = await batched(engine, traces[: 2 * count])
    return {name: round(value, 1) for name, value in figures.items()}


async def trace(engine: LlamaCppEngine, number: int, num_tokens: int) -> tuple[list[int], list[int]]:
    """A prompt, and text of the length wanted to read behind it."""
    problems = generate(number + 4)
    _, prompt = await engine.render([Message("user", problems[number].problem)])
    text = " ".join(problem.problem for problem in problems[number:])
    return prompt, (await engine.tokenize(text))[:num_tokens]


async def one_by_one(engine: LlamaCppEngine, prompt: list[int], ids: list[int]) -> float:
    begun = time.perf_counter()
    async with engine.session() as session:
        for at in range(len(ids)):
            await score_next(engine, session, [*prompt, *ids[:at]], ids[at])
    return len(ids) / (time.perf_counter() - begun)


async def batched(engine: LlamaCppEngine, traces: list[tuple[list[int], list[int]]]) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(score(engine, prompt + ids, len(prompt)) for prompt, ids in traces))
    return sum(len(ids) for _, ids in traces) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--slots", default="1,4,8")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    figures = asyncio.run(measure(args.model, [int(n) for n in args.slots.split(",")], args.tokens))
    table = Table("", "tokens/s")
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console().print(table)
    print(json.dumps({"benchmark": "scoring", "model": args.model, "tokens_per_s": figures}))


if __name__ == "__main__":
    main()
