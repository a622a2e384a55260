"""What SECURITY.md promises and no other test holds."""

from __future__ import annotations

import ast
import asyncio
import html.parser
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

import relaygen
from relaygen import trace
from relaygen.cli import app
from relaygen.engines.http import Endpoint, Http
from relaygen.errors import EngineProtocolError, RelayError, UserError
from relaygen.gateway.log import JsonFormatter
from relaygen.gateway.wire import RefusedError, chat_job
from relaygen.models.catalogue import CATALOGUE
from relaygen.profile import ProfileError, load
from relaygen.report import html as pages
from tests.asking import SCRIPT, engine_of, relay
from tests.bare import bare_server
from tests.fakes import FakeVllm
from tests.serving import Player, ask, serving

KEY = "sk-0123456789abcdef"
ROOT = Path(relaygen.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

# ---- no code comes from data

FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "yaml", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
# The user's own grader, named on the command line, is the one file that is run.
LOADS_A_FILE = {"analyse/grading_worker.py"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            assert not FORBIDDEN_MODULES & {name.split(".")[0] for name in names}, ast.unparse(node)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in FORBIDDEN_CALLS, ast.unparse(node)
            assert not any(k.arg == "shell" for k in node.keywords), ast.unparse(node)
            if called.endswith(("exec_module", "spec_from_file_location")):
                assert str(path.relative_to(ROOT)) in LOADS_A_FILE, ast.unparse(node)


def test_weights_come_with_a_checksum() -> None:
    for model in CATALOGUE.values():
        assert re.fullmatch("[0-9a-f]{64}", model.sha256), model.name
        assert Path(model.file).name == model.file, "no path out of the cache"


# ---- a client never chooses an address

ELSEWHERE = "http://169.254.169.254/latest"


@pytest.mark.parametrize(
    "fields",
    [
        {"base_url": ELSEWHERE},
        {"engine": ELSEWHERE},
        {"large": ELSEWHERE},
        {"relaygen": {"large": ELSEWHERE}},
        {"relaygen": {"url": ELSEWHERE}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ELSEWHERE}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "?", "url": ELSEWHERE}]}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": ELSEWHERE}}}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [{"$ref": ELSEWHERE}]}}}]},
    ],
    ids=str,
)  # fmt: skip
def test_no_field_takes_an_address(fields: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        chat_job(json.dumps({**ask(), **fields}).encode(), max_messages=9)


@pytest.mark.parametrize(
    "name", [ELSEWHERE, f"relaygen:{ELSEWHERE}", "relaygen:../../etc/passwd", "/etc/passwd.toml"]
)
async def test_no_name_is_an_address_or_a_path(name: str) -> None:
    async with serving() as gateway:
        assert (await gateway.post({**ask(), "model": name}))[0] == 404
        status, body = await gateway.post(ask(relaygen={"profile": name.removeprefix("relaygen:")}))
        assert (status, body["error"]["param"]) == (400, "relaygen.profile")
        async with gateway.http.get(f"{gateway.url}/v1/models/{name}") as response:
            assert response.status == 404


async def test_no_header_of_a_client_reaches_an_engine() -> None:
    fake = FakeVllm(SCRIPT)
    seen: list[dict[str, str]] = []
    honest = fake.complete

    async def complete(request: Any) -> Any:
        seen.append(dict(request.headers))
        return await honest(request)

    fake.complete = complete
    async with engine_of(fake) as engine:
        await relay(engine, engine)
        seen.clear()
        async with serving(engine, engine) as gateway:
            headers = {
                "X-Forwarded-Host": "evil",
                "X-Engine-Url": ELSEWHERE,
                "Authorization": f"Bearer {KEY}",
            }
            await gateway.post(ask(), headers=headers)
    assert seen
    assert not [h for h in seen if "evil" in str(h) or ELSEWHERE in str(h) or KEY in str(h)]


def test_a_name_of_a_profile_is_no_way_out_of_its_folder() -> None:
    for name in ("..", ".", "", "con", "generic\0", "generic.toml\0x", "%2e%2e%2fgeneric", "~root"):
        with pytest.raises(ProfileError):
            load(name)


# ---- keys


async def test_a_key_is_in_no_error_log_or_representation(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert KEY not in repr(Endpoint("http://a", KEY))
    assert "pa55" not in repr(Endpoint("http://user:pa55@a"))
    async with serving(Player(), keys=(KEY,)) as gateway:
        for header in (f"Bearer {KEY}", f"Bearer {KEY}x", KEY, f"Basic {KEY}"):
            status, body = await gateway.post(ask(), headers={"Authorization": header})
            assert status in (200, 401)
            assert KEY not in json.dumps(body)
        async with gateway.http.get(f"{gateway.url}/metrics") as response:
            assert KEY not in await response.text()
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert any('"request"' in line for line in lines)
    assert not [line for line in lines if KEY in line]


@pytest.mark.parametrize("key", ["a\nb", "clé", "a\r\nX-Other: 1", "\0"])
async def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(UserError, match="one line") as told:
        Http(Endpoint("http://127.0.0.1:9", key, "the engine"))
    assert key not in str(told.value)


def test_no_option_takes_a_key() -> None:
    """What is said on the command line stands in the list of processes."""
    root: Any = typer.main.get_command(app)
    for command in root.commands.values():
        for one in getattr(command, "commands", {"": command}).values():
            for parameter in one.params:
                if "key" in parameter.name:
                    assert parameter.name == "api_keys_file"


async def test_what_comes_back_from_an_engine_shows_no_key(caplog: pytest.LogCaptureFixture) -> None:
    """Also where the key stands in an answer that makes no sense."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = f"<html>you sent {KEY}".encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with bare_server(serve) as url:
        http = Http(Endpoint(url, KEY))
        with pytest.raises(EngineProtocolError, match=r"\*\*\*") as told:
            await http.get("/v1/models")
        await http.close()
    assert KEY not in str(told.value)


# ---- servers that talk nonsense


@pytest.mark.parametrize(
    "nonsense",
    [
        b"", b"\xff" * 5000, b"SSH-2.0-OpenSSH_9.9\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", b"HTTP/1.1 999 \r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x" * 10**6,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
async def test_a_server_that_speaks_no_http(nonsense: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(nonsense)

    async with bare_server(serve) as url, asyncio.timeout(20):
        http = Http(Endpoint(url), read_s=2)
        with pytest.raises(RelayError) as told:
            await http.get("/v1/models")
        await http.close()
    assert len(str(told.value).splitlines()) == 1
    assert len(str(told.value)) < 1000


# ---- pages


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, attrs))


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "'onmouseover='x",
        "</title><svg/onload=x>",
        "\x00<b>",
    ],
)
def test_a_page_holds_no_tag_of_others(attack: str) -> None:
    def tags(text: str) -> list[tuple[str, Any]]:
        parser = _Tags()
        parser.feed(pages.head(text, "", "") + pages.facts_list([(text, text)]) + pages.end(""))
        return parser.found

    assert tags(attack) == tags("harmless")


# ---- sizes and costs: input that is small must not become work that is large


def test_a_deep_key_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """tomllib takes 7 s over 8,000 parts, and the time grows with the square."""
    for text in (
        "a." * 400_000 + "a = 1",
        "[" + "a . " * 99 + "a]",
        '"a b".' * 99 + "a = 1",
        "x = {" + "'a'." * 99 + "a = 1}",
    ):
        (tmp_path / "p.toml").write_text(text)
        with pytest.raises(ProfileError, match="line 1: a key of too many parts"):
            load(tmp_path / "p.toml")
    good = (
        'name = "x"\ncues = ["So"]\nabout = "' + "e.g. 3.14, a.b.c ... and so on. " * 40 + '"\n[evidence]\n'
    )
    (tmp_path / "p.toml").write_text(good + "margins = [" + "0.5, " * 200 + "]")
    assert load(tmp_path / "p.toml").cues == ("So",)
    (tmp_path / "p.toml").write_text('name = "' + "ab_" * 300_000 + '"')  # linear, whatever stands there
    with pytest.raises(ProfileError):
        load(tmp_path / "p.toml")


def test_a_profile_of_the_future_says_so(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('format = 2\nname = "x"\nnew_key = 1\n')
    with pytest.raises(
        ProfileError, match=r"p\.toml, line 1: format 2 is not known: this release of relaygen reads format 1"
    ):
        load(tmp_path / "p.toml")


def test_numbers_of_a_trace_make_no_lists(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "So it is.", "num_tokens": 1000000000000}\n')
    assert next(trace.read(path)).num_tokens == 10**12


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without end")
@pytest.mark.parametrize(
    "command", ["replay /dev/zero", "run --cues /dev/zero x", "serve --config /dev/zero"]
)
def test_a_file_without_end_is_given_up(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relaygen", *command.split()],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ},
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "right file" in done.stderr or "larger than" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize("command", ["profiles show generic --json", "models list --json", "--version"])
def test_a_closed_output_is_no_fault(command: str) -> None:
    line = f'"$0" -m relaygen {command} >&-'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


# ---- what is public is explained


def test_every_public_name_has_a_docstring() -> None:
    for name in relaygen.__all__:
        value = getattr(relaygen, name)
        if isinstance(value, type):
            told = value.__doc__ or ""
            assert told, name
            assert not told.startswith(f"{name}("), f"{name} has only the docstring that dataclass makes"
