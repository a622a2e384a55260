"""Batches: the endpoint's answers and refusals, each once however often the job is killed, in bounded memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relaygen.batch.answer import Answerer
from relaygen.batch.index import Index
from relaygen.batch.job import Answer, Tally, work
from relaygen.batch.lines import Asked, Outcome, read, settled, unsettled
from relaygen.batch.outbox import Outbox
from relaygen.config import Settings
from relaygen.errors import EngineCutError, EngineError, UserError
from relaygen.gateway.serving import Service
from relaygen.types import Author
from tests.serving import PLAIN, FakeRelay, Player, ask, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_BYTES = 4096


class Killed(Exception): ...


def request(custom_id: str, body: Any, url: str = CHAT) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def write(path: Path, lines: Iterable[Any]) -> Path:
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def run(
    asked: Path,
    out: Path,
    answer: Answer,
    *,
    concurrency: int = 3,
    on_done: Callable[[], None] = lambda: None,
) -> Tally:
    tally = Tally()
    with closing(Index(asked, MAX_BYTES)) as index, closing(Outbox(out, index)) as outbox:
        todo = read(asked, MAX_BYTES)
        await work(todo, index, outbox, answer, concurrency=concurrency, tally=tally, on_done=on_done)
    return tally


async def echo(asked: Asked) -> Outcome:
    await asyncio.sleep(0)
    return Outcome("answered", settled(asked.custom_id, 200, {"of": asked.custom_id}), 2, 1)


# --- answers


BODIES: list[tuple[str, Any]] = [
    (CHAT, ask()),
    (CHAT, ask(relaygen={"segments": True}, n=2, seed=1)),
    (CHAT, ask(logprobs=True, top_logprobs=2, max_tokens=5)),
    (CHAT, ask(tools=[{"type": "function", "function": {"name": "add"}}])),
    (COMPLETIONS, {"prompt": "Once", "stop": "it"}),
    (CHAT, ask(frequency_penalty=1)),
    (CHAT, ask(model="gpt-5")),
    (CHAT, ask(n=9)),
    (CHAT, {"messages": []}),
    (COMPLETIONS, {}),
    (CHAT, [1]),
    (CHAT, "Hello"),
]


def without_names(body: dict[str, Any]) -> dict[str, Any]:
    """Less what is new each time."""
    kept = {name: value for name, value in body.items() if name not in ("id", "created")}
    kept.get("relaygen", {}).pop("timings", None)
    for choice in kept.get("choices", ()):
        choice.get("relaygen", {}).pop("timings", None)
    return kept


@pytest.mark.parametrize(("url", "body"), BODIES)
async def test_the_endpoint_and_a_batch_say_the_same(url: str, body: Any) -> None:
    async with serving() as gateway:
        status, expected = await gateway.post(body, url)
        outcome = await Answerer(gateway.service)(Asked("a", "POST", url, body))
    line = json.loads(outcome.line)
    assert (line["custom_id"], line["error"]) == ("a", None)
    assert line["response"]["status_code"] == status
    assert without_names(line["response"]["body"]) == without_names(expected)
    assert outcome.kind == ("answered" if status == 200 else "refused")


@pytest.mark.parametrize(
    ("method", "url", "body", "status", "message"),
    [
        ("GET", CHAT, ask(), 404, "GET /v1/chat/completions is not served"),
        ("POST", "/v1/embeddings", {"input": "a"}, 404, "POST /v1/embeddings is not served"),
        (None, None, None, 404, "None None is not served"),
        ("POST", CHAT, ask(stream=True), 400, "the answers of a batch are not streamed"),
    ],
)
async def test_what_only_a_batch_refuses(method: Any, url: Any, body: Any, status: int, message: str) -> None:
    async with FakeRelay({author: Player() for author in Author}, PLAIN, "segment") as relay:
        outcome = await Answerer(Service(relay, Settings()))(Asked("a", method, url, body))
    response = json.loads(outcome.line)["response"]
    assert (outcome.kind, response["status_code"]) == ("refused", status)
    assert message in response["body"]["error"]["message"]


async def test_another_model_than_each_names() -> None:
    async with FakeRelay({author: Player() for author in Author}, PLAIN, "segment") as relay:
        outcome = await Answerer(Service(relay, Settings()), "relaygen:small")(
            Asked("a", "POST", CHAT, ask(model="gpt-5"))
        )
    assert json.loads(outcome.line)["response"]["body"]["model"] == "relaygen:small"
    assert (outcome.large_tokens, outcome.small_tokens > 0) == (0, True)


async def test_engine_failures_are_tried_again_then_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaygen.batch.answer._PAUSES_S", (0.0, 0.0))
    asked = write(tmp_path / "in", [request("a", ask())])
    out = tmp_path / "out"
    kinds: list[str] = []
    for failures in (3, 2):  # three tries in all
        large = Player(fail_at=0, error=EngineCutError("the large model broke off"), failures=failures)
        async with FakeRelay({Author.LARGE: large, Author.SMALL: Player()}, PLAIN, "segment") as relay:
            tally = await run(asked, out, Answerer(Service(relay, Settings())))
        kinds.append("failed" if tally.failed else "answered" if tally.answered else "")
        if tally.failed:
            assert answers(out)[0]["error"] == {"code": "engine_cut", "message": tally.failure}
            assert answers(out)[0]["response"] is None
    assert kinds == ["failed", "answered"]
    assert [line["response"]["status_code"] for line in answers(out)] == [200]


# --- the job


def test_lines_that_are_no_requests_stop_nothing(tmp_path: Path) -> None:
    good = [request("a", ask()), request("b", ask())]
    bad = ["{", "[1]", '{"custom_id": 7}', '{"custom_id": ""}', "x" * (MAX_BYTES + 1), '"\\ud800"']
    asked = write(tmp_path / "in", [good[0], "", *bad, good[1]])
    asked.write_bytes(b"\xef\xbb\xbf" + asked.read_bytes().rstrip(b"\n"))
    out = tmp_path / "out"
    for _ in range(2):  # they are said again, and not twice
        tally = asyncio.run(run(asked, out, echo))
        assert tally.unreadable == len(bad)
        found = answers(out)
        errors = [line["error"]["message"] for line in found if line["error"]]
        assert [error.partition(":")[0] for error in errors] == [f"line {n}" for n in range(3, 9)]
        assert [line["custom_id"] for line in found if line["response"]] == ["a", "b"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    kills=st.lists(st.integers(1, 30), max_size=5),
    torn=st.integers(0, 200),
    failing=st.sets(st.integers(0, 29), max_size=19),  # 20 in a row stop the job
    concurrency=st.integers(1, 8),
)
def test_killed_at_any_point_nothing_is_lost_or_repeated(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], torn: int, failing: set[int], concurrency: int
) -> None:
    folder = tmp_path_factory.mktemp("batch")
    names = [f"request {n}" for n in range(30)]
    asked = write(folder / "in", [request(name, ask()) for name in names])
    out = folder / "out"
    num_asked = dict.fromkeys(names, 0)

    async def failing_once(asked: Asked) -> Outcome:
        num_asked[asked.custom_id] += 1
        if names.index(asked.custom_id) in failing and num_asked[asked.custom_id] == 1:
            return Outcome("failed", unsettled(asked.custom_id, "engine_cut", "no"), message="no")
        return await echo(asked)

    for kill in kills:
        done = 0

        def count(kill: int = kill) -> None:
            nonlocal done
            done += 1
            if done == kill:
                raise Killed

        with suppress(ExceptionGroup):
            asyncio.run(run(asked, out, failing_once, concurrency=concurrency, on_done=count))
        if done >= kill:
            line = settled("request 0", 200, {"torn": "é" * 100})[:-1]
            with out.open("ab") as file:
                file.write(line[:torn])  # one that was being written
    for _ in range(2):  # some fail the first time
        asyncio.run(run(asked, out, failing_once, concurrency=concurrency))
    found = answers(out)
    assert sorted(line["custom_id"] for line in found) == sorted(names)
    assert all(line["response"]["body"] == {"of": line["custom_id"]} for line in found)
    # What was finished is not asked again: at most the requests at work at each kill are.
    assert sum(num_asked.values()) <= len(names) + len(failing) + len(kills) * concurrency
    before = out.read_bytes()
    asyncio.run(run(asked, out, failing_once))
    assert out.read_bytes() == before


async def test_dead_engines_stop_the_job(tmp_path: Path) -> None:
    asked = write(tmp_path / "in", [request(f"{n}", ask()) for n in range(100)])

    async def fail(asked: Asked) -> Outcome:
        return Outcome("failed", unsettled(asked.custom_id, "engine_unreachable", "gone"), message="gone")

    with pytest.raises(
        EngineError, match="20 requests in a row failed, so the job was stopped; the last: gone"
    ):
        await run(asked, tmp_path / "out", fail, concurrency=1)
    tally = await run(asked, tmp_path / "out", echo)
    assert tally.answered == len(answers(tmp_path / "out")) == 100


def test_a_custom_id_twice_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    asked = write(tmp_path / "in", [request("a", 1), request("b", 2), "{", request("a", 3)])
    with pytest.raises(UserError, match=r"in, line 4: the custom_id 'a' is already that of line 1"):
        Index(asked, MAX_BYTES)


def test_a_file_without_requests(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no requests in it"):
        Index(write(tmp_path / "in", ["", ""]), MAX_BYTES)
    with pytest.raises(UserError, match=r"cannot read .*absent: No such file"):
        Index(tmp_path / "absent", MAX_BYTES)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 1: not a line of answers"),
        (json.dumps(request("a", 1)), "line 1: not a line of answers"),
        ('{"custom_id": "a", "response": null, "error": null}', "line 1: not a line of answers"),
        ('{"custom_id": "x", "response": {"status_code": 200}, "error": null}', "answers 'x', which is not"),
    ],
)
def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path, line: str, message: str) -> None:
    asked = write(tmp_path / "in", [request("a", 1)])
    out = write(tmp_path / "out", [line])
    with closing(Index(asked, MAX_BYTES)) as index, pytest.raises(UserError, match=message):
        Outbox(out, index)
    assert out.read_text() == line + "\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no flock there")
def test_two_jobs_do_not_write_one_file(tmp_path: Path) -> None:
    asked = write(tmp_path / "in", [request("a", 1)])
    out = tmp_path / "out"
    out.write_bytes(unsettled("a", "engine_cut", "no"))  # opening takes it out, by another file
    with (
        closing(Index(asked, MAX_BYTES)) as index,
        closing(Outbox(out, index)),
        pytest.raises(UserError, match="is being written by another job"),
    ):
        Outbox(out, index)
    with closing(Index(asked, MAX_BYTES)) as index:
        Outbox(out, index).close()


MEMORY = """
import asyncio, resource, sys
from contextlib import closing
from pathlib import Path
from relaygen.batch.index import Index
from relaygen.batch.job import Tally, work
from relaygen.batch.lines import Asked, Outcome, read, settled
from relaygen.batch.outbox import Outbox

async def answer(asked):
    await asyncio.sleep(0)
    return Outcome("answered", settled(asked.custom_id, 200, {"text": "x" * 3000}))

def run(name):
    asked, tally = Path(name), Tally()
    with closing(Index(asked, 2**20)) as index, closing(Outbox(Path(name + ".out"), index)) as outbox:
        asyncio.run(work(read(asked, 2**20), index, outbox, answer, concurrency=64, tally=tally, on_done=lambda: None))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, tally.answered

print(*run(sys.argv[1]), *run(sys.argv[2]), *run(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    small, big = tmp_path / "small", tmp_path / "big"
    for path, number in ((small, 2000), (big, 60_000)):
        with path.open("w") as file:
            for n in range(number):
                file.write(json.dumps(request(f"request-{n}-" + "n" * 300, ask("w" * 3000))) + "\n")
    assert big.stat().st_size > 200e6
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, small, big], capture_output=True, text=True, timeout=280, check=True
    )
    first_mb, few, many_mb, many, resumed_mb, none = map(int, done.stdout.split())
    assert (few, many, none) == (2000, 60_000, 0)
    assert max(many_mb, resumed_mb) - first_mb < 16  # the answers are as much, and the custom_ids 19 MB
