"""Profiles: the built-in ones, the round trip, and one exact line of error for every fault."""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from relaygen.errors import ProfileError
from relaygen.profile import (
    MAX_BYTES,
    Phase,
    Profile,
    builtin_names,
    dump,
    load,
    load_cues,
    parse,
    pick,
)
from relaygen.types import Sampling

QWEN3, R1, CODER = "qwen3-32b+qwen3-1.7b", "r1-distill-qwen-32b+1.5b", "qwen2.5-coder-1.5b+0.5b"

VALID = """\
format = 1
name = "pair"
about = "for tests"
large = ["Big-32B"]
small = ["Little-1B"]
cues = [
    "Therefore,", # the best
    'So ',
    "Thus\\n",
]
answer_cues = ["\\\\boxed{"]
answer_by = "large"

[think]
open = "<think>"
close = "</think>"

[limits]
max_tokens = 100

[sampling]
temperature = 0
top_p = 1

[phase]
answer = ["answer:"]

[evidence]
source = "nowhere"
"""


def fault(text: str) -> str:
    with pytest.raises(ProfileError) as caught:
        parse(text, "pair.toml")
    message = str(caught.value)
    assert message.isprintable()
    return message


# --- built-in profiles


def test_the_built_in_profiles_are_these() -> None:
    assert set(builtin_names()) == {QWEN3, R1, CODER, "generic"}


@pytest.mark.parametrize("name", builtin_names())
def test_a_built_in_profile_is_whole(name: str) -> None:
    profile = load(name)
    assert profile.name == name
    assert profile.evidence["source"]
    assert profile.phase == Phase()
    assert parse(dump(profile), "dump") == profile


def test_the_cues_of_the_paper() -> None:
    qwen3, r1 = load(QWEN3).cues, load(R1).cues
    assert (len(qwen3), len(r1)) == (28, 25)
    assert "So " in qwen3
    assert "So " in r1
    assert "So" not in qwen3 + r1
    assert {"verify", "wait", "Ah,"} <= set(r1)
    assert set(load("generic").cues) == set(qwen3) & set(r1)


def test_the_sampling_of_the_paper() -> None:
    assert load(QWEN3).sampling.values() == Sampling(0.6, 0.95, 20)
    assert load(R1).sampling.values() == Sampling(0.6, 0.95, 0)


def test_only_the_local_pair_does_not_think() -> None:
    assert [name for name in builtin_names() if load(name).think is None] == [CODER]
    assert load(CODER).answer_cues == ("\\boxed{",)


@pytest.mark.parametrize(
    ("large", "small", "name"),
    [
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", QWEN3),
        ("qwen3-8b", "qwen3-0.6b", QWEN3),
        ("qwen3:32b", "qwen3:1.7b", QWEN3),
        ("models/Qwen3-32B-Q4_K_M.gguf", "models/Qwen3-1.7B-Q8_0.gguf", QWEN3),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", R1),
        ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", CODER),
        ("Qwen3-32B", "Qwen2.5-Coder-0.5B", "generic"),  # halves of two pairs
        ("Qwen3-1.7B", "Qwen3-32B", "generic"),  # the wrong way round
        ("Qwen3-8Bit", "Qwen3-1.7B", "generic"),  # inside a word
        ("", "", "generic"),
    ],
)
def test_pick(large: str, small: str, name: str) -> None:
    assert pick(large, small).name == name


# --- reading


def test_a_file_says_what_the_profile_is() -> None:
    profile = parse(VALID, "pair.toml")
    assert profile.cues == ("Therefore,", "So ", "Thus\n")
    assert profile.answer_by == "large"
    assert profile.think is not None
    assert (profile.think.open, profile.think.close) == ("<think>", "</think>")
    assert profile.limits.max_tokens == 100
    assert profile.sampling.values() == Sampling(temperature=0, top_p=1)
    assert profile.phase.answer == ("answer:",)
    assert profile.evidence == {"source": "nowhere"}


def test_a_name_and_its_cues_are_enough() -> None:
    profile = parse('name = "x"\ncues = ["So,"]', "x.toml")
    assert profile == Profile(name="x", cues=("So,",))
    assert profile.sampling.values() == Sampling()
    assert profile.think is None


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse(VALID, "x").name = "y"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_load_takes_a_path_or_its_text(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "pair.toml"
    path.write_bytes(b"\xef\xbb\xbf" + VALID.replace("\n", ending).encode())  # with a byte order mark
    assert load(path) == load(str(path)) == parse(VALID, "x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="NOT TESTED: no named pipes here")
def test_load_takes_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(VALID,))
    writer.start()
    assert load(path).name == "pair"
    writer.join()


# --- faults, each with its line


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "format = 1",
            "format = 2",
            "line 1: format 2 is not known: this release of relaygen reads format 1",
        ),
        ("format = 1", "format = true", "line 1: format true is not known: this release"),
        ("format = 1", f"format = 0x{'f' * 5000}", "line 1: format a number of over 64 bits is not known"),
        ("format = 1", f"format = {'9' * 5000}", ": a number in it has too many digits"),
        ("cues = [", "cuess = [", 'line 6: unknown key "cuess" (did you mean "cues"?)'),
        ("cues = [", '"cu\\u0065ss" = [', 'line 6: unknown key "cuess" (did you mean "cues"?)'),
        (
            "max_tokens",
            "max_token",
            'line 19: unknown key "max_token" in [limits] (did you mean "max_tokens"?)',
        ),
        ("[limits]", "[limit]", 'line 18: unknown key "limit" (did you mean "limits"?)'),
        ("[limits]", "[[zebra]]", 'line 18: unknown key "zebra"'),
        ('name = "pair"', "", 'pair.toml: the key "name" is missing'),
        ('close = "</think>"', "", 'line 14: the key "close" is missing in [think]'),
        ('close = "</think>"', 'close = "<think>"', "line 14: think: open and close must differ"),
        ('open = "<think>"', 'open = ""', "line 15: think.open must not be empty"),
        ('name = "pair"', "name = 5", "line 2: name must be text in quotes, not 5"),
        ('name = "pair"', 'name = "a\\nb"', "line 2: name must be one line, without control characters"),
        (
            "max_tokens = 100",
            'max_tokens = "100"',
            'line 19: limits.max_tokens must be a whole number, not "100"',
        ),
        (
            "max_tokens = 100",
            "max_tokens = true",
            "line 19: limits.max_tokens must be a whole number, not true",
        ),
        ("max_tokens = 100", "max_tokens = 1.0", "line 19: limits.max_tokens must be a whole number, not 1"),
        ('large = ["Big-32B"]', "large = 'x'", 'line 4: large must be a list, not "x"'),
        ('large = ["Big-32B"]', "large = ['x', 1]", "line 4: an item of large must be text in quotes, not 1"),
        ('large = ["Big-32B"]', "large = ['']", "line 4: an item of large must not be empty"),
        (
            "[limits]\n",
            "[limits.max_tokens]\n",
            "line 18: limits.max_tokens must be a whole number, not a table",
        ),
        (
            'answer_by = "large"',
            'answer_by = "Large"',
            "line 12: answer_by must be 'small' or 'large', not \"Large\"",
        ),
        ("'So ',", '"Therefore,",', 'line 8: cues: the cue "Therefore," is listed twice'),
        ("'So ',", '"",', "line 8: cues: a cue must not be empty"),
        ("'So ',", '" ",', "line 8: cues: a cue must not be empty"),
        ("'So ',", "5,", "line 8: an item of cues must be text in quotes, not 5"),
        ("'So ',", f'"{"x" * 65}",', f'line 8: cues: the cue "{"x" * 64}…" is longer than 64 characters'),
        (
            '"Thus\\n",\n]',
            '"Thus", ""]',
            "line 9: cues: a cue must not be empty",
        ),  # on the last line of the list
        ('["answer:"]', '["b", "a",\n"a"]', 'line 27: phase.answer: the cue "a" is listed twice'),
        ('source = "nowhere"', "x = inf", "line 29: evidence: inf is not a value that a profile can hold"),
        (
            'source = "nowhere"',
            f"x = 1\ny = 0x{'f' * 17}",
            "line 30: evidence: a number of over 64 bits is not",
        ),
        ('source = "nowhere"', f"x = {'[' * 99}{']' * 99}", "line 29: evidence: nested deeper than 16"),
        (
            'source = "nowhere"',
            "[[evidence.a]]\nx = 1\n[[evidence.a]]\nx = nan",
            "line 31: evidence: nan is not",
        ),
        (
            "temperature = 0",
            "temperature = nan",
            "line 22: sampling.temperature must be a finite number, not nan",
        ),
        ("temperature = 0", "temperature = 0 # \ud800", "line 22: not Unicode"),
        ('source = "nowhere"', '"\ud800" = 1', "line 29: not Unicode"),
        ("temperature = 0", "temperature = ", "line 22: not TOML: invalid value (column 15)"),
        ('source = "nowhere"', "x = [1,\n2,\n\n", "line 30: not TOML: "),
        ("format = 1", "format = 1\nformat = 1", "line 2: not TOML: cannot overwrite a value"),
    ],
)
def test_a_fault_is_named_with_its_line(old: str, new: str, message: str) -> None:
    assert old in VALID
    text = VALID.replace(old, new, 1)
    for ending in ("\n", "\r\n"):
        found = fault(text.replace("\n", ending))
        assert found.startswith("pair.toml")
        assert message in found


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("limits.min_large_tokens", [0, 2**31 - 1], [-1, 2**31, -(10**30)]),
        ("limits.max_small_tokens", [1], [0]),
        ("limits.max_repeats", [1], [0]),
        ("limits.max_tokens", [1], [0, 10**30]),
        ("sampling.temperature", [0, 0.0, 1, 2.5], [-0.1, 10**30, math.inf]),
        ("sampling.top_p", [1, 1.0, 0.01], [0, 0.0, 1.01]),
        ("sampling.top_k", [0, 2**31 - 1], [-1, 2**31, -(10**400), 10**400]),
        ("sampling.min_p", [0, 0.99], [-0.1, 1, 1.0]),
        ("sampling.repeat_penalty", [0.1, 1, 2], [0, -1.0]),
    ],
)
def test_limits_have_ranges(key: str, good: list[float], bad: list[float]) -> None:
    table, name = key.split(".")
    text = f'name = "x"\ncues = ["So,"]\n[{table}]\n\n{name} = '
    for value in good:
        profile = parse(f"{text}{value}", "x.toml")
        assert getattr(getattr(profile, table), name) == value
        profile.sampling.values()
    for value in bad:
        assert f"line 5: {key} must be " in fault(f"{text}{value}")


def test_a_line_is_not_guessed() -> None:
    # What looks like the key, but stands in a comment, in a text or in another table, is not it.
    text = "name = \"x\"\n# cues = 5\nabout = '''cues = 5'''\nevidence.cues = 5\n\"cues\" = 5\n"
    assert "line 5: cues must be a list" in fault(text)
    # A fault after more text than is worth reading again has no line.
    big = "[evidence]\nx = [\n" + "1,\n" * 5000 + "]\n[limits]\nmax_tokens = 0\n"
    assert fault('name = "x"\ncues = []\n' + big) == "pair.toml: limits.max_tokens must be at least 1, not 0"


def test_an_error_is_one_line_that_no_terminal_obeys() -> None:
    assert fault('name = "x"\ncues = []\n"\\u001b[31m\u2028\u009b" = 1') == (
        'pair.toml, line 3: unknown key "\\u001b[31m\\u2028\\x9b"'
    )


def test_an_unknown_name_gets_a_suggestion_and_the_list() -> None:
    with pytest.raises(ProfileError) as caught:
        load("qwen3-32b+1.7b")
    assert str(caught.value) == (
        f'unknown profile "qwen3-32b+1.7b" (did you mean "{QWEN3}"?);'
        f" there are {', '.join(builtin_names())}, and files, which end in .toml"
    )


@pytest.mark.parametrize("read", [load, load_cues])
def test_a_file_that_cannot_be_read(tmp_path: Path, read: Any) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "latin.toml").write_bytes(b'name = "x"\nabout = "\xe9"')
    (tmp_path / "big.toml").write_bytes(b"#" * (MAX_BYTES + 1))
    for name, message in [
        ("none.toml", "none.toml: cannot be read: no such file or directory"),
        ("folder.toml", "folder.toml: cannot be read: is a directory"),
        ("latin.toml", "latin.toml, line 2: not UTF-8"),
        ("big.toml", "big.toml: larger than 1 MiB"),
        ("nul\0.toml", "nul\\x00.toml: cannot be read: embedded null byte"),
    ]:
        with pytest.raises(ProfileError, match=re.escape(message)):
            read(tmp_path / name)


# --- writing, and properties

CUES = st.lists(st.text(min_size=1, max_size=64).filter(lambda s: bool(s.strip())), unique=True).map(tuple)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TIMES = st.dates() | st.datetimes() | st.times()
EVIDENCE = st.dictionaries(
    st.text(max_size=9),
    st.recursive(
        st.text() | NUMBERS | st.booleans() | TIMES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=9,
    ),
    max_size=5,
)
VALID_CUES = st.sampled_from(["So,", "Wait", "\x7f", "\\", '"""', "a\u2028", "é", "𝄞\n", "\r\n#", "'"])


@given(CUES, CUES, EVIDENCE)
@example(
    ("\x7f", "\r!", '"', "\\u0041", "#"), (), {"a.b": {"": [{"x": []}, {}]}, "t": time(1), "d": date(1, 1, 1)}
)
def test_what_is_written_reads_back_the_same(
    cues: tuple[str, ...], others: tuple[str, ...], evidence: Any
) -> None:
    profile = parse(VALID, "x").model_copy(update={"think": None})
    profile = Profile.model_validate(
        profile.model_dump()
        | {"cues": cues, "answer_cues": others, "phase": {"calculation": cues}, "evidence": evidence}
    )
    assert parse(dump(profile), "dump") == profile
    dump(profile).encode()


def test_evidence_is_kept_as_toml_gives_it_back() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 6)
    profile = Profile(name="x", cues=(), evidence={"share": (0.5, 1), "when": when})
    assert profile.evidence == {"share": [0.5, 1], "when": when}
    for bad in ({"x": math.nan}, {"x": None}, {"x": {1: 2}}, {"x": "\ud800"}, {"x": 2**63}):
        with pytest.raises(ValidationError):
            Profile(name="x", cues=(), evidence=bad)


@given(st.lists(VALID_CUES, unique=True, min_size=1), st.data())
def test_a_fault_is_found_wherever_it_stands(cues: list[str], data: st.DataObject) -> None:
    """A bad item is put anywhere into a list of random layout; the error must name exactly its line."""
    text = 'name = "x"\nabout = """\\\n  cues = [\\\n"""\n[evidence]\ncues = []\n[phase]\nanswer = ['
    at = data.draw(st.integers(0, len(cues)))
    line = 0
    for index, item in enumerate([*cues[:at], "", *cues[at:]]):
        text += data.draw(st.sampled_from(["", "\n", " # ]\n", "\n\n  ", "\n# 'x',\n"]))
        line = text.count("\n") + 1 if index == at else line
        text += f"{_basic(item)}, "
    text += data.draw(st.sampled_from(["]", "\n]", " # end\n]"])) + "\n"
    text = text.replace("[evidence]\ncues", 'cues = ["So,"]\n[evidence]\ncues', 1)
    assert fault(text) == f"pair.toml, line {line + 1}: phase.answer: a cue must not be empty"


def _basic(text: str) -> str:
    return '"' + "".join(f"\\U{ord(c):08x}" if c in '"\\' or not c.isprintable() else c for c in text) + '"'


PIECES = st.sampled_from(
    ["[", "]", "[[", "{", '"', "'''", '"""', "\\", "\n", "\r", "=", ".", "#", "1e999", "0x", ","]
)
EDITS = st.lists(
    st.tuples(st.integers(0, len(VALID)), st.integers(0, 12), PIECES | st.text(max_size=4) | st.just("")),
    max_size=4,
)


@given(EDITS)
@example([(0, 0, "[" * 5000)])
@example([(0, 0, "a." * 300 + "b = 1\n")])
@example([(0, 0, "\ufeff")])
def test_a_damaged_profile_is_read_or_refused(edits: list[tuple[int, int, str]]) -> None:
    text = VALID
    for at, num_cut, piece in edits:
        text = text[:at] + piece + text[at + num_cut :]
    _read_or_refuse(text)


@given(st.text() | st.text(st.sampled_from("[]{}=.,#\"'\\\n\r \tabn01-:TZe_")))
def test_any_text_is_read_or_refused(text: str) -> None:
    _read_or_refuse(text)


def _read_or_refuse(text: str) -> None:
    try:
        profile = parse(text, "x.toml")
    except ProfileError as error:
        message = str(error)
    else:
        profile.sampling.values()
        assert parse(dump(profile), "x") == profile
        return
    assert message.isprintable()
    found = re.match(r"x\.toml(?:, line (\d+))?: .", message)
    assert found
    assert found[1] is None or 1 <= int(found[1]) <= text.count("\n") + 1


@given(st.binary() | st.tuples(st.integers(0, len(VALID)), st.binary(max_size=3)))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.toml"
    valid = VALID.encode()
    path.write_bytes(data if isinstance(data, bytes) else valid[: data[0]] + data[1] + valid[data[0] :])
    for read in (load, load_cues):
        with contextlib.suppress(ProfileError):
            read(path)


# --- lists of cues


def test_a_list_of_cues(tmp_path: Path) -> None:
    path = tmp_path / "cues.txt"
    path.write_bytes(
        b'\xef\xbb\xbfTherefore,\r\n\n  # a comment\nSo \n"Now "\n"#"\n"\\n\\n-"\n'
        b'  Thus\nA\xe2\x80\xa8B\nhe said "hm"'
    )
    expected = ("Therefore,", "So ", "Now ", "#", "\n\n-", "  Thus", "A\u2028B", 'he said "hm"')
    assert load_cues(path) == load_cues(str(path)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": there are no cues in it"),
        ("# nothing\n", ": there are no cues in it"),
        ("So,\n\nNow\nSo,", ', line 4: the cue "So," is listed twice'),
        ('So,\n"So," ', ', line 2: the cue "So," is listed twice'),
        ('So,\n"Now', ', line 2: "\\"Now" starts with a quote, so it must be one JSON string'),
        ('"So," # best', ', line 1: "\\"So,\\" # best" starts with a quote'),
        ('""', ", line 1: a cue must not be empty"),
        ('"\\ud800"', ", line 1: "),
        ("x" * 65, f', line 1: the cue "{"x" * 64}…" is longer than 64 characters'),
    ],
)
def test_a_fault_in_a_list_of_cues(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cues.txt"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_cues(path)
    assert f"{path}{message}" in str(caught.value)
    assert str(caught.value).isprintable()
