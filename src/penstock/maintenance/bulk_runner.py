"""Runs the bulk acts of operators, step by step, next to the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.maintenance.service import Service
from penstock.stores.contract import Store
from penstock.stores.worker_commands import BULK_ACTS

if TYPE_CHECKING:
    from penstock.inspector.bulk_pace import PacedSteps

__all__ = ["BulkRunner"]

#: The store wakes the runner (SETTINGS). This interval (s) is for a notification lost with its sender.
_SAFETY = 60.0
#: How often (s) a runner looks whether the process that holds a bulk act has died.
_HELD_ELSEWHERE = 2.0


class BulkRunner(Service):
    """Runs one bulk act at a time, if no other process does. Woken by changes of settings, e.g. a new one."""

    name = "bulk runner"

    def __init__(self, store: Store, holder: str) -> None:
        super().__init__()
        self._store = store
        self._holder = holder
        self._steps: PacedSteps | None = None
        self._version = 0

    def wake(self) -> None:
        """Look for a bulk act now. The pauses between the steps of one are kept."""
        if self._steps is None:
            super().wake()

    async def tick(self) -> float:
        (version,) = await self._store.document_versions([BULK_ACTS])
        if self._steps is None:
            return _SAFETY if version == self._version else await self._find(version)
        stepped, pause = await self._steps.next()
        if stepped is None:
            self._steps = None
        return pause

    async def _find(self, version: int) -> float:
        """Choose a bulk act that nobody runs; returns the seconds until the next tick."""
        # loaded only while there is a bulk act: it takes a megabyte
        from penstock.inspector.bulk_acts import BulkActs
        from penstock.inspector.bulk_pace import PacedSteps

        acts = BulkActs(self._store)
        free, free_in = await acts.next_free()
        if free_in is None:
            self._version = version
            return _SAFETY
        if free is None:
            return min(_HELD_ELSEWHERE, free_in / 1000)
        self._steps = PacedSteps(acts, free.id, self._holder)
        return 0.0
