"""What servers answer, looked at before it is used: a server may be another one than it says, broken, or hostile.

Inside of `understanding` an answer is taken apart as if it were right. Whatever is not where it should be ends as one
EngineProtocolError. The functions check what would do harm only later, or elsewhere: an id that is no number would be sent
to the other engine, and a huge count would become a huge list.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from relaygen.errors import EngineProtocolError

ODD = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
_MAX = 2**31 - 1
_MAX_SHOWN_CHARS = 200


@contextmanager
def understanding(who: object, where: str) -> Generator[None]:
    """`who` answered, an EngineInfo or a name and address; `where` is the path that was asked."""
    try:
        yield
    except ODD as error:
        raise unknown_shape(who, f"answered {where} in", error) from None


def unknown_shape(who: object, did: str, error: Exception) -> EngineProtocolError:
    what = f"{error!r}"[:_MAX_SHOWN_CHARS]
    return EngineProtocolError(f"{who} {did} an unknown shape ({what})", engine=getattr(who, "model", ""))


def token_ids(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise TypeError("token ids are no list")
    for one in cast("list[Any]", value):
        if type(one) is not int or not 0 <= one <= _MAX:
            raise ValueError("a token id is no number, or out of range")
    return cast("list[int]", value)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("text was expected")
    return value


def count(value: Any) -> int:
    """A number of tokens or slots."""
    number = int(value)
    if not 0 <= number <= _MAX:
        raise ValueError("a count is out of range")
    return number
