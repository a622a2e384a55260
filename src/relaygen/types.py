"""The values that travel through the system: all frozen, no behaviour beyond derived properties. Those made for each token
are named tuples, which cost a third of a frozen dataclass to make.

Vocabulary (used with the same meaning everywhere): a *turn* is one stretch written by one engine; a *segment* is its record;
a *hand-over* is a change of author between two turns; a *cue* is the text that made the large model hand over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import exp
from typing import Any, Literal, NamedTuple

from relaygen.errors import UserError


class Author(StrEnum):
    """Which of the two models."""

    LARGE = "large"
    SMALL = "small"

    @property
    def other(self) -> Author:
        return Author.SMALL if self is Author.LARGE else Author.LARGE


class Reason(StrEnum):
    """Why a segment ended."""

    CUE = "cue"  # the leading model wrote a switch cue
    LOT = "lot"  # drawn by lot at the end of a sentence, in place of a cue
    UNSURE = "unsure"  # the small model's margin fell below the policy's
    SENTENCE = "sentence"  # the small model reached the end of its sentence
    ANSWER = "answer"  # the final answer begins: </think>, or an answer cue
    CAP = "cap"  # the longest small turn the profile allows
    REPETITION = "repetition"  # the same large turn and small segment came too often in a row
    EOS = "eos"  # the model ended its text
    LENGTH = "length"  # the token budget, or the context, is used up
    SMALL_FAILED = "small_failed"  # the small engine failed; the large one goes on alone
    STOPPED = "stopped"  # the caller stopped the generation
    ERROR = "error"  # the large engine failed


FinishReason = Literal["stop", "length", "stopped", "error"]


@dataclass(frozen=True, slots=True)
class Message:
    """`extra` holds the other fields of OpenAI's API that a chat template may read: tool_calls, tool_call_id, name."""

    role: str
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        return {"role": self.role, "content": self.content, **self.extra}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampler settings, sent to the engines in full: servers disagree about defaults.

    temperature 0 is greedy. top_k 0 and min_p 0 mean off. seed None draws a fresh seed for the generation.
    """

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _SAMPLING_RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # NaN fails too
                raise UserError(f"{name} must be between {low:g} and {high:g}, not {value:g}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise UserError(f"seed must be between 0 and 2**63 - 1, not {self.seed}")


_SAMPLING_RANGES = (
    ("temperature", 0, 100),
    ("top_p", 1e-9, 1),
    ("top_k", 0, 2**31 - 1),
    ("min_p", 0, 0.999999),
    ("repeat_penalty", 1e-9, 100),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token the model thought of, with its natural log probability before sampling."""

    text: str
    logprob: float
    token_id: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Of one written (or scored) token, nan where the server has not told; `top` are the likeliest at its place, best
    first, as many as were asked for."""

    logprob: float
    top: tuple[Candidate, ...] = ()

    @property
    def margin(self) -> float | None:
        """p(top-1) - p(top-2), 0 to 1. None with fewer than two candidates."""
        if len(self.top) < 2:
            return None
        return exp(self.top[0].logprob) - exp(self.top[1].logprob)


class Piece(NamedTuple):
    """The smallest stretch of output whose text is known exactly: one token, or a few that share a character.

    Without token ids (text-only engines, recorded text) a piece may be cut anywhere between characters. `logprobs`, where
    asked for, has one entry an id.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What an engine says when it ends a request by itself. Times in milliseconds, by the engine's own clock."""

    finish: Literal["eos", "stop", "length"]
    prefill_tokens: int = 0
    cached_tokens: int = 0
    prefill_ms: float = 0.0
    decode_tokens: int = 0
    decode_ms: float = 0.0
    draft_tokens: int = 0
    draft_accepted_tokens: int = 0


class Chunk(NamedTuple):
    """One read from an engine: some pieces, and the end of the request if it has come."""

    pieces: tuple[Piece, ...] = ()
    end: TurnEnd | None = None


class Token(NamedTuple):
    """Event: newly written text. Never changed or repeated afterwards."""

    author: Author
    text: str
    token_ids: tuple[int, ...]
    stage: Literal["reasoning", "answer"]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Switch:
    """Event: a segment ended and another begins, by `to` (the same author when only the stage changes)."""

    author: Author
    to: Author
    reason: Reason
    cue: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Event: the last segment ended. Always the last event of a generation."""

    author: Author
    reason: Reason
    finish_reason: FinishReason


Event = Token | Switch | Finish


@dataclass(frozen=True, slots=True)
class Segment:
    """What one model wrote at a stretch, and why it ended. The text is exactly that of the ids."""

    author: Author
    text: str
    token_ids: tuple[int, ...]
    reason: Reason
    cue: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. The prompt is counted once (as the large model reads it)."""

    prompt_tokens: int = 0
    large_tokens: int = 0
    small_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        return self.large_tokens + self.small_tokens

    @property
    def small_share(self) -> float:
        """Fraction of the completion tokens written by the small model, 0 to 1."""
        return self.small_tokens / self.completion_tokens if self.completion_tokens else 0.0


@dataclass(frozen=True, slots=True)
class EngineTimings:
    """One engine's work in one generation. Times in milliseconds, by the engine's own clock; by ours where it gives none
    or the request was closed early: then all that came before the first token counts as prefill."""

    requests: int = 0
    untimed_requests: int = 0  # of these: whose times are by our clock
    prefill_tokens: int = 0
    cached_tokens: int = 0
    prefill_ms: float = 0.0
    handover_prefill_ms: float = 0.0  # the part of prefill_ms that is not the first request of the generation
    decode_steps: int = (
        0  # tokens but the first of each request, which comes out of its prefill; drafted ones too
    )
    decode_ms: float = 0.0
    own_ms: float = 0.0  # what the requests took beside: our code, HTTP, the operating system
    draft_tokens: int = 0
    draft_accepted_tokens: int = 0
    # Reading along while the other wrote (prewarm.py), by our clock. In none of the figures above.
    prewarm_requests: int = 0
    prewarm_tokens: int = 0
    prewarm_ms: float = 0.0

    @property
    def decode_ms_per_token(self) -> float | None:
        return self.decode_ms / self.decode_steps if self.decode_steps else None


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds. own_ms is what the engines do not account for, the rendering of the prompts included."""

    total_ms: float = 0.0
    large: EngineTimings = field(default_factory=EngineTimings)
    small: EngineTimings = field(default_factory=EngineTimings)

    @property
    def engines_ms(self) -> float:
        return sum(e.prefill_ms + e.decode_ms for e in (self.large, self.small))

    @property
    def own_ms(self) -> float:
        return self.total_ms - self.engines_ms


@dataclass(frozen=True, slots=True)
class Result:
    """A finished (or interrupted) generation. The texts of the segments add up to `text`, exactly."""

    text: str
    reasoning: str
    answer: str
    finish_reason: FinishReason
    segments: tuple[Segment, ...]
    usage: Usage
    timings: Timings
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def handovers(self) -> int:
        """Changes of author."""
        return sum(a.author is not b.author for a, b in zip(self.segments, self.segments[1:], strict=False))
