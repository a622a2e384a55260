"""How fast an engine reads and decodes, and whether it keeps what it has read. A few hundred tokens of reading in all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from relaygen.analyse.predict import Speed, fit_read
from relaygen.core.ledger import BYTES_PER_TOKEN
from relaygen.engines.base import Engine, Request, Session
from relaygen.types import Sampling

_PREFIX_TOKENS = 192  # a multiple of vLLM's blocks (16 on a GPU) and above one of its blocks on a CPU (128)
_READS = (8, 32, 96)
_ROUNDS = 3
_DECODED = 24
# Where only the time tells whether a prefix is kept, it is made long enough for its reading to be seen.
_LONG_TOKENS = 4096
_LONG_READ_MS = 2000
_NUM_SUMS = 600  # over 5,000 tokens, whatever the tokenizer
GREEDY = Sampling(temperature=0)


@dataclass(frozen=True, slots=True)
class Took:
    """One request. Times in milliseconds, by the engine's own clock where it has one; `own_ms` is what it does not
    account for. `counts` says whether the engine tells how many tokens it read and had cached."""

    wall_ms: float
    prefill_ms: float
    decode_ms: float
    prefill_tokens: int
    cached_tokens: int
    tokens: int
    own_ms: float
    text: str

    @property
    def counts(self) -> bool:
        return self.prefill_tokens + self.cached_tokens > 0


@dataclass(frozen=True, slots=True)
class Measured:
    """`first_token_ms` is of a prompt of `prompt_tokens` that is not in the cache. `cached_share` is the part of a repeated
    prefix that was not read again; None: neither the engine's counts nor the time show it."""

    speed: Speed
    first_token_ms: float
    prompt_tokens: int
    cached_share: float | None


class Texts:
    """Prompts that no cache has seen: slices of one long text that starts with the time. As ids, or as text for a
    text-only engine, where a token is taken for three bytes."""

    def __init__(self, text: str, ids: Sequence[int]) -> None:
        self._text = text
        self._ids = ids

    @classmethod
    async def of(cls, engine: Engine) -> Texts:
        stamp = time.time_ns() // 1000 % 10**9
        text = " ".join(f"{stamp + n * 7919 % 10007} and {n} make a sum." for n in range(_NUM_SUMS))
        return cls(text, [] if engine.info.text_only else await engine.tokenize(text))

    def request(self, start: int, stop: int) -> Request:
        """The tokens `start` to `stop` as a prompt, for one token."""
        return self.joined((start, stop))

    def joined(self, *parts: tuple[int, int]) -> Request:
        ids = [i for start, stop in parts for i in self._ids[start:stop]]
        text = "".join(self._text[a * BYTES_PER_TOKEN : b * BYTES_PER_TOKEN] for a, b in parts)
        return Request(ids, 1, (), GREEDY, 0, text)


async def measure(engine: Engine, prompt: tuple[str, Sequence[int]]) -> Measured:
    """`prompt` is a rendered question, to decode from."""
    prefix = min(_PREFIX_TOKENS, engine.info.context_tokens // 3)
    reads = [n for n in _READS if prefix + n + 1 < engine.info.context_tokens]
    texts = await Texts.of(engine)
    async with engine.session() as session:
        cold = await write(session, texts.request(0, prefix))
        again = await write(session, texts.request(0, prefix))
        points: list[tuple[float, float]] = []
        owns = [cold.own_ms, again.own_ms]
        # Ollama counts the whole prompt, cached or not.
        counted = again.counts and not engine.info.text_only
        used = prefix
        for _ in range(_ROUNDS):
            for size in reads:
                await write(session, texts.request(0, prefix))
                took = await write(session, texts.joined((0, prefix), (used, used + size)))
                used += size
                points.append(((took.prefill_tokens if counted else 0) or size + 1, took.prefill_ms))
                owns.append(took.own_ms)
        base, per_token = fit_read(points)
        decode_ms = await _decode_ms(session, prompt)
        if counted:
            share = again.cached_tokens / (again.prefill_tokens + again.cached_tokens)
        else:
            share = await _share_by_time(session, engine, texts, per_token)
    speed = Speed(decode_ms, base, per_token, max(0.0, statistics.median(owns)))
    return Measured(speed, cold.wall_ms, prefix, share)


async def _decode_ms(session: Session, prompt: tuple[str, Sequence[int]]) -> float:
    text, ids = prompt
    took = [await write(session, Request(ids, _DECODED, (), GREEDY, 0, text)) for _ in range(3)]
    return min(t.decode_ms / max(1, t.tokens - 1) for t in took[1:])


async def _share_by_time(session: Session, engine: Engine, texts: Texts, per_token_ms: float) -> float | None:
    """1 or 0, or None where reading is too fast to tell."""
    long = round(min(_LONG_TOKENS, engine.info.context_tokens // 2, _LONG_READ_MS / max(per_token_ms, 1e-3)))
    start = 1  # not a prefix that has been read
    floor = min([(await write(session, texts.request(start + n, start + n + 8))).prefill_ms for n in (1, 2)])
    cold = (await write(session, texts.request(start, start + long))).prefill_ms
    again = min([(await write(session, texts.request(start, start + long))).prefill_ms for _ in range(3)])
    if cold < 2 * floor + 5:
        return None
    return 1.0 if again < (cold + floor) / 2 else 0.0


async def write(session: Session, request: Request) -> Took:
    begun = time.perf_counter()
    first, end = None, None
    tokens, text = 0, ""
    async with aclosing(session.write(request)) as chunks:
        async for chunk in chunks:
            first = first or time.perf_counter()
            tokens += sum(len(piece.token_ids) or 1 for piece in chunk.pieces)
            text += "".join(piece.text for piece in chunk.pieces)
            end = chunk.end or end
    ended = time.perf_counter()
    wall = (ended - begun) * 1000
    read, cached = (end.prefill_tokens, end.cached_tokens) if end else (0, 0)
    if end and (end.prefill_ms or end.decode_ms):
        own = max(0.0, wall - end.prefill_ms - end.decode_ms)
        return Took(wall, end.prefill_ms, end.decode_ms, read, cached, end.decode_tokens, own, text)
    reading = ((first or ended) - begun) * 1000
    return Took(wall, reading, wall - reading, read, cached, tokens, 0.0, text)
