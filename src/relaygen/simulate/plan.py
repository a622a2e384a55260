"""What a pair would do at given speeds, for one generation at a time. Pure arithmetic, by analyse/predict.py."""

from __future__ import annotations

from dataclasses import dataclass

from relaygen.analyse import predict
from relaygen.simulate.speed import Speed

_PROMPT_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Row:
    small_share: float
    relay_s: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Plan:
    answer_tokens: int
    segment_tokens: int
    alone_s: float
    rows: tuple[Row, ...]


def plan(large: Speed, small: Speed, answer_tokens: int, segment_tokens: int, network_ms: float) -> Plan:
    """For shares of the small model from 10 to 90 %, in turns of `segment_tokens` on average."""
    work = predict.Work(answer_tokens, _PROMPT_TOKENS, segment_tokens)
    alone = predict.alone_ms(_reading(large, _PROMPT_TOKENS, network_ms), work)
    rows: list[Row] = []
    for share in (n / 10 for n in range(1, 10)):
        between = (1 - share) * answer_tokens / (share * answer_tokens / segment_tokens + 1)
        pair = _reading(large, segment_tokens, network_ms), _reading(small, round(between), network_ms)
        relayed = predict.relay_ms(*pair, share, work)
        rows.append(Row(share, relayed / 1000, alone / relayed))
    return Plan(answer_tokens, segment_tokens, alone / 1000, tuple(rows))


def _reading(speed: Speed, turn_tokens: int, network_ms: float) -> predict.Speed:
    """For an engine that reads turns of such a length: one pass each, and its time does not depend on single tokens."""
    return predict.Speed(speed.step_ms(1), speed.pass_ms(1, turn_tokens + 1), 0.0, network_ms)
