"""Timers: delayed jobs become due, TTRs end, and waiting consume requests get work.

The verbs of a store that do this take a list of queues. `QueueList` knows those that have scheduled or
running jobs, so that a queue without them costs nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from penstock.core.ids import mint_token
from penstock.core.job import State
from penstock.dialects.lmstfy.dispatcher import Dispatcher
from penstock.dialects.lmstfy.jobs import after_ttr
from penstock.dialects.lmstfy.names import is_ours
from penstock.maintenance.service import Backoff, Service
from penstock.stores.contract import Settlement, Store, Wake

_log = logging.getLogger("penstock.lmstfy")

#: A wait for work (ms), and the pause (s) before it is begun again: many changes are one.
_WAIT = 60_000
_AGAIN = 0.002
#: The part of a second that a wait for one queue takes to begin, at most: more queues begin it less often.
_PER_QUEUE = 50e-6
#: Interval (s) at which the leases of other servers are reclaimed, and the most jobs of a call.
_ALL_EVERY, _RECLAIMED = 1.0, 500


class QueueList(Service):
    """Lists the queues that have scheduled or running jobs, of all servers and producers, every second.

    `on_now` is called with the store's clock, which is read at the same time.
    """

    name = "queue list"

    def __init__(self, store: Store, *, on_now: Callable[[int], None], every: float = 1.0) -> None:
        super().__init__()
        self._store = store
        self._on_now = on_now
        self._every = every
        self._scheduled: set[str] = set()
        self._running: set[str] = set()
        self._just_scheduled: set[str] = set()  # since the last listing began
        self._just_running: set[str] = set()

    def has_scheduled(self, queue: str) -> None:
        """Note that a job of this queue is due later."""
        self._just_scheduled.add(queue)

    def has_running(self, queues: Iterable[str]) -> None:
        """Note that jobs of these queues were leased."""
        self._just_running.update(queues)

    def scheduled(self) -> Sequence[str]:
        """The queues that may have scheduled or retryable jobs."""
        return sorted(self._scheduled | self._just_scheduled)

    def running(self) -> set[str]:
        """The queues that may have running jobs."""
        return self._running | self._just_running

    async def tick(self) -> float:
        before = self._just_scheduled, self._just_running
        self._just_scheduled, self._just_running = set(), set()
        began = time.monotonic()
        try:
            self._on_now(await self._store.now())
            infos = await self._store.queues()
        except BaseException:  # boundary: whatever the error, no queue may be forgotten
            self._just_scheduled |= before[0]
            self._just_running |= before[1]
            raise
        ours = [info for info in infos if is_ours(info.name)]
        later = (State.SCHEDULED, State.RETRYABLE)
        self._scheduled = {info.name for info in ours if any(info.counts.get(state) for state in later)}
        self._running = {info.name for info in ours if info.counts.get(State.RUNNING)}
        return max(self._every, 50 * (time.monotonic() - began))


class TtrTimer(Service):
    """Reclaims jobs whose TTR is over: leases of this server at once, those of others within a second.

    The TTR of a consume request is the lease of its jobs (`Dispatcher._fetch`), so nothing about it is stored
    when a job is published. `jobs.after_ttr` decides what becomes of a job.

    The ends of leases are kept by queue in steps of a thousandth of the lease, at least 10 ms, so that a
    million leases take the memory of a few thousand.
    """

    name = "ttr timer"

    def __init__(
        self,
        store: Store,
        worker: str,
        queue_list: QueueList,
        *,
        on_work: Callable[[Iterable[str]], None],
        on_reclaimed: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._worker = worker
        self._queue_list = queue_list
        self._on_work = on_work
        self._on_reclaimed = on_reclaimed
        self._steps: dict[float, set[str]] = {}
        self._ends: list[float] = []  # the keys of `_steps`, as a heap
        self._all_at = 0.0

    def leased(self, queues: set[str], ends: float) -> None:
        """Note leases that end at this instant of `time.monotonic`."""
        self._queue_list.has_running(queues)
        step = max(0.01, (ends - time.monotonic()) / 1_000)
        at = (ends // step + 1) * step
        known = self._steps.get(at)
        if known is not None:
            known |= queues
            return
        self._steps[at] = set(queues)
        heapq.heappush(self._ends, at)
        if self._ends[0] == at:
            self.wake()

    async def reclaim_all(self) -> None:
        """Take back jobs of all queues whose TTR is over by the store's clock."""
        while await self._reclaim(sorted(self._queue_list.running())):
            pass

    async def tick(self) -> float:
        now = time.monotonic()
        queues: set[str] = set()
        first = self._ends[0] if self._ends else now
        while self._ends and self._ends[0] <= now:
            queues |= self._steps.pop(heapq.heappop(self._ends))
        if now >= self._all_at:
            queues |= self._queue_list.running()
            self._all_at = now + _ALL_EVERY
        if queues and await self._reclaim(sorted(queues), since=min(first, now)):
            self._all_at = 0.0
            return 0.0
        return max(0.0, min([self._all_at, *self._ends[:1]]) - time.monotonic())

    async def _reclaim(self, queues: list[str], since: float | None = None) -> bool:
        """Settle jobs whose lease has ended; return True if there may be more.

        `since`: when the first of these leases ended (`time.monotonic`): long ago after a stall.
        """
        found = await self._store.reclaim(
            queues, limit=_RECLAIMED, lease=15_000, worker=self._worker, token=mint_token()
        )
        if found.set_aside:
            self.on_set_aside(found.set_aside)
        if not found.jobs:
            return False
        late = 0 if since is None else int((time.monotonic() - since) * 1_000)
        await self._store.settle(
            [Settlement(job.lease, after_ttr(job, found.now, late=late)) for job in found.jobs]
        )
        self._on_reclaimed(len(found.jobs))
        self._on_work({job.queue for job in found.jobs})
        return len(found.jobs) >= _RECLAIMED


class WorkWatch(Service):
    """Waits, for all waiting requests together, for jobs that do not come by a publish request here."""

    name = "work watch"

    def __init__(
        self, store: Store, dispatcher: Dispatcher, *, on_due: Callable[[int, int], None], most: float = 0.05
    ) -> None:
        super().__init__()
        self._store = store
        self._dispatcher = dispatcher
        self._on_due = on_due
        self._covered: frozenset[str] = frozenset()
        self._backoff = Backoff(most=most, free=3)

    def waits_for(self, queues: Sequence[str]) -> None:
        """Note that these queues have got waiting requests."""
        if not self._covered.issuperset(queues):
            self.wake()

    async def tick(self) -> float:
        queues = self._dispatcher.waited_for
        self._covered = frozenset(queues)
        if not queues:
            return 3_600.0
        pause = max(_AGAIN, len(queues) * _PER_QUEUE)
        served = self._dispatcher.note_served()
        ready = await self._wait(queues) is not Wake.NOTHING
        # a queue that was served meanwhile had the job of a publish request here; if it has more, the next
        # wait ends at once
        unserved = [queue for queue in queues if queue not in served]
        if ready and unserved:
            before = self._dispatcher.delivered
            self._dispatcher.work(unserved)
            await self._dispatcher.idle()
            if self._dispatcher.delivered != before:
                self._backoff.reset()
            else:
                pause = max(pause, self._backoff.next_pause())
        await asyncio.sleep(pause)  # not shortened by `wake`: many new waiting requests are one change
        return 0.0

    async def _wait(self, queues: list[str]) -> Wake:
        """Wait until there is work, other queues are waited for, or this service ends."""
        wait = asyncio.ensure_future(self._store.wait(queues, timeout=_WAIT, on_due=self._on_due))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((wait, woken), return_when=asyncio.FIRST_COMPLETED)
            return wait.result() & Wake.WORK if wait.done() else Wake.NOTHING
        finally:
            for task in (wait, woken):
                task.cancel()
            await asyncio.gather(wait, woken, return_exceptions=True)
