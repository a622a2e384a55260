"""Imports point one way: each module names here what of ours it may import, and nothing else passes."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import relaygen

ROOT = Path(relaygen.__file__).parent

# In the order of the data flow. A package stands for all its modules.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": {"types"},  # for a type only
    "types": {"errors"},
    "core": {"types", "errors"},
    "waiting": {"errors"},
    "chaos": {"errors", "waiting"},
    "files": {"errors"},
    "toml_faults": set(),
    "toml_write": set(),
    "profile": {"types", "errors", "toml_faults", "toml_write"},
    "gguf": {"errors"},
    "models": {"errors", "gguf"},
    "launch": {"types", "errors", "models", "waiting"},
    "engines": {"types", "errors", "local", "models"},
    "local": {"errors", "gguf", "engines"},
    "prewarm": {"types", "errors", "core", "engines"},
    "run": {"types", "errors", "core", "engines", "prewarm"},
    "trace": {"types", "errors", "files"},
    "tasks": {"errors", "files"},
    "analyse": {"types", "errors", "files", "core", "profile", "trace"},
    "examine": {"types", "errors", "core", "engines", "analyse"},
    "simulate": {"types", "errors", "analyse", "trace"},
    "strategies": {"types", "errors", "core", "profile"},
    "api": {"types", "errors", "core", "profile", "strategies", "models", "engines", "local", "run"},
    "measure": {"types", "errors", "waiting", "profile", "strategies", "run", "trace", "tasks"},
    "bench": {"types", "errors", "waiting", "core", "engines", "run", "analyse"},
    "calibrate": {"types", "errors", "engines", "trace", "analyse", "tasks"},
    "config": {"errors", "files", "toml_faults", "api"},
    "gateway": {
        "types",
        "errors",
        "files",
        "core",
        "strategies",
        "engines",
        "profile",
        "run",
        "trace",
        "waiting",
        "api",
        "config",
        "",
    },
    "batch": {"types", "errors", "waiting", "config", "gateway"},
    "serve_ray": {"errors", "config", "gateway"},
    "report": {"types", "errors", "trace", "analyse"},
    "cli": {
        "types",
        "errors",
        "files",
        "api",
        "engines",
        "models",
        "profile",
        "strategies",
        "report",
        "trace",
        "run",
        "analyse",
        "examine",
        "launch",
        "measure",
        "calibrate",
        "local",
        "tasks",
        "simulate",
        "config",
        "gateway",
        "batch",
        "bench",
        "core",
        "",
    },
    "": {"api", "errors", "run", "strategies", "types"},
    "__main__": {"cli"},
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "relaygen"
                else [node.module or ""]
            )
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    for name in imported(path):
        if name.split(".")[0] != "relaygen":
            continue
        first = (name.split(".") + [""])[1]
        first = first if first in MAY_IMPORT else ""
        assert first == part or first in MAY_IMPORT[part], f"{part or 'relaygen'} may not import {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "core").glob("*.py")), ids=lambda path: path.name)
def test_the_core_is_pure(path: Path) -> None:
    impure = {
        "asyncio",
        "io",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "socket",
        "subprocess",
        "sys",
        "threading",
        "time",
        "datetime",
    }
    for name in imported(path):
        top = name.split(".")[0]
        assert top == "relaygen" or (top in sys.stdlib_module_names and top not in impure), name
