"""The statistics of cues: the same occurrences and segments as the relay itself, figures by hand, honest intervals."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relaygen.analyse.figures import is_figure
from relaygen.analyse.interval import contrast, mean, t_quantile
from relaygen.analyse.margins import collect
from relaygen.analyse.places import CueFinder
from relaygen.analyse.replay import replay
from relaygen.analyse.select import PAPER_CANDIDATES, expected
from relaygen.core.matcher import CueMatcher
from relaygen.core.policy import segment
from relaygen.errors import UserError
from relaygen.trace import Trace
from relaygen.types import Author, Piece
from tests.scored_traces import corpus, scored

CUES = (
    "So",
    "So,",
    "So ",
    "Thus",
    "now",
    "now,",
    "Now, then",
    "因此",
    "因此，",
    "\\[",
    "\n- ",
    "other,",
    "another,",
)
PARTS = [
    *(
        "a",
        " b",
        "So",
        ",",
        "So,",
        "Thus",
        " now",
        "know",
        "Now, then",
        ".",
        "3.14",
        "e.g. ",
        "!",
        "?",
        ")",
        "'",
        " ",
    ),
    *("\n", "\n \n", "\n\n", "- ", "。", "因此", "，", "所以", "\\[", "_ ", "another,", "x = y"),
]


# ---- as the relay itself


@given(st.lists(st.sampled_from(PARTS), max_size=25), st.integers(0, 20), st.integers(0, 10))
def test_places_are_those_of_the_matcher(parts: list[str], start: int, floor: int) -> None:
    """For a turn that begins anywhere in the text."""
    text = "".join(parts)
    start = min(start, len(text))
    matcher = CueMatcher(CUES)
    matcher.begin(text[:start])
    match = matcher.feed(text[start:], floor)
    places = [p for p in CueFinder(CUES).find(text) if p.start >= start and p.end > start + floor]
    first = places[0] if places else None
    assert (match and (match.what, match.end + start, match.decided + start)) == (
        first and (CUES[first.cue], first.end, first.decided)
    )


@example([["a"], [" b"], ["So", ","], [" "], ["a"], [".", "\n"], [" b"]], 5, 0, 2**13 - 1)
@given(
    st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3), min_size=1, max_size=50),
    st.integers(1, 12),
    st.integers(0, 6),
    st.integers(1, 2 ** len(CUES) - 1),
)
def test_expected_is_what_replay_finds(tokens: list[list[str]], cap: int, floor: int, chosen: int) -> None:
    """Whatever the tokens, and for any of the cues: share and segments are those of the algorithm itself."""
    texts = ["".join(parts) for parts in tokens]
    cues = [cue for n, cue in enumerate(CUES) if chosen >> n & 1]
    policy = segment(tuple(cues), min_large_tokens=floor, max_small_tokens=cap)
    turns = replay(policy, Trace("t", "".join(texts), pieces=tuple(Piece(text, (1,)) for text in texts)))
    small = [turn for turn in turns if turn.author is Author.SMALL and turn.num_tokens]
    table = collect([scored(["x."] * 3), scored(texts)], CUES, max_small_tokens=cap)
    found = expected(table, cues, floor)
    assert found.segments == len(small)
    assert round(found.share * table.num_tokens) == sum(turn.num_tokens for turn in small)


# ---- figures by hand


def test_an_occurrence_counts_for_the_longest_cue() -> None:
    texts = ["So", ",", " it", " is", ".", " So", " we", " go", ".", " So", "me", "."]
    stats = collect([scored(texts)], ["So", "So,", "So ", "Thus"]).stats
    assert {cue: (one.occurrences, one.tokens) for cue, one in stats.items()} == {
        "So,": (1, 3),
        "So ": (1, 2),
    }


def test_the_token_that_decides_stays_with_the_large_model() -> None:
    """`Thus` is sure when " it" has come; the blank after the sentence belongs to the next one."""
    texts = ["Thus", " it", " is", " so", ".", " And", "\n\n", "Thus", "\n", "x", ".", "\n\n", "y"]
    table = collect([scored(texts, [0.1] * 2 + [0.9] * 3 + [0.1] * 8)], ["Thus"])
    assert [(o.item(), p.item()) for o, p in zip(table.found.start, table.found.stop, strict=True)] == [
        (2, 5),
        (9, 12),
    ]
    stats = table.stats["Thus"]
    assert (stats.occurrences, stats.traces, stats.tokens) == (2, 1, 6)
    assert stats.margin.value == pytest.approx((3 * 0.9 + 3 * 0.1) / 6)
    assert stats.margin_delta.value == pytest.approx(stats.margin.value - 0.1)
    assert stats.margin.error == math.inf  # of one trace nothing is known of the spread
    assert (stats.margin_delta.low, stats.margin_delta.high) == (-1, 1)


def test_agreement_of_tokens_and_of_whole_segments() -> None:
    texts = ["So,", " a", ".", " So,", " b", ".", " c"]
    stats = collect([scored(texts, agree=[0, 1, 1, 0, 1, 0, 0])], ["So,"]).stats["So,"]
    assert (stats.agreement.value, stats.full_agreement) == (0.75, 0.5)
    assert stats.agreement_delta.value == 0.75


@pytest.mark.parametrize(
    ("token", "figure"),
    [("7", True), (" 3.14", True), ("=", True), (" -", True), ("*", True), ("\\times", True), ("rac{", False),
     ("frac", True), ("-check", False), ("-", False), ("**", False), (" --", False), (" seven", False), ("", False)],
)  # fmt: skip
def test_what_is_a_figure(token: str, figure: bool) -> None:
    assert is_figure(token) is figure


def test_a_figure_is_changed_where_the_scorer_wants_another_token() -> None:
    texts = ["So,", " 3", " +", " four", ".", " So,", " 3", " +", " four", ".", " 9"]
    agree = [0, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0]
    table = collect([scored(texts, agree=agree)], ["So,"])
    assert table.stats["So,"].figures.value == 1 - 2 / 8
    assert table.overall("figures").value == 1 - 3 / 11
    found = expected(table, ["So,"], 0)
    assert found.changed_figures == pytest.approx(1000 * 2 / 11)


def test_nothing_handed_over_changes_no_figure() -> None:
    found = expected(collect([scored(["a", " 1", "."])], ["So,"]), ["So,"])
    assert (found.margin, found.figures, found.changed_figures) == (0, 1, 0)


def test_memory_does_not_grow_with_the_number_of_traces() -> None:
    one = scored(["So,", " it", " is", "."] + [" x"] * 5_000)

    def peak_bytes(num_traces: int) -> int:
        tracemalloc.start()
        try:
            table = collect((one for _ in range(num_traces)), ["So,"])
            assert table.num_tokens == num_traces * 5_004
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(1)  # what is made once
    assert peak_bytes(40) < peak_bytes(1) + 1_000_000  # the sums of all tokens would be 4.8 MB


def test_a_token_within_two_segments_of_a_cue_counts_once() -> None:
    texts = ["now,", " a", " now,", " b", ".", " c"]
    stats = collect([scored(texts, [0, 1, 0, 1, 0, 0])], ["now,"]).stats["now,"]
    assert (stats.occurrences, stats.tokens, stats.margin.value) == (2, 4, 0.5)


def test_the_rest_is_of_the_traces_that_the_cue_is_in() -> None:
    traces = [scored(["So,", " a", "."], [0.2, 0.8, 0.8]), scored(["b", "."], [0, 0])]
    stats = collect(traces, ["So,"]).stats["So,"]
    assert stats.margin_delta.value == pytest.approx(0.6)
    assert stats.share == 2 / 5


def test_what_follows_the_reasoning_is_left_out() -> None:
    texts = ["<think>", "So,", " a", ".", "</think>", "So,", " b", "."]
    table = collect([scored(texts)], ["So,"], ends=["</think>"])
    assert (table.num_tokens, table.stats["So,"].occurrences) == (5, 1)


def test_a_chinese_trace() -> None:
    texts = ["因此", "，", "答案", "是", "四", "。", "我们", "看", "。"]
    stats = collect([scored(texts)], ["因此，", "因此", "Thus"]).stats
    assert {cue: (one.occurrences, one.tokens) for cue, one in stats.items()} == {
        "因此，": (1, 4),
        "因此": (1, 5),
    }


def test_the_order_of_the_traces_changes_nothing() -> None:
    traces = corpus({"So|,": 0.9, "Thus": 0.6})
    shuffled = random.Random(1).sample(traces, len(traces))
    first, second = (collect(order, ["So,", "So", "Thus"]) for order in (traces, shuffled))
    assert first.stats.keys() == second.stats.keys()
    for cue, stats in first.stats.items():
        other = second.stats[cue]
        assert (stats.occurrences, stats.traces, stats.tokens) == (
            other.occurrences,
            other.traces,
            other.tokens,
        )
        for one, two in ((stats.margin, other.margin), (stats.margin_delta, other.margin_delta)):
            assert (one.value, one.error, one.low) == pytest.approx((two.value, two.error, two.low))
    assert expected(first, ["So,"]).share == expected(second, ["So,"]).share


def test_nothing_to_calibrate_on() -> None:
    with pytest.raises(UserError, match="record and score some traces first"):
        collect([], ["So,"])


def test_halves_keep_problems_together_and_lose_nothing() -> None:
    table = collect(corpus({"So|,": 0.9}, traces=42), ["So,"])
    first, second = table.halves()
    assert not set(first.traces.problem) & set(second.traces.problem)
    assert (len(first.traces.tokens), len(second.traces.tokens)) == (22, 20)
    assert first.num_tokens + second.num_tokens == table.num_tokens
    parts = [half.stats["So,"] for half in (first, second)]
    assert sum(part.tokens for part in parts) == table.stats["So,"].tokens
    assert sum(part.tokens * part.margin.value for part in parts) == pytest.approx(
        table.stats["So,"].tokens * table.stats["So,"].margin.value
    )
    with pytest.raises(UserError, match="one problem only"):
        collect([scored(["a"], problem="p")] * 2, ["So,"]).halves()


# ---- the released rules


def released(texts: Sequence[str], cue: str) -> set[int]:
    """The tokens handed over, word for word as the paper's script is understood."""
    out: set[int] = set()
    for at, text in enumerate(texts):
        inner, behind = text.strip(), texts[at + 1].strip() if at + 1 < len(texts) else None
        word = cue.rstrip(" ").removesuffix(",")
        at_word = inner == word or text.startswith(" " + word)
        if cue[-1] == "," and at_word and behind == ",":
            start = at + 2
        elif (cue[-1] == " " and at_word) or cue in inner or text == cue:
            start = at + 1
        else:
            continue
        for to in range(start, len(texts)):
            if set(texts[to].strip()) & set(".!?\n"):
                break
            out.add(to)
    return out


@given(
    st.lists(
        st.sampled_from(
            ["So", " So", " Some", ",", " know", "now", ".", "\n", "a\nb", "So ", " x", " 3.1", "So,"]
        )
    )
)
def test_plain_occurrences_are_those_of_the_released_script(texts: list[str]) -> None:
    cues = ("So,", "So ", "now", "now,")
    table = collect([scored(["a"]), scored(texts)], cues, plain=True)
    for cue in cues:
        tokens = released(texts, cue)
        stats = table.stats.get(cue)
        assert (stats.tokens if stats else 0) == len(tokens)
        if stats and len(tokens) < len(texts):
            marked = collect(
                [scored(texts, [float(n in tokens) for n in range(len(texts))])], cues, plain=True
            )
            assert marked.stats[cue].margin.value == 1
            assert marked.stats[cue].margin_delta.value == 1


def test_the_candidates_of_the_paper() -> None:
    assert len(PAPER_CANDIDATES) == len(set(PAPER_CANDIDATES)) == 91
    assert {"So ", "so,", "double-check", "Another,", "hmm"} < set(PAPER_CANDIDATES)
    assert not {"So", "so", "check,", "Verify"} & set(PAPER_CANDIDATES)


# ---- intervals


@pytest.mark.parametrize(("freedom", "value"), [(4, 2.7764), (10, 2.2281), (39, 2.0227), (1000, 1.9623)])
def test_quantiles_of_t(freedom: int, value: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=0.001)


@pytest.mark.parametrize("traces", [12, 40])
def test_an_interval_covers_the_truth_as_often_as_it_says(traces: int) -> None:
    """500 calibrations, in which a trace is easy or hard as a whole and a cue works better in one than in another. An
    interval that took tokens for independent would be right in about half of them."""
    rng, runs, delta = np.random.default_rng(7), 500, 0.05
    covered = naive = above = 0
    for _ in range(runs):
        inside = rng.integers(20, 120, traces).astype(float)
        whole = inside + rng.integers(100, 400, traces).astype(float)
        ease, works = rng.normal(0.7, 0.08, traces), rng.normal(delta, 0.06, traces)
        noise = rng.normal(0, 0.2, traces) * np.sqrt(inside)
        sums = inside * (ease + works) + noise
        rest = (whole - inside) * ease + rng.normal(0, 0.2, traces) * np.sqrt(whole - inside)
        found = contrast((inside, sums), (whole, sums + rest), 0.95)
        covered += found.low <= delta <= found.high
        above += mean(inside, sums, 0.95).low <= 0.7 + delta
        by_token = 1.96 * 0.2 * math.sqrt(1 / inside.sum() + 1 / (whole - inside).sum())
        naive += abs(found.value - delta) <= by_token
    assert 0.92 <= covered / runs <= 0.98
    assert 0.95 <= above / runs <= 0.995  # one side of it: 97.5 %
    assert naive / runs < 0.7
