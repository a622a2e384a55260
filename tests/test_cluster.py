"""The study of a cluster: the same figures each time, and the real code behind them."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.cluster import case, run_virtually
from benchmarks.virtual import Texts

from relaygen.core.policy import alternate
from relaygen.simulate.script import Library

TRACES = [{"problem": script.problem, "text": script.text} for script in Library.read().scripts]
PROMPTS = [f"{n:02d}".ljust(200, "#") for n in range(30)]


def study(*, sticky: bool = True, loss_at: float | None = None) -> dict[str, Any]:
    texts = Texts(TRACES)
    return run_virtually(case(texts, PROMPTS, alternate(5), 40, sticky=sticky, loss_at=loss_at))


def test_placing_a_generation_reads_less_again() -> None:
    sticky, loose = study(), study(sticky=False)
    assert sticky["failed"] == loose["failed"] == 0
    assert sticky["small_share"] == loose["small_share"] > 0.4
    assert sticky["large_cache_hits"] > 2 * loose["large_cache_hits"]
    assert sticky["small_cache_hits"] > loose["small_cache_hits"]
    assert study() == sticky


@pytest.mark.parametrize("sticky", [True, False])
def test_a_loss_costs_what_was_being_written_there_only(sticky: bool) -> None:
    row = study(sticky=sticky, loss_at=0.7)
    assert 0 < row["failed"] <= len(PROMPTS) / 8 + 1
    assert row["failed"] + len(row["seconds"]) == len(PROMPTS)
