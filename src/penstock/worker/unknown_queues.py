"""Says once that nobody knows a queue which this worker serves: mostly its name is a slip of the pen."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.core.errors import StoreError, StoreUnavailable, did_you_mean
from penstock.maintenance.service import Service
from penstock.stores.contract import Store

__all__ = ["UnknownQueues"]

_log = logging.getLogger("penstock.worker")
#: So many are named.
_NAMED = 10


class UnknownQueues(Service):
    """Compares the served queues with those of the app's tasks and of the store. An unknown one is no error:
    jobs of other languages, or of a newer app, may come to it."""

    name = "unknown-queues"

    def __init__(self, store: Store, worker: str, served: Sequence[str], of_tasks: Sequence[str]) -> None:
        super().__init__()
        self._store = store
        self._worker = worker
        self._of_tasks = of_tasks
        self._strange = [name for name in served if name not in set(of_tasks)]

    async def tick(self) -> float:
        if self._strange:
            try:
                known = {*self._of_tasks, *(queue.name for queue in await self._store.queues())}
            except StoreUnavailable:
                raise  # later
            except StoreError:  # it does not say; nobody waits for this
                known = set(self._strange)
            self._say([name for name in self._strange if name not in known], known)
        self.stop()
        return 0.0

    def _say(self, names: Sequence[str], known: set[str]) -> None:
        if not names:
            return
        shown = ", ".join(f"{name!r}" for name in names[:_NAMED])
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        near = did_you_mean(names[0], known) if len(names) == 1 else ""
        which = "the queue" if len(names) == 1 else "the queues"
        _log.warning(
            "worker %s serves %s %s%s, which neither a task of the app nor the store knows%s: "
            "it waits there for jobs",
            self._worker,
            which,
            shown,
            more,
            near,
        )
