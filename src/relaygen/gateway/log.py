"""Logs: one JSON object a line. No text of prompts or answers unless asked for, and never a key."""

from __future__ import annotations

import logging
from typing import Any

import orjson

LOGGER = logging.getLogger("relaygen.gateway")


class JsonFormatter(logging.Formatter):
    """`worker`: the number of the process, where there are several."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._worker,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def set_up(level: int = logging.INFO, *, worker: int | None = None) -> None:
    """To standard error; what replicas and uvicorn say too."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(worker))
    for name, least in (
        ("relaygen.gateway", level),
        ("relaygen.engines", level),
        ("uvicorn.error", logging.WARNING),
    ):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False


def log(
    event: str, *, level: int = logging.INFO, exc_info: BaseException | None = None, **fields: Any
) -> None:
    given = {name: value for name, value in fields.items() if value is not None}
    LOGGER.log(level, event, extra={"fields": given}, exc_info=exc_info)
