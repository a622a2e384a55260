"""The doctor: each thing that it finds, on small servers that have just that fault; and nothing where nothing is wrong."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from relaygen import cli
from relaygen.analyse.predict import Speed, Work
from relaygen.engines.base import EngineInfo
from relaygen.engines.open import connect
from relaygen.examine import KINDS, Examination, examine, pair_findings
from relaygen.types import Author
from tests.asking import SCRIPT
from tests.conftest import start
from tests.fakes import Fake, FakeSglang, FakeVllm, Habits
from tests.fakes_text import FakeText

HEALTHY = Habits()
Names = set[str]


async def found(fake: Fake) -> Names:
    async with fake.running() as url:
        engine = await connect(url, name="the engine", api_key=None, context_tokens=4000)
        try:
            return {f.name for f in (await examine(engine)).findings}
        finally:
            await engine.close()


def vllm(max_stops: int = 128, words: tuple[str, ...] = (), **habits: Any) -> FakeVllm:
    return FakeVllm([*SCRIPT, *words], max_stops=max_stops, habits=replace(HEALTHY, **habits))


# ---- one engine


async def test_a_healthy_server_has_nothing() -> None:
    assert await found(vllm()) == set()
    assert await found(FakeSglang(SCRIPT, habits=HEALTHY)) == set()


@pytest.mark.weights
@pytest.mark.slow
async def test_a_real_llama_cpp_has_nothing(smollm2: Path) -> None:
    async with AsyncExitStack() as stack:
        one = await examine(await start(stack, smollm2, context_tokens=2048, threads=1))
    assert one.findings == ()
    assert one.honours_seed
    assert one.cached_share is not None
    assert one.cached_share > 0.9
    assert one.speed.decode_ms > 0


async def test_the_stop_cap_of_vllm() -> None:
    assert await found(vllm(max_stops=4)) == {"stop-cap"}
    assert "VLLM_MAX_STOP_STRINGS" in KINDS["stop-cap"].cure


async def test_a_prefix_cache_that_is_off() -> None:
    assert await found(vllm(cache=False)) == {"prefix-cache-off"}


@pytest.mark.parametrize(("cache", "names"), [(True, set[str]()), (False, {"prefix-cache-off"})])
async def test_without_counts_the_time_tells(cache: bool, names: Names) -> None:
    class Uncounted(FakeVllm):
        async def complete(self, request: Any) -> Any:
            self.habits = replace(HEALTHY, read_ms=1, cache=cache)
            return await super().complete(request)

    fake = Uncounted(SCRIPT, max_stops=128, habits=HEALTHY)
    assert await found(fake) == names


async def test_without_counts_and_too_fast_nobody_knows() -> None:
    assert await found(vllm(cache=None)) == {"prefix-cache-unknown"}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<|user|>Hello!<|assistant|>", "template-drops-question"),
        ("<|user|>{}", "template-no-answer"),
        ("<|user|>{}<|assistant|><think>\n<think>\n", "template-thinks-twice"),
        ("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "template-of-another-model"),
        ("<s><s>[INST]{}[/INST]", "double-bos"),
    ],
)
async def test_a_wrong_chat_template(template: str, name: str) -> None:
    assert await found(vllm(template=template, words=("<s>",))) == {name}
    assert KINDS[name].level == "wrong"


async def test_the_right_markers_are_single_tokens() -> None:
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert await found(vllm(template=template, words=("<|im_start|>", "<|im_end|>"))) == set()


async def test_a_template_that_drops_the_system_message_is_a_note() -> None:
    class NoSystem(FakeVllm):
        def prompt_of(self, body: Any) -> str:
            return super().prompt_of({"messages": body["messages"][-1:]})

    assert await found(NoSystem(SCRIPT, max_stops=128, habits=HEALTHY)) == {"template-drops-system"}
    assert KINDS["template-drops-system"].level == "note"


async def test_a_seed_that_is_not_honoured() -> None:
    assert await found(vllm(forgets_seed=True)) == {"seed-ignored"}


async def test_connections_that_are_not_kept() -> None:
    assert await found(vllm(keeps_connections=False)) == {"no-keep-alive"}


async def test_text_only_engines_are_examined_too() -> None:
    fake = FakeText(SCRIPT, habits=replace(HEALTHY, read_ms=0.05))
    assert await found(fake) == {"text-only", "server-sampling"}


async def test_a_server_that_does_not_render_chats() -> None:
    class NoTemplate(FakeText):
        def routes(self, router: Any) -> None:
            router.add_get("/v1/models", self.models)
            router.add_post("/v1/completions", self.complete)

    names = await found(NoTemplate(SCRIPT, habits=replace(HEALTHY, read_ms=0.05)))
    assert names == {"no-template", "text-only", "server-sampling"}


# ---- a pair


def engine_like(decode_ms: float, *, dialect: str = "vLLM", context: int = 40_960) -> Examination:
    return Examination(
        info=EngineInfo("toy", "http://gpu:8000", dialect, context),
        version=None,
        stops="",
        speed=Speed(decode_ms, decode_ms, 0.1),
        first_token_ms=10,
        prompt_tokens=192,
        cached_share=1,
        honours_seed=True,
        keeps_connections=True,
        penalty_counts=None,
        findings=(),
    )


def judged(large: Examination, small: Examination, **changes: Any) -> Names:
    fields: dict[str, Any] = {
        "vocabulary_differs": False,
        "answer_tokens": 32_768,
        "repeat_penalty": 1.0,
        "work": Work(),
    }
    both = {Author.LARGE: large, Author.SMALL: small}
    return {f.name for _, f in pair_findings(both, **(fields | changes))}


def test_a_pair() -> None:
    large, small = engine_like(40), engine_like(6)
    assert judged(large, small) == set()
    assert judged(large, engine_like(40)) == {"never-pays"}
    assert judged(large, small, vocabulary_differs=True) == {"different-vocabularies"}
    assert judged(large, engine_like(6, context=16_384)) == {"small-context"}
    assert judged(large, engine_like(6, context=512)) == {"tiny-context"}
    assert judged(large, engine_like(6, dialect="SGLang"), repeat_penalty=1.1) == {"penalty-restarts"}
    assert judged(large, small, repeat_penalty=1.1) == set()


# ---- the command


@contextmanager
def serving(*fakes: Fake) -> Generator[list[str]]:
    """The fakes on an event loop of their own, since the command runs its own."""
    loop = asyncio.new_event_loop()
    urls: list[str] = []
    ready, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            for fake in fakes:
                urls.append(await stack.enter_async_context(fake.running()))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        yield urls
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


Doctor = Callable[..., tuple[int, str]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> Doctor:
    def call(large: str, small: str, *args: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["relaygen", "doctor", "--large", large, "--small", small, *args])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(str(ended.value.code or 0)), capfdbinary.readouterr().out.decode()

    return call


def roomy(context_tokens: int = 5000, **changes: Any) -> FakeVllm:
    fake = vllm(**changes)
    fake.max_model_len = context_tokens
    return fake


def pair(small: Fake | None = None) -> tuple[Fake, Fake]:
    return roomy(decode_ms=20), small or roomy()


def test_a_healthy_pair_is_fit(doctor: Doctor) -> None:
    with serving(*pair()) as urls:
        code, out = doctor(*urls, "--json")
    report = json.loads(out)
    assert (code, report["problems"], report["fit"]) == (0, [], True)
    assert report["vocabulary"] == "identical"
    assert 0 < report["break_even_share"] < 0.9
    assert [p["small_share"] for p in report["predicted"]] == [n / 10 for n in range(1, 10)]
    assert report["large"]["decode_ms"] > 2 * report["small"]["decode_ms"]


def test_a_dead_url(doctor: Doctor) -> None:
    with serving(pair()[0]) as [url]:
        code, out = doctor(url, "http://127.0.0.1:9")
    assert code == 1
    assert "wrong (small): the small model at http://127.0.0.1:9 cannot be reached" in out
    assert "cure: see that `curl http://127.0.0.1:9/v1/models` answers" in out
    assert "toy" in out  # the other one is shown


def test_replicas_that_are_all_dead(doctor: Doctor) -> None:
    code, out = doctor("http://127.0.0.1:9,http://127.0.0.1:10", "http://127.0.0.1:9")
    assert code == 1
    assert out.count("cure: see that `curl http://127.0.0.1:9/v1/models` answers") == 2


def test_a_password_in_an_address_is_not_shown(doctor: Doctor) -> None:
    code, out = doctor("http://me:secret@127.0.0.1:9", "http://127.0.0.1:9", "--json")
    assert code == 1
    assert "secret" not in out


def test_different_vocabularies_cost_and_are_no_failure(doctor: Doctor) -> None:
    class Shifted(FakeVllm):
        async def tokenize(self, request: Any) -> Any:
            body = await request.json()
            text = self.prompt_of(body) if "messages" in body else body["prompt"]
            ids = self.vocabulary.encode(text)
            return web.json_response({"tokens": [*ids, 32] if "3.14159" in text else ids})

    small = Shifted(SCRIPT, max_stops=128, habits=HEALTHY)
    small.max_model_len = 5000
    with serving(*pair(small)) as urls:
        code, out = doctor(*urls)
    assert code == 0
    assert "costly (small): the two models have different vocabularies" in out
    assert "cure: take two models of one family" in out


def test_a_small_context(doctor: Doctor) -> None:
    with serving(*pair(roomy(700))) as urls:
        code, out = doctor(*urls)
    assert code == 1
    assert "wrong (small): the context holds 700 tokens only" in out
    assert "cure: --max-model-len 4608" in out  # generic profile: 4096, and room for the question


def test_what_costs_is_shown_with_its_flag_and_is_no_failure(doctor: Doctor) -> None:
    with serving(*pair(roomy(max_stops=4))) as urls:
        code, out = doctor(*urls)
    assert code == 0
    assert "VLLM_MAX_STOP_STRINGS=128" in out


# ---- its page


def test_the_page_has_every_finding() -> None:
    page = (Path(__file__).parents[1] / "docs" / "doctor.md").read_text("utf-8")
    for kind in KINDS.values():
        assert f"| `{kind.name}` | {kind.level} |" in page
        for cure in (kind.cure, *kind.cures.values()):
            assert cure.replace("|", "\\|") in page, kind.name
