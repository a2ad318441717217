"""An order of jobs, or of whatever else has a name, by a key: who is first, at little cost."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

__all__ = ["Sorted"]

M = TypeVar("M", int, str)
K = TypeVar("K", int, tuple[int, int])


class Sorted(Generic[M, K]):
    """Members in the order of their keys (ties: the lower member first).

    A heap. What is dropped lies on in it as a ghost until it comes up, or until ghosts are the most.
    """

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._heap: list[tuple[K, M]] = []
        self._keys: dict[M, K] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, member: M) -> K | None:
        return self._keys.get(member)

    def put(self, member: M, key: K) -> None:
        """One that is not there."""
        self._keys[member] = key
        heappush(self._heap, (key, member))

    def drop(self, member: M) -> None:
        """One that may be there."""
        if self._keys.pop(member, None) is not None and len(self._heap) > 2 * len(self._keys) + 64:
            self._heap = [(key, member) for member, key in self._keys.items()]
            heapify(self._heap)

    def move(self, member: M, key: K) -> None:
        self.drop(member)
        self.put(member, key)

    def first(self) -> tuple[K, M] | None:
        """The least key and whose it is; None when empty."""
        heap = self._heap
        while heap and self._keys.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def greatest(self) -> K | None:
        """The greatest key, or None. Looks at all."""
        return max(self._keys.values(), default=None)

    def rank(self, member: M) -> int:
        """How many stand before it. Counts: for a look, not for a verb that is in a hurry."""
        mine = self._keys[member], member
        return sum((key, other) < mine for other, key in self._keys.items())
