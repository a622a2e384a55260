"""How often does reading in batches turn a greedy token? A relay of a model with itself, in llama.cpp's default batches.

    python -m benchmarks.identity [--prompts 20] [--max-tokens 60]

Our part is exact (tests/test_identity.py shows it, one token at a time). llama.cpp rounds differently in batches of
different sizes, so where two tokens are nearly equal, text read in one batch can go another way than text written token
by token. Counted here: prompts with equal ids, and for the others the log-probability gap between the two best tokens of
the uninterrupted run at the first difference. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from contextlib import AsyncExitStack
from typing import Any

from relaygen import models
from relaygen.core.policy import alternate
from relaygen.engines.http import Http
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.local import LocalServer, LocalSettings
from relaygen.run import Pair, Run
from relaygen.types import Author, Message, Sampling

QUESTIONS = [
    f"What is {a} times {b}, and why? Explain it step by step."
    for a, b in zip(range(12, 72), range(71, 11, -1), strict=True)
]


async def first_difference(
    engines: list[LlamaCppEngine], http: Http, prompt: str, max_tokens: int
) -> float | None:
    """None when the ids are equal; else the gap at the first difference."""
    run = Run(
        Pair(dict(zip(Author, engines, strict=True))),
        [Message("user", prompt)],
        policy=alternate(13),
        sampling=Sampling(temperature=0, top_k=1),
        max_tokens=max_tokens,
    )
    async for _ in run.events():
        pass
    ids = [i for segment in run.result().segments for i in segment.token_ids]
    _, prompt_ids = await engines[0].render([Message("user", prompt)])
    body: dict[str, Any] = {
        "prompt": prompt_ids,
        "n_predict": len(ids),
        "temperature": 0,
        "return_tokens": True,
    }
    plain: list[int] = (await http.post("/completion", body | {"cache_prompt": False}))["tokens"]
    same = next((n for n, (a, b) in enumerate(zip(ids, plain, strict=False)) if a != b), None)
    if same is None:
        return None
    body |= {"prompt": prompt_ids + plain[:same], "n_predict": 1, "n_probs": 2}
    best, second = (await http.post("/completion", body))["completion_probabilities"][0]["top_logprobs"][:2]
    return best["logprob"] - second["logprob"]


async def measure(model: str, num_prompts: int, max_tokens: int) -> list[float | None]:
    async with AsyncExitStack() as stack:
        servers = [
            await LocalServer.start(models.pull(model), LocalSettings(context_tokens=2048), name=model)
            for _ in range(3)
        ]
        engines = [await LlamaCppEngine.connect(server.endpoint, pinned=True) for server in servers[:2]]
        http = Http(servers[2].endpoint)
        for engine in engines:
            stack.push_async_callback(engine.close)
        stack.push_async_callback(http.close)
        for server in servers:
            stack.callback(server.close)
        return [await first_difference(engines, http, q, max_tokens) for q in QUESTIONS[:num_prompts]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=20, choices=range(1, len(QUESTIONS) + 1))
    parser.add_argument("--max-tokens", type=int, default=60)
    options = parser.parse_args()
    gaps = asyncio.run(measure(options.model, options.prompts, options.max_tokens))
    turned = [gap for gap in gaps if gap is not None]
    figures = {
        "model": options.model,
        "prompts": len(gaps),
        "equal": len(gaps) - len(turned),
        "median_gap": round(statistics.median(turned), 3) if turned else None,
        "largest_gap": round(max(turned), 3) if turned else None,
    }
    for name, value in figures.items():
        print(f"{name:12} {value}")
    print(json.dumps({"benchmark": "identity", **figures}))


if __name__ == "__main__":
    main()
