"""Makes scheduled jobs available when they are due, to the millisecond."""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.maintenance.service import Backoff, Service
from penstock.stores.contract import Due, Store

__all__ = ["Promoter"]


class Promoter(Service):
    """Sleeps until the next job is due; `expect` announces an earlier one."""

    name = "promoter"

    def __init__(self, store: Store, queues: Sequence[str], *, look: float = 5.0, batch: int = 1_000) -> None:
        super().__init__()
        self._store = store
        self._queues = tuple(queues)
        self._look = look
        self._batch = batch
        self._wakes_at = 0.0  # monotonic
        self._backoff = Backoff(most=look)
        self._stuck_at: int | None = None  # the time of due jobs that the last tick did not move

    async def tick(self) -> float:
        due = await self._store.promote(self._queues, limit=self._batch)
        if due.set_aside:
            self.on_set_aside(due.set_aside)
        if due.moved >= self._batch:
            return 0.0
        wait = self._look if due.next is None else max(0.0, (due.next - due.now) / 1000)
        wait = min(max(wait, self._pause(due)), self._look)
        self._wakes_at = time.monotonic() + wait
        return wait

    def _pause(self, due: Due) -> float:
        """Seconds to pause if due jobs were neither moved nor set aside."""
        stuck_at, self._stuck_at = self._stuck_at, None
        if due.moved or due.set_aside or due.next is None or due.next > due.now:
            self._backoff.reset()
            return 0.0
        self._stuck_at = due.next
        if stuck_at != due.next:  # expired jobs were cancelled instead of moved: continue with the next ones
            self._backoff.reset()
            return 0.0
        return self._backoff.next_pause()

    def expect(self, wait_ms: int) -> None:
        """Wake in time for a job that is due in `wait_ms`."""
        if wait_ms == 0 and self._stuck_at is not None:
            return  # these are the jobs that do not move
        if time.monotonic() + wait_ms / 1000 < self._wakes_at - 0.0005:
            self.wake()
