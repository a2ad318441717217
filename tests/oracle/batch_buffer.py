"""The collecting batches of one queue, in memory: their members, and which batch is due next."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from penstock.core.relations import BatchTerms

__all__ = ["BatchBuffer", "BatchName"]


class BatchName(NamedTuple):
    """The name of a collecting batch within its queue. Batches with the same due time are ordered by name."""

    task: str
    key: str


class _Collecting:
    """One collecting batch: its members (generation → time of joining), in the order of joining."""

    __slots__ = ("due", "last", "members", "terms")

    def __init__(self, terms: BatchTerms) -> None:
        self.members: dict[int, int] = {}
        self.terms = terms
        self.last = 0
        self.due: int | None = None

    @property
    def first(self) -> int:
        """When the first member joined."""
        return next(iter(self.members.values()))


class BatchBuffer:
    """All collecting batches of one queue. A batch without members is removed."""

    def __init__(self) -> None:
        self._collecting: dict[BatchName, _Collecting] = {}
        self._order: list[tuple[int, BatchName]] = []  # a heap by due time; may have outdated entries

    def join(self, name: BatchName, generation: int, terms: BatchTerms, now: int) -> None:
        batch = self._collecting.get(name)
        if batch is None:
            batch = self._collecting[name] = _Collecting(terms)
        batch.members[generation] = now
        batch.terms, batch.last = terms, now
        self._set_due(name, batch)

    def leave(self, name: BatchName, generation: int) -> None:
        batch = self._collecting[name]
        del batch.members[generation]
        if batch.members:
            self._set_due(name, batch)
        else:
            del self._collecting[name]

    def due(self, name: BatchName, now: int) -> list[int]:
        """Return the members to run together now: the batch is full or due. Empty if it is neither."""
        batch = self._collecting.get(name)
        if batch is None:
            return []
        full = len(batch.members) >= batch.terms.size
        return self.first_of(name) if full or (batch.due is not None and batch.due <= now) else []

    def first_of(self, name: BatchName) -> list[int]:
        """Return the members that go into one batch (at most its size), in the order of joining."""
        batch = self._collecting.get(name)
        return [] if batch is None else list(batch.members)[: batch.terms.size]

    def next(self) -> tuple[int, BatchName] | None:
        """Return the batch that is due first, with its due time."""
        order = self._order
        while order and not self._holds(*order[0]):
            heappop(order)
        return order[0] if order else None

    def batches(self) -> list[tuple[BatchName, int, int, int | None]]:
        """Return each batch: name, number of members, when the first member joined, when the batch is due."""
        return [(name, len(g.members), g.first, g.due) for name, g in self._collecting.items()]

    def _holds(self, due: int, name: BatchName) -> bool:
        batch = self._collecting.get(name)
        return batch is not None and batch.due == due

    def _set_due(self, name: BatchName, batch: _Collecting) -> None:
        due = batch.terms.due(batch.first, batch.last)
        if due != batch.due:
            batch.due = due
            if due is not None:
                heappush(self._order, (due, name))
                if len(self._order) > 2 * len(self._collecting) + 64:
                    self._order = sorted(
                        (g.due, name) for name, g in self._collecting.items() if g.due is not None
                    )
