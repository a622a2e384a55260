"""What can go wrong between a client and a server, and a plan of it that depends on a seed alone. Pure.

A place is a stage of a request, and a number of bytes into it:

    connect   the connection is made
    request   `at` bytes of the request have passed
    reuse     a connection that had served before is used again
    head      `at` bytes of the answer have passed (its head has a hundred and more)
    body      `at` bytes of the answer's body have passed
    end       all but `at` bytes of the answer have passed
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    RESET = "reset"  # the connection breaks (RST)
    CLOSE = "close"  # it ends in good order, too early (FIN)
    STALL = "stall"  # nothing passes any more, until the client leaves
    CORRUPT = "corrupt"  # bytes become 0xFF, which is no UTF-8, no JSON and no HTTP
    BUSY = "429"
    DOWN = "503"
    DELAY = "delay"  # no fault: it must not be taken for one
    TRICKLE = "trickle"  # no fault: what follows comes in pieces of a few bytes


class Stage(StrEnum):
    CONNECT = "connect"
    REQUEST = "request"
    REUSE = "reuse"
    HEAD = "head"
    BODY = "body"
    END = "end"


HARMLESS = frozenset((Kind.DELAY, Kind.TRICKLE))

_ANSWERING = (Kind.RESET, Kind.CLOSE, Kind.STALL, Kind.CORRUPT, Kind.DELAY, Kind.TRICKLE)
KINDS: Mapping[Stage, tuple[Kind, ...]] = {
    Stage.CONNECT: (Kind.RESET, Kind.CLOSE, Kind.STALL, Kind.DELAY),
    Stage.REQUEST: (*_ANSWERING, Kind.BUSY, Kind.DOWN),
    Stage.REUSE: (Kind.RESET, Kind.CLOSE, Kind.STALL, Kind.DELAY, Kind.BUSY, Kind.DOWN),
    Stage.HEAD: _ANSWERING,
    Stage.BODY: _ANSWERING,
    Stage.END: _ANSWERING,
}

# How far into its stage a fault may strike, in bytes. A body is long: small numbers are the likelier ones.
_MAX_AT: Mapping[Stage, int] = {Stage.REQUEST: 400, Stage.HEAD: 100, Stage.END: 300}
_MEAN_AT_BODY = 1500


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    stage: Stage
    at: int = 0

    def __str__(self) -> str:
        return f"{self.kind} at {self.stage}+{self.at}"


Plan = Callable[[int], Fault | None]  # what befalls the request of this number


def nothing(number: int) -> None:
    """The plan of a proxy that only passes on."""


def fault(seed: int, number: int, kinds: Collection[Kind] = tuple(Kind)) -> Fault:
    """Any fault of these kinds, by seed and number."""
    draw = random.Random(f"{seed}:{number}")  # noqa: S311
    stage, kind = draw.choice([(s, k) for s, known in KINDS.items() for k in known if k in kinds])
    if stage is Stage.BODY:
        return Fault(kind, stage, int(draw.expovariate(1 / _MEAN_AT_BODY)))
    return Fault(kind, stage, draw.randrange(_MAX_AT.get(stage, 0) + 1))


def plan(seed: int, rate: float, kinds: Collection[Kind] = tuple(Kind)) -> Plan:
    """A fault for this part of the requests, 0 to 1."""

    def befalls(number: int) -> Fault | None:
        lot = random.Random(f"{seed}/{number}").random()  # noqa: S311
        return fault(seed, number, kinds) if lot < rate else None

    return befalls
