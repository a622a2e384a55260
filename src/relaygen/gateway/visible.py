"""Events of a generation -> what the client sees of it: thinking, answer, tool calls, hand-overs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from relaygen.gateway.held import Span, StopCutter, TokenText
from relaygen.gateway.think import Channel, Part, ThinkSplitter
from relaygen.gateway.tools import ToolCall, ToolParser
from relaygen.types import Event, Switch, Token


class Text(NamedTuple):
    channel: Channel
    span: Span


Delta = Text | ToolCall | Switch


class Visible:
    """One choice. `top_logprobs` None: none are shown, though a policy may have asked for some. `over` says that the client
    wants no more: a stop string came, or the only tool call asked for."""

    def __init__(
        self,
        think: tuple[str, str] | None,
        stops: Iterable[str] = (),
        tools: ToolParser | None = None,
        top_logprobs: int | None = None,
    ) -> None:
        self._top_logprobs = top_logprobs
        self._think = ThinkSplitter(think)
        self._stop = StopCutter(stops)
        self._tools = tools
        self.reasoning_tokens = 0

    @property
    def over(self) -> bool:
        return self._stop.found or (self._tools is not None and self._tools.full)

    @property
    def num_calls(self) -> int:
        return self._tools.num_calls if self._tools else 0

    def feed(self, events: Iterable[Event]) -> list[Delta]:
        """Neighbouring text of one author comes as one."""
        deltas: list[Delta] = []
        for event in events:
            if isinstance(event, Token):
                span = Span(event.author, event.text, self._tokens(event) if event.logprobs else ())
                reasoning = event.stage == "reasoning"
                self.reasoning_tokens += len(event.token_ids) * reasoning
                for part in self._think.feed(span, reasoning=reasoning):
                    self._pass(part, deltas)
            elif isinstance(event, Switch):
                deltas.append(event)
        return deltas

    def flush(self) -> list[Delta]:
        """What was held back at the end of the generation."""
        deltas: list[Delta] = []
        for part in self._think.flush():
            self._pass(part, deltas)
        for span in self._stop.flush():
            self._answer(span, deltas)
        for item in self._tools.flush() if self._tools else ():
            _add(deltas, item if isinstance(item, ToolCall) else Text("content", item))
        return deltas

    def _tokens(self, event: Token) -> tuple[TokenText, ...]:
        """The texts add up to that of the event: of ids that share a character, the last has it."""
        if self._top_logprobs is None:
            return ()
        shown = [replace(one, top=one.top[: self._top_logprobs]) for one in event.logprobs]
        return (*(TokenText("", one) for one in shown[:-1]), TokenText(event.text, shown[-1]))

    def _pass(self, part: Part, deltas: list[Delta]) -> None:
        channel, span = part
        if channel == "reasoning":
            _add(deltas, Text(channel, span))
            return
        for passed in self._stop.feed(span):
            self._answer(passed, deltas)

    def _answer(self, span: Span, deltas: list[Delta]) -> None:
        items: Iterator[Span | ToolCall] = self._tools.feed(span) if self._tools else iter((span,))
        for item in items:
            _add(deltas, item if isinstance(item, ToolCall) else Text("content", item))


def _add(deltas: list[Delta], delta: Delta) -> None:
    last = deltas[-1] if deltas else None
    if (
        isinstance(last, Text)
        and isinstance(delta, Text)
        and last.channel == delta.channel
        and last.span.author is delta.span.author
    ):
        a, b = last.span, delta.span
        deltas[-1] = Text(last.channel, Span(a.author, a.text + b.text, a.tokens + b.tokens))
    else:
        deltas.append(delta)
