"""Shared: weights (fetched once into the user's cache), engines on them, and the recorded data beside the repository."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from scripts import vllm_cpu

from relaygen import models
from relaygen.engines.llamacpp import LlamaCppEngine
from relaygen.engines.open import connect
from relaygen.engines.vllm import VllmEngine
from relaygen.local import LocalServer, LocalSettings

VLLM_MODEL = "smollm2-135m"
VLLM_MAX_STOPS = 128  # instead of 4, so that the way with all stop strings can be compared too
LONGEST_IN_AN_ID = 100
SHARED = Path(os.environ.get("RELAYGEN_SHARED", Path(__file__).parents[2] / "shared")) / "data"


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: the programs that the tests press Ctrl-C on would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    """Under `pytest -n`, each process and what it starts keep to their own cores: llama.cpp's threads wait for each other
    by spinning, and two engines on the same cores slow each other down fourfold."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[int(worker) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])] or cores)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """No long text in a test's id: pytest hands the id on in the environment, where Linux starts no program with 128 KiB in
    one variable."""
    return argname if isinstance(val, str | bytes) and len(val) > LONGEST_IN_AN_ID else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast ones first, and of the slow ones the long groups. What stays together under `pytest -n`: the fast tests of a
    file, and those that share something dear (marked xdist_group)."""
    items.sort(
        key=lambda item: (
            item.get_closest_marker("slow") is not None,
            item.get_closest_marker("weights") is not None,
            item.get_closest_marker("xdist_group") is None,
        )
    )
    for item in items:
        if item.get_closest_marker("slow") is None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def shared_lines(name: str) -> list[dict[str, Any]]:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"NOT TESTED: {path} is absent (problems and recorded traces come beside the repository)")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return models.pull("smollm2-135m")


@pytest.fixture(scope="session")
def qwen_small() -> Path:
    return models.pull("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def qwen_large() -> Path:
    return models.pull("qwen2.5-coder-1.5b")


async def start(stack: AsyncExitStack, model: Path, **settings: Any) -> LlamaCppEngine:
    server = await LocalServer.start(model, LocalSettings(**settings), name=f"test {model.stem}")
    stack.callback(server.close)
    engine = await LlamaCppEngine.connect(server.endpoint, pinned=True)
    stack.push_async_callback(engine.close)
    return engine


@pytest_asyncio.fixture
async def smol_engine(smollm2: Path) -> AsyncGenerator[LlamaCppEngine]:
    async with AsyncExitStack() as stack:
        yield await start(stack, smollm2, context_tokens=2048, num_slots=2)


@pytest.fixture(scope="session")
def vllm_url() -> Iterator[str]:
    """A real vLLM: it takes most of a minute to start."""
    if not vllm_cpu.is_ready(VLLM_MODEL):
        pytest.skip(f"NOT TESTED: no vLLM here (run python scripts/vllm_cpu.py setup --model {VLLM_MODEL})")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_MAX_STOP_STRINGS", str(VLLM_MAX_STOPS))
        with vllm_cpu.running(VLLM_MODEL) as url:
            yield url


@pytest_asyncio.fixture
async def vllm_engine(vllm_url: str) -> AsyncGenerator[VllmEngine]:
    found = await connect(vllm_url, name="vLLM", api_key=None, context_tokens=0)
    assert isinstance(found, VllmEngine)
    yield found
    await found.close()
