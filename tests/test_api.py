"""Relay and SyncRelay on real models: what they write, that they stop, and what they say when they cannot."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import relaygen
from relaygen import (
    Author,
    Finish,
    Message,
    Options,
    Relay,
    Result,
    Sampling,
    SyncRelay,
    Token,
    api,
    strategies,
)
from relaygen.errors import ContextOverflowError, EngineError, ProfileError, UserError, WeightsError
from relaygen.local import LocalSettings
from relaygen.profile import Profile
from relaygen.types import Event, Reason, Switch

SMOL = "smollm2-135m"
GREEDY = Sampling(temperature=0, top_k=1)
CUES = Profile(name="test", cues=("the", "is", "a", "and", "of", "to"))
QUESTION = "Explain what a prime number is."
OTHER = "Name three animals and describe each of them."
STORY = "Write a very long story about a king."

pytestmark = pytest.mark.filterwarnings("error")


def smol(**settings: Any) -> Relay:
    values: dict[str, Any] = {"profile": CUES, "options": Options(context_tokens=1024), **settings}
    return Relay(SMOL, SMOL, **values)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp rounds by the size of a batch: one token at a time, greedy texts can be compared."""
    monkeypatch.setattr(api, "LocalSettings", functools.partial(LocalSettings, batch_invariant=True))


@pytest_asyncio.fixture
async def relay(smollm2: Path) -> AsyncGenerator[Relay]:
    async with smol() as relay:
        yield relay


async def _slots(relay: Relay, author: Author) -> list[dict[str, Any]]:
    await asyncio.sleep(0.02)
    engine: Any = relay.pair.engines[author]
    return await engine._http.get("/slots")


async def decoded(relay: Relay, author: Author = Author.LARGE) -> int | None:
    """How many tokens the engine has written of what it is writing; None when it is idle."""
    [slot] = await _slots(relay, author)
    return int(slot["next_token"][0]["n_decoded"]) if slot["is_processing"] else None


async def stops(relay: Relay, num_tokens: int) -> None:
    """To the moment at which both engines are idle. It fails where one goes on writing after `num_tokens`."""
    for author in Author:
        while (num_decoded := await decoded(relay, author)) is not None:
            assert num_decoded < num_tokens + 64


def is_sound(result: Result) -> bool:
    assert "".join(s.text for s in result.segments) == result.text != ""
    assert sum(len(s.token_ids) for s in result.segments) == result.usage.completion_tokens > 0
    assert result.usage.prompt_tokens > 0
    assert result.warnings == ()
    return True


# ---- what is written


@pytest.mark.weights
async def test_generate_and_stream(relay: Relay) -> None:
    whole = await relay.generate(QUESTION, max_tokens=40, sampling=GREEDY)
    assert is_sound(whole)
    assert {s.author for s in whole.segments} == set(Author)
    assert whole.usage.completion_tokens <= 40
    assert (whole.metadata["profile"], whole.metadata["policy"]) == ("test", "segment")
    assert set(whole.metadata["models"]) == {"large", "small"}

    run = relay.stream([Message("user", QUESTION)], max_tokens=40, sampling=GREEDY)
    events: list[Event] = []
    async with aclosing(run.events()) as stream:
        async for event in stream:
            events.append(event)
            assert run.result().text == "".join(e.text for e in events if isinstance(e, Token))
    result = run.result()
    assert result.text == whole.text
    assert result.segments == whole.segments
    assert isinstance(events[-1], Finish)
    assert [e.reason for e in events if isinstance(e, Switch | Finish)] == [s.reason for s in result.segments]
    by = {author: [e for e in events if isinstance(e, Token) and e.author is author] for author in Author}
    assert sum(len(e.token_ids) for e in by[Author.SMALL]) == result.usage.small_tokens


@pytest.mark.weights
async def test_a_system_message_is_read(relay: Relay) -> None:
    plain = await relay.generate("Hi", max_tokens=1)
    longer = await relay.generate(
        "Hi", system="You are a pirate, and you say so in every sentence.", max_tokens=1
    )
    assert longer.usage.prompt_tokens != plain.usage.prompt_tokens


@pytest.mark.weights
async def test_a_seed_repeats_an_answer(relay: Relay) -> None:
    hot = Sampling(temperature=1.5, seed=7)
    first, again = [await relay.generate(QUESTION, max_tokens=12, sampling=hot) for _ in range(2)]
    assert first.segments == again.segments
    assert first.metadata["seed"] == 7
    others = {
        (await relay.generate(QUESTION, max_tokens=12, sampling=Sampling(temperature=1.5))).text
        for _ in range(4)
    }
    assert len(others) > 1


@pytest.mark.weights
async def test_an_early_break_stops_the_engine(relay: Relay) -> None:
    relay.policy = strategies.make_policy("large", CUES)  # it would not end by itself
    run = relay.stream(STORY, max_tokens=900)
    shown = ""
    async with aclosing(run.events()) as events:
        async for event in events:
            shown += event.text if isinstance(event, Token) else ""
            if len(shown) > 10:
                assert await decoded(relay)
                break
    result = run.result()
    assert (result.text, result.finish_reason) == (shown, "stopped")
    assert result.segments[-1].reason is Reason.STOPPED
    await stops(relay, result.usage.completion_tokens)
    assert is_sound(await relay.generate(QUESTION, max_tokens=5))  # and it can be used again


@pytest.mark.weights
async def test_a_cancelled_task_stops_the_engine(relay: Relay) -> None:
    relay.policy = strategies.make_policy("large", CUES)
    task = asyncio.create_task(relay.generate(STORY, max_tokens=900))
    while not (num_tokens := await decoded(relay)):
        assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stops(relay, num_tokens)
    assert is_sound(await relay.generate(QUESTION, max_tokens=5))


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.usefixtures("exact", "smollm2")
async def test_two_at_once_do_not_disturb_each_other() -> None:
    """And a third, which has to wait for a slot."""
    async with smol(options=Options(context_tokens=512, num_slots=2)) as relay:

        async def ask(question: str) -> Result:
            return await relay.generate(question, max_tokens=30, sampling=GREEDY)

        together = asyncio.gather(ask(QUESTION), ask(OTHER), ask(QUESTION))
        most = 0
        while not together.done():
            most = max(most, sum(s["is_processing"] for s in await _slots(relay, Author.LARGE)))
        first, other, third = await together
        assert most == 2
        for result in (first, other, third):
            assert is_sound(result)
            assert result.handovers > 1
            # A slot of its own for each: nothing is read twice but the last token of each request.
            usage, large, small = result.usage, result.timings.large, result.timings.small
            assert large.prefill_tokens <= usage.prompt_tokens + usage.small_tokens + 2 * large.requests
            assert small.prefill_tokens <= usage.prompt_tokens + usage.large_tokens + 2 * small.requests
        assert first.segments == third.segments != other.segments
        assert (await ask(OTHER)).segments == other.segments  # alone


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.usefixtures("exact", "smollm2")
async def test_a_draft_changes_the_speed_and_nothing_else() -> None:
    async def ask(draft: str | None) -> Result:
        async with smol(options=Options(context_tokens=512, draft=draft)) as relay:
            return await relay.generate(OTHER, max_tokens=24, sampling=GREEDY)

    plain, drafted = await ask(None), await ask("small")
    assert drafted.segments == plain.segments
    assert plain.timings.large.draft_tokens == 0
    assert 0 < drafted.timings.large.draft_accepted_tokens <= drafted.timings.large.draft_tokens
    assert drafted.timings.small.draft_tokens == 0


@pytest.mark.weights
@pytest.mark.slow
async def test_different_vocabularies(qwen_small: Path, smollm2: Path) -> None:
    async with Relay(qwen_small, smollm2, profile=CUES, options=Options(context_tokens=512)) as relay:
        assert relay.pair.translations == dict.fromkeys(Author)
        result = await relay.generate(f"{QUESTION} 😀 因此", max_tokens=50, sampling=GREEDY)
        assert is_sound(result)
        assert result.handovers > 1
        engines: Any = relay.pair.engines
        for segment in result.segments:  # each in the ids of its own author
            engine = engines[segment.author]
            text = (await engine._http.post("/detokenize", {"tokens": segment.token_ids}))["content"]
            assert text == segment.text


# ---- one model


@pytest.mark.weights
@pytest.mark.parametrize("name", ["large", "small"])
async def test_one_model_alone_loads_only_that(smollm2: Path, name: str) -> None:
    other = {"large": "small", "small": "large"}[name]
    models = {name: smollm2, other: "/nowhere.gguf"}
    async with Relay(models["large"], models["small"], policy=name) as relay:
        result = await relay.generate(QUESTION, max_tokens=5)
    assert is_sound(result)
    assert {s.author.value for s in result.segments} == {name}


# ---- what it says when it cannot


async def test_it_must_be_open() -> None:
    relay = smol()
    with pytest.raises(UserError, match=r"not open: use `async with Relay\(\.\.\.\) as relay`"):
        relay.stream("q")
    with pytest.raises(UserError, match="not open"):
        await relay.generate("q")


def test_the_sync_twin_must_be_open() -> None:
    relay = SyncRelay(SMOL, SMOL)
    for use in (relay.generate, relay.stream):
        with pytest.raises(UserError, match="not open"):
            use("q")


def _options(**values: Any) -> Callable[[], object]:
    return functools.partial(Options, **values)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_options(context_tokens=15), "context_tokens must be 16 or more, not 15"),
        (_options(num_slots=0), "num_slots must be 1 or more, not 0"),
        (_options(threads=-5), "threads must be 1 or more, not -5"),
        (
            functools.partial(Relay, policy="x"),
            "unknown policy 'x': choose one of segment, phase, large, small",
        ),
        (functools.partial(Relay, "http://"), "the address of the large model is no URL: it names no host"),
        (functools.partial(SyncRelay, small="https://h:x"), "the address of the small model is no URL: "),
        (
            functools.partial(Relay, "http://h", options=Options(draft="small")),
            "a draft model works inside a large model on this machine",
        ),
    ],
)
def test_mistakes_are_found_when_it_is_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_an_unknown_profile() -> None:
    with pytest.raises(ProfileError, match="unknown profile"):
        smol(profile="x")


def test_which_models_run_here() -> None:
    def here(*args: Any, draft: str | None = None, **kwargs: Any) -> list[str]:
        return Relay(*args, options=Options(draft=draft), **kwargs).local_models

    assert here("a", "b") == ["a", "b"]
    assert here("a", "http://b") == ["a"]
    assert here("a", "b", policy="small", draft="small") == ["b"]
    assert here("a", "b", policy="large", draft="small") == ["a", "b"]
    assert here("a", "http://b", draft="c") == ["a", "c"]


@pytest.mark.weights
async def test_bad_requests(relay: Relay) -> None:
    for tokens in (0, -1):
        with pytest.raises(UserError, match=f"^max_tokens must be 1 or more, not {tokens}$"):
            await relay.generate(QUESTION, max_tokens=tokens)
    for prompt in ("", " \n", [], [Message("system", "Be brief.")]):
        with pytest.raises(UserError, match=r"^the prompt is empty$"):
            await relay.generate(prompt)
    with pytest.raises(UserError, match=r"^the user message is not valid Unicode \(character 2\)$"):
        await relay.generate("a\ud800")
    with pytest.raises(ContextOverflowError, match=r"^the prompt is 3\d\d\d tokens long and .* holds 1024"):
        await relay.generate("word " * 3000)
    assert is_sound(await relay.generate(QUESTION, max_tokens=2))


@pytest.mark.weights
async def test_a_second_model_that_is_missing_closes_the_first(smollm2: Path, tmp_path: Path) -> None:
    relay = Relay(smollm2, tmp_path / "absent.gguf")
    with pytest.raises(WeightsError, match="does not exist"):
        async with relay:
            pytest.fail("it opened")
    with pytest.raises(UserError, match="not open"):
        relay.stream(QUESTION)


@pytest.fixture
def mortal(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[str, Callable[[], None]]]:
    """The URL of a server in a process of its own, and how to kill it."""
    code = (
        "import asyncio, sys; from pathlib import Path; from relaygen.local import *\n"
        f"settings = LocalSettings(context_tokens=2048)\n"
        f"server = asyncio.run(LocalServer.start(Path({str(smollm2)!r}), settings, name='x'))\n"
        "print(server.endpoint.url, server.endpoint.api_key, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    with process:
        url, key = process.stdout.readline().decode().split()
        for name in ("LARGE", "SMALL"):
            monkeypatch.setenv(f"RELAYGEN_{name}_API_KEY", key)
        yield url, process.kill
        process.kill()


@pytest.mark.weights
@pytest.mark.parametrize("policy", ["large", "small"])
async def test_an_error_carries_what_was_written(mortal: tuple[str, Callable[[], None]], policy: str) -> None:
    url, kill = mortal
    async with Relay(url, url, policy=policy) as relay:
        run = relay.stream(STORY, max_tokens=1500)
        shown = ""
        with pytest.raises(EngineError) as caught:
            async with aclosing(run.events()) as events:
                async for event in events:
                    shown += event.text if isinstance(event, Token) else ""
                    if len(shown) > 20:
                        kill()
    partial = caught.value.partial
    assert partial
    assert partial.text == shown == "".join(s.text for s in partial.segments)
    assert partial.finish_reason == "error"
    assert caught.value.engine
    assert url in str(caught.value)


@pytest.mark.weights
async def test_the_large_model_goes_on_when_the_small_one_dies(
    smollm2: Path, mortal: tuple[str, Callable[[], None]]
) -> None:
    url, kill = mortal
    async with Relay(smollm2, url, profile=CUES) as relay:
        run = relay.stream(STORY, max_tokens=60, sampling=GREEDY)
        async with aclosing(run.events()) as events:
            async for event in events:
                if event.author is Author.SMALL:
                    kill()
    result = run.result()
    assert "".join(s.text for s in result.segments) == result.text
    assert [s.author for s in result.segments if s.reason is Reason.SMALL_FAILED] == [Author.SMALL]
    assert result.segments[-1].author is Author.LARGE
    [warning] = result.warnings
    assert warning.startswith("the small model failed and the large one went on alone: ")


@pytest.mark.weights
async def test_a_stream_left_open_does_not_keep_the_relay(smollm2: Path) -> None:
    async with Relay(smollm2, smollm2, policy="large", options=Options(context_tokens=2048)) as relay:
        events = relay.stream(STORY, max_tokens=1500).events()
        await anext(events)
    with pytest.raises(UserError, match="not open"):
        relay.stream(STORY)
    await events.aclose()


# ---- without an event loop


@pytest.mark.weights
@pytest.mark.slow
def test_sync(smollm2: Path) -> None:
    with SyncRelay(smollm2, smollm2, profile=CUES, options=Options(context_tokens=1024)) as relay:
        whole = relay.generate(QUESTION, max_tokens=30, sampling=GREEDY)
        assert is_sound(whole)
        run = relay.stream(QUESTION, max_tokens=30, sampling=GREEDY)
        events = list(run)
        assert "".join(e.text for e in events if isinstance(e, Token)) == whole.text == run.result().text
        assert isinstance(events[-1], Finish)

        run = relay.stream(STORY, max_tokens=900)
        for event in run:
            if isinstance(event, Token):
                break
        assert run.result().finish_reason == "stopped"
        with pytest.raises(ContextOverflowError):
            relay.generate("word " * 3000)
        assert relay.generate(QUESTION, max_tokens=30, sampling=GREEDY).segments == whole.segments
    with pytest.raises(UserError, match="not open"):
        relay.generate(QUESTION)
    assert "relaygen" not in [thread.name for thread in threading.enumerate()]
    with relay:
        assert is_sound(relay.generate(QUESTION, max_tokens=2))


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.parametrize("form", ["generate", "stream"])
def test_ctrl_c_leaves_a_sync_relay_at_once(smollm2: Path, form: str) -> None:
    """The signal comes to the thread that waits; the work of the other one ends, and the relay closes as ever."""
    with SyncRelay(smollm2, smollm2, policy="large", options=Options(context_tokens=4096)) as relay:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            if form == "generate":
                relay.generate(STORY, max_tokens=4000)
            else:
                for _ in relay.stream(STORY, max_tokens=4000):
                    pass
            timer.join()
        assert is_sound(relay.generate(QUESTION, max_tokens=2))


def test_sync_closes_what_could_not_be_opened(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="does not exist"), SyncRelay(tmp_path / "absent.gguf", SMOL):
        pytest.fail("it opened")
    assert "relaygen" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.weights
@pytest.mark.slow
def test_open_and_close_at_once(smollm2: Path) -> None:
    """In a process of its own: a server that was closed before its loop had begun kept its process for ever."""
    code = (
        "import asyncio; from pathlib import Path; from relaygen.local import *\n"
        "async def main():\n"
        "    for _ in range(3):\n"
        f"        (await LocalServer.start(Path({str(smollm2)!r}), LocalSettings(256), name='x')).close()\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_what_can_be_imported() -> None:
    for name in relaygen.__all__:
        assert getattr(relaygen, name)
