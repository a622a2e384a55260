"""Which stop strings to send to a server that takes only a few.

Any choice is right: a turn that no stop string ends is ended by closing the stream. That costs the connection and the step
in flight, so the stops sent are those that ended most turns so far. What ends turns is very uneven (two or three cues,
". " and ".\\n"), so a few stops go a long way.
"""

from __future__ import annotations

from collections import Counter

MANY = 1000  # as good as no limit: more than any profile has


class StopChoice:
    """One engine's, shared by all its sessions: what ends turns is the model's habit, not the prompt's."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ended: Counter[str] = Counter()

    def pick(self, stops: tuple[str, ...]) -> list[str]:
        if len(stops) <= self.limit:
            return list(stops)
        return sorted(stops, key=lambda stop: -self._ended[stop])[
            : self.limit
        ]  # stable: ties stay in their order

    def learn(self, stops: tuple[str, ...], before: str, last: str) -> None:
        """A turn ended while `last` was read, after `before`: count the stop that would have ended it."""
        text = before + last
        ends: list[tuple[int, int, str]] = []
        for stop in stops:
            at = text.find(stop, max(0, len(before) - len(stop) + 1))
            if at >= 0:
                ends.append((at + len(stop), at, stop))
        if ends:
            self._ended[min(ends)[2]] += 1  # the first to end, and the longest of those
