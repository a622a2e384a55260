"""What the driver needs of an engine. One module per server dialect implements this; none of them knows a policy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from relaygen.types import Chunk, Message, Sampling

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """`model` as the server names it; `address` for messages, without secrets; `context_tokens` per generation.
    A `text_only` engine neither takes nor gives token ids."""

    model: str
    address: str
    dialect: str
    context_tokens: int
    text_only: bool = False

    def __str__(self) -> str:
        return f"{self.model} at {self.address}"


@dataclass(frozen=True, slots=True)
class Request:
    """Continue `ids` by at most `max_tokens` tokens, or to the first of `stops`, or to the model's own end. A text-only
    engine is given `text` in place of ids.

    `stop_ids`: whole tokens at which the engine may end the request too, where the dialect can (ignored elsewhere: the
    matchers are the judge). `top_logprobs`: how many candidates to give at each token; 0 gives the log probability of the
    written token alone, None nothing. `schema`: a JSON schema that the text must follow, {} for any JSON object. UserError
    from an engine that cannot do what `top_logprobs` or `schema` ask."""

    ids: Sequence[int]
    max_tokens: int
    stops: tuple[str, ...]
    sampling: Sampling
    seed: int
    text: str = ""
    stop_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None
    schema: Mapping[str, Any] | None = None


class Session(Protocol):
    """One generation's place on one engine: its requests share a prefix cache."""

    def write(self, request: Request) -> AsyncGenerator[Chunk]:
        """Stream the continuation. The last chunk carries the TurnEnd; closing the generator earlier ends the engine's
        work. Text is exact: a piece's text is the text of its ids. The end-of-text token is not part of the pieces."""
        ...


class Engine(Protocol):
    @property
    def info(self) -> EngineInfo: ...

    async def render(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, list[int]]:
        """The prompt by the engine's own chat template, ready for the assistant's answer: as text and as ids (none from a
        text-only engine). `tools` are definitions as in OpenAI's API; UserError where they cannot be given."""
        ...

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of text that continues a prompt: no begin-of-text token is added, and the names of special tokens are
        plain text unless `special` (servers with a Hugging Face tokenizer cannot do that and always read them). Never
        asked of a text-only engine."""
        ...

    def session(self) -> AbstractAsyncContextManager[Session]: ...

    async def close(self) -> None: ...
