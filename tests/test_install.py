"""The core alone: the wheel in an environment of its own, without any extra."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from relaygen.simulate.script import Library
from relaygen.simulate.server import Settings
from relaygen.simulate.speed import Speed
from relaygen.simulate.vllm import SimulatedVllm
from relaygen.trace import Trace

ROOT = Path(__file__).parent.parent
Relaygen = Callable[..., "subprocess.CompletedProcess[str]"]
pytestmark = pytest.mark.xdist_group("install")


@pytest.fixture(scope="session")  # the tests with weights run apart from the others
def relaygen(tmp_path_factory: pytest.TempPathFactory) -> Relaygen:
    """The command, as installed."""
    folder = tmp_path_factory.mktemp("core")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    binaries = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [binaries / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    [wheel] = folder.glob("relaygen-*.whl")
    subprocess.run([*pip, "install", wheel], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binaries / "relaygen", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.mark.slow
def test_the_commands_are_there(relaygen: Relaygen) -> None:
    assert "large and a small LLM take turns" in relaygen("--help").stdout
    assert relaygen("simulate", "--plan").returncode == 0
    assert relaygen("profiles", "list").returncode == 0


@pytest.mark.slow
async def test_a_pair_of_servers_answers(relaygen: Relaygen) -> None:
    text = "One word. Therefore, two words. Now three words."
    library = Library([Trace("words", text)])
    settings = Settings("simulated", Speed.of(1000, 40_000), max_stops=1000)
    async with (
        SimulatedVllm(settings, library).running(0) as large,
        SimulatedVllm(settings, library).running(0) as small,
    ):
        asked = ("run", "--large", large, "--small", small, "--json", "Count.")
        result = await asyncio.to_thread(relaygen, *asked)
    assert result.returncode == 0, result.stderr
    assert orjson.loads(result.stdout)["text"] == text


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("serve", "--large", "http://127.0.0.1:1", "--small", "http://127.0.0.1:2"), "serve"),
        (("run", "--large", "MODEL", "--small", "MODEL", "Count."), "local"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(
    relaygen: Relaygen, arguments: tuple[str, ...], extra: str, smollm2: Path
) -> None:
    result = relaygen(*(str(smollm2) if word == "MODEL" else word for word in arguments))
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert f"relaygen[{extra}]" in line
