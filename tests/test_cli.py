"""The command itself: in processes of its own where weights are needed, and by its entry point where the input is bad."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from relaygen import __version__, cli
from relaygen.local import LocalServer, LocalSettings
from relaygen.models import CATALOGUE, store

COMMAND = str(Path(sys.executable).with_name("relaygen"))
SMOL = "smollm2-135m"
BOTH = ("--large", SMOL, "--small", SMOL)
GREEDY = ("--temperature", "0", "--max-tokens", "60")
QUESTION = "Explain what a prime number is. 😀 因此"
CUES = "the\nis\na\n# a comment\n\nand\n"
LONG = ("--policy", "large", "--max-tokens", "8000", "Write a very long story about a king.")
WAIT_S = 120


def environment(**changes: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")}
    return plain | {"TERM": "xterm-256color", "COLUMNS": "100"} | changes


def relaygen(
    *args: str, stdin: bytes = b"", stdout: Any = subprocess.PIPE, **changes: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [COMMAND, *args],
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment(**changes),
        timeout=WAIT_S,
        check=False,
    )


@pytest.fixture
def cues(tmp_path: Path) -> Path:
    path = tmp_path / "cues.txt"
    path.write_text(CUES)
    return path


# ---- an answer


@pytest.mark.weights
@pytest.mark.usefixtures("smollm2")
def test_text_on_stdout_and_the_rest_elsewhere(cues: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    done = relaygen("run", *BOTH, *GREEDY, "--cues", str(cues), "--trace", str(file), QUESTION)
    assert done.returncode == 0, done.stderr
    [line] = file.read_bytes().splitlines()
    value = json.loads(line)
    assert done.stdout.decode() == value["text"] != ""
    assert value["problem"] == QUESTION
    assert {s["author"] for s in value["segments"]} == {"large", "small"}
    assert {s["cue"] for s in value["segments"]} <= {"the", "is", "a", "and", None}

    said = done.stderr.decode()
    assert "\x1b" not in said
    rows = [row.split() for row in said.splitlines() if row.strip()]
    names = [row[0] for row in rows]
    assert names == ["large", "small", "turns", "time", "lost", "large", "ended"]
    usage = value["usage"]
    assert [rows[0][1], rows[1][1]] == [str(usage["large_tokens"]), str(usage["small_tokens"])]
    assert "estimated" in rows[5]

    # The same question from standard input, as one object.
    again = relaygen(
        "run", *BOTH, *GREEDY, "--cues", str(cues), "--json", "-", stdin=QUESTION.encode(), NO_COLOR="1"
    )
    assert (again.returncode, again.stderr) == (0, b"")
    assert again.stdout.count(b"\n") == 1
    assert again.stdout.endswith(b"}\n")
    found = json.loads(again.stdout)
    assert found["text"] == value["text"]
    assert "".join(s["text"] for s in found["segments"]) == found["text"]
    assert found["usage"] == usage
    assert sum(len(s["token_ids"]) for s in found["segments"]) == (
        usage["large_tokens"] + usage["small_tokens"]
    )
    assert found["finish_reason"] in ("stop", "length")


@pytest.mark.weights
@pytest.mark.usefixtures("smollm2")
def test_a_stream_that_does_not_know_the_characters() -> None:
    question = "Repeat: 😀🐉 因此"
    done = relaygen(
        "run", *BOTH, "--temperature", "0", "--max-tokens", "12", question, PYTHONIOENCODING="ascii"
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert b"?" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.weights
def test_a_prompt_longer_than_the_context(smollm2: Path) -> None:
    done = relaygen("run", *BOTH, "--context", "64", "-", stdin=b"word " * 300)
    assert (done.returncode, done.stdout) == (2, b"")
    assert re.fullmatch(
        rf"relaygen: the prompt is 3\d\d tokens long and {re.escape(smollm2.name)} at http://127.0.0.1:\d+ holds"
        r" \d+: shorten it, or start the engine with a longer context\n",
        done.stderr.decode(),
    )


@pytest.mark.weights
def test_weights_with_an_odd_name(smollm2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a b 'é😀"
    folder.mkdir()
    odd = folder / "mödel x.gguf"
    odd.symlink_to(smollm2)
    done = relaygen("run", "--small", str(odd), "--policy", "small", "--max-tokens", "2", "--json", "Hi")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["metadata"]["models"] == {"small": "mödel x.gguf"}
    assert [s["author"] for s in value["segments"]] == ["small"]


# ---- stopped in the middle


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
def test_a_reader_that_goes_away() -> None:
    process = subprocess.Popen(
        [COMMAND, "run", *BOTH, *LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout
    assert process.stderr
    with process, process.stderr:
        assert len(process.stdout.read(1)) == 1
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(WAIT_S) == 1
    assert "Traceback" not in said
    assert "Exception" not in said


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
def test_ctrl_c_shows_what_there_is(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    process = subprocess.Popen(
        [COMMAND, "run", *BOTH, "--trace", str(file), *LONG],
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    assert process.stdout
    with process:
        first = process.stdout.read(1)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
    said = err.decode()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert re.search(r"^ended +stopped *$", said, re.MULTILINE)
    value = json.loads(file.read_bytes())
    assert first + out == value["text"].encode() != b""
    assert value["finish_reason"] == "stopped"


@pytest.mark.weights
@pytest.mark.slow
def test_ctrl_c_stops_a_server_elsewhere(smollm2: Path) -> None:
    """Nothing is shown before the end with --json: the server itself says when it works, and when it no longer does."""
    server = asyncio.run(LocalServer.start(smollm2, LocalSettings(), name="elsewhere"))
    url, key = server.endpoint.url, server.endpoint.api_key or ""
    try:
        process = subprocess.Popen(
            [COMMAND, "run", "--large", url, "--json", *LONG],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(RELAYGEN_LARGE_API_KEY=key),
            start_new_session=True,
        )
        with process:
            while not _decoded(url, key):
                assert process.poll() is None
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, err) == (130, b"")
        value = json.loads(out)
        assert value["finish_reason"] == "stopped"
        while (num_tokens := _decoded(url, key)) is not None:
            assert num_tokens < value["usage"]["large_tokens"] + 64, "it goes on with its story"
        assert relaygen("run", "--large", url, "--policy", "large", "q").stderr == (
            b"relaygen: the large model at %s wants another API key: Invalid API Key\n" % url.encode()
        )
    finally:
        server.close()


def _decoded(url: str, key: str) -> int | None:
    """How many tokens the server has written of what it is writing; None when it is idle."""
    time.sleep(0.02)
    request = urllib.request.Request(f"{url}/slots", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        [slot] = json.load(answer)
    return int(slot["next_token"][0]["n_decoded"]) if slot["is_processing"] else None


@pytest.mark.parametrize("module", ["relaygen.cli", "relaygen.api", "aiohttp"])
def test_ctrl_c_is_quiet_while_the_program_still_loads(module: str) -> None:
    interrupt = f"""
import runpy, sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
runpy.run_module("relaygen", run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", interrupt], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


# ---- on a terminal


class Terminal:
    """Runs the command on a pseudo-terminal. `shown` is all it wrote, with line ends as the program wrote them."""

    def __init__(self, *args: str, **changes: str) -> None:
        ours, theirs = pty.openpty()
        self._fd = ours
        self._process = subprocess.Popen(
            [COMMAND, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(**changes),
            start_new_session=True,
        )
        os.close(theirs)
        self._shown = bytearray()

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    def until(self, done: Callable[[str], bool] = lambda shown: False) -> None:
        """To the first moment at which it is `done`, or to the end."""
        watchdog = threading.Timer(WAIT_S, self._process.kill)
        watchdog.start()
        try:
            while not done(self.shown):
                read = b""
                with suppress(OSError):  # how Linux says that nobody writes any more
                    read = os.read(self._fd, 65536)
                if not read:
                    return
                self._shown += read
        finally:
            watchdog.cancel()

    def interrupt(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    def close(self) -> int:
        self.until()
        os.close(self._fd)
        return self._process.wait(WAIT_S)


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d(?:;\d+)*m")


def _plain(shown: str) -> str:
    """What stays on the screen, without the line that said "loading the models"."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.rpartition("\x1b[?25h")[2])


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
@pytest.mark.parametrize("no_color", [False, True])
def test_on_a_terminal(cues: Path, tmp_path: Path, no_color: bool) -> None:
    file = tmp_path / "trace.jsonl"
    terminal = Terminal(
        "run",
        *BOTH,
        *GREEDY,
        *("--cues", str(cues), "--trace", str(file), QUESTION),
        **({"NO_COLOR": "1"} if no_color else {}),
    )
    assert terminal.close() == 0, terminal.shown
    assert "loading the models" in terminal.shown
    value = json.loads(file.read_bytes())
    marked = value["segments"][0]["text"]
    for before, segment in zip(value["segments"], value["segments"][1:], strict=False):
        changed = segment["author"] != before["author"]
        marked += {"large": "◀", "small": "▶"}[segment["author"]] * changed + segment["text"]
    assert "▶" in marked
    plain = _plain(terminal.shown)
    assert marked in plain
    assert re.search(r"◀ large \S+\.gguf +▶ small \S+\.gguf", plain)
    assert "estimated" in plain
    if no_color:
        assert not COLOUR.search(terminal.shown)
    else:
        assert "\x1b[96m" in terminal.shown
        assert "\x1b[93m" in terminal.shown


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
def test_ctrl_c_while_the_models_load() -> None:
    terminal = Terminal("run", *BOTH, *LONG)
    terminal.until(lambda shown: "loading the models" in shown)
    terminal.interrupt()
    assert terminal.close() == 130, terminal.shown
    assert "Traceback" not in terminal.shown
    assert "◀" not in terminal.shown
    assert terminal.shown.endswith("\x1b[?25h") or "\x1b[?25h" in terminal.shown  # the cursor is back


# ---- bad input: one line, and the exit code of the fault


Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """The entry point in this process: exit code, what it wrote, what it said."""

    def call(*args: str, stdin: bytes | None = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["relaygen", *args])
        monkeypatch.setattr(sys, "stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin)))
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1 if stop.code else 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without weights and without a way to them."""
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RELAYGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _files(folder: Path) -> None:
    (folder / "garbage.gguf").write_bytes(bytes(range(256)) * 40)
    (folder / "empty.gguf").touch()
    (folder / "cut.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\1" + bytes(30))
    (folder / "folder.gguf").mkdir()
    (folder / "dangling.gguf").symlink_to("nowhere.gguf")
    (folder / "loop.gguf").symlink_to("loop.gguf")
    (folder / "typo.toml").write_text('name = "x"\ncues = ["So,"]\n\n[limits]\nmax_tokns = 5\n')
    (folder / "broken.toml").write_text('name = "x"\ncues = [\n"So,"\n[limits]\n')
    (folder / "cues.txt").write_text('# mine\nSo,\n"Now,\n')
    (folder / "twice.txt").write_text("So,\n\nNow,\nSo,\n")


URL = ("--large", "http://127.0.0.1:9", "--small", "http://127.0.0.1:9")
BAD: list[tuple[Sequence[str], int, str]] = [
    (("--large", "absent.gguf"), 2, "absent.gguf does not exist"),
    (("--small", "absent.gguf", "--policy", "small"), 2, "absent.gguf does not exist"),
    (("--large", "garbage.gguf"), 2, "garbage.gguf is not a GGUF file"),
    (("--large", "empty.gguf"), 2, "empty.gguf is not a GGUF file"),
    (("--large", "cut.gguf"), 2, "cut.gguf is cut off in its header: it holds 39 bytes; fetch it again"),
    (("--large", "folder.gguf"), 2, "folder.gguf is not a file"),
    (("--large", "."), 2, ". is not a file"),
    (("--large", "dangling.gguf"), 2, "dangling.gguf does not exist"),
    (("--large", "loop.gguf"), 2, "loop.gguf does not exist"),
    (("--large", "smolm2"), 2, 'no model is called "smolm2"; did you mean smollm2-135m?'),
    (("--profile", "generc"), 2, 'unknown profile "generc" (did you mean "generic"?); there are generic,'),
    (("--profile", "./absent.toml"), 2, "absent.toml: cannot be read: no such file or directory"),
    (("--profile", "typo.toml"), 2, 'typo.toml, line 5: unknown key "max_tokns" in [limits] (did you mean'),
    (("--profile", "broken.toml"), 2, "broken.toml, line 4: not TOML: "),
    (("--cues", "cues.txt"), 2, 'cues.txt, line 3: "\\"Now," starts with a quote'),
    (("--cues", "twice.txt"), 2, 'twice.txt, line 4: the cue "So," is listed twice'),
    (("--cues", "absent.txt"), 2, "absent.txt: cannot be read: no such file or directory"),
    (("--max-tokens", "0"), 2, "--max-tokens must be 1 or more, not 0"),
    (("--max-tokens", "-3"), 2, "--max-tokens must be 1 or more, not -3"),
    (("--context", "0"), 2, "context_tokens must be 16 or more, not 0"),
    (("--threads", "0"), 2, "threads must be 1 or more, not 0"),
    (("--temperature", "nan"), 2, "temperature must be between 0 and 100, not nan"),
    (("--temperature", "-1"), 2, "temperature must be between 0 and 100, not -1"),
    (("--top-p", "0"), 2, "top_p must be between 1e-09 and 1, not 0"),
    (("--top-p", "inf"), 2, "top_p must be between 1e-09 and 1, not inf"),
    (("--top-k", "-1"), 2, "top_k must be between 0 and 2.14748e+09, not -1"),
    (("--seed", "-1"), 2, "seed must be between 0 and 2**63 - 1, not -1"),
    (("--seed", str(2**63)), 2, f"seed must be between 0 and 2**63 - 1, not {2**63}"),
    (("--policy", "sgment"), 2, "unknown policy 'sgment': choose one of segment, phase, large, small"),
    (("--trace", "absent/t.jsonl"), 2, "cannot write the trace to absent/t.jsonl: No such file or directory"),
    (("--draft", "http://127.0.0.1:9"), 2, "a draft model works inside a large model on this machine"),
    ((*URL, "--draft", "small"), 2, "a draft model works inside a large model on this machine"),
    (URL, 5, "the large model at http://127.0.0.1:9 cannot be reached (Connection refused). Is the server"),
    (
        ("--large", "http://me:secret@127.0.0.1:9/?key=secret"),
        5,
        "the large model at http://127.0.0.1:9 cannot",
    ),
    (("--large", "http://"), 2, "the address of the large model is no URL: it names no host"),
    (("--small", "https://[::1"), 2, "the address of the small model is no URL: Invalid IPv6 URL"),
    (("--small", "http://h:99999"), 2, "the address of the small model is no URL: Port out of range 0-65535"),
    (("--large", "http://me:secret@h:x"), 2, "the address of the large model is no URL: "),
]


@pytest.mark.parametrize(("args", "code", "message"), BAD, ids=[" ".join(args) for args, _, _ in BAD])
def test_bad_input(main: Main, nothing: Path, args: Sequence[str], code: int, message: str) -> None:
    """Said before anything is fetched or loaded: here there is nothing to load."""
    _files(nothing)
    there = {"--small": "http://127.0.0.1:9", "--large": "http://127.0.0.1:9"} | dict(
        zip(args[::2], args[1::2], strict=True)
    )
    if "http" in there.get("--draft", ""):
        there["--large"] = SMOL
    found = main("run", *(word for pair in there.items() for word in pair), "question")
    assert found[:2] == (code, "")
    assert found[2].startswith(f"relaygen: {message}")
    assert found[2].count("\n") == 1
    assert found[2].endswith("\n")
    assert "secret" not in found[2]


@pytest.mark.parametrize(
    ("question", "stdin", "message"),
    [
        ("-", b"ab\xff", "standard input is not UTF-8 (byte 2 is 0xff)"),
        ("-", b"\xff\xfea\0", "standard input is not UTF-8 (byte 0 is 0xff)"),
        ("-", None, "standard input is closed"),
        ("-", b"", "the prompt is empty"),
        ("-", b" \n\t", "the prompt is empty"),
        ("", b"", "the prompt is empty"),
        ("caf\udce9", b"", "the user message is not valid Unicode (character 4)"),
    ],
)
def test_bad_questions(main: Main, nothing: Path, question: str, stdin: bytes | None, message: str) -> None:
    assert main("run", *BOTH, question, stdin=stdin) == (2, "", f"relaygen: {message}\n")


def test_a_system_message_is_no_question(main: Main, nothing: Path) -> None:
    assert main("run", *BOTH, "--system", "Be brief.", " ") == (2, "", "relaygen: the prompt is empty\n")
    code, _, said = main("run", *BOTH, "--system", "\udcff", "q")
    assert (code, said) == (2, "relaygen: the system message is not valid Unicode (character 1)\n")


def test_wrong_usage(main: Main) -> None:
    for args in (
        ("run",),
        ("run", "--max-tokens", "x", "q"),
        ("run", "--unknown", "q"),
        ("runn",),
        ("run", "q", "r"),
    ):
        code, out, said = main(*args)
        assert (code, out) == (2, ""), args
        assert "Usage:" in said
    assert main("--version")[:2] == (0, f"relaygen {__version__}\n")


def test_a_wrong_checksum(main: Main, nothing: Path) -> None:
    """A file in the cache that is not what it claims to be is fetched again, and never used."""
    file = store.folder() / CATALOGUE[SMOL].file
    file.parent.mkdir(parents=True)
    with file.open("wb") as out:
        out.truncate(CATALOGUE[SMOL].size_bytes)
    code, out_text, said = main("models", "path", SMOL)
    assert (code, out_text) == (2, "")
    assert re.fullmatch(
        rf"relaygen: {re.escape(str(file))} has sha256 \w{{64}} instead of {CATALOGUE[SMOL].sha256};"
        rf" fetch it with: relaygen models pull {SMOL}\n",
        said,
    )
    code, out_text, said = main("run", *BOTH, "question")
    assert (code, out_text) == (3, "")
    assert f"relaygen: could not fetch {SMOL}\n" in said


def test_not_enough_disk(main: Main, nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=10_000_000)

    monkeypatch.setattr(shutil, "disk_usage", small)
    code, out, said = main("run", *BOTH, "question")
    assert (code, out) == (4, "")
    assert re.fullmatch(
        r"relaygen: smollm2-135m needs \d+ MB of disk, but 10 MB are free in .*; RELAYGEN_CACHE names another"
        r" folder\n",
        said,
    )


@pytest.mark.weights
@pytest.mark.usefixtures("smollm2")
def test_not_enough_memory(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**28))
    code, out, said = main("run", *BOTH, "question")
    assert (code, out) == (4, "")
    assert re.fullmatch(
        r"relaygen: SmolLM2-135M-Instruct.Q4_1.gguf needs about 0\.\d GiB of memory and 0\.2 GiB are free: .*\n",
        said,
    )


@pytest.mark.weights
def test_truncated_weights(main: Main, smollm2: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2.open("rb") as whole:
        cut.write_bytes(whole.read(5_000_000))
    size = CATALOGUE[SMOL].size_bytes
    assert main("run", "--large", str(cut), "--small", SMOL, "question") == (
        2,
        "",
        f"relaygen: {cut} is cut off: it holds 5000000 of {size} bytes; fetch it again\n",
    )


def test_an_error_is_not_obeyed_by_the_terminal(main: Main, nothing: Path) -> None:
    code, _, said = main("run", "--large", "\x1b[2J\x07.gguf", "--small", SMOL, "question")
    assert (code, said) == (2, "relaygen: �[2J�.gguf does not exist\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is Linux's")
def test_a_full_disk_on_standard_output() -> None:
    with Path("/dev/full").open("wb") as full:
        done = relaygen("models", "list", stdout=full)
    assert (done.returncode, done.stderr) == (1, b"relaygen: cannot write: No space left on device\n")


def test_the_command_in_a_process_of_its_own() -> None:
    done = relaygen("run", *BOTH, "--max-tokens", "0", "question")
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        b"",
        b"relaygen: --max-tokens must be 1 or more, not 0\n",
    )
