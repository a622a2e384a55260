"""What people see: the text, exact in a pipe and coloured but harmless on a terminal; and the summary."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from relaygen.report.summary import large_alone_ms, lost_at_handovers_ms, rows
from relaygen.report.terminal import MARKS, TextWriter, printable, summary
from relaygen.types import (
    Author,
    EngineTimings,
    Event,
    Finish,
    FinishReason,
    Reason,
    Result,
    Segment,
    Switch,
    Timings,
    Token,
    Usage,
)

L, S = Author.LARGE, Author.SMALL


def token(author: Author, text: str) -> Token:
    return Token(author, text, (1,), "answer")


def written(
    events: Sequence[Event], *, terminal: bool, models: dict[str, str] | None = None, width: int = 80
) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        highlight=False,
        force_terminal=terminal,
        color_system="truecolor" if terminal else None,
        width=width,
        legacy_windows=False,
        _environ={},
    )
    writer = TextWriter(console)
    if models is not None:
        writer.legend(models)
    for event in events:
        writer.event(event)
    writer.end()
    return file.getvalue()


SGR = re.compile(r"\x1b\[[0-9;]*m")  # colours: all that we ourselves send
TEXT = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n\t\r\x1b[]:)")), max_size=30)
TURNS = st.lists(st.tuples(st.sampled_from(Author), TEXT), max_size=12)


def relay_events(turns: Sequence[tuple[Author, str]]) -> list[Event]:
    events: list[Event] = []
    for (author, text), following in itertools.zip_longest(turns, turns[1:]):
        events.append(token(author, text))
        if following and following[0] is not author:
            events.append(Switch(author, author.other, Reason.CUE))
    return [*events, Finish(turns[-1][0] if turns else L, Reason.EOS, "stop")]


# ---- in a pipe


@given(TURNS)
def test_in_a_pipe_it_is_exactly_the_text(turns: list[tuple[Author, str]]) -> None:
    text = "".join(text for _, text in turns)
    assert written(relay_events(turns), terminal=False, models={"large": "a", "small": "b"}) == text


# ---- on a terminal


def test_on_a_terminal_there_are_colours_and_marks() -> None:
    shown = written(
        relay_events([(L, "Two. "), (L, "So,"), (S, " four."), (L, " Done")]),
        terminal=True,
        models={"large": "big.gguf", "small": "tiny.gguf"},
    )
    legend, _, body = shown.partition("\n")
    assert re.sub(SGR, "", legend).split() == ["◀", "large", "big.gguf", "▶", "small", "tiny.gguf"]
    assert re.sub(SGR, "", body).strip("\n") == "Two. So,▶ four.◀ Done"
    large, small = "\x1b[96m", "\x1b[93m"
    assert f"{large}So," in body
    assert f"{small} four." in body
    assert large in legend
    assert small in legend
    assert body.endswith("\n")


def test_a_change_of_stage_is_no_hand_over() -> None:
    events = [token(L, "a"), Switch(L, L, Reason.ANSWER), token(L, "b"), Finish(L, Reason.EOS, "stop")]
    assert re.sub(SGR, "", written(events, terminal=True)) == "ab\n"


def test_one_model_has_a_legend_of_one() -> None:
    assert re.sub(SGR, "", written([], terminal=True, models={"small": "tiny"})).split() == [
        "▶",
        "small",
        "tiny",
    ]


@given(TURNS, st.integers(1, 30))
def test_on_a_terminal_nothing_is_lost_and_nothing_obeyed(
    turns: list[tuple[Author, str]], width: int
) -> None:
    """Whatever a model writes: without our colours and marks the very text is there, controls replaced."""
    shown = written(relay_events(turns), terminal=True, width=width)
    expected = ""
    for (author, text), following in itertools.zip_longest(turns, turns[1:]):
        expected += text
        if following and following[0] is not author:
            expected += MARKS[author.other]
    expected = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "�", expected)
    assert re.sub(SGR, "", shown).removesuffix("\n") == expected.removesuffix("\n")


ATTACKS = {
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "link": "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\",
    "8-bit CSI": "\x9b31m",
    "8-bit OSC": "\x9d52;c;AAAA\x9c",
    "device": "\x1bP+q544e\x1b\\",
    "bell": "\x07",
    "return": "safe\rEVIL",
    "backspace": "ab\b\bcd",
    "shift out": "\x0e",
    "form feed": "\x0c\x0b",
    "delete": "\x7f",
    "report": "\x1b[6n\x1b[c",
    "colour": "\x1b[31m",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("cut", [False, True])
def test_a_terminal_never_obeys_a_model(attack: str, cut: bool) -> None:
    events = [token(S, part) for part in (attack if cut else [attack])]
    plain = re.sub(SGR, "", written(events, terminal=True))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", plain)
    assert "�" in plain
    # The one sequence that we send ourselves: as many of them as without the attack's.
    shown = written(events, terminal=True)
    harmless = written([token(S, "x") for _ in events], terminal=True)
    assert re.findall(SGR, shown) == re.findall(SGR, harmless)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_nor_a_server_that_names_its_model(attack: str) -> None:
    shown = written([], terminal=True, models={"large": attack})
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", re.sub(SGR, "", shown))
    assert re.findall(SGR, shown) == re.findall(SGR, written([], terminal=True, models={"large": "x"}))


@pytest.mark.parametrize(
    "text", ["[bold]no markup[/bold]", "[/]", ":smile:", "[link=http://x]y[/link]", "\\["]
)
def test_rich_markup_is_text(text: str) -> None:
    assert re.sub(SGR, "", written([token(L, text)], terminal=True)) == text + "\n"
    assert re.sub(SGR, "", written([], terminal=True, models={"large": text})).strip() == f"◀ large {text}"


def test_printable_keeps_text() -> None:
    assert printable("naïve\t\n😀 因此\u2028") == "naïve\t\n😀 因此\u2028"


# ---- the summary


def result_of(
    *segments: Segment,
    large: EngineTimings | None = None,
    small: EngineTimings | None = None,
    total_ms: float = 0.0,
    finish: FinishReason = "stop",
    warnings: tuple[str, ...] = (),
) -> Result:
    text = "".join(s.text for s in segments)
    counts = {author: sum(len(s.token_ids) for s in segments if s.author is author) for author in Author}
    timings = Timings(total_ms, large or EngineTimings(), small or EngineTimings())
    return Result(text, "", text, finish, segments, Usage(9, counts[L], counts[S]), timings, warnings)


def shown(result: Result, width: int = 100) -> str:
    file = io.StringIO()
    Console(file=file, width=width, _environ={}).print(summary(result))
    return file.getvalue()


RELAYED = result_of(
    Segment(L, "So,", (1, 2), Reason.CUE, "So,"),
    Segment(S, " four.", (3, 4, 5), Reason.SENTENCE),
    Segment(L, " Now,", (6,), Reason.CUE, "Now,"),
    Segment(S, " five.", (7, 8, 9, 10, 11), Reason.SENTENCE),
    Segment(L, " Done", (12,), Reason.EOS),
    large=EngineTimings(
        requests=3,
        prefill_tokens=20,
        prefill_ms=300.0,
        handover_prefill_ms=200.0,
        decode_steps=4,
        decode_ms=400.0,
        draft_tokens=8,
        draft_accepted_tokens=6,
    ),
    small=EngineTimings(
        requests=2,
        prefill_tokens=20,
        prefill_ms=150.0,
        handover_prefill_ms=150.0,
        decode_steps=6,
        decode_ms=120.0,
    ),
    total_ms=1000.0,
)


def test_the_rows() -> None:
    assert rows(RELAYED) == [
        ("large", "4 tokens, 33%, 10.0 tokens/s"),
        ("small", "8 tokens, 67%, 50.0 tokens/s"),
        ("turns", "5, the small model's 4 tokens long on average"),
        ("time", "1.0 s"),
        ("lost at hand-overs", "0.4 s (38%), of which ours 30 ms"),
        # 100 ms for the prompt, and 11 tokens of 100 ms after the first
        ("large alone", "1.2 s estimated (1.20x as fast)"),
        ("large drafts", "6 of 8 accepted (75%)"),
        ("ended", "by the model"),
    ]
    assert lost_at_handovers_ms(RELAYED) == pytest.approx(380)
    assert large_alone_ms(RELAYED) == pytest.approx(1200)


def test_a_relay_that_does_not_pay_says_so() -> None:
    slow = result_of(*RELAYED.segments, large=RELAYED.timings.large, total_ms=2400.0)
    assert ("large alone", "1.2 s estimated (relaying was slower, 0.50x)") in rows(slow)


def test_one_model_alone_has_nothing_to_estimate() -> None:
    alone = result_of(
        Segment(L, "four", (1,) * 11, Reason.EOS),
        large=EngineTimings(requests=1, prefill_ms=50, decode_steps=10, decode_ms=100),
        total_ms=160.0,
    )
    assert rows(alone) == [
        ("large", "11 tokens, 100%, 100.0 tokens/s"),
        ("time", "0.2 s"),
        ("ended", "by the model"),
    ]


def test_drafts_of_both_models() -> None:
    draft = EngineTimings(draft_tokens=3, draft_accepted_tokens=0)
    found = dict(rows(result_of(large=draft, small=draft)))
    assert found["large drafts"] == found["small drafts"] == "0 of 3 accepted (0%)"


@pytest.mark.parametrize(
    ("finish", "words"),
    [
        ("stop", "by the model"),
        ("length", "at the token budget"),
        ("stopped", "stopped"),
        ("error", "by an error"),
    ],
)
def test_how_it_ended(finish: FinishReason, words: str) -> None:
    assert dict(rows(result_of(finish=finish)))["ended"].startswith(words)


MILLISECONDS = st.one_of(st.just(0.0), st.floats(0.001, 1e9))  # servers give microseconds
COUNTS = st.integers(0, 3)
ENGINE = st.builds(
    EngineTimings,
    requests=COUNTS,
    prefill_ms=MILLISECONDS,
    handover_prefill_ms=MILLISECONDS,
    decode_steps=COUNTS,
    decode_ms=MILLISECONDS,
    draft_tokens=COUNTS,
    draft_accepted_tokens=COUNTS,
)
SEGMENT = st.builds(
    Segment,
    author=st.sampled_from(Author),
    text=TEXT,
    token_ids=st.sampled_from(((), (1,), (1, 2))),  # engines that know only text give no ids
    reason=st.sampled_from(Reason),
    cue=st.none(),
)


@given(st.lists(SEGMENT, max_size=4), ENGINE, ENGINE, MILLISECONDS, st.sampled_from(["stop", "error"]))
def test_no_result_is_too_odd_for_a_summary(
    segments: list[Segment],
    large: EngineTimings,
    small: EngineTimings,
    total_ms: float,
    finish: FinishReason,
) -> None:
    result = result_of(*segments, large=large, small=small, total_ms=total_ms, finish=finish)
    found = dict(rows(result))
    assert ("large" in found) == any(s.author is L for s in segments)
    assert ("small" in found) == any(s.author is S for s in segments)
    assert ("turns" in found) == (len(segments) > 1)
    assert "nan" not in str(found)
    assert "inf" not in str(found)
    assert found.get("large alone", "estimated").count("estimated") == 1
    assert all(name in shown(result) for name in found)


def test_warnings_are_shown_and_not_obeyed() -> None:
    text = shown(result_of(warnings=("the small model failed\x1b[2J [bold]x",)))
    assert "warning" in text
    assert "failed�[2J [bold]x" in text
