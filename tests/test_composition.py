"""Relaying and speculative decoding together, on the default pair: drafts change no text, where llama.cpp computes one token
at a time. (tests/test_identity.py: a relay of a small model with itself, while it drafts for itself.)"""

from __future__ import annotations

import pytest
from benchmarks.composition import LARGE, LARGE_DRAFT, RELAY, RELAY_DRAFT, equal, figures, measure

from relaygen.core.policy import alternate

QUESTIONS = ("What is 17 * 23?",)


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("qwen_large", "qwen_small")
async def test_drafts_change_no_text() -> None:
    rows, gaps = await measure(QUESTIONS, alternate(7), 16, exact=True)
    assert len(rows) == len(QUESTIONS)
    assert not gaps
    for row in rows:
        assert equal(row, LARGE_DRAFT)
        assert equal(row, RELAY_DRAFT)
        assert row[LARGE].usage.completion_tokens > 5
        assert row[RELAY].handovers == row[RELAY_DRAFT].handovers > 0
        assert not row[LARGE].timings.large.draft_tokens
        assert not row[RELAY].timings.large.draft_tokens
    for way in (LARGE_DRAFT, RELAY_DRAFT):
        found = figures(way, rows)
        assert 0 < found["accepted"] <= found["drafted"]
        assert found["accepted_rate"] == round(found["accepted"] / found["drafted"], 3)
        assert found["equal"] == len(rows)
    assert figures(LARGE, rows)["accepted_rate"] is None
