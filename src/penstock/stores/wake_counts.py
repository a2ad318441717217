"""How far a waiting worker has read the cancel requests and settings changes of a store."""

from __future__ import annotations

from typing import NamedTuple

from penstock.stores.contract import Wake

__all__ = ["WakeCounts"]


class WakeCounts(NamedTuple):
    """The number of cancel requests and of settings changes so far."""

    cancels: int
    changes: int

    def wake_since(self, before: WakeCounts) -> Wake:
        """Return the flags of a wait that began at the counts `before`."""
        wake = Wake.NOTHING
        if self.cancels > before.cancels:
            wake |= Wake.CANCEL
        if self.changes > before.changes:
            wake |= Wake.SETTINGS
        return wake

    def highest(self, other: WakeCounts) -> WakeCounts:
        """Return the higher of each count: several waits may end at once, in any order."""
        return WakeCounts(max(self.cancels, other.cancels), max(self.changes, other.changes))
