"""Does relaying go together with speculative decoding? The default pair in four ways, in turn on each problem.

    python -m benchmarks.composition [--problems 3] [--max-tokens 160] [--data FILE] [--exact]

    large           the large model alone
    relay           the pair, by the cues of its built-in profile
    large + draft   the large model alone, and the small one drafts for it inside llama.cpp (at most 4 tokens at a time)
    relay + draft   both

All start without anything of the problem in their caches, and which goes first changes from problem to problem. Drafts
change no text but by rounding: llama.cpp rounds differently in batches of different sizes, and drafted tokens are checked
in a batch. So it is counted how often the ids with drafts are those without, and for large + draft it is shown how close the
two likeliest tokens were where the ids part (in natural log probability). With --exact llama.cpp computes one token at a
time: then the ids must be equal on all problems, or the exit code is 1; the speeds of such a run mean nothing. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.greedy import GREEDY, ids, write
from relaygen import Author, Message, Result, models, profile
from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL
from relaygen.core.policy import Policy, alone
from relaygen.engines.base import Engine, Request
from relaygen.engines.open import open_engine
from relaygen.local import LocalSettings
from relaygen.run import Pair
from relaygen.strategies import make_policy
from relaygen.tasks import problems, wordproblems

LARGE, RELAY, LARGE_DRAFT, RELAY_DRAFT = WAYS = ("large", "relay", "large + draft", "relay + draft")
SEED = 1  # the profile was made with the word problems of seed 0
Row = dict[str, Result]  # by way


@asynccontextmanager
async def pairs(*, exact: bool) -> AsyncGenerator[tuple[Pair, Pair]]:
    """Without and with drafts; one small engine is in both."""
    plain = LocalSettings(context_tokens=2048, batch_invariant=exact)
    drafting = replace(plain, draft=models.pull(DEFAULT_SMALL))
    async with AsyncExitStack() as stack:
        large, large_drafting, small = [
            await stack.enter_async_context(
                open_engine(model, name=model, settings=settings, api_key=None, progress=models.quiet)
            )
            for model, settings in ((DEFAULT_LARGE, plain), (DEFAULT_LARGE, drafting), (DEFAULT_SMALL, plain))
        ]
        yield (
            Pair({Author.LARGE: large, Author.SMALL: small}),
            Pair({Author.LARGE: large_drafting, Author.SMALL: small}),
        )


async def forget(pair: Pair) -> None:
    """Puts other text into the caches of both engines, and of the drafter."""
    for engine in pair.engines.values():
        await write(Pair({Author.LARGE: engine}), "Say hello.", alone(Author.LARGE), 8)


async def measure(
    questions: Sequence[str],
    policy: Policy,
    max_tokens: int,
    *,
    exact: bool,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[Row], list[float | None]]:
    """The results, and for each problem on which large + draft parts from large the gap there."""
    rows: list[Row] = []
    gaps: list[float | None] = []
    async with pairs(exact=exact) as (plain, drafting):
        ways = {
            LARGE: (plain, alone(Author.LARGE)),
            RELAY: (plain, policy),
            LARGE_DRAFT: (drafting, alone(Author.LARGE)),
            RELAY_DRAFT: (drafting, policy),
        }
        for number, question in enumerate(questions):
            row: Row = {}
            for way in WAYS[number % 4 :] + WAYS[: number % 4]:
                say(f"problem {number + 1} of {len(questions)}: {way}")
                pair, its_policy = ways[way]
                if not exact:  # nobody looks at the speeds of an exact run
                    await forget(pair)
                row[way] = await write(pair, question, its_policy, max_tokens)
            rows.append(row)
            if not equal(row, LARGE_DRAFT):
                gaps.append(await gap(plain.engines[Author.LARGE], question, row))
    return rows, gaps


def equal(row: Row, way: str) -> bool:
    """Whether `way`, one with drafts, wrote what it writes without."""
    return ids(row[way]) == ids(row[way.removesuffix(" + draft")])


async def gap(large: Engine, question: str, row: Row) -> float | None:
    """Between the log probabilities of the two likeliest tokens where large + draft parts from large. None where one of
    the two texts ends."""
    one, other = ids(row[LARGE]), ids(row[LARGE_DRAFT])
    same = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        return None
    _, prompt = await large.render([Message("user", question)])
    request = Request([*prompt, *one[:same]], 1, (), GREEDY, seed=0, top_logprobs=2)
    async with large.session() as session:
        chunks = [chunk async for chunk in session.write(request)]
    tops = [logprob.top for chunk in chunks for piece in chunk.pieces for logprob in piece.logprobs]
    return tops[0][0].logprob - tops[0][1].logprob if tops and len(tops[0]) > 1 else None


def ms_per_token(result: Result) -> float:
    return result.timings.total_ms / max(1, result.usage.completion_tokens)


def figures(way: str, rows: Sequence[Row]) -> dict[str, Any]:
    results = [row[way] for row in rows]
    tokens = sum(r.usage.completion_tokens for r in results)
    wall_s = sum(r.timings.total_ms for r in results) / 1000
    drafted = sum(r.timings.large.draft_tokens for r in results)
    accepted = sum(r.timings.large.draft_accepted_tokens for r in results)
    ratios = [ms_per_token(row[LARGE]) / ms_per_token(row[way]) for row in rows]
    return {
        "way": way,
        "tokens": tokens,
        "wall_s": round(wall_s, 1),
        "engines_s": round(sum(r.timings.engines_ms for r in results) / 1000, 1),
        "tokens_s": round(tokens / wall_s, 2),
        "speedup": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "small_share": round(sum(r.usage.small_tokens for r in results) / tokens, 3),
        "handovers": sum(r.handovers for r in results),
        "drafted": drafted,
        "accepted": accepted,
        "accepted_rate": round(accepted / drafted, 3) if drafted else None,
        "equal": sum(equal(row, way) for row in rows) if way in (LARGE_DRAFT, RELAY_DRAFT) else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument(
        "--data", type=Path, help="problems as JSON Lines, in place of word problems of our own"
    )
    parser.add_argument("--exact", action="store_true")
    options = parser.parse_args()
    found = problems.read(options.data) if options.data else wordproblems.generate(options.problems, SEED)
    questions = [one.problem for one in found[: options.problems]]
    policy = make_policy("segment", profile.pick(DEFAULT_LARGE, DEFAULT_SMALL))
    say = Console(stderr=True).print
    rows, gaps = asyncio.run(measure(questions, policy, options.max_tokens, exact=options.exact, say=say))
    ways = [figures(way, rows) for way in WAYS]
    table = Table(*ways[0])
    for one in ways:
        table.add_row(*("" if value is None else str(value) for value in one.values()))
    Console(width=180).print(table)
    shown = {
        "benchmark": "composition",
        "problems": len(rows),
        "max_tokens": options.max_tokens,
        "exact": options.exact,
        "gaps": [one and round(one, 4) for one in gaps],
        "peak_memory_gib": round(getrusage(RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    print(json.dumps({**shown, "ways": ways}))
    if options.exact and not all(equal(row, way) for row in rows for way in (LARGE_DRAFT, RELAY_DRAFT)):
        raise SystemExit("one token at a time, and the ids with drafts differ from those without")


if __name__ == "__main__":
    main()
