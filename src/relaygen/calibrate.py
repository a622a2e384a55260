"""The measuring half of a calibration: problems -> traces -> scored traces, in a folder. A run that was killed goes on where
it stopped.

    settings.json        what was asked, and of whom; a run is resumed with the same settings only
    traces.jsonl         what the large model wrote, one line a problem (as `relaygen.trace` reads it)
    scored-SCORER.jsonl  what each scorer thinks of them (as `relaygen.analyse.scored` reads it)

A line is written at once and whole; a last line that a kill has cut is taken off the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, TypeVar

import orjson

from relaygen import trace
from relaygen.analyse import scored
from relaygen.analyse.scored import ScoredTrace
from relaygen.engines.base import Engine, Request
from relaygen.engines.scoring import score, token_texts
from relaygen.errors import EngineCutError, RelayError, UserError
from relaygen.tasks.problems import Problem
from relaygen.trace import Trace
from relaygen.types import Message, Piece, Sampling, TokenLogprob

T = TypeVar("T")
Done = Callable[[], None]
Opened = Callable[[], AbstractAsyncContextManager[Engine]]


@dataclass(frozen=True, slots=True)
class Writing:
    """How traces are written. The seed of a trace comes of `sampling.seed` and the problem's id."""

    sampling: Sampling
    max_tokens: int
    concurrency: int = 1


class Lines:
    """A file of JSON lines, each of which is written once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            data = path.read_bytes()
            if (whole := data.rfind(b"\n") + 1) < len(data):
                os.truncate(path, whole)
        except OSError as error:
            raise UserError(f"cannot keep the traces in {path}: {error.strerror}") from None
        self.is_empty = not whole

    def add(self, line: bytes) -> None:
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}") from None

    def close(self) -> None:
        self._file.close()


@contextmanager
def _lines(path: Path) -> Generator[Lines]:
    lines = Lines(path)
    try:
        yield lines
    finally:
        lines.close()


def same_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Notes the settings in a new folder. UserError where another calibration has begun."""
    path = folder / "settings.json"
    data = orjson.dumps(settings, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            part = path.with_suffix(".part")
            part.write_bytes(data)
            part.replace(path)
        elif path.read_bytes() != data:
            raise UserError(
                f"{folder} holds the traces of another calibration (see {path.name}): name another folder with --work"
            )
    except OSError as error:
        raise UserError(f"cannot keep the traces in {folder}: {error.strerror}") from None


def digest(problems: Iterable[Problem]) -> str:
    return hashlib.sha256(orjson.dumps([[p.id, p.problem] for p in problems])).hexdigest()


# --- writing


async def write_traces(
    opened: Opened,
    problems: Sequence[Problem],
    path: Path,
    writing: Writing,
    *,
    scored_path: Path | None = None,
    on_done: Done,
) -> list[Trace]:
    """The traces of `problems` in `path`, in this order, those made that are not there yet. With `scored_path` the engine also
    scores what it writes while it writes it."""
    with _lines(path) as lines, _lines(scored_path) if scored_path else nullcontext() as own:
        found = {} if lines.is_empty else {one.id: one for one in trace.read(path)}
        missing = [problem for problem in problems if problem.id not in found]
        for _ in range(len(problems) - len(missing)):
            on_done()

        async def write(engine: Engine, problem: Problem) -> None:
            pieces = await _write(engine, problem, writing, scores=scored_path is not None)
            line = _trace_line(engine, problem, pieces)
            lines.add(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            if own:
                logprobs = [logprob for piece in pieces for logprob in piece.logprobs]
                own.add(scored.dumps(_scored(line, engine.info.model, logprobs)))
            on_done()

        await _each(opened, missing, write, writing.concurrency)
    by_id = {one.id: one for one in trace.read(path)}
    return [by_id[problem.id] for problem in problems]


async def _write(engine: Engine, problem: Problem, writing: Writing, *, scores: bool) -> list[Piece]:
    text, ids = await engine.render([Message("user", problem.problem)])
    room = engine.info.context_tokens - len(ids)
    seed = _seed(writing.sampling.seed or 0, problem.id)
    request = Request(
        ids,
        max(1, min(writing.max_tokens, room)),
        (),
        writing.sampling,
        seed,
        text,
        top_logprobs=2 if scores else None,
    )
    pieces: list[Piece] = []
    async with engine.session() as session, aclosing(session.write(request)) as chunks:
        async for chunk in chunks:
            pieces += chunk.pieces
    while pieces and not pieces[-1].text:  # the beginning of a character
        pieces.pop()
    if not pieces:
        raise EngineCutError(
            f"{engine.info} wrote nothing for the problem {problem.id}", engine=engine.info.model
        )
    return pieces


def _seed(seed: int, problem: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem}".encode()).digest()[:4], "big") >> 1


def _trace_line(engine: Engine, problem: Problem, pieces: Sequence[Piece]) -> dict[str, Any]:
    line: dict[str, Any] = {
        "id": problem.id,
        "problem": problem.problem,
        "model": engine.info.model,
        "text": "".join(piece.text for piece in pieces),
    }
    if not engine.info.text_only:
        line["token_ids"] = [i for piece in pieces for i in piece.token_ids]
        line["token_texts"] = [
            text for piece in pieces for text in ("",) * (len(piece.token_ids) - 1) + (piece.text,)
        ]
    return line


# --- scoring


async def score_traces(
    opened: Opened, traces: Sequence[Trace], path: Path, *, is_own: bool, concurrency: int, on_done: Done
) -> list[ScoredTrace]:
    """`traces` as the model reads them, in this order; scored are those that are not in `path` yet. For `is_own` see
    `score_trace`."""
    with _lines(path) as lines:
        known = set[str]() if lines.is_empty else {one.id for one in scored.read(path)}
        missing = [one for one in traces if one.id not in known]
        for _ in range(len(traces) - len(missing)):
            on_done()

        async def work(engine: Engine, one: Trace) -> None:
            lines.add(scored.dumps(await score_trace(engine, one, is_own=is_own)))
            on_done()

        await _each(opened, missing, work, concurrency)
    by_id = {one.id: one for one in scored.read(path)}
    return [by_id[one.id] for one in traces]


async def score_trace(engine: Engine, one: Trace, *, is_own: bool = False) -> ScoredTrace:
    """UserError for a trace that this model cannot read as it was written. `is_own`: we have just seen it written, so ids of
    another vocabulary are no mistake, and the text alone is read."""
    if not one.problem:
        raise UserError(f"trace {one.id}: no `problem` in it, and what follows depends on what was asked")
    ids = await engine.tokenize(one.text)
    texts = await token_texts(engine, ids)
    if one.token_ids and list(one.token_ids) != ids:
        as_written = await token_texts(engine, one.token_ids)
        if "".join(as_written) == one.text:
            ids, texts = list(one.token_ids), as_written
        elif not is_own:
            raise UserError(
                f"trace {one.id}: its token_ids do not spell its text to {engine.info.model}, so they are of another"
                " vocabulary; take them out of the file, and the text is tokenised anew"
            )
    if "".join(texts) != one.text:
        raise UserError(f"trace {one.id}: {engine.info.model} cannot spell its text")
    _, prompt = await engine.render([Message("user", one.problem)])
    logprobs = await score(engine, [*prompt, *ids], len(prompt))
    line = {
        "id": one.id,
        "problem": one.problem,
        "model": one.model,
        "text": one.text,
        "token_ids": ids,
        "token_texts": texts,
    }
    return _scored(line, engine.info.model, logprobs)


def _scored(line: Mapping[str, Any], scorer: str, logprobs: Sequence[TokenLogprob]) -> ScoredTrace:
    ids: Sequence[int] = line["token_ids"]
    return ScoredTrace(
        line["id"],
        line["problem"],
        line["model"],
        scorer,
        line["text"],
        tuple(ids),
        tuple(line["token_texts"]),
        tuple(min(1.0, one.margin or 0.0) for one in logprobs),
        tuple(
            int(bool(one.top) and one.top[0].token_id == token_id)
            for token_id, one in zip(ids, logprobs, strict=True)
        ),
        tuple(None if isnan(one.logprob) else one.logprob for one in logprobs),
    )


async def _each(
    opened: Opened, items: Sequence[T], work: Callable[[Engine, T], Awaitable[None]], concurrency: int
) -> None:
    """The engine is opened if there is work. The first error ends all."""
    if not items:
        return
    waiting = iter(items)

    async def worker(engine: Engine) -> None:
        for item in waiting:
            await work(engine, item)

    try:
        async with opened() as engine, asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(worker(engine))
    except* RelayError as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
