"""One engine examined, and two of them judged as a pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relaygen.analyse.predict import Speed, Work, break_even_share
from relaygen.engines.base import Engine, EngineInfo
from relaygen.engines.http import OverHttp
from relaygen.engines.probe import version
from relaygen.examine import checks
from relaygen.examine.findings import Finding, finding
from relaygen.examine.speed import measure
from relaygen.types import Author

_PROMPT_TOKENS = 512  # that a context should hold besides the longest answer
_TINY_CONTEXT = 1024
_CACHED_SHARE = 0.6  # of a repeated prefix: vLLM reads the last block again
# What a repetition penalty counts, by dialect.
_PENALTIES: Mapping[str, str] = {
    "vLLM": "the whole text",
    "SGLang": "one turn",
    "llama-server": "the last 64 tokens",
    "Ollama": "the last 64 tokens",
}


@dataclass(frozen=True, slots=True)
class Examination:
    """None: unknown. `first_token_ms` is of a new prompt of `prompt_tokens`; `cached_share` is the part of a repeated prefix
    that was not read again."""

    info: EngineInfo
    version: str | None
    stops: str
    speed: Speed
    first_token_ms: float
    prompt_tokens: int
    cached_share: float | None
    honours_seed: bool
    keeps_connections: bool | None
    penalty_counts: str | None
    findings: tuple[Finding, ...]


async def examine(engine: Engine) -> Examination:
    """Asks for about two hundred tokens in all. Raises the errors of the engine."""
    info = engine.info
    prompt, found = await checks.rendered(engine)
    found += checks.facts(engine)
    if prompt is None:  # anything will do to decode from
        text = "Once upon a time"
        prompt = text, [] if info.text_only else await engine.tokenize(text)
    keeps = await checks.connections(engine)
    if keeps is False:
        found.append(finding("no-keep-alive", info.dialect))
    measured = await measure(engine, prompt)
    if measured.cached_share is None:
        found.append(finding("prefix-cache-unknown", info.dialect))
    elif measured.cached_share < _CACHED_SHARE:
        found.append(finding("prefix-cache-off", info.dialect))
    honours = await checks.honours_seed(engine, prompt)
    if not honours:
        found.append(finding("seed-ignored", info.dialect))
    return Examination(
        info=info,
        version=await version(engine.http, info.dialect) if isinstance(engine, OverHttp) else None,
        stops=checks.stop_strings(engine),
        speed=measured.speed,
        first_token_ms=measured.first_token_ms,
        prompt_tokens=measured.prompt_tokens,
        cached_share=measured.cached_share,
        honours_seed=honours,
        keeps_connections=keeps,
        penalty_counts=_PENALTIES.get(info.dialect),
        findings=tuple(found),
    )


def context_findings(info: EngineInfo, answer_tokens: int) -> list[Finding]:
    """`answer_tokens`: the longest answer that the profile allows."""
    needed = answer_tokens + _PROMPT_TOKENS
    if info.context_tokens >= needed:
        return []
    name = "tiny-context" if info.context_tokens < _TINY_CONTEXT else "small-context"
    fields = {"context": info.context_tokens, "budget": answer_tokens, "needed": needed}
    return [finding(name, info.dialect, **fields)]


def pair_findings(
    found: Mapping[Author, Examination],
    *,
    vocabulary_differs: bool,
    answer_tokens: int,
    repeat_penalty: float,
    work: Work,
) -> list[tuple[Author, Finding]]:
    """What shows only when the two stand side by side, with the profile that will be used."""
    out: list[tuple[Author, Finding]] = []
    for author, one in found.items():
        out += [(author, f) for f in context_findings(one.info, answer_tokens)]
        if one.info.dialect == "SGLang" and repeat_penalty != 1:
            out.append((author, finding("penalty-restarts", "SGLang", penalty=repeat_penalty)))
    if len(found) < 2:
        return out
    texts = [one.info.text_only for one in found.values()]
    if vocabulary_differs and not any(texts):
        out.append((Author.SMALL, finding("different-vocabularies")))
    if break_even_share(found[Author.LARGE].speed, found[Author.SMALL].speed, work) is None:
        out.append((Author.SMALL, finding("never-pays")))
    return out
