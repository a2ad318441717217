"""Fair share: give the jobs of one priority places such that each tenant starts one job per round."""

from __future__ import annotations

from penstock.core.relations import Tenant
from tests.oracle.sorted import Sorted

__all__ = ["FairShare"]

_NO_TENANT = Tenant("")  # in a queue with a fair share, jobs without a tenant count as one more tenant


class FairShare:
    """The places of the jobs of one priority, and the next place of each tenant."""

    __slots__ = ("_ends", "_now", "_tail")

    def __init__(self, now: int) -> None:
        self._now = now  # the greatest fetched place
        self._tail = 0
        self._ends: Sorted[str, int] = Sorted()  # tenant → its next place, if that is after `_now`

    @property
    def first(self) -> int:
        """The place of a new tenant: after all fetched places, and after other new tenants."""
        return max(self._tail, self._now + 1)

    def draw(self, tenant: Tenant | None) -> int:
        """Return a place at the tail of this tenant."""
        tenant, first = tenant or _NO_TENANT, self.first
        place = max(first, self._ends.get(tenant.key) or 0)
        if place == first:
            self._tail = first + 1
        self._end(tenant.key, place + tenant.step)
        return place

    def give_back(self, tenant: Tenant | None) -> None:
        """Give back the place of a job of this tenant that leaves without being fetched."""
        tenant = tenant or _NO_TENANT
        end = self._ends.get(tenant.key)
        if end is not None:  # plus 1: another job of the tenant may have the place before
            self._end(tenant.key, end - tenant.step + 1)

    def fetched(self, place: int) -> None:
        self._now = max(self._now, place)
        while (end := self._ends.first()) is not None and end[0] <= self._now:
            self._ends.drop(end[1])

    def rest(self) -> None:
        """Start all tenants equal again, because no job is available."""
        self._now = self._ends.greatest() or self._now
        self._ends = Sorted()

    def _end(self, tenant: str, end: int) -> None:
        self._ends.drop(tenant)
        if end >= self.first:
            self._ends.put(tenant, end)
