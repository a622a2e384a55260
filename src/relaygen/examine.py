"""Looks at a running engine: what it is, how fast, and what about it would hurt a relay. All through the Engine protocol."""

from __future__ import annotations

import statistics
import time
from contextlib import aclosing
from dataclasses import dataclass

from relaygen.analyse.predict import Speed, fit_read
from relaygen.engines.base import Engine, EngineInfo, Request, Session
from relaygen.errors import UserError
from relaygen.types import Message, Sampling

_PREFIX_TOKENS = 192  # a multiple of vLLM's blocks (16 on a GPU) and above one of its blocks on a CPU (128)
_READS = (8, 32, 96)
_DECODED = 24
_ROUNDS = 3
_GREEDY = Sampling(temperature=0)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that hurts, and the setting that mends it."""

    what: str
    cure: str


@dataclass(frozen=True, slots=True)
class Examination:
    """`first_token_ms` is of a prompt of `prompt_tokens` that is not in the cache. `cached_share` is the part of a repeated
    prefix that was not read again (None when the engine does not say and time does not show it)."""

    info: EngineInfo
    speed: Speed
    first_token_ms: float
    prompt_tokens: int
    cached_share: float | None
    problems: tuple[Problem, ...]


async def examine(engine: Engine) -> Examination:
    """Asks for about a hundred tokens in all."""
    async with engine.session() as session:
        problems = await _template_problems(engine)
        if engine.info.text_only:
            raise UserError(f"{engine.info} takes text only: its speed cannot be measured yet")
        # Each examination has a text of its own, so that an earlier one has left nothing in the cache.
        stamp = time.time_ns() // 1000 % 10**9
        words = " ".join(f"{stamp + n * 7919 % 10007} and {n} make a sum." for n in range(400))
        ids = await engine.tokenize(words)
        prefix, rest = ids[:_PREFIX_TOKENS], ids[_PREFIX_TOKENS:]
        cold = await _write(session, prefix, 1)
        again = await _write(session, prefix, 1)
        points: list[tuple[float, float]] = []
        owns = [cold.own_ms, again.own_ms]
        for _ in range(_ROUNDS):
            for size in _READS:
                await _write(session, prefix, 1)
                new, rest = rest[:size], rest[size:]
                took = await _write(session, prefix + new, 1)
                points.append((took.prefill_tokens or size + 1, took.prefill_ms))
                owns.append(took.own_ms)
        decoded = [await _write(session, prefix, _DECODED) for _ in range(2)]
        decode_ms = min(d.decode_ms / max(1, d.tokens - 1) for d in decoded)
        if cold.prefill_tokens:
            cached_share = 1 - (again.prefill_tokens - 1) / max(1, cold.prefill_tokens)
        else:
            cached_share = 1.0 if again.prefill_ms < cold.prefill_ms / 2 else None
        if cached_share is None or cached_share < 0.6:
            problems.append(
                Problem(
                    "a repeated prefix is read again: each hand-over would read the whole text",
                    "turn the prefix cache on (vLLM: --enable-prefix-caching; SGLang: without --disable-radix-cache;"
                    " llama-server: without --no-cache-prompt)",
                )
            )
        base, per_token = fit_read(points)
        speed = Speed(decode_ms, base, per_token, max(0.0, statistics.median(owns)))
        return Examination(engine.info, speed, cold.wall_ms, len(prefix), cached_share, tuple(problems))


@dataclass(frozen=True, slots=True)
class _Took:
    wall_ms: float
    prefill_ms: float
    decode_ms: float
    prefill_tokens: int
    tokens: int
    own_ms: float


async def _write(session: Session, ids: list[int], num_tokens: int) -> _Took:
    begun = time.perf_counter()
    first, end = None, None
    tokens = 0
    async with aclosing(session.write(Request(ids, num_tokens, (), _GREEDY, 0))) as chunks:
        async for chunk in chunks:
            first = first or time.perf_counter()
            tokens += sum(len(piece.token_ids) for piece in chunk.pieces)
            end = chunk.end or end
    ended = time.perf_counter()
    wall = (ended - begun) * 1000
    if end and (end.prefill_ms or end.decode_ms):
        engine_ms = end.prefill_ms + end.decode_ms
        return _Took(
            wall, end.prefill_ms, end.decode_ms, end.prefill_tokens, end.decode_tokens, wall - engine_ms
        )
    reading = ((first or ended) - begun) * 1000
    return _Took(wall, reading, wall - reading, 0, tokens, 0.0)


async def _template_problems(engine: Engine) -> list[Problem]:
    text, ids = await engine.render([Message("system", "Be brief."), Message("user", "Say PING.")])
    problems: list[Problem] = []
    if "PING" not in text or "Be brief." not in text:
        problems.append(
            Problem(
                "the chat template drops a message",
                "give the server the model's own template (--chat-template)",
            )
        )
    if text.count("<think>") > 1:
        problems.append(
            Problem(
                "the chat template opens <think> more than once", "give the server the model's own template"
            )
        )
    if len(ids) > 1 and ids[0] == ids[1]:
        problems.append(
            Problem(
                "the prompt begins with two begin-of-text tokens",
                "remove bos_token from the chat template, or the tokenizer's add_bos_token",
            )
        )
    return problems
