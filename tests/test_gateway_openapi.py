"""The OpenAPI document is true: Schemathesis asks by it, and checks the answers against it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.serving import Player, serving

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "unsupported_method,negative_data_rejection"
)


@pytest.mark.slow
async def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    script = ["It", " is", " 5", "."]
    async with serving(Player(script), Player(script)) as gateway:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", "-m", "schemathesis.cli", "run", gateway.url + "/openapi.json"),
            *("--checks", CHECKS, "--max-examples", "60", "--seed", "1", "--no-color"),
            *("--phases", "examples,coverage,fuzzing", "--generation-database", "none"),
            stdout=-1,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
