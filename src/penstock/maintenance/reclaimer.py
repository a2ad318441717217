"""Reclaims jobs whose worker is dead or whose lease has expired, and decides their outcome."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Unpack

from penstock.app.reclaimed_jobs import OnDecided, SettleOptions, settle_reclaimed
from penstock.core import clock
from penstock.core.errors import StoreError
from penstock.core.ids import mint_token
from penstock.core.job import DEAD_KEPT, Job
from penstock.maintenance.service import Service
from penstock.stores.contract import Store

__all__ = ["Reclaimer", "reclaim_all"]

#: Interval of the search for dead workers (s); it needs no call to the store.
_DEAD_EVERY = 1.0
#: Interval (s) after which dead workers that this store does not know are looked up again.
_FOREIGN_RECHECK = 60.0
#: Factor for the pause before leases are checked again: a heartbeat that is just due takes some time.
_HEARTBEAT_MARGIN = 1.5


class Reclaimer(Service):
    """Reclaims the jobs of proven dead workers every second, and expired leases every `every` seconds.

    `proven_dead` returns the dead workers of this host, of any store (see worker/locks.py); its argument are
    those known not to belong to this store. `remove_dead` removes the proof. `on_lost` is called for each
    worker removed here, with its id, the cause and the number of its jobs.

    A reclaimer that was itself suspended or cut off waits one heartbeat before it reclaims expired leases,
    because other workers may have been cut off for as long. `write` writes to the store and is called after a
    failure: a store with a full disk answers reads, but counts as back only when it can be written to.
    """

    name = "reclaimer"

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        worker: str,
        *,
        lease: int,
        heartbeat: float,
        proven_dead: Callable[[Set[str]], set[str]],
        remove_dead: Callable[[str], object],
        on_lost: Callable[[str, str, int], None] = lambda *_: None,
        on_decided: OnDecided = lambda *_: None,
        write: Callable[[], Awaitable[None]] | None = None,
        every: float = 2.0,
        batch: int = 500,
        keep_dead: int = DEAD_KEPT,
    ) -> None:
        super().__init__()
        self._store = store
        self._queues = tuple(queues)
        self._worker = worker
        self._lease = lease
        self._heartbeat = heartbeat
        self._proven_dead = proven_dead
        self._foreign_workers: set[str] = set()  # dead workers that do not belong to this store
        self._recheck_foreign_at = 0.0  # monotonic: when those are looked up again
        self._remove_dead = remove_dead
        self._on_lost = on_lost
        self._on_decided = on_decided
        self._write = write
        self._every = every
        self._batch = batch
        self._keep_dead = keep_dead
        self._last_contact = clock.lease_seconds()
        self._failed = False
        self._reclaim_not_before = 0.0
        self._due = 0.0  # by `clock.lease_seconds()`: when expired leases are reclaimed next
        #: After a gap in contact longer than this (s), leases may have expired whose workers were cut off
        #: too.
        self._cut_off = min(3 * every + 1.0, max(1.5 * every, lease / 1000 - heartbeat))

    def suspend_reclaim(self) -> None:
        """Suspend reclaiming after another part of this worker could not write.

        May be called from any thread.
        """
        self._failed = True

    async def tick(self) -> float:
        try:
            return await self._tick()
        except StoreError:
            self.suspend_reclaim()
            raise

    async def _tick(self) -> float:
        store_asked = await self._reclaim_from_dead()
        if self._failed and self._write is not None:
            await self._write()
        elif not store_asked:
            if clock.lease_seconds() < self._due:
                return self._pause
            await self._store.workers()  # shows whether the store answers, before leases are reclaimed
        now = clock.lease_seconds()
        if self._failed or now - self._last_contact > self._cut_off:
            self._reclaim_not_before = now + self._heartbeat * _HEARTBEAT_MARGIN
        self._failed, self._last_contact = False, now
        if now < max(self._reclaim_not_before, self._due):
            return self._pause
        self._due = now + self._every - self._pause / 2 if self._every > self._pause else now
        found = await self._store.reclaim(
            self._queues, limit=self._batch, lease=self._lease, worker=self._worker, token=mint_token()
        )
        if found.set_aside:
            self.on_set_aside(found.set_aside)
        cause = "the worker did not extend the lease"
        await settle_reclaimed(
            self._store, found, "LeaseLost", cause, keep_dead=self._keep_dead, on_decided=self._on_decided
        )
        if len(found.jobs) >= self._batch:
            self._due = 0.0
            return 0.0
        return self._pause

    @property
    def _pause(self) -> float:
        return min(_DEAD_EVERY, self._every)

    async def _reclaim_from_dead(self) -> bool:
        """Reclaim the jobs of dead workers.

        Whether the store was store_asked: only if a worker on this host has died.
        """
        if time.monotonic() >= self._recheck_foreign_at:  # an id given by the user may be in use again
            self._foreign_workers.clear()
            self._recheck_foreign_at = time.monotonic() + _FOREIGN_RECHECK
        dead = self._proven_dead(self._foreign_workers)
        self._foreign_workers &= dead
        if not dead - self._foreign_workers:
            return False
        known = await self._store.workers()
        self._foreign_workers |= dead - {info.id for info in known}
        for info in known:
            if info.id == self._worker or info.id not in dead:
                continue
            cause = f"worker {info.id} died"
            lost = await reclaim_all(
                self._store,
                info.id,
                self._worker,
                self._lease,
                "WorkerLost",
                cause,
                keep_dead=self._keep_dead,
                on_decided=self._on_decided,
            )
            await self._store.retire(info.id)
            # otherwise another worker has removed it and reported the loss
            if self._remove_dead(info.id) is not False:
                self._on_lost(info.id, cause, len(lost))
        return True


async def reclaim_all(
    store: Store, dead: str, by: str, lease: int, kind: str, cause: str, **options: Unpack[SettleOptions]
) -> list[Job]:
    """Reclaim all jobs that the dead worker held and decide their outcome; returns the jobs as they were.

    `overdue` returns the timeout message of a job for which the worker was killed. `leave`: as for
    `settle_reclaimed`.
    """
    jobs: list[Job] = []
    while True:
        found = await store.reclaim((), limit=500, lease=lease, worker=by, token=mint_token(), of=[dead])
        await settle_reclaimed(store, found, kind, cause, **options)
        jobs += found.jobs
        if len(found.jobs) < 500:
            return jobs
