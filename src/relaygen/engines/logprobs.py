"""Log probabilities as servers send them -> one TokenLogprob for each id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import nan
from typing import Any

from relaygen.engines.base import EngineInfo, Request
from relaygen.errors import UserError
from relaygen.types import Candidate, TokenLogprob

UNKNOWN = TokenLogprob(nan)  # the server has not told


def refuse(info: EngineInfo, request: Request) -> None:
    """What text-only engines say: there is no token that a log probability could be of."""
    if request.top_logprobs is not None:
        raise UserError(
            f"{info} gives text without token ids, so no log probabilities (`logprobs`): use vLLM, SGLang or llama-server"
        )


def ranked(logprob: float, candidates: Iterable[Candidate], num: int) -> TokenLogprob:
    """With the `num` likeliest of `candidates`: servers add the written token to those asked for."""
    best = sorted(candidates, key=lambda candidate: -candidate.logprob)
    return TokenLogprob(float(logprob), tuple(best[:num]))


def columns(value: Mapping[str, Any]) -> list[tuple[float, Mapping[str, float]]]:
    """The lists of OpenAI's /v1/completions, side by side: of each token its log probability, and those of the candidates
    by their names."""
    logprobs = value["token_logprobs"]
    tops = value.get("top_logprobs") or [None] * len(logprobs)
    return [(float(logprob), top or {}) for logprob, top in zip(logprobs, tops, strict=True)]
