"""A sorted collection of members by key, with cheap access to the first one."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, nsmallest
from typing import Generic, TypeVar

__all__ = ["Sorted"]

M = TypeVar("M", int, str)
K = TypeVar("K", int, tuple[int, int])


class Sorted(Generic[M, K]):
    """Members in the order of their keys; members with equal keys are ordered by themselves.

    A heap. The entries of dropped members stay in the heap until they reach its top, or until most entries
    are outdated.
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
        """Add a member, which must not be in the collection."""
        self._keys[member] = key
        heappush(self._heap, (key, member))

    def drop(self, member: M) -> None:
        """Remove a member, if it is in the collection."""
        if self._keys.pop(member, None) is not None and len(self._heap) > 2 * len(self._keys) + 64:
            self._heap = [(key, member) for member, key in self._keys.items()]
            heapify(self._heap)

    def move(self, member: M, key: K) -> None:
        self.drop(member)
        self.put(member, key)

    def first(self) -> tuple[K, M] | None:
        """Return the least key and its member; None if the collection is empty."""
        heap = self._heap
        while heap and self._keys.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def after(self, cursor: tuple[K, M] | None, n: int) -> list[tuple[K, M]]:
        """Return the first n entries after this one (None: of all). O(n log n): for operators' reads."""
        entries = self.entries()
        return nsmallest(n, entries if cursor is None else (entry for entry in entries if entry > cursor))

    def entries(self) -> Iterator[tuple[K, M]]:
        """Return all keys and members, in no order."""
        return ((key, member) for member, key in self._keys.items())

    def greatest(self) -> K | None:
        """Return the greatest key; None if the collection is empty. O(n)."""
        return max(self._keys.values(), default=None)

    def rank(self, member: M) -> int:
        """Return the number of members before this one. O(n): only for operators' reads."""
        mine = self._keys[member], member
        return sum((key, other) < mine for other, key in self._keys.items())
