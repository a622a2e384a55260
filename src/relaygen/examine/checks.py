"""Questions to an engine whose answers show what would go wrong: chat template, seeds, connections, stop strings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from relaygen.engines.base import Engine, Request
from relaygen.engines.completions import CompletionsEngine
from relaygen.engines.http import OverHttp
from relaygen.engines.probe import keeps_connections
from relaygen.engines.stops import MANY
from relaygen.errors import EngineRefusedError, UserError
from relaygen.examine.findings import Finding, finding
from relaygen.examine.speed import write
from relaygen.types import Message, Sampling

_SYSTEM, _USER = "Be brief.", "Say PING."
# Names of special tokens. Some older templates write these three as plain text, on purpose.
_MARKER = re.compile(r"<\|[\w.-]+\|>|<｜[^｜>]+｜>")
_PLAIN_MARKERS = frozenset(("<|user|>", "<|assistant|>", "<|system|>"))
_FEW_STOPS = 32  # SGLang's own limit, which nobody can raise
_SEEDED_TOKENS = 12

Rendered = tuple[str, Sequence[int]]


async def rendered(engine: Engine) -> tuple[Rendered | None, list[Finding]]:
    """A prompt by the engine's chat template (None: it has none), and what is wrong with the template."""
    dialect = engine.info.dialect
    try:
        try:
            text, ids = await engine.render([Message("system", _SYSTEM), Message("user", _USER)])
        except EngineRefusedError:  # some templates refuse a system message
            text, ids = await engine.render([Message("user", _USER)])
    except (EngineRefusedError, UserError) as error:
        return None, [finding("no-template", dialect, error=error)]
    found: list[Finding] = []
    if _USER not in text:
        found.append(finding("template-drops-question", dialect))
    elif _SYSTEM not in text:
        found.append(finding("template-drops-system", dialect))
    if text.rstrip().endswith(_USER):
        found.append(finding("template-no-answer", dialect))
    if (count := text.count("<think>")) > 1:
        found.append(finding("template-thinks-twice", dialect, count=count))
    if len(ids) > 1 and ids[0] == ids[1]:
        found.append(finding("double-bos", dialect))
    if unknown := await _unknown_markers(engine, text):
        found.append(finding("template-of-another-model", dialect, markers=" and ".join(unknown)))
    return (text, ids), found


async def _unknown_markers(engine: Engine, text: str) -> list[str]:
    if engine.info.text_only:
        return []
    markers = dict.fromkeys(m for m in _MARKER.findall(text) if m not in _PLAIN_MARKERS)
    return [m for m in markers if len(await engine.tokenize(m, special=True)) > 1]


async def honours_seed(engine: Engine, prompt: Rendered) -> bool:
    """Two equal requests with a seed give one text. The first of three fills the cache: reading in batches of another size
    can turn a near tie."""
    text, ids = prompt
    request = Request(ids, _SEEDED_TOKENS, (), Sampling(1.0, 1.0, 0), 7, text)
    async with engine.session() as session:
        texts = [(await write(session, request)).text for _ in range(3)]
    return texts[1] == texts[2]


async def connections(engine: Engine) -> bool | None:
    return await keeps_connections(engine.http) if isinstance(engine, OverHttp) else None


def stop_strings(engine: Engine) -> str:
    """For people: how many the server takes, found by trying."""
    if engine.info.text_only:
        return "not used: turns end by closing the stream"
    limit = stop_limit(engine)
    return "any number" if limit is None else f"{limit} a request"


def stop_limit(engine: Engine) -> int | None:
    """None: as good as no limit."""
    if isinstance(engine, CompletionsEngine) and engine.stops.limit < MANY:
        return engine.stops.limit
    return None


def facts(engine: Engine) -> list[Finding]:
    """What is known of the dialect, or was found by connecting."""
    info = engine.info
    found: list[Finding] = []
    limit = stop_limit(engine)
    if limit is not None and limit < _FEW_STOPS:
        found.append(finding("stop-cap", info.dialect, limit=limit))
    if info.text_only:
        found.append(finding("text-only", info.dialect))
    if info.dialect == "text":
        found.append(finding("server-sampling", info.dialect))
    return found
