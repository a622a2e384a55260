"""Events of a generation -> what the client sees of it: thinking, answer, tool calls, hand-overs. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from relaygen.core.record import num_tokens
from relaygen.gateway.held import Span, StopCutter, TokenText
from relaygen.gateway.think import Channel, Part, ThinkSplitter
from relaygen.gateway.tools import ToolCall, ToolParser
from relaygen.types import Event, Switch, Token


class Text(NamedTuple):
    channel: Channel
    span: Span


class HandOver(NamedTuple):
    """`num_tokens` of the segment that it ended."""

    switch: Switch
    num_tokens: int


Delta = Text | ToolCall | HandOver


class Visible:
    """One choice. `top_logprobs` None: none are shown, though a policy may have asked for some. `over` says that the client
    wants no more: a stop string came, or the only tool call asked for.

    Text that is held back holds back the hand-overs after it, so that a hand-over comes after all that was written before."""

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
        self._written: list[Token] = []  # in this turn
        self._turn = self._shown_turn = 0  # hand-overs that came, and that were passed on
        self._handovers: deque[HandOver] = deque()  # that were not yet

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
                self._written.append(event)
                tokens = self._tokens(event) if event.logprobs else ()
                span = Span(event.author, event.text, tokens, self._turn)
                reasoning = event.stage == "reasoning"
                self.reasoning_tokens += len(event.token_ids) * reasoning
                for part in self._think.feed(span, reasoning=reasoning):
                    self._pass(part, deltas)
            elif isinstance(event, Switch):
                self._handovers.append(HandOver(event, num_tokens(self._written)))
                self._written.clear()
                self._turn += 1
                if not (self._think.holds or self._stop.holds or (self._tools and self._tools.holds)):
                    self._show_turns(self._turn, deltas)
        return deltas

    def flush(self) -> list[Delta]:
        """What was held back at the end of the generation."""
        deltas: list[Delta] = []
        for part in self._think.flush():
            self._pass(part, deltas)
        for span in self._stop.flush():
            self._answer(span, deltas)
        for item in self._tools.flush() if self._tools else ():
            self._show(item if isinstance(item, ToolCall) else Text("content", item), deltas)
        self._show_turns(self._turn, deltas)
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
            self._show(Text(channel, span), deltas)
            return
        for passed in self._stop.feed(span):
            self._answer(passed, deltas)

    def _answer(self, span: Span, deltas: list[Delta]) -> None:
        items: Iterator[Span | ToolCall] = self._tools.feed(span) if self._tools else iter((span,))
        for item in items:
            self._show(item if isinstance(item, ToolCall) else Text("content", item), deltas)

    def _show(self, delta: Text | ToolCall, deltas: list[Delta]) -> None:
        # A call is passed on when it is complete, so it comes after all that was written so far.
        self._show_turns(delta.span.turn if isinstance(delta, Text) else self._turn, deltas)
        _add(deltas, delta)

    def _show_turns(self, turn: int, deltas: list[Delta]) -> None:
        """The hand-overs before `turn`."""
        while self._shown_turn < turn:
            deltas.append(self._handovers.popleft())
            self._shown_turn += 1


def _add(deltas: list[Delta], delta: Delta) -> None:
    last = deltas[-1] if deltas else None
    if (
        isinstance(last, Text)
        and isinstance(delta, Text)
        and last.channel == delta.channel
        and last.span.author is delta.span.author
    ):
        a, b = last.span, delta.span
        deltas[-1] = Text(last.channel, Span(a.author, a.text + b.text, a.tokens + b.tokens, a.turn))
    else:
        deltas.append(delta)
