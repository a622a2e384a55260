"""The algorithm, without a model: where turns are cut, who writes what, and that chunking changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygen.core.policy import Policy, State, alone, alternate, phase, segment
from relaygen.core.record import Record
from relaygen.core.relay import Generation, turn_seed
from relaygen.errors import EngineProtocolError
from relaygen.types import Author, Chunk, Piece, Reason, Result, Segment, Switch, Token, TurnEnd
from tests.conftest import shared_lines

CUES = ("Therefore,", "Thus", "So,", "now")
THINK = ("<think>", "</think>")


def write(
    policy: Policy, text: str | list[str], sizes: Iterator[int], *, max_tokens: int = 10**9, **options: Any
) -> Result:
    """Both models write `text`: a list of tokens, or a str without token ids, read in chunks of the given sizes."""
    generation, record = Generation(policy, max_tokens=max_tokens, **options), Record()
    at = 0
    while generation.next_ask():
        while not generation.turn_over:
            size = next(sizes)
            part = text[at : at + size]
            pieces = (
                (Piece(part),) if isinstance(part, str) else tuple(Piece(t, (hash(t) % 10**6,)) for t in part)
            )
            end = TurnEnd("eos") if at + size >= len(text) else None
            for event in generation.feed(Chunk(pieces, end)):
                record.add(event)
                if isinstance(event, Token):
                    at += len(event.text) if isinstance(text, str) else 1
    return record.result(think=policy.think)


def fixed(size: int) -> Iterator[int]:
    while True:
        yield size


def mixed(seed: int) -> Iterator[int]:
    rng = random.Random(seed)
    while True:
        yield rng.randint(1, 30)


def shape(result: Result) -> list[tuple[str, str, str | None]]:
    return [(s.author.value, s.text, s.cue) for s in result.segments]


def tokens(text: str) -> list[str]:
    """Cut before each blank and mark, as BPE tokens usually are."""
    out = [""]
    for char in text:
        if not char.isalnum() and out[-1]:
            out.append("")
        out[-1] += char
    return out


def test_a_cue_hands_over_and_a_sentence_end_hands_back() -> None:
    text = tokens("We have two and two here. Therefore, the sum is 4. Now we go on to the end")
    assert shape(write(segment(CUES), text, fixed(1))) == [
        ("large", "We have two and two here. Therefore,", "Therefore,"),
        ("small", " the sum is 4.", None),
        ("large", " Now we go on to the end", None),
    ]


def test_the_large_model_keeps_its_look_ahead_and_the_small_one_drops_it() -> None:
    text = ["a", " b", " c", " d", " e", " Thus", " it", " is", " so", ".", " Next", " x"]
    assert shape(write(segment(CUES), text, fixed(1))) == [
        ("large", "a b c d e Thus it", "Thus"),
        ("small", " is so.", None),
        ("large", " Next x", None),
    ]


def test_white_space_with_a_line_break_stays_with_its_sentence() -> None:
    text = ["a", " b", " c", " d", " e", " So", ",", " yes", ".", "\n\n", "Next"]
    assert shape(write(segment(CUES), text, fixed(1)))[1] == ("small", " yes.\n\n", None)


def test_the_floor_keeps_a_cue_at_the_start_of_a_large_turn_from_counting() -> None:
    text = [
        "So",
        ",",
        " a",
        " b",
        " c",
        " d",
        " So",
        ",",
        " e",
        ".",
        " So",
        ",",
        " f",
        " g",
        " h",
        " i",
        " So",
        ",",
    ]
    result = write(segment(CUES), text, fixed(1))
    assert [s.text for s in result.segments] == ["So, a b c d So,", " e.", " So, f g h i So,", "", ""]
    assert [s.author for s in result.segments[-2:]] == [Author.SMALL, Author.LARGE]  # who confirms the end


def test_a_cap_ends_a_small_turn() -> None:
    text = [*"abcdef", " So", ",", *["x"] * 7]
    result = write(segment(CUES, max_small_tokens=3), text, fixed(1))
    assert [(s.text, s.reason) for s in result.segments][1] == ("xxx", Reason.CAP)


def test_the_same_round_over_and_over_ends_relaying() -> None:
    text = tokens(" a b c d e f So, yes." * 6)
    result = write(segment(CUES, max_repeats=3), text, fixed(1))
    small = [s for s in result.segments if s.author is Author.SMALL]
    assert [s.reason for s in small] == [Reason.SENTENCE, Reason.SENTENCE, Reason.REPETITION]
    assert [s.reason for s in result.segments[len(small) * 2 :]] == [Reason.EOS]  # the large model, alone


def test_a_loop_counts_from_its_first_whole_round() -> None:
    text = tokens("Well. a b c d e So, yes." + " a b c d e f So, yes." * 4)
    result = write(segment(CUES, max_repeats=3), text, fixed(1))
    small = [s for s in result.segments if s.author is Author.SMALL]
    assert [s.reason for s in small] == [Reason.SENTENCE] * 3 + [Reason.REPETITION]


def test_an_enumeration_is_no_loop() -> None:
    """The same segment each time, but the large model comes on."""
    text = tokens("".join(f" Then we look at {n}. So, it is odd." for n in range(1, 20, 2)))
    result = write(segment(CUES, max_repeats=3), text, fixed(1))
    small = [s for s in result.segments if s.author is Author.SMALL]
    assert [s.text for s in small] == [" it is odd."] * 10
    assert Reason.REPETITION not in [s.reason for s in small]


def test_thinking_ends_at_its_marker_and_the_small_model_answers() -> None:
    text = [
        "<think>",
        "\n",
        *tokens("I see it all here. Thus it is. </think>".replace("</think>", "")),
        "</think>",
        "\n\n",
        "It",
        " is",
        ".",
        " So",
        ",",
        " 4",
        ".",
    ]
    result = write(segment(CUES, think=THINK), text, fixed(1))
    assert result.segments[-1].author is Author.SMALL
    assert result.segments[-1].text == "\n\nIt is. So, 4."
    assert result.segments[-2].reason is Reason.ANSWER
    assert result.reasoning == "I see it all here. Thus it is."
    assert result.answer == "It is. So, 4."


def test_the_small_model_may_end_the_thinking_too() -> None:
    text = ["<think>", *"abcde", " So", ",", " yes", "</think>", "4"]
    result = write(segment(CUES, think=THINK), text, fixed(1))
    assert [(s.author.value, s.text) for s in result.segments] == [
        ("large", "<think>abcde So,"),
        ("small", " yes</think>"),
        ("small", "4"),
    ]
    assert result.handovers == 1


def test_a_thinking_model_that_does_not_think_has_an_answer_and_no_reasoning() -> None:
    result = write(
        segment(CUES, think=THINK, answer_cues=("\\boxed{",)), [*"abcdef", "\\boxed{", "4", "}"], fixed(1)
    )
    assert (result.reasoning, result.answer) == ("", "abcdef\\boxed{4}")
    assert [s.author.value for s in result.segments] == ["large", "small"]


def test_an_answer_cue_inside_the_thinking_does_not_start_the_answer() -> None:
    text = ["<think>", *"abcdef", "\\boxed{", "4", "}", "</think>", "5"]
    result = write(segment(CUES, think=THINK, answer_cues=("\\boxed{",)), text, fixed(1))
    assert [s.text for s in result.segments] == ["<think>abcdef\\boxed{4}</think>", "5"]


def test_a_prompt_may_have_opened_the_thinking() -> None:
    result = write(segment(CUES, think=THINK), ["a", "b", "</think>", "4"], fixed(1), opened=True)
    assert (result.reasoning, result.answer) == ("ab", "4")


def test_no_think_end_leaves_the_answer_empty_and_the_text_untouched() -> None:
    result = write(segment(CUES, think=THINK), ["<think>", "a", "b", "c"], fixed(1), max_tokens=3)
    assert (result.text, result.answer, result.finish_reason) == ("<think>ab", "", "length")


def test_phase_goes_one_way() -> None:
    policy = phase(("answer:",), ("in conclusion",), ("=",))
    text = tokens("We take x and y now = 3 it is. And then, In Conclusion it is. Thus, so. End")
    result = write(policy, text, fixed(1))
    assert [(s.author.value, s.reason.value) for s in result.segments] == [
        ("large", "cue"),
        ("small", "sentence"),
        ("large", "answer"),
        ("small", "eos"),
    ]


@pytest.mark.parametrize("author", list(Author))
def test_one_model_alone_writes_everything(author: Author) -> None:
    result = write(alone(author), tokens("It is so. Therefore, it is. \\boxed{3}"), fixed(1))
    assert [s.author for s in result.segments] == [author]


def test_the_end_of_text_in_a_segment_is_for_the_large_model_to_confirm() -> None:
    generation = Generation(segment(CUES), max_tokens=100)
    generation.next_ask()
    generation.feed(Chunk(tuple(Piece(t, (1,)) for t in [*"abcde", " So", ","])))
    ask = generation.next_ask()
    assert ask is not None
    assert ask.author is Author.SMALL
    assert generation.feed(Chunk((Piece(" 4", (1,)),), TurnEnd("eos")))[-1] == Switch(
        Author.SMALL, Author.LARGE, Reason.EOS
    )
    assert generation.state is State.LEAD


def test_a_false_stop_and_a_cut_character_continue_the_turn() -> None:
    generation = Generation(segment(CUES), max_tokens=100)
    generation.next_ask()
    assert len(generation.feed(Chunk((Piece(" know", (1,)), Piece(" it", (2,))), TurnEnd("stop")))) == 2
    ask = generation.next_ask()
    assert ask is not None
    assert (ask.author, ask.max_tokens, ask.position) == (Author.LARGE, 98, 2)
    assert not generation.feed(Chunk((), TurnEnd("length")))  # in the middle of a character
    ask = generation.next_ask()
    assert ask is not None
    assert ask.max_tokens >= 8
    assert [type(e).__name__ for e in generation.feed(Chunk((), TurnEnd("length")))] == ["Finish"]


def test_an_engine_that_never_writes_is_an_error() -> None:
    generation = Generation(segment(CUES), max_tokens=100)
    with pytest.raises(EngineProtocolError):
        for _ in range(10):
            generation.next_ask()
            generation.feed(Chunk((), TurnEnd("stop")))


def test_the_budget_is_over_both_models() -> None:
    text = tokens("a b c d e So, f g h i j k l m n")
    result = write(segment(CUES), text, fixed(1), max_tokens=10)
    assert result.usage.completion_tokens == 10
    assert result.finish_reason == "length"
    assert {s.author for s in result.segments} == set(Author)


def test_a_small_failure_leaves_the_rest_to_the_large_model() -> None:
    generation = Generation(segment(CUES), max_tokens=100)
    generation.next_ask()
    generation.feed(Chunk(tuple(Piece(t, (1,)) for t in [*"abcde", " So", ","])))
    generation.next_ask()
    generation.feed(Chunk((Piece(" 4", (1,)),)))
    assert generation.small_failed() == [Switch(Author.SMALL, Author.LARGE, Reason.SMALL_FAILED)]
    generation.next_ask()
    generation.feed(Chunk(tuple(Piece(t, (1,)) for t in [*"abcdefg", " So", ",", " x"])))
    assert not generation.turn_over
    assert Generation(alone(Author.SMALL), max_tokens=1).small_failed() is None


def test_stop_ends_it_once() -> None:
    generation = Generation(segment(CUES), max_tokens=100)
    generation.next_ask()
    assert len(generation.stop(Reason.STOPPED)) == 1
    assert generation.stop(Reason.STOPPED) == []
    assert generation.next_ask() is None


def test_seeds_differ_by_position_and_repeat_by_seed() -> None:
    seeds = [turn_seed(7, position) for position in range(100)]
    assert len(set(seeds)) == 100
    assert seeds == [turn_seed(7, position) for position in range(100)]
    assert all(0 <= seed < 2**31 for seed in seeds)


TOKENS = st.lists(
    st.sampled_from(
        [
            "a",
            " b",
            " So",
            ",",
            ".",
            " ",
            "\n",
            "\n\n",
            " Thus",
            " now",
            "3",
            ".14",
            " know",
            "!",
            "。",
            "因此",
            "</think>",
            "<think>",
        ]
    ),
    max_size=60,
)
POLICIES = st.sampled_from(
    [
        segment((*CUES, "因此")),
        segment(CUES, think=THINK),
        phase((".",), ("now",), (",",)),
        alternate(3),
        segment(CUES, min_large_tokens=0, max_small_tokens=4),
    ]
)


@given(TOKENS, POLICIES, st.integers(0, 2**16), st.booleans())
def test_turns_do_not_depend_on_chunks(text: list[str], policy: Policy, seed: int, ids: bool) -> None:
    whole: str | list[str] = text if ids else "".join(text)
    one = write(policy, whole, fixed(1))
    assert shape(one) == shape(write(policy, whole, fixed(10**9))) == shape(write(policy, whole, mixed(seed)))
    assert one.text == "".join(text)
    assert "".join(s.text for s in one.segments) == one.text


@pytest.mark.parametrize("line", range(10))
def test_recorded_traces_give_the_same_turns_however_they_are_cut(line: int) -> None:
    """And no cue inside a word, no end inside a decimal."""
    text = shared_lines("traces/qwen3-32b-aime25.jsonl")[line]["text"]
    policy = segment(
        ("Oh,", "another,", "Thus", "Now", "now", "Therefore", "So ", "So,", "Wait,", "Also"), think=THINK
    )
    whole = write(policy, text, fixed(10**9))
    assert whole.text == text
    assert shape(whole) == shape(write(policy, text, fixed(1))) == shape(write(policy, text, mixed(line)))
    assert len(whole.segments) > 20
    at = 0
    for part in whole.segments:
        at += len(part.text)
        _check_border(text, at, part)
    words = tokens(text)
    by_token = write(policy, words, fixed(1))
    assert shape(by_token) == shape(write(policy, words, mixed(line)))


def _check_border(text: str, at: int, part: Segment) -> None:
    if part.reason is Reason.CUE and part.cue:
        start = text.rfind(part.cue, 0, at)
        before, after = text[start - 1], text[start + len(part.cue)]
        assert not (before.isalnum() and part.cue[0].isalnum())
        assert not (after.isalnum() and part.cue[-1].isalnum())
    if part.reason is Reason.SENTENCE and not text[at - 1].isspace():
        assert text[at].isspace()
