"""The children of a process pool, and which of them may have calls."""

from __future__ import annotations

from penstock.worker.pools.process import ChildProcess

__all__ = ["ChildGroup"]


class ChildGroup:
    """Children that take calls, and retired ones that run their last. At most `size` have calls at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        #: Children that take calls; successors that are ready early are among them.
        self.active: list[ChildProcess] = []
        #: Children that were asked to end.
        self.retired: list[ChildProcess] = []

    def clear(self) -> None:
        """Forget all children."""
        self.active, self.retired = [], []

    def places(self) -> tuple[list[ChildProcess], int]:
        """The children that may have calls, and how many more may.

        A successor stays idle until the child before it has ended its last call.
        """
        held = sum([1 for child in self.retired if child.calls]) if self.retired else 0
        if not held and len(self.active) <= self._size:
            return self.active, self._size - len(self.active)
        busy = [child for child in self.active if child.calls]
        idle = [child for child in self.active if not child.calls]
        free = max(0, self._size - held - len(busy))
        return busy + idle[:free], max(0, free - len(idle))

    def least_loaded(self, expected: float | None) -> ChildProcess | None:
        """The least loaded child with room for a call of this expected duration (s; None: unknown)."""
        best = None
        for child in self.places()[0]:
            if (best is None or child.work < best.work) and child.room(expected) > 0:
                best = child
        return best

    def has_idle(self, besides: ChildProcess | None = None) -> bool:
        """Whether an active child, other than this one, has no calls."""
        return any(not child.calls and child is not besides for child in self.active)
