"""What becomes of the text on its way to a client may not depend on how it was cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relaygen.core.record import Record
from relaygen.gateway.held import Span, StopCutter
from relaygen.gateway.tools import ToolCall, ToolParser
from relaygen.gateway.visible import Delta, HandOver, Text, Visible
from relaygen.types import Author, Event, Finish, Reason, Switch, Token

THINK = ("<think>", "</think>")


def cut(text: str, places: Sequence[int]) -> list[str]:
    """`text` in parts, cut at `places` (any whole numbers)."""
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(borders)]


def spans(text: str, places: Sequence[int]) -> list[Span]:
    authors = list(Author)
    return [Span(authors[i % 2], part) for i, part in enumerate(cut(text, places))]


def texts_of(*words: str) -> st.SearchStrategy[str]:
    """Texts in which the words, and their beginnings, come often."""
    parts = [*words, *(word[:n] for word in words for n in (1, 2, len(word) - 1))]
    return st.lists(st.sampled_from([*parts, " ", "\n", "a", "<", "}"]), max_size=12).map("".join)


places = st.lists(st.integers(0, 200), max_size=30)


def visible_text(events: Sequence[Event], **options: object) -> tuple[str, str]:
    visible = Visible(THINK, **options)  # pyright: ignore[reportArgumentType]
    deltas = [delta for event in events for delta in visible.feed([event])] + visible.flush()
    texts = [delta for delta in deltas if isinstance(delta, Text)]
    return (
        "".join(t.span.text for t in texts if t.channel == "reasoning"),
        "".join(t.span.text for t in texts if t.channel == "content"),
    )


@settings(deadline=None)
@given(texts_of(*THINK), texts_of(*THINK), places, places)
@example("<think>a</think>", "b", [3, 9], [])
@example("<think></think>", "", [], [])
@example(" \n", "a", [], [])
def test_thinking_is_split_as_results_do_it(
    reasoning: str, answer: str, some: list[int], others: list[int]
) -> None:
    events: list[Event] = [
        *(Token(s.author, s.text, (1,), "reasoning") for s in spans(reasoning, some)),
        *(Token(s.author, s.text, (1,), "answer") for s in spans(answer, others)),
        Finish(Author.LARGE, Reason.EOS, "stop"),
    ]
    record = Record()
    for event in events:
        record.add(event)
    result = record.result(think=THINK)
    assert visible_text(events) == (result.reasoning, result.answer)


@settings(deadline=None)
@given(texts_of(*THINK), places)
def test_text_keeps_its_author(text: str, some: list[int]) -> None:
    events = [Token(s.author, s.text, (1,), "reasoning") for s in spans(text, some)]
    visible = Visible(THINK)
    deltas = [delta for event in events for delta in visible.feed([event])] + visible.flush()
    shown = [(d.span.author, char) for d in deltas if isinstance(d, Text) for char in d.span.text]
    written = iter([(event.author, char) for event in events for char in event.text])
    assert all(one in written for one in shown)  # in order, each by its author


def stopped(parts: Sequence[Span], stops: Sequence[str]) -> tuple[str, bool]:
    cutter = StopCutter(stops)
    out = [span for part in parts for span in cutter.feed(part)] + cutter.flush()
    return "".join(span.text for span in out), cutter.found


@settings(deadline=None)
@given(texts_of("abc", "bcd", "ab\n"), st.lists(st.sampled_from(["abc", "bcd", "c", "ab\n", "<a"])), places)
@example("xabcdx", ["abcd", "c"], list(range(9)))
def test_stop_strings_cut_at_the_first_to_be_complete(text: str, stops: list[str], some: list[int]) -> None:
    ends = [
        (end, start)
        for end in range(len(text) + 1)
        for start in range(end)
        if any(text[start:end] == stop for stop in stops)
    ]
    expected = (text[: min(ends)[1]], True) if ends else (text, False)
    assert stopped(spans(text, some), stops) == expected


def test_nothing_is_held_back_longer_than_needed() -> None:
    cutter = StopCutter(["END"])
    shown = [
        "".join(s.text for s in cutter.feed(Span(Author.LARGE, text))) for text in ("the E", "xE", "ND of it")
    ]
    assert shown == ["the ", "Ex", ""]
    assert cutter.found


# --- tool calls

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": [2, 3]}}\n</tool_call>'
BROKEN = '<tool_call>{"name": 3}</tool_call>'


def parsed(parts: Sequence[Span], max_calls: int | None = None) -> tuple[str, list[tuple[int, str, str]]]:
    parser = ToolParser(max_calls)
    out = [item for part in parts for item in parser.feed(part)] + list(parser.flush())
    calls = [(c.index, c.name, c.arguments) for c in out if isinstance(c, ToolCall)]
    return "".join(item.text for item in out if isinstance(item, Span)), calls


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [CALL, BROKEN, "<tool_call>", "</tool_call>", "<tool", "text", " ", "\n\n", '{"name": "f"}']
        ),
        max_size=8,
    ).map("".join),
    places,
    st.sampled_from([None, 1]),
)
def test_tool_calls_do_not_depend_on_chunks(text: str, some: list[int], max_calls: int | None) -> None:
    whole = parsed([Span(Author.LARGE, text)], max_calls)
    assert parsed(spans(text, some), max_calls) == whole
    if "<tool_call>" not in text:
        assert whole == (text, [])


@pytest.mark.parametrize(
    ("text", "shown", "names"),
    [
        (f"I add.\n{CALL}", "I add.", ["add"]),
        (f"{CALL}\n{CALL}", "", ["add", "add"]),
        (CALL.removesuffix("\n</tool_call>"), "", ["add"]),
        (BROKEN, BROKEN, []),
        (f"a {BROKEN} b", f"a {BROKEN} b", []),
        ("a < b\n", "a < b\n", []),
        ("cut off <tool_call>{", "cut off <tool_call>{", []),
        ('<tool_call>{"name": "now"}</tool_call>', "", ["now"]),
    ],
)
def test_tool_calls(text: str, shown: str, names: list[str]) -> None:
    found, calls = parsed([Span(Author.LARGE, text)])
    assert (found, [name for _, name, _ in calls]) == (shown, names)
    assert [index for index, _, _ in calls] == list(range(len(calls)))
    for _, name, arguments in calls:
        assert orjson.loads(arguments) == ({"a": [2, 3]} if name == "add" else {})


def test_one_call_when_no_more_are_wanted() -> None:
    text, calls = parsed([Span(Author.LARGE, f"{CALL} and {CALL}")], max_calls=1)
    assert (text, len(calls)) == ("", 1)


def test_hand_overs_pass_between_the_texts() -> None:
    visible = Visible(None)
    switch = Switch(Author.LARGE, Author.SMALL, Reason.CUE, "So,")
    deltas = visible.feed(
        [
            Token(Author.LARGE, "So", (1,), "answer"),
            Token(Author.LARGE, ",", (2,), "answer"),
            switch,
            Token(Author.SMALL, " 5", (3,), "answer"),
        ]
    )
    assert deltas == [
        Text("content", Span(Author.LARGE, "So,")),
        HandOver(switch, 2),
        Text("content", Span(Author.SMALL, " 5", turn=1)),
    ]


@settings(deadline=None)
@given(
    texts_of("<think>", "</think>", "stop", CALL, "<tool_call>"),
    texts_of("stop", CALL, "<tool_call>", "\n"),
    places,
    places,
    st.booleans(),
)
@example("a <thi", "b sto", [], [], True)
@example("", "x sty", [3], [3], True)
def test_a_hand_over_comes_after_all_that_was_written_before(
    reasoning: str, answer: str, some: list[int], others: list[int], with_tools: bool
) -> None:
    """Though text is held back: here each token is a turn of its own, and the authors take turns."""
    texts = [(part, "reasoning") for part in cut(reasoning, some)] + [
        (part, "answer") for part in cut(answer, others)
    ]
    visible = Visible(THINK, ["stop"], ToolParser() if with_tools else None)
    authors = [Author.LARGE, Author.SMALL]
    deltas: list[Delta] = []
    for number, (text, stage) in enumerate(texts):
        author = authors[number % 2]
        token = Token(author, text, (1, 2), "reasoning" if stage == "reasoning" else "answer")
        deltas += visible.feed([token, Switch(author, author.other, Reason.CAP)])
    deltas += visible.flush()
    turn = 0
    for delta in deltas:
        if isinstance(delta, HandOver):
            assert delta == HandOver(Switch(authors[turn % 2], authors[(turn + 1) % 2], Reason.CAP), 2)
            turn += 1
        elif isinstance(delta, Text):
            assert delta.span.author is authors[turn % 2]
    assert turn == len(texts)
