"""Continues flows: what is left over of large steps, and ends that nobody has counted yet."""

from __future__ import annotations

import time

from penstock.maintenance.service import Service
from penstock.stores.contract import Store

__all__ = ["FlowAdvancer"]

#: Interval (s) of the checks: while this worker runs jobs of flows, and otherwise.
_SOON, _LATER = 0.5, 5.0
#: How long (s) the checks are frequent after a job of a flow.
_ACTIVE = 10.0


class FlowAdvancer(Service):
    """Advances flows in bounded steps, without a pause while there is something to do."""

    name = "flow advancer"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._active_until = 0.0

    def noticed(self) -> None:
        """A job of a flow has come to this worker."""
        idle = time.monotonic() > self._active_until
        self._active_until = time.monotonic() + _ACTIVE
        if idle:
            self.wake()

    async def tick(self) -> float:
        if await self._store.advance_flows():
            return 0.0
        return _SOON if time.monotonic() < self._active_until else _LATER
