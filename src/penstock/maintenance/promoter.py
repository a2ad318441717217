"""Makes scheduled jobs available when they are due, to the millisecond."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from penstock.maintenance.precise_timer import PreciseTimer
from penstock.maintenance.service import Backoff, Service
from penstock.maintenance.store_clock import StoreClock
from penstock.stores.contract import Due, Store

__all__ = ["Promoter"]


class Promoter(Service):
    """Sleeps until the next job is due; `expect` announces an earlier one.

    The store's clock decides what is due: a promotion that comes too early moves nothing. `queues` may be a
    function: then each promotion is of the queues that it returns.
    """

    name = "promoter"

    def __init__(
        self,
        store: Store,
        queues: Sequence[str] | Callable[[], Sequence[str]],
        *,
        look: float = 5.0,
        batch: int = 1_000,
    ) -> None:
        super().__init__()
        self._store = store
        self._queues = queues if callable(queues) else tuple(queues)
        self._look = look
        self._batch = batch
        self._wakes_at = -math.inf  # monotonic; -inf during a tick
        self._expected: set[int] = set()  # instants that were expected during the tick
        self._backoff = Backoff(most=look)
        self._stuck_at: int | None = None  # the time of due jobs that the last tick did not move
        self._store_clock = StoreClock()
        self._timer = PreciseTimer(self.wake)

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._timer.close()

    async def tick(self) -> float:
        self._wakes_at = -math.inf
        self._expected.clear()
        self._timer.cancel()
        sent = time.monotonic()
        queues = self._queues() if callable(self._queues) else self._queues
        due = await self._store.promote(queues, limit=self._batch)
        past = self._store_clock.take(due.now, sent)
        if due.set_aside:
            self.on_set_aside(due.set_aside)
        if due.moved >= self._batch:
            return 0.0
        following = self._following(due)
        wait = self._look if following is None else max(0.0, (following - due.now) / 1000 - past)
        wait = min(max(wait, self._pause(due)), self._look)
        self._wakes_at = time.monotonic() + wait
        return wait

    def _following(self, due: Due) -> int | None:
        """When the next job is due: this promotion may have missed one that was expected meanwhile."""
        later = (instant for instant in self._expected if instant > due.now)
        return min([*later] if due.next is None else [due.next, *later], default=None)

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

    async def _sleep(self, seconds: float) -> None:
        self._timer.set(time.monotonic() + seconds)
        await self._woken.wait()

    def expect(self, due: int, now: int) -> None:
        """Wake in time for a job that is due at `due`, by the store's clock, which shows `now`."""
        past = self._store_clock.take(now)
        if self._stopping or (due <= now and self._stuck_at is not None):  # or these jobs do not move
            return
        if self._wakes_at == -math.inf:
            self._expected.add(due)
            return
        at = time.monotonic() + (due - now) / 1000 - past
        if at < self._wakes_at - 0.0001:
            self._wakes_at = at
            self._timer.set(at)
