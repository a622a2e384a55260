from __future__ import annotations

import math

import pytest

from relaygen.analyse.predict import (
    Speed,
    Work,
    alone_ms,
    break_even_share,
    curve,
    fit_read,
    relay_ms,
    speedup,
)

# The paper's machine in round figures: decode 25 and 170 tokens/s, prefill 8,000 and 40,000.
GPU_LARGE, GPU_SMALL = Speed(40, 0, 0.125, 0.5), Speed(1000 / 170, 0, 0.025, 0.5)
CPU_LARGE, CPU_SMALL = Speed(70, 220, 14), Speed(35, 100, 9)
WORK = Work(answer_tokens=9000, prompt_tokens=200, segment_tokens=15)


def test_the_paper_is_in_reach() -> None:
    """At a large share of 70 % the paper reports 1.29x."""
    assert 1.2 < speedup(GPU_LARGE, GPU_SMALL, 0.30, WORK) < 1.4


def test_on_the_small_cpu_nothing_is_won() -> None:
    assert speedup(CPU_LARGE, CPU_SMALL, 0.3, WORK) < 1
    assert (
        break_even_share(CPU_LARGE, CPU_SMALL, WORK) or 1
    ) > 0.5  # and what remains to the large model is scraps
    assert break_even_share(CPU_LARGE, Speed(65, 100, 9), WORK) is None


def test_break_even_is_where_the_curve_crosses_one() -> None:
    large, small = Speed(70, 150, 5), Speed(10, 20, 1)
    share = break_even_share(large, small, Work(segment_tokens=10))
    assert share is not None
    assert speedup(large, small, share, Work(segment_tokens=10)) >= 1
    assert share == 0.01 or speedup(large, small, share - 0.01, Work(segment_tokens=10)) < 1


def test_no_share_is_the_large_model_alone() -> None:
    assert relay_ms(GPU_LARGE, GPU_SMALL, 0, WORK) == alone_ms(GPU_LARGE, WORK)
    assert [share for share, _ in curve(GPU_LARGE, GPU_SMALL, WORK)] == [n / 10 for n in range(1, 10)]
    assert all(math.isfinite(gain) for _, gain in curve(GPU_LARGE, GPU_SMALL, Work(10, 1, 20)))


def test_by_hand() -> None:
    """Ten tokens, half of them small, in one segment: L writes 2.5, S 5, L 2.5."""
    large, small = Speed(10, 1, 2, 0.5), Speed(1, 0.5, 0.25, 0.125)
    work = Work(answer_tokens=10, prompt_tokens=4, segment_tokens=5)
    expected = (1 + 2 * 4) + (1 + 2 * 6) + (5 - 2) * 10 + (0.5 + 0.25 * 6.5) + (5 - 1) * 1 + 2 * 0.5 + 0.125
    assert relay_ms(large, small, 0.5, work) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(8, 328), (16, 416), (32, 672)], (210.0, 14.4)),
        ([(10, 5), (20, 10)], (0.0, 0.5)),
        ([(10, 9), (20, 8)], (8.5, 0.0)),
        ([(10, 1), (20, 10)], (0.0, 0.366)),
        ([(10, 5)], (5.0, 0.0)),
    ],
)
def test_fit(points: list[tuple[float, float]], line: tuple[float, float]) -> None:
    assert fit_read(points) == pytest.approx(line, abs=1.0, rel=0.05)
