"""What relaying brings, from the speeds of two engines. Pure arithmetic.

An answer of N tokens, a share s of them by the small model in segments of m tokens, is 2k + 1 turns with k = s N / m. The
first token of each turn comes out of reading what the other wrote; each further one is a decode step:

    alone  = read_L(prompt) + (N - 1) d_L
    relay  = read_L(prompt) + k read_L(m + 1) + (N_L - k - 1) d_L
           + read_S(prompt + l) + (k - 1) read_S(l + 1) + (N_S - k) d_S + (2k + 1) own        l = N_L / (k + 1)

The + 1 is a turn's own last token, which is not in the cache yet. Reading n tokens takes base + n * per_token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speed:
    """Milliseconds: a decode step; reading n new tokens behind a cached prefix, as base + n * per token; and what a request
    costs beside the engine's own work (`own_ms`: network, HTTP, our code)."""

    decode_ms: float
    read_base_ms: float
    read_token_ms: float
    own_ms: float = 0.0

    def read_ms(self, num_tokens: float) -> float:
        return self.read_base_ms + self.read_token_ms * num_tokens


@dataclass(frozen=True, slots=True)
class Work:
    """What is written: answer and prompt in tokens, and the mean length of a small segment."""

    answer_tokens: float = 1000
    prompt_tokens: float = 100
    segment_tokens: float = 20


def fit_read(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(base ms, ms a token) of the least-squares line through (tokens, ms), neither negative."""
    count = len(points)
    mean_n, mean_ms = sum(n for n, _ in points) / count, sum(ms for _, ms in points) / count
    spread = sum((n - mean_n) ** 2 for n, _ in points)
    slope = sum((n - mean_n) * (ms - mean_ms) for n, ms in points) / spread if spread else 0.0
    slope = max(0.0, slope)
    base = mean_ms - slope * mean_n
    return (base, slope) if base > 0 else (0.0, mean_ms / mean_n)


def alone_ms(large: Speed, work: Work) -> float:
    return large.read_ms(work.prompt_tokens) + (work.answer_tokens - 1) * large.decode_ms + large.own_ms


def relay_ms(large: Speed, small: Speed, share: float, work: Work) -> float:
    by_small = share * work.answer_tokens
    segments = by_small / work.segment_tokens
    if segments < 1:
        return alone_ms(large, work)
    by_large = work.answer_tokens - by_small
    between = by_large / (segments + 1)
    return (
        large.read_ms(work.prompt_tokens)
        + segments * large.read_ms(work.segment_tokens + 1)
        + max(0.0, by_large - segments - 1) * large.decode_ms
        + small.read_ms(work.prompt_tokens + between)
        + (segments - 1) * small.read_ms(between + 1)
        + max(0.0, by_small - segments) * small.decode_ms
        + (segments + 1) * large.own_ms
        + segments * small.own_ms
    )


def speedup(large: Speed, small: Speed, share: float, work: Work) -> float:
    """Time of the large model alone over the time of the relay."""
    return alone_ms(large, work) / relay_ms(large, small, share, work)


def curve(large: Speed, small: Speed, work: Work, steps: int = 9) -> list[tuple[float, float]]:
    """(share, speed-up) for shares up to 0.9."""
    return [(n / 10, speedup(large, small, n / 10, work)) for n in range(1, steps + 1)]


def break_even_share(large: Speed, small: Speed, work: Work) -> float | None:
    """The smallest share of the small model from which on relaying is no slower than the large model alone, to a hundredth.
    None: there is none up to 0.9."""
    shares = [n / 100 for n in range(1, 91)]
    wins = [speedup(large, small, share, work) >= 1 for share in shares]
    losing = [share for share, win in zip(shares, wins, strict=True) if not win]
    if not losing:
        return shares[0]
    return None if losing[-1] == shares[-1] else round(losing[-1] + 0.01, 2)
