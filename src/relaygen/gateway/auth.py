"""Who may ask: API keys, and what a web page in somebody's browser may not do."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

from relaygen.errors import UserError
from relaygen.files import whole

VARIABLE = "RELAYGEN_API_KEYS"
LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
_MIN_CHARS = 8


class Keys:
    """Compared by digest, each of them, in constant time. Without keys everybody may ask."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    @classmethod
    def from_json(cls, digests: Iterable[str]) -> Keys:
        """What `to_json` gave."""
        keys = cls()
        keys._digests = tuple(bytes.fromhex(digest) for digest in digests)
        return keys

    def to_json(self) -> list[str]:
        """For another process: the digests, not the keys."""
        return [digest.hex() for digest in self._digests]

    def allow(self, authorization: str) -> bool:
        """`authorization`: the header, "Bearer <key>"."""
        if not self._digests:
            return True
        scheme, _, key = authorization.partition(" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def load(file: Path | None, environ: Mapping[str, str], *, host: str, auth: bool | None) -> Keys:
    """The keys for a server on `host`. UserError where others could connect and nothing was said about keys."""
    keys = [key.strip() for key in environ.get(VARIABLE, "").split(",")]
    if file:
        keys += _read(file)
    keys = [key for key in keys if key]
    if auth is False:
        return Keys()
    for key in keys:
        if len(key) < _MIN_CHARS or not key.isascii() or not key.isprintable() or " " in key:
            raise UserError(f"an API key must be {_MIN_CHARS} or more ASCII characters without spaces")
    if not keys and (auth or host not in LOOPBACK):
        raise UserError(
            f"on {host} others can connect: give API keys with --api-keys-file or {VARIABLE}, or say --no-auth"
        )
    return Keys(keys)


def host_allowed(header: str, host: str) -> bool:
    """False for a page that has its own name point to this machine (DNS rebinding). Asked only where no key protects."""
    if host not in LOOPBACK:
        return True
    name = header.rsplit(":", 1)[0] if not header.endswith("]") else header
    return name.strip("[]").lower() in LOOPBACK


def _read(file: Path) -> list[str]:
    try:
        lines = whole(file).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise UserError(f"{file}: there are no keys in it (one a line)")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
