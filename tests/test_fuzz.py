"""All readers of foreign bytes under hypothesis: bytes at random, and good input with damage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import fuzz_targets
from tests.fuzz_targets import TARGETS

# What has broken readers before: numbers out of range, nesting, half characters, marks of byte order, odd line ends.
TOKENS = (
    b"NaN", b"1e400", b"-1", b"9" * 5000, b"0x" + b"f" * 400, b"[" * 2000, b"{\"a\":" * 300, b"null", b"\\ud800", b"\xed\xa0\x80",
    b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b"\r", b"\xe2\x80\xa8", b"\n\n", b"a." * 200, b'"' * 9, b"'''", b"\x1b[31m", b"",
)  # fmt: skip
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(TOKENS) | st.binary(max_size=4)),
    max_size=4,
)


@pytest.mark.parametrize("name", TARGETS)
def test_good_input_is_taken_or_refused(name: str) -> None:
    for seed in TARGETS[name].seeds:
        fuzz_targets.run(name, seed)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=300))
@settings(max_examples=50, deadline=None)
def test_any_bytes(name: str, data: bytes) -> None:
    fuzz_targets.run(name, data)


@pytest.mark.parametrize("name", TARGETS)
@given(which=st.integers(0, 9), edits=EDITS)
@settings(max_examples=100, deadline=None)
def test_damaged_input(name: str, which: int, edits: list[tuple[float, int, bytes]]) -> None:
    """`edits`: where, as a part of the length; how many bytes go; what comes in their place."""
    seeds = TARGETS[name].seeds
    data = seeds[which % len(seeds)]
    for place, width, token in edits:
        at = round(place * len(data))
        data = data[:at] + token + data[at + width :]
    fuzz_targets.run(name, data)
