"""How an evaluation was made: what is kept of each start, and how it is told in the report."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from relaygen import __version__
from relaygen.report.summary import Row

_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def command(arguments: Sequence[str]) -> str:
    """As it was typed, without what stands for a password in an address."""
    return _PASSWORD.sub("", f"relaygen {shlex.join(arguments)}")


def environment(dialects: Mapping[str, str]) -> dict[str, Any]:
    """Of this process; the engines may run on other machines, of which their servers tell nothing."""
    found: dict[str, Any] = {
        "relaygen": __version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "engines": dict(dialects),
    }
    for package in ("xllamacpp", "math-verify"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def what_was_compared(made: Mapping[str, Any]) -> list[Row]:
    models = [(f"{author} model", name) for author, name in sorted(made["models"].items())]
    samples = f", {made['samples']} answers to each" if made["samples"] > 1 else ""
    return [
        *models,
        ("problems", f"{made['problems']:,} of {made['data']}{samples}"),
        ("writing", _sampling(made)),
    ]


def how_it_was_made(made: Mapping[str, Any]) -> list[Row]:
    rows = [
        ("asked", made["prompt"]),
        ("strategies", "\n".join(f"{name}: {_strategy(*of)}" for name, of in made["strategies"].items())),
        ("sampling", ", ".join(f"{name} {value}" for name, value in made["sampling"].items())),
        (
            "seeds",
            f"All draws follow from the seed {made['sampling']['seed']}, the id of the problem and the number of the sample; all "
            "strategies answer on the same seeds. Each answer has its own in answers.jsonl.",
        ),
        ("graded by", made["grading"]),
    ]
    if made["prices"]:
        rows.append(
            ("prices", f"{made['prices']} of a million tokens written by the large model, the small one")
        )
    rows.append(
        (
            "intervals",
            "95 %, by the bootstrap over problems with 10,000 draws (Efron 1979); differences are taken problem by problem.",
        )
    )
    for session in made["sessions"]:
        about = ", ".join(f"{name} {_plain(value)}" for name, value in session["environment"].items())
        several = f"\n{session['concurrency']} answers at once, so each took longer than alone" * (
            session["concurrency"] > 1
        )
        rows.append((f"started {session['started']}", f"{session['command']}\n{about}{several}"))
    return [
        *rows,
        ("problems' SHA-256", made["problems_sha256"]),
        ("answers.jsonl's SHA-256", made["answers_sha256"]),
    ]


def _sampling(made: Mapping[str, Any]) -> str:
    sampling = made["sampling"]
    how = f"at temperature {sampling['temperature']:g}" if sampling["temperature"] else "greedy"
    return f"{how}, at most {made['max_tokens']:,} tokens over both models"


def _strategy(policy: str, profile: Mapping[str, Any]) -> str:
    if policy in ("large", "small"):
        return f"{policy} model alone"
    cues = profile["cues"]
    some = " ".join(map(repr, cues[:12])) + (" …" if len(cues) > 12 else "")
    return f"policy {policy}, profile {profile['name']} with {len(cues)} cues: {some}"


def _plain(value: Any) -> str:
    return ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)  # pyright: ignore


def _processor() -> str:
    """Its name where the system tells it, else its kind."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            found = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
