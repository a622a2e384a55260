"""The driver, with engines that play scripts: ways of ending a turn, failures at every place, budgets, other vocabularies."""

from __future__ import annotations

import itertools
from contextlib import aclosing
from typing import Any

import pytest

from relaygen.core.policy import Policy, alone, alternate, segment
from relaygen.engines.scripted import ScriptedEngine
from relaygen.engines.vocabulary import translation
from relaygen.errors import ContextOverflowError, EngineCutError, EngineError, EngineUnreachableError
from relaygen.run import Pair, Run
from relaygen.types import Author, Message, Reason, Result, Sampling, Token

_WORDS = (
    "First , we know that there are 48 clips in April . Therefore , May has 24 of them . Now we add 48 and 3.14 to it . "
    "Thus the sum is known now , as 72 .\n\n So , the answer is \\boxed{ 72 } ."
).split(" ")
SCRIPT = [t if i == 0 or t in ",.}" or t.startswith(".") else f" {t}" for i, t in enumerate(_WORDS)]
CUES = ("Therefore,", "Thus", "So,", "now", "Now")
POLICY = segment(CUES, answer_cues=("\\boxed{",))


def run_of(large: Any, small: Any, policy: Policy = POLICY, max_tokens: int = 1000, **pair: Any) -> Run:
    engines = {Author.LARGE: large, Author.SMALL: small}
    return Run(
        Pair({a: engines[a] for a in policy.authors}, **pair),
        [Message("user", "?")],
        policy=policy,
        sampling=Sampling(temperature=0),
        max_tokens=max_tokens,
    )


async def finish(run: Run) -> Result:
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
    return run.result()


def ids(result: Result) -> list[int]:
    return [i for s in result.segments for i in s.token_ids]


async def test_a_relay_of_a_model_with_itself_is_that_model() -> None:
    plain = await finish(run_of(ScriptedEngine(SCRIPT), None, alone(Author.LARGE)))
    assert plain.text == "".join(SCRIPT)
    for policy in (POLICY, *(alternate(n) for n in (1, 2, 3, 7))):
        result = await finish(run_of(ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT), policy))
        assert (ids(result), result.text) == (ids(plain), plain.text)
        assert len(result.segments) > 3


async def test_every_way_of_ending_a_turn_gives_the_same_turns() -> None:
    shapes: list[Any] = []
    for stops, chunk_tokens in itertools.product((True, False), (1, 2, 5, 100)):
        engines = [ScriptedEngine(SCRIPT, stops=stops, chunk_tokens=chunk_tokens) for _ in range(2)]
        result = await finish(run_of(engines[0], engines[1]))
        shapes.append([(s.author, s.token_ids, s.reason, s.cue) for s in result.segments])
        closed = sum(e.closed_early for e in engines)
        assert not (stops and closed)  # an engine that stops by itself never has to be closed
        assert closed or stops or chunk_tokens == 100
    assert all(shape == shapes[0] for shape in shapes)


async def test_the_ledger_holds_what_was_shown_and_nothing_else() -> None:
    large, small = ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT, chunk_tokens=4, stops=False)
    result = await finish(run_of(large, small))
    written = [0, *ids(result)]
    for request in (*large.requests, *small.requests):
        assert (
            list(request.ids) == written[: len(request.ids)] or request.ids == written
        )  # one list, grown in place
    assert large.requests[-1].ids == written


async def test_different_vocabularies_pass_text() -> None:
    small = ScriptedEngine([*reversed(SCRIPT), "x"])
    small._script = [small._id[t] for t in SCRIPT]  # pyright: ignore[reportPrivateUsage]
    large = ScriptedEngine(SCRIPT)
    translations = {
        Author.LARGE: await translation(large, small),
        Author.SMALL: await translation(small, large),
    }
    assert translations[Author.LARGE] is None or large.info  # the probes are outside a scripted vocabulary
    result = await finish(run_of(large, small, translations={Author.LARGE: None, Author.SMALL: None}))
    assert result.text == "".join(SCRIPT)
    assert len(result.segments) > 3


async def test_special_tokens_are_exchanged() -> None:
    large, small = ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT)
    run = run_of(large, small, translations={Author.SMALL: {1: 1001}, Author.LARGE: {}})
    await finish(run)
    assert small.requests[0].ids[:3] == [0, 1001, 2]
    assert large.requests[0].ids[:3] == [0, 1, 2]


@pytest.mark.parametrize("position", range(0, len(SCRIPT), 3))
async def test_when_the_small_engine_fails_the_large_one_goes_on(position: int) -> None:
    small = ScriptedEngine(SCRIPT, fail_at=position, error=EngineCutError("cut"))
    result = await finish(run_of(ScriptedEngine(SCRIPT), small))
    assert result.text == "".join(SCRIPT)
    failed = [s for s in result.segments if s.reason is Reason.SMALL_FAILED]
    assert len(failed) == len(result.warnings) <= 1
    if failed:
        assert result.segments[-1].author is Author.LARGE


@pytest.mark.parametrize("position", range(0, len(SCRIPT), 3))
async def test_when_the_large_engine_fails_the_error_carries_what_was_written(position: int) -> None:
    large = ScriptedEngine(SCRIPT, fail_at=position, error=EngineCutError("cut"), failures=99)
    run = run_of(large, ScriptedEngine(SCRIPT))
    shown, failure = "", None
    try:
        async for event in run.events():
            shown += event.text if isinstance(event, Token) else ""
    except EngineError as error:
        failure = error
    if failure is None:  # the position was the small model's
        assert shown == "".join(SCRIPT)
    else:
        assert failure.partial
        assert failure.partial.text == shown
        assert "".join(SCRIPT).startswith(shown)
        assert failure.partial.finish_reason == "error"
        assert Reason.STOPPED not in [s.reason for s in failure.partial.segments]  # nobody stopped it


async def test_a_small_engine_that_cannot_read_the_prompt_is_left_out() -> None:
    class Dead(ScriptedEngine):
        async def render(self, messages: Any, tools: Any = ()) -> Any:
            raise EngineUnreachableError("gone", engine="small")

    result = await finish(run_of(ScriptedEngine(SCRIPT), Dead(SCRIPT)))
    assert result.text == "".join(SCRIPT)
    assert [s.author for s in result.segments] == [Author.LARGE]
    assert "gone" in result.warnings[0]
    with pytest.raises(EngineUnreachableError):
        await finish(run_of(None, Dead(SCRIPT), alone(Author.SMALL)))
    with pytest.raises(EngineUnreachableError):
        await finish(run_of(Dead(SCRIPT), ScriptedEngine(SCRIPT)))


async def test_the_smaller_context_is_the_budget() -> None:
    result = await finish(run_of(ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT, context_tokens=21)))
    assert result.usage.completion_tokens == 20
    assert result.finish_reason == "length"
    with pytest.raises(ContextOverflowError, match="longer context"):
        await finish(run_of(ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT, context_tokens=1)))


async def test_closing_the_iterator_closes_the_engine() -> None:
    large = ScriptedEngine(SCRIPT)
    run = run_of(large, ScriptedEngine(SCRIPT))
    async with aclosing(run.events()) as events:
        async for _ in events:
            break
    assert large.closed_early == 1
    result = run.result()
    assert (result.finish_reason, result.text) == ("stopped", SCRIPT[0])
    assert result.segments[-1].reason is Reason.STOPPED
