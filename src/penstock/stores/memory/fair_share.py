"""Fair share among keys: places for the jobs of one priority, such that each key comes once in a round."""

from __future__ import annotations

from penstock.core.partition import Tenant
from penstock.stores.memory.sorted import Sorted

__all__ = ["FairShare"]

_NO_TENANT = Tenant("")  # in a fair queue, jobs without a tenant share one


class FairShare:
    """The places of the jobs of one priority, with the next one of each key."""

    __slots__ = ("_ends", "_now", "_tail")

    def __init__(self, now: int) -> None:
        self._now = now  # the greatest place that was fetched
        self._tail = 0
        self._ends: Sorted[str, int] = Sorted()  # the place that a key gets next, if it is a later one

    @property
    def first(self) -> int:
        """The place of a key that comes anew: behind what was fetched, and behind others that came anew."""
        return max(self._tail, self._now + 1)

    def draw(self, tenant: Tenant | None) -> int:
        """A place at the tail of this key."""
        tenant, first = tenant or _NO_TENANT, self.first
        place = max(first, self._ends.get(tenant.key) or 0)
        if place == first:
            self._tail = first + 1
        self._end(tenant.key, place + tenant.step)
        return place

    def give_back(self, tenant: Tenant | None) -> None:
        """A job of this key leaves without being fetched."""
        tenant = tenant or _NO_TENANT
        end = self._ends.get(tenant.key)
        if end is not None:  # not quite: another job of the key may stand there
            self._end(tenant.key, end - tenant.step + 1)

    def fetched(self, place: int) -> None:
        self._now = max(self._now, place)
        while (end := self._ends.first()) is not None and end[0] <= self._now:
            self._ends.drop(end[1])

    def rest(self) -> None:
        """Nobody has a job there: all begin alike."""
        self._now = self._ends.greatest() or self._now
        self._ends = Sorted()

    def _end(self, key: str, end: int) -> None:
        self._ends.drop(key)
        if end >= self.first:
            self._ends.put(key, end)
