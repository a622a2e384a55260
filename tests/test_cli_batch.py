"""`relaygen batch` as a process, over simulated engines: killed, resumed, and what it says at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from sys import executable
from typing import Any

import psutil
import pytest
import pytest_asyncio

from relaygen.batch.cluster import Member
from relaygen.config import Settings as OurSettings
from relaygen.errors import EngineUnreachableError
from relaygen.simulate.script import Library
from relaygen.simulate.server import Settings
from relaygen.simulate.speed import Speed
from relaygen.simulate.vllm import SimulatedVllm


@pytest_asyncio.fixture
async def engines() -> AsyncGenerator[list[str]]:
    """Options that name them."""
    library = Library.read()
    async with AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(
                SimulatedVllm(Settings(f"simulated-{name}", Speed.of(400, 80_000)), library).running()
            )
            for name in ("large", "small")
        ]
        yield ["--large", urls[0], "--small", urls[1], "--concurrency", "2"]


def write(path: Path, number: int, **fields: Any) -> Path:
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 20, **fields}
    lines = ({"method": "POST", "url": "/v1/chat/completions", "custom_id": f"{n}"} for n in range(number))
    path.write_text("".join(json.dumps({**line, "body": body}) + "\n" for line in lines))
    return path


async def start(*arguments: str | Path) -> asyncio.subprocess.Process:
    command = [executable, "-m", "relaygen", "batch", *map(str, arguments)]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)


async def run(*arguments: str | Path) -> tuple[int | None, str, str]:
    process = await start(*arguments)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.slow
async def test_killed_and_resumed(engines: list[str], tmp_path: Path) -> None:
    asked, out = write(tmp_path / "in", 40), tmp_path / "out"
    for finished in (5, 20):
        process = await start(asked, out, *engines)
        while not out.exists() or out.read_bytes().count(b"\n") < finished:
            assert process.returncode is None, await process.communicate()
            await asyncio.sleep(0.01)
        process.kill()
        await process.communicate()
    before = out.read_bytes()
    code, printed, err = await run(asked, out, *engines, "--json")
    assert code == 0, err
    assert out.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    assert sorted(json.loads(line)["custom_id"] for line in out.read_text().splitlines()) == sorted(
        map(str, range(40))
    )
    summary = json.loads(printed)
    assert summary["settled_before"] + summary["answered"] == summary["requests"] == 40
    assert summary["settled_before"] >= 20
    assert summary["large_tokens"] + summary["small_tokens"] == 20 * summary["answered"]
    code, _, err = await run(asked, out)  # no engine is needed any more
    assert (code, err) == (0, "40 of 40 requests are settled already\n")


@pytest.mark.slow
async def test_exit_codes(engines: list[str], tmp_path: Path) -> None:
    refused = write(tmp_path / "in", 3, n=99)
    for _ in range(2):  # the second time it has all been said
        code, printed, err = await run(refused, tmp_path / "out", *engines, "--json")
        assert (code, json.loads(printed)["refused"]) == (2, 3)
        assert err.endswith(
            "3 requests were refused and 0 lines could not be read: " + f"{tmp_path}/out says why\n"
        )
    code, _, err = await run(refused, refused, *engines)
    assert (code, err) == (2, f"relaygen: {refused} holds the requests: name another file for the answers\n")
    code, _, err = await run(tmp_path / "absent", tmp_path / "out", *engines)
    assert (code, err) == (2, f"relaygen: cannot read {tmp_path}/absent: No such file or directory\n")
    code, _, err = await run(refused, tmp_path / "new", "--large", "http://127.0.0.1:9", *engines[2:])
    assert code == 5
    assert "cannot be reached" in err


# --- on a Ray cluster


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_process_of_the_cluster_is_killed(engines: list[str], tmp_path: Path) -> None:
    """Nothing is lost, nothing is there twice, and nothing of Ray is left."""
    asked, out = write(tmp_path / "in", 60), tmp_path / "out"
    process = await start(asked, out, *engines, "--ray", "2", "--json")
    while not out.exists() or out.read_bytes().count(b"\n") < 5:
        assert process.returncode is None, await process.communicate()
        await asyncio.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    members = [
        child for child in children if child.cmdline() and child.cmdline()[0].startswith("ray::Member")
    ]
    assert len(members) == 2
    members[0].kill()
    told, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert json.loads(told)["answered"] == 60
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(int(line["custom_id"]) for line in lines) == list(range(60))
    assert {line["response"]["body"]["choices"][0]["message"]["content"] for line in lines} == {
        lines[0]["response"]["body"]["choices"][0]["message"]["content"]
    }
    assert psutil.wait_procs(children, timeout=30)[1] == []


async def test_a_process_of_the_cluster_says_why_it_cannot_work() -> None:
    settings = OurSettings(large="vllm+http://127.0.0.1:9", small="vllm+http://127.0.0.1:9")
    fault = await Member(settings, None).fault()
    assert isinstance(fault, EngineUnreachableError)


async def test_models_on_this_machine_are_not_for_a_cluster(tmp_path: Path) -> None:
    code, _, err = await run(
        write(tmp_path / "in", 1),
        tmp_path / "out",
        "--ray",
        "2",
        "--large",
        "smollm2-135m",
        "--small",
        "smollm2-135m",
    )
    assert code == 2
    assert "are addresses of servers" in err
