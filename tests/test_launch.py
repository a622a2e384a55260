"""`relaygen launch`: the commands as recorded (tests/golden), and running them with scripts that stand in for the servers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from relaygen import cli
from relaygen.errors import ResourceError, UserError
from relaygen.launch import Command, Settings, children, plan, run_both
from relaygen.models.served import SERVED, find_served_pair, named
from relaygen.types import Author

GOLDEN = Path(__file__).parent / "golden"
Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> Main:
    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["relaygen", "launch", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfdbinary.readouterr()
        return int(str(ended.value.code or 0)), out.decode(), err.decode()

    return call


# ---- the commands


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("vllm", ("qwen3-32b", "--engine", "vllm")),
        ("sglang", ("qwen3-32b/qwen3-0.6b", "--engine", "sglang", "--gpus", "0,1")),
        ("llama-server", ("default", "--engine", "llama-server", "--speculate", "small", "--slots", "2")),
    ],
)
def test_the_commands_are_those_recorded(main: Main, name: str, args: tuple[str, ...]) -> None:
    code, out, _ = main(*args)
    assert code == 0
    assert out == (GOLDEN / f"launch-{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama-server"])
def test_what_is_shown_is_what_is_run(main: Main, engine: str) -> None:
    _, out, _ = main("qwen3-32b", "--engine", engine)
    value = json.loads(main("qwen3-32b", "--engine", engine, "--json")[1])
    shown = [shlex.split(part) for part in out.replace("\\\n", " ").splitlines() if "--host" in part]
    for server, words in zip(value["servers"], shown, strict=True):
        assert words == [*(f"{k}={v}" for k, v in server["env"].items()), *server["argv"]]
    assert [server["url"] for server in value["servers"]] == [
        "http://127.0.0.1:8001",
        "http://127.0.0.1:8002",
    ]
    assert value["profile"] == "qwen3-32b+qwen3-1.7b"


def test_one_gpu_is_shared_and_never_more_than_there_is() -> None:
    models = sorted(SERVED.values(), key=lambda model: -model.parameters)
    for large, small in itertools.combinations(models, 2):
        found = plan("vllm", large, small, Settings(4096))
        parts = [float(dict(_pairs(c))["--gpu-memory-utilization"]) for c in found.commands]
        assert sum(parts) <= 0.91
        assert parts[0] >= parts[1] >= 0.1
    parts = [
        float(dict(_pairs(c))["--gpu-memory-utilization"])
        for c in plan("vllm", named("a/b-30B"), named("a/b-3B"), Settings(4096, gpus=("0",))).commands
    ]
    assert parts == [0.8, 0.1]  # by the sizes in their names, the smaller one at its least


def _pairs(command: Command) -> list[tuple[str, str]]:
    return [(option[0], option[1]) for option in command.options if len(option) == 2]


def test_pairs_have_many_names() -> None:
    for name in ("qwen3-32b", "qwen3-32b+qwen3-1.7b", "Qwen3-32B/Qwen3-1.7B"):
        assert [m.name for m in find_served_pair(name)] == ["qwen3-32b", "qwen3-1.7b"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("qwen3-32",), "did you mean qwen3-32b"),
        (("qwen3-32b/nobody",), "Any two models: --large NAME --small NAME"),
        ((), "name a PAIR"),
        (("--large", "a"), "give both --large and --small"),
        (("default", "--large", "a", "--small", "b"), "name a PAIR"),
        (("default", "--gpus", "0,1,2"), "--gpus takes one GPU for both models, or LARGE,SMALL"),
        (("default", "--exec", "--json"), "not both"),
    ],
)
def test_bad_input_gives_one_line(main: Main, args: tuple[str, ...], says: str) -> None:
    code, out, err = main(*args)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_server_that_is_not_installed(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = main("default", "--exec")
    assert code == 2
    assert "vllm is not installed here: pip install vllm" in err


# ---- running them

STAND_IN = """#!{python}
import http.server, os, signal, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
print("started on", port, os.environ.get("VLLM_MAX_STOP_STRINGS"), flush=True)
{extra}
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
print("half a line", end="", flush=True)
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


def stand_in(folder: Path, name: str, extra: str = "") -> None:
    path = folder / name
    path.write_text(STAND_IN.format(python=sys.executable, extra=extra))
    path.chmod(0o755)


def free_port() -> int:
    """Of two in a row."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            with suppress(OSError):
                other.bind(("127.0.0.1", port + 1))
                return port


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def commands() -> tuple[Command, Command]:
    return plan("vllm", *find_served_pair("default"), Settings(4096, port=free_port())).commands


def children_of(me: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(me).children(recursive=True)
    return []


def _silent(author: Author, line: str) -> None:
    pass


async def test_both_run_and_both_end(path: Path) -> None:
    stand_in(path, "vllm", extra="subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])")
    said: list[tuple[Author, str]] = []
    ready = asyncio.Event()
    task = asyncio.create_task(run_both(commands(), lambda a, line: said.append((a, line)), ready.set))
    await asyncio.wait_for(ready.wait(), 60)
    running = children_of(os.getpid())
    assert len(running) == 4  # a server and what it started itself, twice
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert [a for a, line in said if line.startswith("started on")] == [Author.LARGE, Author.SMALL]
    assert all(line.endswith(" 128") for _, line in said if line.startswith("started on"))
    assert (Author.SMALL, "half a line") in said
    assert not [p for p in running if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


async def test_when_one_ends_both_end(path: Path) -> None:
    extra = "if port % 2 == int(os.environ['ODD']): sys.exit(7)"
    stand_in(path, "vllm", extra=extra)
    both = commands()
    for failing in both:
        os.environ["ODD"] = str(int(failing.url[-1]) % 2)
        with pytest.raises(ExceptionGroup) as group:
            await asyncio.wait_for(run_both(both, _silent, lambda: None), 60)
        [error] = group.value.exceptions
        assert isinstance(error, ResourceError)
        assert f"the {failing.author.value} model's server ended (exit code 7)" in str(error)
        assert children_of(os.getpid()) == []


async def test_one_that_does_not_want_to_end_is_killed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "STOP_S", 0.3)
    stand_in(path, "vllm", extra="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    ready = asyncio.Event()
    task = asyncio.create_task(run_both(commands(), _silent, ready.set))
    await asyncio.wait_for(ready.wait(), 60)
    task.cancel()
    await asyncio.wait([task])
    assert children_of(os.getpid()) == []


async def test_a_module_that_is_missing() -> None:
    command = Command(Author.LARGE, (sys.executable, "-m", "no_such_module.x"), (), "http://x", {}, "ask")
    with pytest.raises(UserError, match="no_such_module is not installed here: ask"):
        await run_both([command], _silent, lambda: None)


def test_ctrl_c_stops_both(path: Path) -> None:
    stand_in(path, "llama-server")
    args = ("default", "--engine", "llama-server", "--exec", "--port", str(free_port()))
    process = subprocess.Popen(
        [sys.executable, "-m", "relaygen", "launch", *args], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stderr
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if "relaygen serve" in line:
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(30) == 130
    process.stderr.close()
    assert "both servers have been stopped" in rest
    assert any(line.startswith("large | started on") for line in lines)
    assert any(line.startswith("small | started on") for line in lines)
    listing = subprocess.run(["ps", "-eo", "args"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert str(path / "llama-server") not in listing
