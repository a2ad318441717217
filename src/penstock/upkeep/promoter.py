"""Makes due jobs available, at their millisecond."""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.store import Store
from penstock.upkeep.service import Service

__all__ = ["Promoter"]


class Promoter(Service):
    """Sleeps until the next due instant; `expect` tells it of an earlier one."""

    name = "promoter"

    def __init__(self, store: Store, queues: Sequence[str], *, look: float = 5.0, batch: int = 1_000) -> None:
        super().__init__()
        self._store = store
        self._queues = tuple(queues)
        self._look = look
        self._batch = batch
        self._wakes_at = 0.0  # monotonic

    async def tick(self) -> float:
        due = await self._store.promote(self._queues, limit=self._batch)
        if due.moved >= self._batch:
            return 0.0
        wait = self._look if due.next is None else max(0.0, (due.next - due.now) / 1000)
        wait = min(wait, self._look)
        self._wakes_at = time.monotonic() + wait
        return wait

    def expect(self, wait_ms: int) -> None:
        """Somebody saw a job that is due in `wait_ms`: be awake by then."""
        if time.monotonic() + wait_ms / 1000 < self._wakes_at - 0.0005:
            self.poke()
