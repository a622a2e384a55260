"""One greedy generation, as the benchmarks run it."""

from __future__ import annotations

from typing import Any

from relaygen import Message, Result, Sampling
from relaygen.core.policy import Policy
from relaygen.run import Pair, Run

GREEDY = Sampling(temperature=0)


async def write(pair: Pair, question: str, policy: Policy, max_tokens: int, **more: Any) -> Result:
    """The answer to `question`; `more` is for Run."""
    prompt = [Message("user", question)]
    run = Run(pair, prompt, policy=policy, sampling=GREEDY, max_tokens=max_tokens, **more)
    async for _ in run.batches():
        pass
    return run.result()


def ids(result: Result) -> list[int]:
    return [token_id for segment in result.segments for token_id in segment.token_ids]
