"""The collecting batches of one queue, in memory: their members, and which batch is due next."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from penstock.core.batch import Group

__all__ = ["Gathered", "Gathering"]


class Gathered(NamedTuple):
    """The name of a collecting batch within its queue. Batches with the same due time are ordered by name."""

    task: str
    key: str


class _Group:
    """One collecting batch: its members (generation → time of joining), in the order of joining."""

    __slots__ = ("due", "last", "members", "terms")

    def __init__(self, terms: Group) -> None:
        self.members: dict[int, int] = {}
        self.terms = terms
        self.last = 0
        self.due: int | None = None

    @property
    def first(self) -> int:
        """When the first member joined."""
        return next(iter(self.members.values()))


class Gathering:
    """All collecting batches of one queue. A batch without members is removed."""

    def __init__(self) -> None:
        self._groups: dict[Gathered, _Group] = {}
        self._order: list[tuple[int, Gathered]] = []  # a heap by due time; may have outdated entries

    def join(self, name: Gathered, generation: int, terms: Group, now: int) -> None:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(terms)
        group.members[generation] = now
        group.terms, group.last = terms, now
        self._set_due(name, group)

    def leave(self, name: Gathered, generation: int) -> None:
        group = self._groups[name]
        del group.members[generation]
        if group.members:
            self._set_due(name, group)
        else:
            del self._groups[name]

    def ripe(self, name: Gathered, now: int) -> list[int]:
        """Return the members to run together now: the batch is full or due. Empty if it is neither."""
        group = self._groups.get(name)
        if group is None:
            return []
        full = len(group.members) >= group.terms.size
        return self.first_of(name) if full or (group.due is not None and group.due <= now) else []

    def first_of(self, name: Gathered) -> list[int]:
        """Return the members that go into one batch (at most its size), in the order of joining."""
        group = self._groups.get(name)
        return [] if group is None else list(group.members)[: group.terms.size]

    def next(self) -> tuple[int, Gathered] | None:
        """Return the batch that is due first, with its due time."""
        order = self._order
        while order and not self._holds(*order[0]):
            heappop(order)
        return order[0] if order else None

    def groups(self) -> list[tuple[Gathered, int, int, int | None]]:
        """Return each batch: name, number of members, when the first member joined, when the batch is due."""
        return [(name, len(g.members), g.first, g.due) for name, g in self._groups.items()]

    def _holds(self, due: int, name: Gathered) -> bool:
        group = self._groups.get(name)
        return group is not None and group.due == due

    def _set_due(self, name: Gathered, group: _Group) -> None:
        due = group.terms.due(group.first, group.last)
        if due != group.due:
            group.due = due
            if due is not None:
                heappush(self._order, (due, name))
                if len(self._order) > 2 * len(self._groups) + 64:
                    self._order = sorted(
                        (g.due, name) for name, g in self._groups.items() if g.due is not None
                    )
