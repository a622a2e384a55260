"""Which cues are chosen: from traces whose means are known, so that the right answer is known too."""

from __future__ import annotations

import random

import pytest

from relaygen.analyse import mine, select
from relaygen.analyse.margins import MarginTable, Objective, collect
from relaygen.analyse.scored import ScoredTrace
from relaygen.errors import UserError
from tests.scored_traces import corpus, scored

# Of traces whose other tokens have a mean of 0.7.
OPENERS = {"Therefore|,": 0.9, "So|,": 0.85, "Thus": 0.75, "Wait|,": 0.6, "But": 0.5}
CUES = ("Therefore,", "Therefore", "So,", "So ", "Thus", "Wait,", "But", "Hence")


@pytest.fixture(scope="module")
def table() -> MarginTable:
    return collect(corpus(OPENERS), CUES)


@pytest.mark.parametrize("plain", [False, True])
def test_paper_keeps_what_is_above_the_rest(plain: bool) -> None:
    found = select.paper(collect(corpus(OPENERS), CUES, plain=plain))
    kept = {"Therefore,", "So,", "Thus"}
    if plain:  # the released script takes each cue for itself, whatever longer one stands there
        kept |= {"Therefore", "So "}
    assert set(found.cues) == kept
    assert found.warnings == (
        ("never seen in these traces: 'Hence'",)
        if plain
        else ("never seen in these traces: 'Therefore' 'So ' 'Hence'",)
    )


def test_paper_looks_at_its_own_candidates_only() -> None:
    table = collect(corpus({"Clearly|,": 0.9, "So|,": 0.9}), ["Clearly,", "So,"])
    assert select.paper(table).cues == ("So,",)
    assert select.paper(table, ["Clearly,"]).cues == ("Clearly,",)


def test_paper_warns_where_a_short_cue_stands_in_for_a_longer_one() -> None:
    table = collect(corpus({"So|,": 0.5, "So": 0.95}), ["So,", "So "])
    [warning] = select.paper(collect(corpus({"Now|,": 0.5, "Now": 0.95}), ["Now,", "Now"])).warnings
    assert warning == "'Now' also hands over where 'Now,' stands, which was not kept"
    assert select.paper(table).warnings == ()  # "So " is no part of "So,"


def test_ci_keeps_what_is_surely_above(table: MarginTable) -> None:
    found = select.ci(table)
    assert found.cues == ("Therefore,", "So,", "Thus")
    assert found.expected.share == pytest.approx(0.2, abs=0.1)
    assert found.expected.margin == pytest.approx(0.82, abs=0.05)
    # Six of the 40 traces are not enough.
    few = select.ci(collect(corpus(OPENERS, traces=6), CUES), min_traces=7)
    assert few.cues == ()
    assert any("fewer than 7 traces" in warning for warning in few.warnings)


def test_ci_judges_a_short_cue_on_what_the_longer_one_leaves_it() -> None:
    """`Now` alone is very sure, `Now,` very unsure and as frequent: with `Now,` out, `Now` would stand in for it."""
    openers = {"Now|,": 0.3, "Now": 0.95}
    assert select.ci(collect(corpus(openers), ["Now,", "Now"])).cues == ()
    assert select.ci(collect(corpus(openers), ["Now"])).cues == ()
    assert select.ci(collect(corpus({"Now|,": 0.9, "Now": 0.95}), ["Now,", "Now"])).cues == ("Now,", "Now")


def test_an_opener_of_mean_zero_delta_is_seldom_kept() -> None:
    kept = sum(
        select.ci(collect(corpus({"So|,": 0.7}, traces=12, sentences=30, seed=n), ["So,"])).cues != ()
        for n in range(30)
    )
    assert kept <= 3  # 2.5 % of 30 expected


def test_the_curve_rises_in_share_and_ends_with_the_least_sure(table: MarginTable) -> None:
    curve = select.budget(table, 0.1).curve
    shares = [point.share for point in curve]
    assert shares == sorted(set(shares))
    assert curve[0].cues == ()
    assert curve[-1].cues == ("Therefore,", "So,", "Thus", "Wait,", "But")
    margins = [point.margin for point in curve[1:]]
    assert margins == sorted(margins, reverse=True)


@pytest.mark.parametrize("share", [0.1, 0.14, 0.2, 0.35])
def test_budget_comes_near_the_wanted_share_with_the_surest(table: MarginTable, share: float) -> None:
    found = select.budget(table, share)
    assert found.expected.share == pytest.approx(share, abs=0.05)
    assert found.cues[0] == "Therefore,"
    for point in found.curve:
        if point.share >= found.expected.share:
            assert point.margin <= found.expected.margin


def test_budget_names_the_cues_that_only_fill_the_share(table: MarginTable) -> None:
    assert select.budget(table, 0.37).warnings[-1] == (
        "taken for the wanted share, though less sure than the average token: 'Wait,' 'But'"
    )
    assert not any("less sure" in warning for warning in select.budget(table, 0.12).warnings)


def test_budget_says_what_it_cannot_reach(table: MarginTable) -> None:
    found = select.budget(table, 0.9)
    assert found.expected == found.curve[-1]
    assert found.warnings[0].startswith("all 5 cues together reach a share of")
    with pytest.raises(UserError, match="between 0 and 1, not 40"):
        select.budget(table, 40)
    nothing = select.budget(collect([scored(["a", "."])], CUES), 0.5)
    assert (nothing.cues, nothing.expected.share) == ((), 0)


def test_agreement_may_be_what_is_wanted() -> None:
    """Sure of itself, but of something else than the large model wrote."""
    traces = corpus({"So|,": 0.9, "Thus": 0.8})
    twisted = [
        scored(t.token_texts, t.margins, [0] * len(t.agree) if "So" in t.token_texts else t.agree, id=t.id)
        for t in traces
    ]
    table = collect(twisted, ["So,", "Thus"])
    assert table.stats["So,"].agreement.value == 0
    assert select.ci(table).cues == ("So,", "Thus")
    assert "So," not in select.ci(table, objective="agreement").cues


def _figures(cue: str, tokens: int, margin: float, changed: int, traces: int = 40) -> list[ScoredTrace]:
    """One sentence a trace; in the first `changed` traces the scorer would write another number."""
    texts = [cue, *([" 7"] * tokens), "."]
    return [
        scored(texts, [margin] * len(texts), [1, 1, int(n >= changed), *([1] * (tokens - 1))], id=f"{cue}{n}")
        for n in range(traces)
    ]


def test_figures_may_be_what_is_wanted() -> None:
    """`Thus` is the surer one by margin, and half of its sentences have a number that the scorer would change."""
    traces = [*_figures("Thus", 10, 0.9, changed=20), *_figures("Then", 10, 0.8, changed=0)]
    table = collect(traces, ["Thus", "Then"])
    objectives: tuple[Objective, ...] = ("margin", "figures")
    by_margin, by_figures = (
        select.budget(table, 0.5, objective=objective, min_large_tokens=0) for objective in objectives
    )
    assert (by_margin.cues, by_figures.cues) == (("Thus",), ("Then",))
    assert by_figures.expected.changed_figures == 0
    assert by_margin.expected.changed_figures == pytest.approx(1000 * 20 / (80 * 12))


def test_few_tokens_without_a_changed_figure_prove_little() -> None:
    """`Then` changed none of 60 tokens, `Thus` 1 of 1,200: the longer record is the surer one."""
    table = collect(
        [*_figures("Then", 6, 0.9, 0, traces=10), *_figures("Thus", 30, 0.9, 1)], ["Then", "Thus"]
    )
    assert table.stats["Then"].figures.value > table.stats["Thus"].figures.value
    curve = select.budget(table, 0.5, objective="figures", min_large_tokens=0).curve
    assert curve[1].cues == ("Thus",)


def test_a_large_turn_has_its_floor() -> None:
    texts = ["So,", " a", ".", " b", " So,", " c", ".", " d", " e", " f", " g", " h", " So,", " i", "."]
    table = collect([scored(texts)], ["So,"])
    assert [select.expected(table, ["So,"], floor).segments for floor in (0, 1, 2, 5)] == [3, 2, 2, 1]


# ---- mining

EASY = {"In total|,": 0.9, "Adding up": 0.92, "\\[": 0.95}
HARD = {f"Word{n}": 0.7 for n in range(30)}


def test_mined_cues_hold_on_problems_that_they_were_not_chosen_on() -> None:
    traces = corpus({**EASY, **HARD}, traces=60, sentences=80)
    cues = mine.candidates(traces)
    assert {"In total,", "Adding up", "\\[", "Word3"} <= set(cues)
    chosen, held = collect(traces, cues).halves()
    found = select.hold_out(select.ci(chosen), held)
    easy = {"In", "In total", "In total,", "Adding", "Adding up", "\\["}
    assert {"In total,", "Adding up", "\\["} <= set(found.cues)
    noise = [cue for cue in found.cues if not any(cue.startswith(one) for one in easy)]
    assert len(noise) <= 3
    assert found.held_out
    assert found.held_out.margin == pytest.approx(found.expected.margin, abs=0.03)
    assert found.held_out.margin > 0.85


def test_a_lucky_cue_is_found_out() -> None:
    traces = corpus({"So|,": 0.7, "Thus": 0.9}, traces=40)
    chosen, held = collect(traces, ["So,", "Thus"]).halves()
    lucky = select.ci(chosen)
    lucky = select.Selection("ci", "margin", select.expected(chosen, ["So,", "Thus"]), lucky.warnings)
    if held.stats["So,"].margin_delta.value <= 0:
        assert select.hold_out(lucky, held).warnings == (
            "not above the rest on the held-out problems: 'So,'",
        )


def test_openers_of_every_kind() -> None:
    text = (
        "First, we add. Now we go on. Let's see!\n\n1. **Calculate** the sum.\n- Then it\n"
        "\\[ x = 3.14 \\]\n### Step 2: go\n$$y$$\nIn total: 4"
    )
    found = set(mine.candidates([scored([text])], min_occurrences=1, min_problems=1))
    assert {
        "First",
        "First,",
        "Now",
        "Now we",
        "Now we go",
        "Let's see",
        "\n1. ",
        "\n- ",
        "\n- Then",
    } <= found
    assert {"\\[", "\n### Step", "\n### Step 2:", "$$", "In total:"} <= found
    assert not {"we", "14", "-", "1.", "the sum"} & found
    assert all(mine.is_cue(cue) for cue in found)


def test_openers_of_a_script_without_blanks() -> None:
    text = "首先，我们计算总数。因此，答案是四。因此我们看。"
    found = mine.candidates([scored([text])] * 5, min_occurrences=5, min_problems=1)
    assert found[0] == "因此"
    assert {"首先，", "因此，", "因此我", "首先"} <= set(found)
    openers = {"因此|，": 0.95, "首先|，": 0.5}
    words = ["我们", "计算", "总数", "答案", "是"]
    traces = corpus(openers, words=words, end="。", gap="")
    cues = mine.candidates(traces)
    assert "Therefore" not in cues
    kept = select.ci(collect(traces, cues)).cues
    assert "因此，" in kept
    assert "首先，" not in kept


def test_the_words_of_one_problem_are_no_candidates() -> None:
    traces = [scored(["Janet sells eggs. So, 4.\n" * 20], id=str(n), problem="Janet") for n in range(20)]
    assert mine.candidates(traces) == ()
    assert mine.candidates([]) == ()


def test_mining_does_not_depend_on_the_order() -> None:
    traces = corpus({**EASY, **HARD})
    assert mine.candidates(traces) == mine.candidates(random.Random(3).sample(traces, len(traces)))
    assert len(mine.candidates(traces, most=7)) == 7


@pytest.mark.parametrize(
    ("text", "is_one"), [("So,", True), ("\n- ", True), ("  ", False), ("x" * 41, False)]
)
def test_what_can_be_a_cue(text: str, is_one: bool) -> None:
    assert mine.is_cue(text) is is_one
