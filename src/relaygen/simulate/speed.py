"""How long an engine's work takes. Pure arithmetic.

An engine works in passes. A pass reads new tokens of all its sequences at once: one of each that writes, and as many as fit of
a prompt. It takes as long as the slower of two things: fetching the weights, which every pass must do (the decode step, a
function of the number of sequences), and computing, which grows with the number of tokens (the prefill speed). So reading
never takes less than a decode step, and the first token of a request comes out of its last reading pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaygen.errors import UserError


@dataclass(frozen=True, slots=True)
class Speed:
    """`steps`: (sequences, milliseconds of a decode step), rising in both; straight lines between and beyond them."""

    steps: tuple[tuple[int, float], ...]
    prefill_tokens_s: float

    def __post_init__(self) -> None:
        numbers = [count for count, _ in self.steps]
        times = [ms for _, ms in self.steps]
        if not numbers or numbers[0] != 1 or numbers != sorted(set(numbers)):
            raise UserError("the table of steps must begin with one sequence and rise")
        if times != sorted(times) or not 0 < times[0] <= times[-1] < float("inf"):
            raise UserError("the steps must take some time, and no less with more sequences")
        if not 0 < self.prefill_tokens_s < float("inf"):
            raise UserError("the prefill speed must be a number above 0")

    @classmethod
    def of(cls, decode_tokens_s: float, prefill_tokens_s: float, slope: float = 0.0) -> Speed:
        """t(b) = t(1) * (1 + slope * (b - 1)), with t(1) from the tokens/s of a single sequence."""
        if not 0 < decode_tokens_s < float("inf"):
            raise UserError("the decode speed must be a number above 0")
        if not 0 <= slope < float("inf"):
            raise UserError("the slope must not be negative")
        step_ms = 1000 / decode_tokens_s
        return cls(((1, step_ms), (2, step_ms * (1 + slope))), prefill_tokens_s)

    def step_ms(self, num_sequences: int) -> float:
        """A decode step of so many sequences."""
        return _on_lines(self.steps, num_sequences)

    def pass_ms(self, num_sequences: int, num_tokens: int) -> float:
        """A pass of so many sequences with `num_tokens` new tokens between them."""
        return max(self.step_ms(num_sequences), num_tokens / self.prefill_tokens_s * 1000)


def _on_lines(points: Sequence[tuple[int, float]], x: int) -> float:
    if len(points) == 1 or x <= points[0][0]:
        return points[0][1]
    after = next((n for n, (count, _) in enumerate(points) if count >= x), len(points) - 1)
    (x0, y0), (x1, y1) = points[after - 1], points[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
