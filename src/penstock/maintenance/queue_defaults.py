"""Stores the limits of queues that the app's code sets: at the start of a worker, and every minute."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from penstock.core.errors import StoreError
from penstock.core.limit_layers import NO_LAYERS, limits_by_code
from penstock.core.limits import NO_LIMITS, LimitChange
from penstock.maintenance.service import Service
from penstock.stores.contract import Store

__all__ = ["QueueDefaultsWriter"]

_log = logging.getLogger("penstock.maintenance")
#: Interval (s). While two releases of an app run, each stores its own limits; this long after the last worker
#: of the old release has ended, the new one's are in effect.
_EVERY = 60.0


class QueueDefaultsWriter(Service):
    """Writes what differs. `defaults` None: this app's code sets no limits, and nothing is written."""

    name = "queue defaults"

    def __init__(
        self, store: Store, served: Sequence[str], defaults: Mapping[str, LimitChange] | None
    ) -> None:
        super().__init__()
        self._store = store
        self._defaults = defaults
        # a queue that this worker serves and the code no longer limits loses the code's limits
        self._wanted = {**dict.fromkeys(served, limits_by_code()), **(defaults or {})}

    async def first(self) -> None:
        """Store the limits before the first fetch. If the store does not answer, the next tick does it."""
        try:
            await self.tick()
        except StoreError as error:
            _log.warning("the limits of queues in code are not stored yet: %s", error)

    async def tick(self) -> float:
        if self._defaults is not None:
            stored = {info.name: info for info in await self._store.queues()}
            for queue, change in self._wanted.items():
                info = stored.get(queue)
                before = NO_LAYERS if info is None else info.layers
                if (info is None or not info.away) and before.changed(change, NO_LIMITS) != before:
                    await self._store.settings(queue, limits=change)
        return _EVERY
