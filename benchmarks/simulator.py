"""Simulated engines for the other benchmarks: in a process of their own, so that their CPU time is not ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relaygen.simulate.script import Library
from relaygen.trace import Trace

_SHARED = Path(os.environ.get("RELAYGEN_SHARED", Path(__file__).parents[2] / "shared")) / "data"
_TRACES = _SHARED / "traces" / "qwen3-32b-aime25.jsonl"


def recorded() -> tuple[str, list[dict[str, Any]]]:
    """What the traces are, and each as its problem and text: the recorded ones, or those of the simulator without them."""
    if _TRACES.exists():
        lines = [json.loads(line) for line in _TRACES.read_text().splitlines()]
        return _TRACES.name, [{"problem": line["problem"], "text": line["text"]} for line in lines]
    scripts = Library.read().scripts
    return "built in", [{"problem": script.problem, "text": script.text} for script in scripts]


def count_tokens(text: str) -> int:
    """As the simulated engines count."""
    return len(Library([Trace("", text)]).scripts[0].ids)


@contextmanager
def simulators(folder: Path, traces: list[dict[str, Any]], *flags: str) -> Generator[dict[str, str]]:
    """The URLs of a pair that plays `traces`."""
    file = folder / "traces.jsonl"
    file.write_text("".join(json.dumps(trace) + "\n" for trace in traces))
    command = [sys.executable, "-m", "relaygen", "simulate", "--json", "--traces", str(file), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
