"""Trace lines: the keys that others read, whole lines, and what happens where nothing can be written."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygen import trace
from relaygen.core.record import Record
from relaygen.errors import UserError
from relaygen.types import (
    Author,
    EngineTimings,
    Finish,
    Reason,
    Result,
    Segment,
    Switch,
    Timings,
    Token,
    Usage,
)

LARGE = EngineTimings(
    requests=2,
    prefill_tokens=10,
    cached_tokens=4,
    prefill_ms=100.00049,
    handover_prefill_ms=20.0,
    decode_steps=8,
    decode_ms=400.0,
    draft_tokens=6,
    draft_accepted_tokens=5,
)
RESULT = Result(
    text="So, 1\u2028 😀.\n\nDone",
    reasoning="",
    answer="So, 1\u2028 😀.\n\nDone",
    finish_reason="stop",
    segments=(
        Segment(Author.LARGE, "So,", (1, 2), Reason.CUE, "So,"),
        Segment(Author.SMALL, " 1\u2028 😀.\n\n", (3, 4, 5), Reason.SENTENCE),
        Segment(Author.LARGE, "Done", (6,), Reason.EOS),
    ),
    usage=Usage(prompt_tokens=7, large_tokens=3, small_tokens=3),
    timings=Timings(1000.0, LARGE, EngineTimings(prefill_ms=50.0, decode_ms=100.0)),
    warnings=("a warning",),
    metadata={"policy": "segment", "seed": 1},
)
ENGINE_KEYS = {
    "requests",
    "untimed_requests",
    "prefill_tokens",
    "cached_tokens",
    "prefill_ms",
    "handover_prefill_ms",
    "decode_steps",
    "decode_ms",
    "own_ms",
    "draft_tokens",
    "draft_accepted_tokens",
    "prewarm_requests",
    "prewarm_tokens",
    "prewarm_ms",
}


def test_the_keys() -> None:
    """Others' programs read these: a new key must be listed here, a lost one breaks the format."""
    value = trace.to_json(RESULT)
    assert next(iter(value)) == "format"
    assert value["format"] == 1
    assert set(value) == {
        "format",
        "text",
        "reasoning",
        "answer",
        "finish_reason",
        "segments",
        "usage",
        "timings",
        "warnings",
        "metadata",
    }
    assert [set(s) for s in value["segments"]] == [{"author", "text", "token_ids", "reason", "cue"}] * 3
    assert set(value["usage"]) == {"prompt_tokens", "large_tokens", "small_tokens", "small_share"}
    assert set(value["timings"]) == {"total_ms", "own_ms", "large", "small"}
    assert set(value["timings"]["large"]) == set(value["timings"]["small"]) == ENGINE_KEYS


def test_the_values(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    trace.append(path, RESULT)
    value = json.loads(path.read_bytes())
    assert value["segments"] == [
        {"author": "large", "text": "So,", "token_ids": [1, 2], "reason": "cue", "cue": "So,"},
        {
            "author": "small",
            "text": " 1\u2028 😀.\n\n",
            "token_ids": [3, 4, 5],
            "reason": "sentence",
            "cue": None,
        },
        {"author": "large", "text": "Done", "token_ids": [6], "reason": "eos", "cue": None},
    ]
    assert value["usage"] == {"prompt_tokens": 7, "large_tokens": 3, "small_tokens": 3, "small_share": 0.5}
    assert value["timings"]["own_ms"] == 350.0
    assert value["timings"]["large"]["prefill_ms"] == 100.0
    assert (value["text"], value["answer"], value["finish_reason"]) == (RESULT.text, RESULT.answer, "stop")
    assert (value["warnings"], value["metadata"]) == (["a warning"], {"policy": "segment", "seed": 1})


def test_an_empty_result() -> None:
    value = trace.to_json(
        Result(
            text="",
            reasoning="",
            answer="",
            finish_reason="stopped",
            segments=(),
            usage=Usage(),
            timings=Timings(),
        )
    )
    assert value["usage"]["small_share"] == 0.0
    assert value["segments"] == []


TURNS = st.lists(
    st.tuples(st.sampled_from(Author), st.lists(st.text(max_size=5), max_size=4), st.sampled_from(Reason)),
    max_size=8,
)


@given(TURNS, st.integers(0, 40), st.booleans())
def test_segments_add_up(
    turns: list[tuple[Author, list[str], Reason]], num_reasoning: int, finished: bool
) -> None:
    """Whatever was written, also in the middle of a segment, through JSON and back."""
    record, written = Record(), 0
    expected = ""
    for author, texts, reason in turns:
        for text in texts:
            record.add(Token(author, text, (written,), "reasoning" if written < num_reasoning else "answer"))
            expected += text
            written += 1
        record.add(Switch(author, author.other, reason))
    record.add(Token(Author.LARGE, "…", (written,), "answer"))
    if finished:
        record.add(Finish(Author.LARGE, Reason.EOS, "stop"))
    result = record.result(think=("<think>", "</think>"))
    value: dict[str, Any] = json.loads(json.dumps(trace.to_json(result)))
    assert value["text"] == expected + "…"
    assert "".join(s["text"] for s in value["segments"]) == value["text"]
    usage = value["usage"]
    assert sum(len(s["token_ids"]) for s in value["segments"]) == written + 1
    assert usage["large_tokens"] + usage["small_tokens"] == written + 1
    assert value["finish_reason"] == ("stop" if finished else "stopped")


def test_fields_come_first_and_lines_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("{}\n")
    trace.append(path, RESULT, problem="2\n+ 2?", id=7)
    trace.append(path, RESULT)
    text = path.read_bytes().decode()
    lines = text.split("\n")
    assert len(lines) == 4
    assert (lines[0], lines[3]) == ("{}", "")
    first = json.loads(lines[1])
    assert list(first)[:3] == ["problem", "id", "format"]
    assert (first["problem"], first["id"]) == ("2\n+ 2?", 7)
    assert json.loads(lines[2]) == trace.to_json(RESULT)


def _append_many(path: str, name: str, text: str) -> None:
    result = Result(
        text=text,
        reasoning="",
        answer=text,
        finish_reason="stop",
        segments=(Segment(Author.LARGE, text, (1,), Reason.EOS),),
        usage=Usage(),
        timings=Timings(),
    )
    for number in range(30):
        trace.append(Path(path), result, id=f"{name}{number}")


def test_lines_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    """Each line is one write, also when it is longer than any buffer."""
    path = tmp_path / "t.jsonl"
    spawn = multiprocessing.get_context("spawn")
    processes = [
        spawn.Process(target=_append_many, args=(str(path), name, name * 50_000)) for name in ("a", "b")
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    values = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted(v["id"] for v in values) == sorted(f"{name}{n}" for name in "ab" for n in range(30))
    assert all(set(v["text"]) == set(v["id"][0]) for v in values)


def _append_one(path: Path) -> None:
    trace.append(path, RESULT)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is Linux's")
def test_a_full_disk() -> None:
    with pytest.raises(UserError, match=r"^cannot write the trace to /dev/full: No space left on device$"):
        trace.append(Path("/dev/full"), RESULT)


@pytest.mark.parametrize("write", [_append_one, trace.check_writable])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        (".", "Is a directory"),
        ("absent/t.jsonl", "No such file or directory"),
        ("file/t.jsonl", "Not a directory"),
        ("n" * 300, "File name too long"),
    ],
)
def test_where_nothing_can_be_written(
    tmp_path: Path, write: Callable[[Path], None], path: str, why: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught:
        write(tmp_path / path)
    message = str(caught.value)
    assert message.startswith("cannot write the trace to ")
    assert message.endswith(f": {why}")


def test_asking_whether_it_is_writable_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("before\n")
    trace.check_writable(path)
    assert path.read_text() == "before\n"
