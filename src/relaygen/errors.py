"""Every error a caller can meet. The type says whose fault it is, the message says what to do.

    RelayError                     exit  http  retryable
     +- UserError                     2   400  no         the request or a file of the user is wrong
     |   +- ProfileError              2   400  no         a profile or cue file; names file and line
     |   +- ContextOverflowError      2   400  no         the prompt does not fit the model's context
     |   +- WeightsError              2   400  no         a weights file is missing, damaged or not what it claims to be
     +- DownloadError                 3   502  yes        weights could not be fetched
     +- ResourceError                 4   507  no         not enough memory or disk
     +- EngineError                   5   502  yes        an engine failed; carries the engine's name and address
         +- EngineUnreachableError    5   503  yes        nobody answers there
         +- EngineRefusedError        5   502  no         the engine says no (its own words are in the message)
         +- EngineOverloadedError     5   503  yes        429 or 503
         +- EngineProtocolError       5   502  no         the answer makes no sense for this dialect
         +- EngineCutError            5   502  yes        the stream ended before a finish reason was seen

An error raised in the middle of a generation carries what was written so far in `partial` (a Result).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from relaygen.types import Result


class RelayError(Exception):
    """The root of all errors of RelayGen. `partial` holds what had been written when a generation failed."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, partial: Result | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class UserError(RelayError):
    exit_code = 2
    http_status = 400


class ProfileError(UserError):
    pass


class ContextOverflowError(UserError):
    pass


class WeightsError(UserError):
    pass


class DownloadError(RelayError):
    exit_code = 3
    http_status = 502
    retryable = True


class ResourceError(RelayError):
    exit_code = 4
    http_status = 507


class EngineError(RelayError):
    """`engine` is the engine's name; the message already contains it and the address without secrets."""

    exit_code = 5
    http_status = 502
    retryable = True

    def __init__(self, message: str, *, engine: str = "", partial: Result | None = None) -> None:
        super().__init__(message, partial=partial)
        self.engine = engine


class EngineUnreachableError(EngineError):
    http_status = 503


class EngineRefusedError(EngineError):
    retryable = False


class EngineOverloadedError(EngineError):
    http_status = 503


class EngineProtocolError(EngineError):
    retryable = False


class EngineCutError(EngineError):
    pass


def one_line(words: str) -> str:
    """`words` of somebody else, fit for a message: without line ends and other control characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)
