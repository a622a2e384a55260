"""The Python interface.

async with Relay() as relay:                       # the default pair, in this process
    result = await relay.generate("What is 17 * 23?")
    run = relay.stream("And 17 * 24?")
    async for event in run.events(): ...
    run.result()

with SyncRelay(large="http://gpu:8080", small="qwen2.5-coder-0.5b") as relay:
    print(relay.generate("What is 17 * 23?").answer)
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from relaygen import profile as profiles
from relaygen import strategies
from relaygen.core.policy import Policy
from relaygen.engines.base import Engine
from relaygen.engines.http import SILENCE_S
from relaygen.engines.open import is_url, open_engine, replicas_of
from relaygen.engines.vocabulary import translation
from relaygen.errors import UserError
from relaygen.local import LocalSettings
from relaygen.models import Progress, quiet, resolve
from relaygen.profile import Profile
from relaygen.run import Pair, Run, Translation
from relaygen.types import Author, Event, Message, Result, Sampling

DEFAULT_LARGE = "qwen2.5-coder-1.5b"
DEFAULT_SMALL = "qwen2.5-coder-0.5b"

Spec = str | Path | Sequence[str]
Prompt = str | Sequence[Message]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variant:
    """What a single generation may choose anew: its profile and policy, and how the engines read each other's ids."""

    profile: Profile
    policy: Policy
    pair: Pair


@dataclass(frozen=True, slots=True)
class Options:
    """How models on this machine are started. See LocalSettings for the units. `draft` names a model for speculative
    decoding inside the large engine; "small" means the small model. With `prewarm_tokens` the model that is not writing reads
    along, that many tokens behind at most. A server is given up after `silence_s` without a byte."""

    context_tokens: int = 8192
    num_slots: int = 1
    threads: int | None = None
    draft: str | None = None
    prewarm_tokens: int | None = None
    silence_s: float = SILENCE_S

    def __post_init__(self) -> None:
        most = 2**31 - 1
        ranges = (
            ("context_tokens", 16, most),
            ("num_slots", 1, 4096),
            ("threads", 1, 4096),
            ("prewarm_tokens", 1, most),
        )
        for name, low, high in ranges:
            value = getattr(self, name)
            if value is not None and value < low:
                raise UserError(f"{name} must be {low} or more, not {value}")
            if value is not None and value > high:
                raise UserError(f"{name} must be {high:,} or fewer")
        if not 0 < self.silence_s < inf:  # NaN fails too
            raise UserError(f"silence_s must be more than 0, not {self.silence_s:g}")


class Relay:
    """A pair of models, opened by `async with`.

    `large` and `small`: a catalogue name, the path of a .gguf file, or the URL of a server; several URLs, as a list or
    with commas between them, are replicas of one model. `profile`: a Profile, the name of a built-in one, or a path;
    None picks by the names of the models. `policy`: a name as strategies.make_policy takes it, or a Policy. API keys of
    servers are read from RELAYGEN_LARGE_API_KEY and RELAYGEN_SMALL_API_KEY. `progress` is called while weights are
    fetched. `profile` and `policy` can be read once the relay is open.
    """

    def __init__(
        self,
        large: Spec = DEFAULT_LARGE,
        small: Spec = DEFAULT_SMALL,
        *,
        profile: Profile | str | Path | None = None,
        policy: str | Policy = "segment",
        options: Options | None = None,
        progress: Progress = quiet,
    ) -> None:
        self._specs = {Author.LARGE: _words(large), Author.SMALL: _words(small)}
        self._options = options or Options()
        self._progress = progress
        self._stack = AsyncExitStack()
        self._known_translations: dict[tuple[str, ...], dict[Author, Translation]] = {}  # by think markers
        self._pair: Pair | None = None
        self._profile = profile if isinstance(profile, Profile) or profile is None else profiles.load(profile)
        self._policy = policy
        if isinstance(policy, str):
            strategies.check(policy)
        for author, specs in self._specs.items():
            for spec in specs:
                if is_url(spec) and (fault := _fault_of_url(spec)):
                    raise UserError(f"the address of the {author} model is no URL: {fault}")
        draft = self._options.draft
        self._draft = self._specs[Author.SMALL][0] if draft == "small" else draft
        if self._draft and (is_url(self._draft) or is_url(self._specs[Author.LARGE][0])):
            raise UserError(
                "a draft model works inside a large model on this machine: give both as files or names"
            )

    @property
    def local_models(self) -> list[str]:
        """The models that will run on this machine, as they were given."""
        authors = self._authors()
        specs = [spec for author in authors for spec in self._specs[author]]
        if self._draft and Author.LARGE in authors:
            specs.append(self._draft)
        return [spec for spec in specs if not is_url(spec)]

    async def __aenter__(self) -> Self:
        try:
            engines = {author: await self._open(author) for author in self._authors()}
            models = {author: engine.info.model for author, engine in engines.items()}
            self.profile = self._profile or profiles.pick(
                models.get(Author.LARGE, self._specs[Author.LARGE][0]),
                models.get(Author.SMALL, self._specs[Author.SMALL][0]),
            )
            self.policy = (
                self._policy
                if isinstance(self._policy, Policy)
                else strategies.make_policy(self._policy, self.profile)
            )
            self._pair = Pair(engines, await self._translations(engines, self.profile))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pair = None
        await self._stack.aclose()

    @property
    def pair(self) -> Pair:
        """The open engines."""
        if self._pair is None:
            raise UserError("the relay is not open: use `async with Relay(...) as relay`")
        return self._pair

    async def variant(
        self,
        *,
        profile: Profile | None = None,
        policy: str | None = None,
        answer_by: Author | None = None,
    ) -> Variant:
        """The open relay with another profile, policy (as in the constructor) or author of the answer. UserError for a
        policy whose models are not open."""
        pair = self.pair
        chosen = profile or self.profile
        made = self.policy
        if policy or (profile and isinstance(self._policy, str)):
            made = strategies.make_policy(policy or str(self._policy), chosen)
        if answer_by:
            made = replace(made, answer_by=answer_by)
        if missing := made.authors - pair.engines.keys():
            raise UserError(f"the policy {made.name!r} needs the {min(missing)} model, which is not open")
        if chosen.think != self.profile.think:
            pair = Pair(pair.engines, await self._translations(pair.engines, chosen))
        return Variant(chosen, made, pair)

    def stream(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
    ) -> Run:
        """A generation to iterate: `run.events()`, then `run.result()`. `max_tokens` is the budget over both models;
        None and a missing `sampling` mean the profile's."""
        pair = self.pair
        budget = self.profile.limits.max_tokens if max_tokens is None else max_tokens
        if budget < 1:
            raise UserError(f"max_tokens must be 1 or more, not {budget}")
        return Run(
            pair,
            as_messages(prompt, system),
            policy=self.policy,
            sampling=sampling or self.profile.sampling.values(),
            max_tokens=budget,
            prewarm_tokens=self._options.prewarm_tokens,
            metadata={"profile": self.profile.name},
        )

    async def generate(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
    ) -> Result:
        """The whole answer. Errors carry what was written before them in `partial`."""
        run = self.stream(prompt, system=system, max_tokens=max_tokens, sampling=sampling)
        async with aclosing(run.events()) as events:
            async for _ in events:
                pass
        return run.result()

    def _authors(self) -> list[Author]:
        if isinstance(self._policy, Policy):
            return sorted(self._policy.authors)
        return [Author(self._policy)] if self._policy in ("large", "small") else sorted(Author)

    async def _open(self, author: Author) -> Engine:
        options = self._options
        settings = LocalSettings(options.context_tokens, options.num_slots, threads=options.threads)
        if self._draft and author is Author.LARGE:
            settings = replace(settings, draft=await asyncio.to_thread(resolve, self._draft, self._progress))
        return await self._stack.enter_async_context(
            open_engine(
                self._specs[author],
                name=f"the {author} model",
                settings=settings,
                api_key=os.environ.get(f"RELAYGEN_{author.value.upper()}_API_KEY"),
                progress=self._progress,
                silence_s=options.silence_s,
            )
        )

    async def _translations(
        self, engines: Mapping[Author, Engine], profile: Profile
    ) -> Mapping[Author, Translation]:
        if len(engines) < 2:
            return {}
        markers = (profile.think.open, profile.think.close) if profile.think else ()
        if markers not in self._known_translations:
            self._known_translations[markers] = {
                author: await translation(engines[author], engines[author.other], markers)
                for author in engines
            }
        return self._known_translations[markers]


class SyncRelay:
    """Relay for code without an event loop: the same work, done by one in a thread of its own. Opened by `with`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._relay = Relay(*args, **kwargs)
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relaygen", daemon=True)
        self._thread.start()
        try:
            self._wait(self._relay.__aenter__())
        except BaseException:
            self._stop(self._loop)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop
        try:
            self._wait(self._relay.__aexit__())
        finally:
            self._stop(self._loop)

    def generate(self, prompt: Prompt, **kwargs: Any) -> Result:
        """As Relay.generate."""
        return self._wait(self._relay.generate(prompt, **kwargs))

    def stream(self, prompt: Prompt, **kwargs: Any) -> SyncRun:
        """As Relay.stream; iterate the result itself."""
        return SyncRun(self._relay.stream(prompt, **kwargs), self._wait)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise UserError("the relay is not open: use `with SyncRelay(...) as relay`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too, which comes to this thread
            future.cancel()
            raise

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        async def finish() -> None:
            if rest := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(rest)  # cancelled ones, on their way out
            await loop.shutdown_default_executor()

        self._loop = None
        asyncio.run_coroutine_threadsafe(finish(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


class SyncRun:
    """A generation to iterate once: `for event in run`, then `run.result()`."""

    def __init__(self, run: Run, wait: Any) -> None:
        self._run = run
        self._wait = wait

    def __iter__(self) -> Iterator[Event]:
        events = self._run.events()
        tasks: list[asyncio.Task[Any] | None] = [None]  # at work on the next event

        async def following() -> Event | None:
            tasks[0] = asyncio.current_task()
            return await anext(events, None)

        async def close() -> None:
            if tasks[0]:
                await asyncio.wait([tasks[0]])  # after Ctrl-C it is still on its way out
            await events.aclose()

        try:
            while (event := self._wait(following())) is not None:
                yield event
        finally:
            self._wait(close())

    def result(self) -> Result:
        return self._run.result()


def as_messages(prompt: Prompt, system: str | None = None) -> list[Message]:
    """What the models are given. UserError for a prompt that nobody could answer."""
    messages = [Message("user", prompt)] if isinstance(prompt, str) else list(prompt)
    if system is not None:
        messages.insert(0, Message("system", system))
    if not any(message.content.strip() for message in messages if message.role != "system"):
        raise UserError("the prompt is empty")
    for message in messages:
        try:
            message.content.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the {message.role} message is not valid Unicode (character {error.start + 1})"
            ) from None
    return messages


def _words(spec: Spec) -> tuple[str, ...]:
    return replicas_of(str(spec) if isinstance(spec, Path) else spec)


def _fault_of_url(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is none
    except ValueError as error:
        return str(error)
    return None if parts.hostname else "it names no host"
