"""RelayGen: one answer, two models. A large and a small language model take turns writing it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaygen.api import DEFAULT_LARGE, DEFAULT_SMALL, Options, Relay, SyncRelay, SyncRun
    from relaygen.errors import RelayError
    from relaygen.run import Run
    from relaygen.strategies import POLICIES
    from relaygen.types import (
        Author,
        EngineTimings,
        Event,
        Finish,
        Message,
        Reason,
        Result,
        Sampling,
        Segment,
        Switch,
        Timings,
        Token,
        Usage,
    )

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_LARGE",
    "DEFAULT_SMALL",
    "POLICIES",
    "Author",
    "EngineTimings",
    "Event",
    "Finish",
    "Message",
    "Options",
    "Reason",
    "Relay",
    "RelayError",
    "Result",
    "Run",
    "Sampling",
    "Segment",
    "Switch",
    "SyncRelay",
    "SyncRun",
    "Timings",
    "Token",
    "Usage",
]

_HOMES = ("types", "errors", "strategies", "run", "api")


def __getattr__(name: str) -> Any:
    """Names are loaded when they are first asked for: so Ctrl-C finds the command ready for it (__main__.py)."""
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"relaygen.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
