from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygen.engines import sse
from relaygen.engines.sse import DamagedEventError, EventTooLongError, SSEParser

GOLDEN: list[tuple[bytes, list[bytes]]] = [
    (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    (b": ping\n\ndata: a\n\n:\n\n", [b"a"]),
    (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
    (b"data:no space\n\ndata:  two spaces\n\n", [b"no space", b" two spaces"]),
    (b"event: error\nid: 7\nretry: 10\ndata: x\n\n", [b"x"]),
    (b"\xef\xbb\xbfdata: bom\n\n", [b"bom"]),
    (
        'data: "\u2028 \u0085 line separators inside"\n\n'.encode(),
        ['"\u2028 \u0085 line separators inside"'.encode()],
    ),
    (b"data: unfinished\n", []),
    (b"\n\n\n\n", []),
    (b"data\n\n", [b""]),
]


@pytest.mark.parametrize(("stream", "events"), GOLDEN)
def test_golden_in_every_cut(stream: bytes, events: list[bytes]) -> None:
    for cut in range(len(stream) + 1):
        parser = SSEParser()
        assert parser.feed(stream[:cut]) + parser.feed(stream[cut:]) == events, cut
    parser = SSEParser()
    assert [e for i in range(len(stream)) for e in parser.feed(stream[i : i + 1])] == events


@given(
    st.lists(
        st.sampled_from([b"data: x", b"data:", b"\n", b"\r\n", b"\r", b": c", b"event: e", b"\xff", b"ab"])
    ),
    st.lists(st.integers(1, 9)),
)
def test_chunks_change_nothing(parts: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(parts)
    chunks, at = list[bytes](), 0
    for size in sizes:
        chunks.append(stream[at : at + size])
        at += size
    (whole, damaged), (events, damaged_too) = read([stream]), read([*chunks, stream[at:]])
    assert damaged == damaged_too
    assert damaged or events == whole


def read(chunks: list[bytes]) -> tuple[list[bytes], bool]:
    """The events, and whether one was damaged."""
    parser, events = SSEParser(), list[bytes]()
    try:
        for chunk in chunks:
            events += parser.feed(chunk)
    except DamagedEventError:
        return events, True
    return events, False


@given(st.binary())
def test_no_bytes_make_it_fail(stream: bytes) -> None:
    read([stream])


def test_a_damaged_field_name_is_not_skipped() -> None:
    assert read([b"data: a\n\n", b"d\xffta: b\n\n"]) == ([b"a"], True)
    assert read([b": d\xff\n\n", b"data: \xff\n\n"]) == ([b"\xff"], False)


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    parser = SSEParser()
    with pytest.raises(EventTooLongError):
        for _ in range(20):
            parser.feed(b"data: " + b"x" * 94 + b"\n")
