"""Keeps the slots full: fetches jobs that can start now, and jobs expected to start within 50 ms.

While it does not wait at the store, because slots are full, the `Listener` asks for changes there.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from penstock.core import clock
from penstock.core.errors import StoreError
from penstock.core.ids import mint_token
from penstock.maintenance.service import Backoff, Service
from penstock.stores.contract import Fetched, OnDue, Share, Store, Wake, WorkerOffer
from penstock.worker.executor import Admission, Slots
from penstock.worker.executor.settler import Settler
from penstock.worker.queues import WeightedRoundRobin, spread
from penstock.worker.setup import WorkerSetup

#: A burst asks again this often (s), to end soon.
_BURST_POLL = 0.05
#: Maximum number of jobs per fetch, on every store: one Redis script may lease this many.
_MAX_JOBS = 2_000
#: Upper bound of the time (s) for which short jobs keep the event loop from sending a fetch.
_LOOP_DELAY = 0.006
#: No job starts while this many outcomes wait for the store's answer (see executor/settler.py).
_MAX_UNSENT = 4_000
#: While slots are free, queues at their own limit are checked again after this long (s).
_RECHECK = 1.0
_QUEUE_OF = attrgetter("spec.queue")
#: A wait that returns within _IMMEDIATELY seconds without bringing a job is fruitless. After _FREE_WAITS of
#: them in a row the fetcher pauses, at most _MAX_PAUSE seconds, before it asks again.
_FREE_WAITS, _MAX_PAUSE, _IMMEDIATELY = 8, 0.5, 0.005


class Fetcher(Service):
    """Fetches jobs, one fetch at a time.

    A fetch that is repeated after an error carries the same token: if only the reply was lost, the store
    returns the same leases again.

    `on_due` gets the time of the next job that is not due yet. `on_empty` is called with each empty fetch,
    and says whether the worker ends. `on_changes` gets cancellations and changed settings: the store reports
    each once.
    """

    name = "fetcher"

    def __init__(
        self,
        setup: WorkerSetup,
        admission: Admission,
        settler: Settler,
        *,
        on_due: OnDue,
        on_empty: Callable[[Fetched], bool],
        on_changes: Callable[[Wake], None],
    ) -> None:
        super().__init__()
        queues, config = setup.queues, setup.config
        self._store = setup.app.store
        self._admission = admission
        self._slots = admission.slots
        self._settler = settler
        self._leased_jobs = admission.slots.leased_jobs
        self._round_robin = WeightedRoundRobin(queues, strict=setup.strict)
        self._names = tuple(q.name for q in queues)
        self._strict = setup.strict and len(queues) > 1
        self._has_slot_limits = any(q.slots is not None for q in queues)
        self._worker = setup.id
        self._lease = config.lease
        self._look_ahead = config.look_ahead / 1000
        self._safety_poll = _BURST_POLL if setup.burst else config.safety_poll / 1000
        self._on_due = on_due
        self._on_empty = on_empty
        self._on_changes = on_changes
        self._token = mint_token()
        self._token_sent = False  # whether the store has seen the token and may have leased jobs under it
        self._rate = StartRate()
        self._waiting: asyncio.Task[Wake] | None = None
        self._fetch_seconds = 0.0  # moving average of a fetch's duration (s)
        self._empty_waits = Backoff(most=_MAX_PAUSE, free=_FREE_WAITS)
        self.last_success = time.monotonic()

    async def run(self) -> None:
        await super().run()
        if self._token_sent:
            await self._fetch_unanswered()

    async def _fetch_unanswered(self) -> None:
        """Fetch leases made under the current token that have not arrived, so that they are released at once.

        Without this, a job whose reply or notification was lost would wait until its lease expires.
        """
        requested = [Share(name, 0, 0) for name in self._names]
        sent = clock.lease_seconds()
        try:
            fetched = await self._store.fetch(
                requested, limit=0, lease=self._lease, worker=self._worker, token=self._token
            )
        except StoreError as error:
            self.problem_log.report(f"{self.name}: the store does not answer", error)
            return
        self._admission.start_or_buffer(fetched.jobs, sent, fetched.now)

    async def tick(self) -> float:
        await self._wait_for_slot()
        if self._stopping:
            return 0.0
        self._slots.freed.clear()  # a slot freed from here on ends the wait in `_wait_for_jobs`
        shares, limit = self._plan()
        if not shares:
            return await self._wait_for_queue_slot()
        if self._settler.unsent and self._slots.free > 0:  # settle first, so that one transaction does both
            self._settler.flush()
            await asyncio.sleep(0)
        sent = clock.lease_seconds()
        fetched = await self._fetch(shares, limit)
        received = Counter(map(_QUEUE_OF, fetched.jobs))
        self._round_robin.charge(shares, received)
        if fetched.set_aside:
            self.on_set_aside(fetched.set_aside)
        if fetched.due is not None:
            self._on_due(fetched.due, fetched.now)
        if fetched.jobs:
            self._empty_waits.reset()
            jobs = fetched.jobs if self._strict else spread(fetched.jobs, received)
            self._admission.start_or_buffer(jobs, sent, fetched.now)
            return 0.0
        self._leased_jobs.fetch_arrived()
        requested = tuple(share.queue for share in shares)
        self._admission.release_unproductive(requested)
        return await self._wait_for_jobs(fetched, requested)

    def _plan(self) -> tuple[list[Share], int]:
        """How many jobs to fetch of each queue, by their weights and free slots, and of all together."""
        admission, free = self._admission, self._slots.free
        limit = min(_MAX_JOBS, free + max(0, self._jobs_ahead() - self._slots.buffered))
        held = self._leased_jobs.per_queue
        if admission.backlog:
            held = held - admission.backlog.per_queue
        return self._round_robin.plan(limit, free, held, admission.caps(), admission.free_slots()), limit

    async def _fetch(self, shares: list[Share], limit: int) -> Fetched:
        self._send_token()
        began = time.monotonic()
        fetched = await self._store.fetch(
            shares, limit=limit, lease=self._lease, worker=self._worker, token=self._token
        )
        self._new_token()
        self.last_success = time.monotonic()
        self._fetch_seconds += (self.last_success - began - self._fetch_seconds) / 4
        return fetched

    async def _wait_for_slot(self) -> None:
        """Wait until a job that is fetched now can start at once, or soon."""
        slots = self._slots
        while not self._stopping:
            if (slots.free > 0 or self._runs_low()) and self._settler.unsent < _MAX_UNSENT:
                return
            if slots.buffered == 0:
                self._settler.flush()
            slots.freed.clear()
            await slots.freed.wait()  # stop() sets it too

    def _runs_low(self) -> bool:
        """Whether the buffered jobs will all have started by the time a fetch returns.

        Fetching then keeps the slots from being idle during the fetch.
        """
        buffered = self._slots.buffered
        if buffered == 0 or self._rate.per_second == 0.0:
            return False
        return buffered <= self._rate.per_second * min(
            self._fetch_seconds + _LOOP_DELAY, self._look_ahead / 2
        )

    async def _wait_for_queue_slot(self) -> float:
        """Wait for a slot of a queue: slots are free, but every queue is at its own limit."""
        await self._freed_within(self._seconds_to_recheck())
        return 0.0

    def _seconds_to_recheck(self) -> float:
        """Seconds until a queue that is skipped now is checked again, even if no slot is freed."""
        return min(_RECHECK, self._admission.backlog.next_look(time.monotonic()) or _RECHECK)

    async def _wait_for_jobs(self, fetched: Fetched, queues: tuple[str, ...]) -> float:
        """Wait for a notification after an empty fetch; what is due meanwhile is left to the promoter."""
        if self._on_empty(fetched):
            self.stop()  # at once: with a store in memory the drain might not run before the next tick
            return 0.0
        timeout = self._safety_poll
        if fetched.opens_at is not None:
            timeout = min(timeout, max(0.001, (fetched.opens_at - fetched.now) / 1000))
        tasks: set[asyncio.Task[Any]] = set()
        # the other queues are full: they may have jobs when a slot is freed
        if len(queues) < len(self._names):
            tasks.add(asyncio.create_task(self._slots.freed.wait()))
            timeout = min(timeout, self._seconds_to_recheck())
        # no offer while a queue opens at a known time: if its last slot is taken, no idle worker would know
        # that time
        offer = self._offer() if fetched.opens_at is None else None
        waiting = asyncio.create_task(
            self._store.wait(
                queues,
                timeout=max(1, round(timeout * 1000)),
                offer=offer,
                parked=fetched.kept,
                on_due=self._on_due,
            )
        )
        tasks.add(waiting)
        self._waiting = waiting  # `wake` cancels it
        began = time.monotonic()
        try:
            if not self._woken.is_set():
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done() and not waiting.cancelled():
                self._on_changes(waiting.result())
        finally:
            self._waiting = None
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.gather(*left, return_exceptions=True)
        if waiting.cancelled() or time.monotonic() - began > _IMMEDIATELY:
            self._empty_waits.reset()
        elif (pause := self._empty_waits.next_pause()) > 0:
            await self._freed_within(pause)
        return 0.0

    async def _freed_within(self, seconds: float) -> None:
        """Sleep, unless a slot comes free."""
        try:
            async with asyncio.timeout(seconds):
                await self._slots.freed.wait()
        except TimeoutError:
            pass

    def _offer(self) -> WorkerOffer:
        """Let the store lease jobs to this worker directly, under the token of the next fetch."""
        self._send_token()
        return WorkerOffer(self._worker, self._token, self._lease, self._accept_dispatch)

    def _accept_dispatch(self, dispatched: Fetched) -> WorkerOffer | None:
        """Start a job that the store leased to this worker while it waited; returns the next offer, if any.

        There is a next offer if slots are free and no served queue has a slot limit.
        """
        self._new_token()
        self._admission.start_or_buffer(dispatched.jobs, clock.lease_seconds(), dispatched.now)
        if self._stopping or self._has_slot_limits or self._slots.free == 0:
            return None
        return self._offer()

    def _send_token(self) -> None:
        """Enter the token in the lease table: if this loop is blocked, the supervisor asks for its jobs."""
        if not self._token_sent:
            self._token_sent = True
            self._leased_jobs.fetch_sent(self._token)

    def _new_token(self) -> None:
        self._token = mint_token()
        self._token_sent = False

    def _jobs_ahead(self) -> int:
        """How many jobs beyond the free slots will start within the look-ahead, at the measured rate.

        None in strict order: a job of a lower queue must not start before a job of a higher one that comes
        in the meantime.
        """
        if self._has_slot_limits or self._strict:
            return 0
        slots = self._slots
        return int(self._rate.update(slots.starts, slots.ends, slots.busy_seconds) * self._look_ahead)

    def wake(self) -> None:
        super().wake()
        if self._waiting is not None:
            self._waiting.cancel()

    @property
    def stopped(self) -> bool:
        """Whether it has been stopped."""
        return self._stopping

    def stop(self) -> None:
        super().stop()
        self._slots.freed.set()
        self.wake()


class StartRate:
    """Starts per second while there was work, measured since the last fetch.

    Zero while attempts take longer than `longest` seconds: then no slot is freed in time.
    """

    def __init__(self, longest: float = 0.05) -> None:
        self._longest = longest
        self._starts = 0
        self._ends = 0
        self._busy = 0.0
        self._at = time.monotonic()
        self.per_second = 0.0

    def update(self, starts: int, ends: int, busy: float) -> float:
        now = time.monotonic()
        n, ended, spent, elapsed = starts - self._starts, ends - self._ends, busy - self._busy, now - self._at
        self._starts, self._ends, self._busy, self._at = starts, ends, busy, now
        if n == 0 or ended == 0 or spent / ended > self._longest:
            self.per_second = 0.0
        else:
            measured = n / max(elapsed, 0.0005)
            # falls at once and rises by doubling: long jobs may follow short ones
            self.per_second = min(measured, max(2 * self.per_second, 20_000.0))
        return self.per_second


# ── cancellations and changed settings while attempts run ────────────────────────────────────────


class Listener(Service):
    """Checks the store five times a second while attempts run, or the worker is quiet; a check is cheap.

    At other times the fetcher waits at the store, and learns of changes there. `on_changes` gets
    cancellations and changed settings: the store reports each once.
    """

    name = "listener"

    def __init__(
        self,
        store: Store,
        slots: Slots,
        fetcher: Fetcher,
        *,
        on_changes: Callable[[Wake], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._slots = slots
        self._fetcher = fetcher
        self._on_changes = on_changes

    async def tick(self) -> float:
        if not self._slots.running and not self._fetcher.stopped:
            self._slots.started.clear()
            await self._slots.started.wait()
            return 0.1
        self._on_changes(await self._store.wait((), timeout=0))
        return 0.2
