"""Drives one generation: the only place that sees both the algorithm and the engines, and the only reader of the clock."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from relaygen.core.ledger import Ledger, TextLedger
from relaygen.core.policy import Policy, State, alone
from relaygen.core.record import Record
from relaygen.core.relay import Ask, Generation, turn_seed
from relaygen.engines.base import Engine, Request, Session, Tools
from relaygen.errors import ContextOverflowError, EngineError, RelayError
from relaygen.prewarm import Reader
from relaygen.types import (
    Author,
    EngineTimings,
    Event,
    Message,
    Reason,
    Result,
    Sampling,
    Timings,
    Token,
    TurnEnd,
)

Translation = Mapping[int, int] | None


@dataclass(frozen=True, slots=True)
class Pair:
    """The engines by author (one is enough for a policy that needs one), and how each reads the ids of the other."""

    engines: Mapping[Author, Engine]
    translations: Mapping[Author, Translation] = field(default_factory=dict[Author, Translation])


class Run:
    """One generation. Iterate `events()` or `batches()` once; `result()` may be asked for at any time, and is final after
    the Finish.

    A prompt in plain text goes to the models as it is, without the chat template. `schema` binds the answer of a
    constrained policy. For `tools`, `top_logprobs` and `schema` see the engines' Request and render.

    Closing the iterator stops the engine at work at once. An error raised on the way carries the result so far.
    `prewarm_tokens`: the engine that is not at work reads along, that many tokens behind at most (prewarm.py).
    """

    def __init__(
        self,
        pair: Pair,
        prompt: Sequence[Message] | str,
        *,
        policy: Policy,
        sampling: Sampling,
        max_tokens: int,
        tools: Tools = (),
        top_logprobs: int | None = None,
        schema: Mapping[str, Any] | None = None,
        prewarm_tokens: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._pair = pair
        self._prompt = prompt
        self._tools = tools
        self._top_logprobs = top_logprobs
        self._schema = schema
        self._policy = policy
        self._seed = secrets.randbelow(2**31) if sampling.seed is None else sampling.seed
        self._sampling = replace(sampling, seed=self._seed)
        self._max_tokens = max_tokens
        self._prewarm_tokens = prewarm_tokens
        self._readers: dict[Author, Reader] = {}
        self._metadata = dict(metadata or {})
        self._record = Record()
        self._warnings: list[str] = []
        self._ledgers: dict[Author, Ledger] = {}
        self._timings = {author: EngineTimings() for author in Author}
        self._num_requests = 0
        self._started = self._ended = 0.0

    async def events(self) -> AsyncGenerator[Event]:
        async with aclosing(self._batches(record=False)) as batches:
            async for batch in batches:
                for event in batch:
                    self._record.add(event)  # one by one: `result` shall not run ahead of what was seen
                    yield event

    def batches(self) -> AsyncGenerator[list[Event]]:
        """The events as they come: all that one read from an engine brought."""
        return self._batches(record=True)

    async def _batches(self, *, record: bool) -> AsyncGenerator[list[Event]]:
        self._started = time.perf_counter()
        try:
            async with AsyncExitStack() as stack:
                opened, max_tokens = await self._prepare()
                sessions = {
                    author: await stack.enter_async_context(self._pair.engines[author].session())
                    for author in self._ledgers
                }
                generation = Generation(self._policy, max_tokens=max_tokens, opened=opened, seed=self._seed)
                self._readers = self._make_readers(sessions)
                while ask := generation.next_ask():
                    relaying = generation.state in (State.LEAD, State.FOLLOW)
                    reader = self._readers.get(ask.author.other) if relaying else None
                    turn = self._turn(generation, ask, sessions[ask.author])
                    async with reader or nullcontext(), aclosing(turn):
                        async for batch in turn:
                            if record:
                                for event in batch:
                                    self._record.add(event)
                            if reader:
                                reader.wrote()
                            yield batch
                    if own := self._readers.get(ask.author):
                        own.own_turn_over()
        except RelayError as error:
            error.partial = self.result(failed=True)
            raise
        finally:
            self._ended = time.perf_counter()

    def result(self, *, failed: bool = False) -> Result:
        total = ((self._ended or time.perf_counter()) - self._started) * 1000
        ledger = self._ledgers.get(Author.LARGE) or next(iter(self._ledgers.values()), None)
        return self._record.result(
            prompt_tokens=ledger.prompt_tokens if ledger else 0,
            timings=Timings(total, self._timing(Author.LARGE), self._timing(Author.SMALL)),
            think=self._policy.think,
            warnings=[*self._warnings, *self._reading_failures()],
            metadata={
                **self._metadata,
                "models": self.models,
                "policy": self._policy.name,
                "seed": self._seed,
            },
            failed=failed,
        )

    @property
    def models(self) -> dict[str, str]:
        """The models' names as their servers give them, by author."""
        return {author.value: engine.info.model for author, engine in self._pair.engines.items()}

    async def _prepare(self) -> tuple[bool, int]:
        """Render the prompt with each engine. Returns whether it opens the thinking stage, and the token budget."""
        authors = sorted(self._policy.authors & self._pair.engines.keys())
        prompts = await asyncio.gather(
            *(self._render(self._pair.engines[a]) for a in authors), return_exceptions=True
        )
        opened, budget = False, self._max_tokens
        for author, prompt in zip(authors, prompts, strict=True):
            if isinstance(prompt, EngineError) and author is Author.SMALL and len(authors) > 1:
                self._warn_small(prompt)
                self._policy = alone(Author.LARGE, think=self._policy.think)
                continue
            if isinstance(prompt, BaseException):
                raise prompt
            text, ids = prompt
            info = self._pair.engines[author].info
            ledger = (
                TextLedger(text) if info.text_only else Ledger(ids, self._pair.translations.get(author, {}))
            )
            self._ledgers[author] = ledger
            if ledger.num_tokens >= info.context_tokens:
                raise ContextOverflowError(
                    f"the prompt is {ledger.num_tokens} tokens long and {info} holds {info.context_tokens}:"
                    " shorten it, or start the engine with a longer context"
                )
            budget = min(budget, info.context_tokens - ledger.num_tokens)
            if self._policy.think and author is not Author.SMALL:
                opened = text.rstrip().endswith(self._policy.think[0])
        return opened, budget

    async def _render(self, engine: Engine) -> tuple[str, list[int]]:
        if isinstance(self._prompt, str):
            ids = [] if engine.info.text_only else await engine.tokenize(self._prompt, special=True)
            return self._prompt, ids
        return await engine.render(self._prompt, self._tools)

    async def _turn(self, generation: Generation, ask: Ask, session: Session) -> AsyncGenerator[list[Event]]:
        """One request: to its end, or to the end of the turn."""
        engine, ledger = self._pair.engines[ask.author], self._ledgers[ask.author]
        begun = time.perf_counter()
        first = None
        received = 0
        try:
            if ledger.untold_text:
                ledger.settle(await engine.tokenize(ledger.untold_text))
            room = engine.info.context_tokens - ledger.num_tokens
            if room < 1:
                yield self._context_full(generation, engine)
                return
            max_tokens = min(ask.max_tokens, room)
            seed = turn_seed(self._seed, ask.position)
            request = Request(
                ledger.ids,
                max_tokens,
                ask.stops,
                self._sampling,
                seed,
                ledger.text,
                top_logprobs=self._candidates(ask),
                schema=self._schema if ask.constrained else None,
            )
            async with aclosing(session.write(request)) as chunks:
                async for chunk in chunks:
                    first = first or time.perf_counter()
                    received += sum(len(piece.token_ids) or 1 for piece in chunk.pieces)
                    if events := generation.feed(chunk):
                        self._note(events)
                        yield events
                    if chunk.end:
                        self._account(ask.author, chunk.end, begun, first)
                    elif generation.turn_over and received < max_tokens:
                        # Otherwise the engine ends by itself at this very token, and the connection can be kept.
                        end = TurnEnd("stop", decode_tokens=received)
                        self._account(ask.author, end, begun, first)
                        return
        except (EngineError, ContextOverflowError) as error:
            events = generation.small_failed() if ask.author is Author.SMALL else None
            if events is None:
                raise
            self._warn_small(error)
            yield events

    def _candidates(self, ask: Ask) -> int | None:
        """How many the engine is asked for at each token: for the caller, for the policy, or for both."""
        wanted = self._top_logprobs
        return max(wanted or 0, 2) if ask.margins else wanted

    def _note(self, events: Sequence[Event]) -> None:
        """What one model wrote, both have to read."""
        for event in events:
            if isinstance(event, Token):
                for author, ledger in self._ledgers.items():
                    ledger.write(event.token_ids, event.text, own=author is event.author)

    def _account(self, author: Author, end: TurnEnd, begun: float, first: float) -> None:
        t = self._timings[author]
        untimed = not (end.prefill_ms or end.decode_ms)
        if untimed:
            end = _timed(end, begun, first)
        own_ms = (time.perf_counter() - begun) * 1000 - end.prefill_ms - end.decode_ms
        at_handover = end.prefill_ms if self._num_requests else 0.0
        self._num_requests += 1
        self._timings[author] = EngineTimings(
            requests=t.requests + 1,
            untimed_requests=t.untimed_requests + untimed,
            prefill_tokens=t.prefill_tokens + end.prefill_tokens,
            cached_tokens=t.cached_tokens + end.cached_tokens,
            prefill_ms=t.prefill_ms + end.prefill_ms,
            handover_prefill_ms=t.handover_prefill_ms + at_handover,
            # The first token of a request comes out of its prefill.
            decode_steps=t.decode_steps + max(0, end.decode_tokens - 1),
            decode_ms=t.decode_ms + end.decode_ms,
            own_ms=t.own_ms + own_ms,
            draft_tokens=t.draft_tokens + end.draft_tokens,
            draft_accepted_tokens=t.draft_accepted_tokens + end.draft_accepted_tokens,
        )

    def _make_readers(self, sessions: Mapping[Author, Session]) -> dict[Author, Reader]:
        if self._prewarm_tokens is None or len(sessions) < 2:
            return {}
        every, engines = self._prewarm_tokens, self._pair.engines
        return {a: Reader(engines[a].info, s, self._ledgers[a], every) for a, s in sessions.items()}

    def _reading_failures(self) -> list[str]:
        failed = [(a, r.failure) for a, r in self._readers.items() if r.failure]
        return [f"the {a.value} model stopped reading along: {failure}" for a, failure in failed]

    def _timing(self, author: Author) -> EngineTimings:
        timings, reader = self._timings[author], self._readers.get(author)
        if not reader:
            return timings
        return replace(
            timings,
            prewarm_requests=reader.requests,
            prewarm_tokens=reader.tokens,
            prewarm_ms=reader.ms,
        )

    def _context_full(self, generation: Generation, engine: Engine) -> list[Event]:
        self._warnings.append(f"the context of {engine.info} is full ({engine.info.context_tokens} tokens)")
        events = generation.small_failed() if generation.author is Author.SMALL else None
        return generation.stop(Reason.LENGTH) if events is None else events

    def _warn_small(self, error: RelayError) -> None:
        self._warnings.append(f"the small model failed and the large one went on alone: {error}")


def _timed(end: TurnEnd, begun: float, first: float) -> TurnEnd:
    """`end` with times by our clock: what came before the first chunk was prefill."""
    return replace(end, prefill_ms=(first - begun) * 1000, decode_ms=(time.perf_counter() - first) * 1000)
