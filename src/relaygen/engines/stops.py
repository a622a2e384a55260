"""Which stops to send to a server that takes only a few stop strings.

Any choice is right: a turn that no stop ends is ended by closing the stream. That costs the connection and the step in
flight, so the stop strings sent are those that ended most turns so far. What ends turns is very uneven (two or three cues,
". " and ".\\n"), so a few go a long way.

Stop ids are not limited. Those sent are of single tokens that hold a whole stop, border included, and have ended a turn
(".\\n\\n", "</think>"). The token of a cue alone (" Therefore") is none of them: the matcher would have to wait for the border,
and the request for it costs more than is saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from relaygen.types import Piece

MANY = 1000  # as good as no limit: more than any profile has


class StopChoice:
    """One engine's, shared by all its sessions: what ends turns is the model's habit, not the prompt's."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ended: Counter[str] = Counter()  # without the turns that an id would have ended
        self._ids: dict[str, set[int]] = {}

    def pick(self, stops: tuple[str, ...]) -> tuple[list[str], list[int]]:
        """The stop strings and the stop ids to send for `stops`."""
        if len(stops) <= self.limit:
            return list(stops), []
        strings = sorted(stops, key=lambda stop: -self._ended[stop])  # stable: ties stay in their order
        ids = {token_id for stop in stops for token_id in self._ids.get(stop, ())}
        return strings[: self.limit], sorted(ids)

    def learn(self, stops: tuple[str, ...], before: str, last: Sequence[Piece]) -> None:
        """A turn ended while `last` was read, after the text `before`: note the stop that would have ended it."""
        text = before + "".join(piece.text for piece in last)
        ends: list[tuple[int, int, str]] = []
        for stop in stops:
            at = text.find(stop, max(0, len(before) - len(stop) + 1))
            if at >= 0:
                ends.append((at + len(stop), at, stop))
        if not ends:
            return
        end, at, stop = min(ends)  # the first to end, and the longest of those
        start = len(before)
        for piece in last:
            if len(piece.token_ids) == 1 and start <= at and end <= start + len(piece.text):
                self._ids.setdefault(stop, set()).add(piece.token_ids[0])
                return
            start += len(piece.text)
        self._ended[stop] += 1
