"""RelayGen: one answer, two models. A large and a small language model take turns writing it."""

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
