"""Cues and sentence ends: golden cases, each whole, by character and randomly cut; then hypothesis."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygen.core.matcher import SENTENCE_STOPS, CueMatcher, Match, SentenceMatcher, server_stops

CUES = (
    "Therefore,",
    "Therefore",
    "So ",
    "So,",
    "now",
    "Now,",
    "another,",
    "Wait,",
    "\\boxed{",
    "</think>",
    "因此",
)

Feed = Callable[[str], Match | None]


def first(feed: Feed, parts: Iterable[str]) -> Match | None:
    return next((match for match in map(feed, parts) if match), None)


def cut(text: str, seed: int) -> list[str]:
    rng, parts = random.Random(seed), list[str]()
    while text:
        size = rng.randint(1, 7)
        parts.append(text[:size])
        text = text[size:]
    return parts


def all_ways(make: Callable[[], Feed], text: str) -> Match | None:
    whole = first(make(), [text])
    assert first(make(), text) == whole, "by character"
    for seed in range(5):
        assert first(make(), cut(text, seed)) == whole, f"randomly cut, seed {seed}"
    return whole


@pytest.mark.parametrize(
    ("text", "cue", "end", "decided"),
    [
        ("x. Therefore, y", "Therefore,", 13, 13),
        ("x. Therefore we", "Therefore", 12, 13),
        ("I know. So the", "So ", 11, 11),
        ("So, it", "So,", 3, 3),
        ("we now\nsee", "now", 6, 7),
        ("the known unknown nowhere now.", "now", 29, 30),
        ("Now, go", "Now,", 4, 4),
        ("is \\boxed{4}", "\\boxed{", 10, 10),
        ("done</think>", "</think>", 12, 12),
        ("所以因此我们", "因此", 4, 4),
        ("(now)", "now", 4, 5),
        ("Waiting, Wait, ", "Wait,", 14, 14),
    ],
)
def test_cue(text: str, cue: str, end: int, decided: int) -> None:
    assert all_ways(lambda: CueMatcher(CUES).feed, text) == Match(cue, end, decided)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I know",
        "knowing",
        "snow, and",
        "Soon",
        "Alsonow_",
        "now",
        "Therefore",
        "sо,",
        "So",
        "Thusly",
        "4now,",
        "Ｎow,",
        "nowé ",
    ],
)
def test_no_cue(text: str) -> None:
    assert all_ways(lambda: CueMatcher(CUES).feed, text) is None


def test_what_was_written_before_is_the_left_neighbour_only() -> None:
    matcher = CueMatcher(["now", "Wait,"])
    matcher.begin("k")
    assert matcher.feed("now, ") is None
    matcher.begin("Wa")
    assert matcher.feed("it, ") is None
    matcher.begin("yes ")
    assert matcher.feed("now, ") == Match("now", 3, 4)


def test_cues_up_to_the_floor_do_not_count() -> None:
    matcher = CueMatcher(["So,"])
    assert matcher.feed("So, then ", 5) is None
    assert matcher.feed("So, ", 5) == Match("So,", 12, 12)


def test_ignoring_case_reports_the_cue_as_listed() -> None:
    match = all_ways(lambda: CueMatcher(["In conclusion"], ignore_case=True).feed, "İ IN CONCLUSION, x")
    assert match == Match("In conclusion", 15, 16)


def test_no_cues_match_nothing() -> None:
    assert CueMatcher([]).feed("So, now") is None


ALPHABET = st.text(st.sampled_from("So, nowk\n.Therfé_因此!1"), max_size=40)


@given(
    ALPHABET, st.lists(st.integers(1, 6)), st.sampled_from([CUES, ("So", "So,", "o,"), ("n", "now", "w ")])
)
def test_cues_do_not_depend_on_chunks(text: str, sizes: list[int], cues: tuple[str, ...]) -> None:
    parts, rest = list[str](), text
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    assert first(CueMatcher(cues).feed, [*parts, rest]) == first(CueMatcher(cues).feed, [text])


@pytest.mark.parametrize(
    ("text", "mark", "end"),
    [
        ("It is 3.14. Then", ".", 11),
        ("Yes! Go", "!", 4),
        ("Why? No", "?", 4),
        ("He left.\nShe", ".", 8),
        ('"Stop." He', ".", 7),
        ("(as shown.) So", ".", 11),
        ("$x = 5.$ So", ".", 8),
        ("**done.** x", ".", 9),
        ("by e.g. 5 and i.e. 6 it is 7. End", ".", 29),
        ("list:\n1. Take 2. Then", ".", 16),
        ("no end\n\nnext", "\n\n", 8),
        ("no end \n \t\nnext", "\n\n", 11),
        ("见。下", "。", 2),
        ("5! = 120, n! too. x", ".", 17),
        ("Mr. Li and Dr. No agree. x", ".", 24),
        ("\\left. x \\right. y. z", ".", 19),
        ("Hmm... wait", ".", 6),
        ("Sum is 12. Next", ".", 10),
        ("Really?! Yes", "!", 8),
    ],
)
def test_sentence_end(text: str, mark: str, end: int) -> None:
    match = all_ways(lambda: SentenceMatcher().feed, text)
    assert match is not None
    assert (match.what, match.end) == (mark, end)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3.14",
        "x.y",
        "1. item",
        "\n2. item",
        "e.g. this",
        "end.",
        "5! x",
        "(n+1)! x",
        "a\nb\nc",
        "v1.2.3 is",
    ],
)
def test_no_sentence_end(text: str) -> None:
    assert all_ways(lambda: SentenceMatcher().feed, text) is None


def test_a_mark_before_the_turn_does_not_end_it() -> None:
    matcher = SentenceMatcher()
    matcher.begin("I see.")
    assert matcher.feed(" It is so. Yes") == Match(".", 10, 11)
    matcher.begin("one\n")
    assert matcher.feed("\ntwo\n\n") == Match("\n\n", 6, 6)
    matcher.begin("list\n1")
    assert matcher.feed(". Take it. x") == Match(".", 10, 11)


@given(st.text(st.sampled_from("aB1 .!?\n\"')$。e.g"), max_size=40), st.lists(st.integers(1, 6)))
def test_sentence_ends_do_not_depend_on_chunks(text: str, sizes: list[int]) -> None:
    parts, rest = list[str](), text
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    assert first(SentenceMatcher().feed, [*parts, rest]) == first(SentenceMatcher().feed, [text])


@given(ALPHABET)
def test_server_stops_are_never_later_than_the_matcher_at_their_borders(text: str) -> None:
    """Wherever the look-ahead is one of the usual borders, the server stops exactly at the deciding character."""
    match = CueMatcher(CUES).feed(text)
    if match and (match.end == match.decided or text[match.end] in " ,.\n!"):
        stops = server_stops(CUES)
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        assert min(ends) <= match.decided


def test_sentence_stops_cover_the_plain_ends() -> None:
    for text in ("So it is. ", "Yes!\n", "No? ", "x\n\n", "(so.) ", "见。"):
        assert any(text.endswith(stop) for stop in SENTENCE_STOPS)


def test_what_a_matcher_keeps_does_not_grow() -> None:
    matcher, sentences = CueMatcher(CUES), SentenceMatcher()
    for _ in range(5_000):
        assert matcher.feed("know ") is None
        assert sentences.feed("know ") is None
    assert len(matcher._tail) <= 16  # pyright: ignore[reportPrivateUsage]
    assert len(sentences._tail) <= 32  # pyright: ignore[reportPrivateUsage]
