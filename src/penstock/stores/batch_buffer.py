"""The groups of one queue in plain data: who has joined, and which of them is to become a batch next."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from penstock.core.batch import Group

__all__ = ["Gathered", "Gathering"]


class Gathered(NamedTuple):
    """What a group is called within its queue; of those due at the same instant they go in this order."""

    task: str
    key: str


class _Group:
    """Members that wait: their generations in the order of joining, with when that was."""

    __slots__ = ("due", "last", "members", "terms")

    def __init__(self, terms: Group) -> None:
        self.members: dict[int, int] = {}
        self.terms = terms
        self.last = 0
        self.due: int | None = None

    @property
    def first(self) -> int:
        """When the first of them has joined."""
        return next(iter(self.members.values()))


class Gathering:
    """A group is there as long as it has members."""

    def __init__(self) -> None:
        self._groups: dict[Gathered, _Group] = {}
        self._order: list[tuple[int, Gathered]] = []  # by when they are due; with ghosts

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
        """Those of this group that are to be a batch now: it is full, or its time has come."""
        group = self._groups.get(name)
        if group is None:
            return []
        full = len(group.members) >= group.terms.size
        return self.first_of(name) if full or (group.due is not None and group.due <= now) else []

    def first_of(self, name: Gathered) -> list[int]:
        """As many of this group as go into one batch, in the order in which they joined."""
        group = self._groups.get(name)
        return [] if group is None else list(group.members)[: group.terms.size]

    def next(self) -> tuple[int, Gathered] | None:
        """The group that is due first, and when."""
        order = self._order
        while order and not self._holds(*order[0]):
            heappop(order)
        return order[0] if order else None

    def groups(self) -> list[tuple[Gathered, int, int, int | None]]:
        """Each group: its name, how many are in it, since when the first is, when it is due."""
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
