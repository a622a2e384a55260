"""Ids and text of a stream that drift apart: each pitfall has its test, named after it."""

from __future__ import annotations

import pytest

from relaygen.errors import (
    EngineProtocolError,
)
from tests.asking import (
    FAKES,
    answer_to,
    finish,
    pieces,
)
from tests.fakes import (
    EOS,
    FakeSglang,
    FakeVllm,
    event,
    sse,
)


async def test_held_back_text() -> None:
    fake = FakeVllm(["ab", "cd", "ef"])
    [ab, cd, ef] = fake.script
    stream = sse(
        event("", [ab]), event("ab", [cd]), event("cd", [ef]), event("ef", [EOS], "stop", stop_reason=None)
    )
    assert pieces(await answer_to(fake, stream)) == [("ab", (ab,)), ("cd", (cd,)), ("ef", (ef,))]


async def test_held_back_text_is_cut_anywhere() -> None:
    fake = FakeSglang(["abc", "def"])
    [abc, de] = fake.script
    stream = sse(event("a", [abc]), event("bcd", [de]), event("ef", [EOS], "stop", matched_stop=EOS))
    assert pieces(await answer_to(fake, stream)) == [("abc", (abc,)), ("def", (de,))]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_incomplete_utf8_gives_ids_without_text(kind: str) -> None:
    fake = FAKES[kind]()
    a, b, c, d = "🎉".encode()
    stream = sse(
        event("", [a]),
        event("", [b]),
        event("", [c]),
        event("🎉", [d]),
        event("", [EOS], "stop", matched_stop=EOS),
    )
    assert pieces(await answer_to(fake, stream)) == [("🎉", (a, b, c, d))]


async def test_a_token_that_begins_with_a_whole_character_and_ends_in_a_part_of_one() -> None:
    fake = FakeSglang()
    blank, a, b = *b" ", *"é".encode()
    stream = sse(event(" ", [blank, a]), event("é", [b]), event("", [EOS], "stop", matched_stop=EOS))
    assert pieces(await answer_to(fake, stream)) == [(" ", (blank,)), ("é", (a, b))]


async def test_a_request_does_not_end_inside_a_character() -> None:
    fake = FakeVllm()
    x, a, b = *b"x", *"é".encode()[:1], *"🎉".encode()[:1]
    for last in (a, b):
        chunks = await answer_to(fake, sse(event("x", [x]), event("", [last], "length")))
        assert pieces(chunks) == [("x", (x,))]
        assert finish(chunks) == "length"
    stream = sse(event("x", [x]), event("\ufffd", [a], "length", matched_stop=None))  # SGLang shows the part
    assert pieces(await answer_to(FakeSglang(), stream)) == [("x", (x,))]


async def test_special_tokens_have_ids_and_no_text() -> None:
    fake = FakeVllm(["a", "b"])
    [a, b] = fake.script
    stream = sse(event("a", [a]), event("", [EOS]), event("b", [b]), event("", [EOS], "length"))
    assert pieces(await answer_to(fake, stream)) == [("a", (a,)), ("b", (EOS, b)), ("", (EOS,))]


@pytest.mark.parametrize("reason", [None, EOS, 300])
async def test_eos_id_in_ids(reason: int | None) -> None:
    fake = FakeVllm(["a"])
    chunks = await answer_to(
        fake, sse(event("a", fake.script), event("", [reason or EOS], "stop", stop_reason=reason))
    )
    assert pieces(chunks) == [("a", tuple(fake.script))]
    assert finish(chunks) == "eos"


async def test_an_eos_token_with_a_text_of_its_own() -> None:
    fake = FakeVllm(["a"])
    stream = sse(event("a", fake.script), event("<|end|>", [EOS], "stop", stop_reason=None))
    assert pieces(await answer_to(fake, stream)) == [("a", tuple(fake.script))]


async def test_several_tokens_per_chunk() -> None:
    fake = FakeVllm(["ab", "cd"])
    ab, cd = fake.script
    e = tuple("é".encode())
    stream = sse(event("abécd", [ab, *e, cd]), event("ab", [ab, EOS], "stop", stop_reason=None))
    assert pieces(await answer_to(fake, stream)) == [("ab", (ab,)), ("é", e), ("cd", (cd,)), ("ab", (ab,))]


async def test_a_stop_string_cuts_text_inside_a_token() -> None:
    fake = FakeVllm([" known", ".\n\n", "So"])
    known, dots, so = fake.script
    stop = event(" know", [known], "stop", stop_reason="now")
    chunks = await answer_to(fake, sse(event("So", [so]), stop))
    assert pieces(chunks) == [("So", (so,)), (" known", (known,))]
    assert finish(chunks) == "stop"
    chunks = await answer_to(fake, sse(event(" known.", [known, dots, so], "stop", stop_reason=".")))
    assert pieces(chunks) == [(" known", (known,)), (".\n\n", (dots,)), ("So", (so,))]


async def test_prompt_text_leaks_into_the_first_delta() -> None:
    fake = FakeVllm(["a", "b"])
    [a, b] = fake.script
    leaked = "long prompt \ufffd" * 20
    stream = sse(event(leaked + "a", [a]), event("b", [b], "length"))
    assert pieces(await answer_to(fake, stream)) == [("a", (a,)), ("b", (b,))]
    e = tuple("é".encode())
    stream = sse(event("", e[:1]), event(leaked + "é", e[1:]), event("b", [b], "length"))
    assert pieces(await answer_to(fake, stream)) == [("é", e), ("b", (b,))]


async def test_a_server_without_token_ids_is_told_to_be_updated() -> None:
    with pytest.raises(EngineProtocolError, match="gives no token ids: a newer vLLM does"):
        await answer_to(FakeVllm(), sse(event("a", None), event("", None, "length")))
