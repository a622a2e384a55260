"""CPU time of our own code: a token through the algorithm, and a hand-over with a long context behind it.

    python -m benchmarks.core

The hand-over is everything between two requests but the network: the ask, the ids of 30,000 tokens as JSON, the seed.
The last line is JSON.
"""

from __future__ import annotations

import json
import statistics
import time
import tracemalloc
from collections.abc import Callable

import orjson

from relaygen import profile
from relaygen.core.ledger import Ledger
from relaygen.core.relay import Generation, turn_seed
from relaygen.strategies import make_policy
from relaygen.types import Chunk, Piece

TEXT = (
    "We know that the train leaves at 3.15 and now we add them up . Therefore , it is so . And then ".split(
        " "
    )
)


def per_token_us(cues: str, num_tokens: int) -> float:
    generation = Generation(make_policy("segment", profile.load(cues)), max_tokens=10**9)
    chunks = [Chunk((Piece(f" {word}", (n,)),)) for n, word in enumerate(TEXT)]
    generation.next_ask()
    started = time.process_time()
    for n in range(num_tokens):
        generation.feed(chunks[n % len(chunks)])
        if generation.turn_over:
            generation.next_ask()
    return (time.process_time() - started) / num_tokens * 1e6


def handover_ms(num_ids: int) -> float:
    generation = Generation(make_policy("segment", profile.load("qwen3-32b+qwen3-1.7b")), max_tokens=10**9)
    ledger = Ledger(range(100_000, 100_000 + num_ids), {})
    started = time.process_time()
    ask = generation.next_ask()
    assert ask
    orjson.dumps(
        {"prompt": ledger.ids, "n_predict": ask.max_tokens, "stop": ask.stops, "seed": turn_seed(1, num_ids)}
    )
    return (time.process_time() - started) * 1e3


def kept_bytes(num_handovers: int) -> int:
    """Memory that the algorithm holds after so many hand-overs."""
    generation = Generation(make_policy("segment", profile.load("qwen3-32b+qwen3-1.7b")), max_tokens=10**9)
    words = [
        " a",
        " b",
        " c",
        " d",
        " e",
        " f",
        " So",
        ",",
        " {}",
        ".",
        " Well",
    ]  # {}: no segment like the last one
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    generation.next_ask()
    done = n = 0
    while done < num_handovers:
        generation.feed(Chunk((Piece(words[n % len(words)].format(n), (1,)),)))
        n += 1
        if generation.turn_over:
            done += 1
            generation.next_ask()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def median(measure: Callable[[], float], times: int = 9) -> float:
    return round(statistics.median(measure() for _ in range(times)), 3)


def main() -> None:
    figures = {
        "us_per_token_28_cues": median(lambda: per_token_us("qwen3-32b+qwen3-1.7b", 20_000)),
        "us_per_token_28_cues_100k_tokens": median(lambda: per_token_us("qwen3-32b+qwen3-1.7b", 100_000), 3),
        "handover_ms_300_ids": median(lambda: handover_ms(300)),
        "handover_ms_30000_ids": median(lambda: handover_ms(30_000)),
        "kept_bytes_100_handovers": kept_bytes(100),
        "kept_bytes_10000_handovers": kept_bytes(10_000),
    }
    for name, value in figures.items():
        print(f"{name:36} {value:>10}")
    print(json.dumps({"benchmark": "core", **figures}))


if __name__ == "__main__":
    main()
