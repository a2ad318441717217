"""Warns once about served queues that neither the app nor the store knows: often a typing error."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.core.errors import StoreError, StoreUnavailable, did_you_mean
from penstock.maintenance.service import Service
from penstock.stores.contract import Store

__all__ = ["UnknownQueues"]

_log = logging.getLogger("penstock.worker")
#: Maximum number of queues named in the warning.
_NAMED = 10


class UnknownQueues(Service):
    """Compares the served queues with those of the app's tasks and of the store.

    An unknown queue is not an error: jobs from other languages or from a newer app may arrive in it.
    """

    name = "unknown-queues"

    def __init__(self, store: Store, worker: str, served: Sequence[str], of_tasks: Sequence[str]) -> None:
        super().__init__()
        self._store = store
        self._worker = worker
        self._of_tasks = of_tasks
        self._unregistered = [name for name in served if name not in set(of_tasks)]

    async def tick(self) -> float:
        if self._unregistered:
            try:
                known = {*self._of_tasks, *(queue.name for queue in await self._store.queues())}
            except StoreUnavailable:
                raise  # retried later
            except StoreError:  # the queues are unknown; the warning is optional
                known = set(self._unregistered)
            self._warn([name for name in self._unregistered if name not in known], known)
        self.stop()
        return 0.0

    def _warn(self, names: Sequence[str], known: set[str]) -> None:
        if not names:
            return
        shown = ", ".join(f"{name!r}" for name in names[:_NAMED])
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        near = did_you_mean(names[0], known) if len(names) == 1 else ""
        which = "the queue" if len(names) == 1 else "the queues"
        _log.warning(
            "worker %s serves %s %s%s, unknown to the app's tasks and to the store%s: "
            "it waits there for jobs",
            self._worker,
            which,
            shown,
            more,
            near,
        )
