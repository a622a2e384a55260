"""Continuous batching: which sequences take part in a pass, and what each gets out of it. Pure: told the time, never asks.

while (ms := batch.begin()) is not None:     # who takes part is fixed; new ones wait for the next pass
    ...                                      # ms later
    batch.end(at)                            # tokens are written
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from relaygen.simulate.speed import Speed

MAX_PASS_TOKENS = (
    2048  # of a pass: longer prompts are read in several, so that they do not hold up the others
)


@dataclass(eq=False, slots=True)
class Sequence:
    """A request at work: `unread` prompt tokens (at least one) to read, then `num_tokens` to write. `write` is called with
    the index of each. Times in seconds, by the clock that the batch is told."""

    unread: int
    num_tokens: int
    write: Callable[[int], None]
    arrived: float
    written: int = 0
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.written == self.num_tokens

    @property
    def prefill_ms(self) -> float:
        """From the arrival, so the wait for others is in it."""
        return max(0.0, self.first_at - self.arrived) * 1000

    @property
    def decode_ms(self) -> float:
        return max(0.0, self.last_at - self.first_at) * 1000


@dataclass(slots=True)
class Batch:
    """At most `max_sequences` at work at once; the others wait in the order of their arrival."""

    speed: Speed
    max_sequences: int
    _running: dict[Sequence, None] = field(default_factory=dict[Sequence, None])
    _waiting: deque[Sequence] = field(default_factory=deque[Sequence])
    _pass: list[tuple[Sequence, int]] = field(default_factory=list[tuple[Sequence, int]])

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """No matter whether it is there. A pass that it takes part in still takes its time."""
        if self._running.pop(sequence, self) is self and sequence in self._waiting:
            self._waiting.remove(sequence)

    def begin(self) -> float | None:
        """Milliseconds that the next pass takes; None when there is nothing to do."""
        while self._waiting and len(self._running) < self.max_sequences:
            self._running[self._waiting.popleft()] = None
        room = MAX_PASS_TOKENS
        self._pass.clear()
        for sequence in self._running:
            size = min(sequence.unread or 1, room)
            if size:
                self._pass.append((sequence, size))
                room -= size
        return self.speed.pass_ms(len(self._pass), MAX_PASS_TOKENS - room) if self._pass else None

    def end(self, at: float) -> None:
        for sequence, size in self._pass:
            if sequence not in self._running:
                continue
            sequence.unread = max(0, sequence.unread - size)
            if sequence.unread:
                continue
            if not sequence.written:
                sequence.first_at = at
            sequence.last_at = at
            sequence.written += 1
            if sequence.is_done:
                del self._running[sequence]
            sequence.write(sequence.written - 1)
