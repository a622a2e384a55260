"""Replay: the same turns as the algorithm itself gives, and figures that can be checked by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relaygen import profile, trace
from relaygen.analyse.predict import Speed, Work, relay_ms
from relaygen.analyse.replay import replay
from relaygen.analyse.tally import Tally, replay_all
from relaygen.analyse.turns import Turn
from relaygen.core.matcher import CueMatcher, PlainSentenceMatcher
from relaygen.core.policy import Policy, alone, phase, reflect, segment
from relaygen.core.relay import Generation
from relaygen.errors import UserError
from relaygen.report.replay import rows
from relaygen.report.replay_page import page
from relaygen.strategies import make_policy
from relaygen.trace import Trace
from relaygen.types import Author, Piece
from tests.conftest import shared_lines
from tests.test_relay import CUES, THINK, fixed, write

RECORDED = "traces/qwen3-32b-aime25.jsonl"
PAPER = (0.698 - 0.036, 0.698 + 0.036)  # the large share that the paper measured


def turns_of(policy: Policy, text: str) -> list[tuple[str, str, str | None]]:
    turns = replay(policy, Trace("t", text))
    assert [t.start for t in turns] == [0, *(t.end for t in turns)][:-1]
    return [(t.author.value, text[t.start : t.end], t.cue) for t in turns]


# ---- the same turns as character by character

PARTS = "a| b|So|, |Thus|now|know|Now, then|.|3.14|e.g. |!|?|)|'| |\n|\n \n|\n\n|。|因此|</think>|<think>|_ |\\left. |x = y"
POLICIES = [
    segment((*CUES, "因此", "Now, then", "now, so")),
    segment(CUES, think=THINK, answer_cues=("\\boxed{",)),
    segment(CUES, min_large_tokens=0),
    phase(("now:",), ("THUS",), ("=",), think=THINK),
    alone(Author.LARGE, think=THINK),
    reflect(segment(CUES, think=THINK)),  # the large model follows
]


@example(["Now, then", " ", "So", ", "], POLICIES[0], True)
@given(st.lists(st.sampled_from(PARTS.split("|")), max_size=60), st.sampled_from(POLICIES), st.booleans())
def test_quiet_stretches_change_nothing(parts: list[str], policy: Policy, plain: bool) -> None:
    text, policy = "".join(parts), replace(policy, plain=plain, max_repeats=10**9)
    opened = bool(policy.think) and "</think>" in text and not text.lstrip().startswith("<think>")
    result = write(policy, text, fixed(50), opened=opened) if text else None
    expected = [(s.author.value, s.text, s.cue) for s in result.segments if s.text] if result else []
    assert turns_of(policy, text) == expected


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("line", range(10))
def test_recorded_traces_too(line: int, plain: bool) -> None:
    text = shared_lines(RECORDED)[line]["text"][:12000]
    policy = replace(
        make_policy("segment", profile.load("qwen3-32b+qwen3-1.7b")), plain=plain, max_repeats=10**9
    )
    expected = [(s.author.value, s.text, s.cue) for s in write(policy, text, fixed(500)).segments if s.text]
    assert turns_of(policy, text) == expected


def test_a_cap_ends_a_small_turn() -> None:
    [_, small, _] = replay(
        segment(CUES, max_small_tokens=10), Trace("t", "We add them all up: So, " + "word " * 10 + "x. ")
    )
    assert small.num_chars == 40


def test_what_a_text_repeats_does_not_stop_the_relay() -> None:
    text = "We look at the next of them. So, it is odd. " * 9
    assert [author for author, _, _ in turns_of(segment(CUES), text)].count("small") == 9


def test_tokens_are_counted_where_their_texts_are_known() -> None:
    texts = ["a", " b", " c", " d", " e", " Thus", " it", " is", " so", ".", " Next", " x"]
    one = Trace("t", "".join(texts), pieces=tuple(Piece(text, (1,)) for text in texts))
    turns = replay(segment(CUES), one)
    assert [(t.author.value, t.num_tokens, t.cue) for t in turns] == [
        ("large", 7, "Thus"),
        ("small", 3, None),
        ("large", 2, None),
    ]
    tally = replay_all(segment(CUES), [one]).whole
    assert (tally.unit, tally.share(tally.by_author[Author.LARGE])) == ("tokens", 0.75)
    mixed = replay_all(segment(CUES), [one, Trace("u", "abc")]).whole
    assert (mixed.unit, mixed.total.size(mixed.unit)) == ("characters", len(one.text) + 3)


# ---- plain matching


def test_plain_cues_match_inside_words_and_at_once() -> None:
    plain = CueMatcher(["now", "Thus", "Thus,"], borders=False)
    match = plain.feed("we know. Thus, ")
    assert match
    assert (match.what, match.end, match.decided) == ("now", 7, 7)
    plain.begin()
    match = plain.feed("Thus, ")
    assert match
    assert (match.what, match.end) == ("Thus", 4)


@pytest.mark.parametrize(
    ("text", "end"), [("is 3.14", 5), ("e.g. a", 2), ("5! = 120", 2), ("a\nb\n\nc", 5), ("a\n \nb", None)]
)
def test_plain_sentences_end_at_any_mark(text: str, end: int | None) -> None:
    match = PlainSentenceMatcher().feed(text)
    assert (match.end if match else None) == end


def test_plain_stops_of_a_server_are_the_cues_themselves() -> None:
    generation = Generation(replace(segment(CUES, think=THINK), plain=True), max_tokens=10)
    ask = generation.next_ask()
    assert ask
    assert ask.stops == (*CUES, "</think>")


def test_plain_and_words_side_by_side() -> None:
    text = "Let us say what we know here. Therefore, x is 3.14 now. It is"
    assert turns_of(segment(CUES), text)[1] == ("small", " x is 3.14 now.", None)
    assert turns_of(replace(segment(CUES), plain=True), text) == [
        ("large", "Let us say what we know", "now"),
        ("small", " here.", None),
        ("large", " Therefore, x is 3.14 now", "now"),
        ("small", ".", None),
        ("large", " It is", None),
    ]


# ---- figures


@pytest.mark.parametrize("plain", [False, True])
def test_the_large_share_of_recorded_traces_is_the_papers(plain: bool) -> None:
    lines = shared_lines(RECORDED)
    policy = replace(make_policy("segment", profile.load("qwen3-32b+qwen3-1.7b")), plain=plain)
    found = replay_all(policy, (Trace(line["id"], line["text"]) for line in lines))
    assert PAPER[0] <= found.whole.share(found.whole.by_author[Author.LARGE]) <= PAPER[1]
    assert PAPER[0] <= found.mean_and_deviation()[0] <= PAPER[1]


def test_figures_by_hand() -> None:
    text = "<think>Let us see what this is. So, it is four. And so it goes on and on. Thus it is.</think>It is 4."
    found = replay_all(segment(("So,", "Thus", "Now,"), think=THINK), [Trace("t", text)])
    tally = found.whole
    assert tally.total.chars == len(text)
    assert (tally.total.turns, tally.handovers) == (5, 3)
    assert (tally.segments.turns, tally.mean_segment) == (
        2,
        (len(" it is four.") + len("it is.</think>")) / 2,
    )
    assert tally.share(tally.answers) == len("It is 4.") / len(text)
    assert {cue: amount.chars for cue, amount in tally.cues.items()} == {"So,": 12, "Thus": 14, "</think>": 8}
    assert found.unused_cues == ["Now,"]
    assert {reason.value if reason else None: n for reason, n in tally.ends[Author.SMALL].items()} == {
        "sentence": 1,
        "answer": 1,
        None: 1,
    }
    assert found.mean_and_deviation() == (tally.share(tally.by_author[Author.LARGE]), None)
    assert ("turns", "5, with 3 hand-overs") in rows(found)


def test_time_agrees_with_the_formula_of_predict() -> None:
    """Which knows mean lengths only: so with turns of one length both must say the same."""
    large, small = Speed(40, 5, 1, 3), Speed(8, 2, 0.2, 1)
    authors = [Author.LARGE, Author.SMALL] * 10 + [Author.LARGE]
    turns = [Turn(author, n * 80, n * 80 + 80, 0, False, None, None) for n, author in enumerate(authors)]
    tally = Tally({Author.LARGE: large, Author.SMALL: small})
    tally.add(Trace("t", "x" * 80 * 21, problem="y" * 200), turns)
    assert tally.time
    expected = relay_ms(large, small, 10 / 21, Work(20 * 21, 50, 20))
    assert tally.time.relay_ms == pytest.approx(expected)
    assert tally.time.alone_ms == pytest.approx(5 + 50 + 419 * 40 + 3)
    assert tally.time.speedup == pytest.approx(tally.time.alone_ms / expected)
    assert tally.time.break_even_share == 0.01


def test_where_relaying_never_pays_it_says_so() -> None:
    speeds = {Author.LARGE: Speed(10, 0, 1), Author.SMALL: Speed(20, 0, 1)}
    found = replay_all(segment(CUES), [Trace("t", "We add up all of these. So, it is four. And")], speeds)
    assert "no share breaks even" in dict(rows(found))["predicted"]


# ---- traces that are read


def test_lines_of_every_kind(tmp_path: Path) -> None:
    ours = {
        "problem": "2 + 2?",
        "format": 1,
        "text": "So, 4",
        "segments": [{"text": "So,", "token_ids": [1, 2]}, {"text": " 4", "token_ids": [3]}],
        "metadata": {"models": {"large": "L", "small": "S"}, "seed": 1},
    }
    lines = [
        {"text": "a\u2028b"},
        {"text": "ab", "id": 7, "model": "M", "num_tokens": 9, "token_ids": None},
        {"text": "ab", "token_ids": [4, 5], "token_texts": ["", "ab"]},
        ours,
    ]
    file = tmp_path / "t.jsonl"
    file.write_text("\ufeff" + "\n\n".join(json.dumps(line) for line in lines), "utf-8")
    assert list(trace.read(file)) == [
        Trace("t.jsonl:1", "a\u2028b"),
        Trace("7", "ab", "M", num_tokens=9),
        Trace("t.jsonl:5", "ab", num_tokens=2, token_ids=(4, 5), pieces=(Piece("", (4,)), Piece("ab", (5,)))),
        Trace("t.jsonl:7", "So, 4", "L + S", "2 + 2?", 3, (1, 2, 3)),
    ]


def test_reading_is_one_line_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"text": "a"}\nnonsense\n')
    lines = trace.read(file)
    assert next(lines).text == "a"
    with pytest.raises(UserError, match="line 2: not JSON"):
        next(lines)


# ---- the page


class Seen(HTMLParser):
    """The text within the elements of class `text`, and everything that could fetch or run something."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.tags: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "onclick", "onload", "onerror"}
        assert dict(attrs).get("href", "#").startswith("#")  # pyright: ignore[reportOptionalMemberAccess]
        if ("class", "text") in attrs:
            self.texts.append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "div"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


def test_a_page_shows_the_text_and_runs_none_of_it() -> None:
    evil = "<script>alert(1)</script>&amp;<img src=x onerror=alert(2)>\"'"
    texts = [f"We look at all of it. So, {evil} is\nodd. And {evil}", "Thus, 3.\r\n\x00 </div></main> ok"]
    traces = [Trace(evil, text, evil, evil) for text in texts]
    found = replay_all(segment(CUES), traces, keep_text=True)
    html = "".join(page(evil, rows(found), found.each))
    seen = Seen()
    seen.feed(html)
    assert seen.texts == [texts[0], texts[1].replace("\r", "\ufffd").replace("\x00", "\ufffd")]
    assert seen.tags.count("script") == 1
    assert "img" not in seen.tags
    assert "http" not in html.replace("http-equiv", "")
    assert [f'href="#t{n}"' in html and f'id="t{n}"' in html for n in (1, 2)] == [True, True]


def test_without_a_page_no_text_is_kept() -> None:
    [one] = replay_all(segment(CUES), [Trace("t", "abc")]).each
    assert (one.trace.text, one.turns) == ("", ())
