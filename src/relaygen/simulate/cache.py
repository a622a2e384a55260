"""What of a prompt an engine has read before, in the two ways of real servers. Pure.

vLLM: blocks of 16 tokens, found by a hash of all up to their end; only whole blocks, whoever wrote them. llama-server: each
slot keeps the tokens of its last request, and a new one reuses what they begin with in common. The last token of a prompt is
read again in any case: the next one comes out of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

BLOCK_TOKENS = 16
MAX_BLOCKS = 65_536  # a million tokens; the oldest are dropped


class BlockCache:
    def __init__(self) -> None:
        self._blocks: dict[int, None] = {}  # in the order of their last use

    def cached(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of `ids` need not be read."""
        count = 0
        for block in _hashes(ids[:-1]):
            if block not in self._blocks:
                break
            count += BLOCK_TOKENS
        return count

    def keep(self, ids: Sequence[int]) -> None:
        for block in _hashes(ids):
            self._blocks.pop(block, None)
            self._blocks[block] = None
        while len(self._blocks) > MAX_BLOCKS:
            del self._blocks[next(iter(self._blocks))]


def _hashes(ids: Sequence[int]) -> Iterator[int]:
    """Of each whole block, together with all before it."""
    data = array("q", ids).tobytes()
    size = BLOCK_TOKENS * array("q").itemsize
    value = 0
    for start in range(0, len(data) - size + 1, size):
        value = hash((value, data[start : start + size]))
        yield value


class SlotCache:
    """`num_slots` requests at once. `take` and `release` of a slot enclose a request."""

    def __init__(self, num_slots: int) -> None:
        self._ids: list[list[int]] = [[] for _ in range(num_slots)]
        self._free = dict.fromkeys(range(num_slots))  # the one that was released first comes first

    @property
    def num_slots(self) -> int:
        return len(self._ids)

    def is_free(self, slot: int | None) -> bool:
        """Whether `slot`, or any where it is None, can be taken."""
        return bool(self._free) if slot is None else slot in self._free

    def take(self, ids: Sequence[int], slot: int | None) -> tuple[int, int]:
        """(slot, tokens that need not be read). None takes the free slot that has most of `ids`."""
        prompt = list(ids[:-1])
        if slot is None:
            slot = max(self._free, key=lambda n: common_prefix(self._ids[n], prompt))
        del self._free[slot]
        return slot, common_prefix(self._ids[slot], prompt)

    def keep(self, slot: int, ids: Sequence[int]) -> None:
        self._ids[slot] = list(ids)

    def release(self, slot: int) -> None:
        self._free[slot] = None


def common_prefix(a: list[int], b: list[int]) -> int:
    """By halving: lists compare fast, and the lengths are in the tens of thousands."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
