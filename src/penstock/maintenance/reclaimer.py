"""Reclaims jobs whose worker is dead or whose lease has expired, and decides their outcome."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Set

from penstock.app.deciding import Loss, settle_reclaimed
from penstock.core import clock
from penstock.core.errors import StoreError
from penstock.core.ids import mint_token
from penstock.core.job import DEAD_KEPT, Job
from penstock.core.lifecycle import Transition
from penstock.maintenance.service import Service
from penstock.stores.contract import Capability, Store

#: Interval of the search for dead workers (s); it needs no call to the store.
_DEAD_EVERY = 1.0
#: Interval (s) after which dead workers that this store does not know are looked up again.
_FOREIGN_RECHECK = 60.0
#: Factor for the pause before leases are checked again: a heartbeat that is just due takes some time.
_HEARTBEAT_MARGIN = 1.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimerSetup:
    """What a reclaimer reclaims, how often, and whom it reports to. Times in seconds, unless stated."""

    #: The worker that leases the reclaimed jobs until they are settled.
    worker: str
    #: The queues whose expired leases are reclaimed. Those of dead workers are reclaimed in all queues.
    queues: tuple[str, ...]
    #: How long (ms) reclaimed jobs are leased, as are those of the other workers.
    lease: int
    #: The interval of the other workers' heartbeats.
    heartbeat: float
    #: The interval at which expired leases are reclaimed.
    every: float = 2.0
    #: How many jobs are reclaimed with a call.
    batch: int = 500
    #: How long (ms) jobs that die here are kept, unless they say so themselves.
    keep_dead: int = DEAD_KEPT
    #: Returns the dead workers of this host, of any store (see worker/liveness.py). Called with those known
    #: not to belong to this store.
    proven_dead: Callable[[Set[str]], set[str]]
    #: Removes the proof of such a death; False if another worker has removed it.
    remove_dead: Callable[[str], object]
    #: Writes to the store; called after a failure. A store with a full disk answers reads, but counts as back
    #: only when it can be written to. None: a store that answers is back.
    write: Callable[[], Awaitable[None]] | None = None
    #: Called for each worker removed here, with its id, the cause and the number of its jobs.
    on_lost: Callable[[str, str, int], None] = lambda *_: None
    #: Called with each job decided here, and the transition that the store applied.
    on_decided: Callable[[Job, Transition], None] = lambda *_: None


class Reclaimer(Service):
    """Reclaims the jobs of proven dead workers every second, and expired leases at the setup's interval.

    A reclaimer that was itself suspended or cut off waits one heartbeat before it reclaims expired leases,
    because other workers may have been cut off for as long.
    """

    name = "reclaimer"

    def __init__(self, store: Store, setup: ReclaimerSetup) -> None:
        super().__init__()
        self._store = store
        self._setup = setup
        self._foreign_workers: set[str] = set()  # dead workers that do not belong to this store
        self._recheck_foreign_at = 0.0  # monotonic: when those are looked up again
        self._last_contact = clock.lease_seconds()
        self._failed = False
        self._reclaim_not_before = 0.0
        self._due = 0.0  # by `clock.lease_seconds()`: when expired leases are reclaimed next
        #: After a gap in contact longer than this (s), leases may have expired whose workers were cut off
        #: too.
        self._cut_off = min(
            3 * setup.every + 1.0, max(1.5 * setup.every, setup.lease / 1000 - setup.heartbeat)
        )

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
        setup, pause = self._setup, min(_DEAD_EVERY, self._setup.every)
        asked = await self._reclaim_from_dead()
        if self._failed and setup.write is not None:
            await setup.write()
        elif not asked:
            if clock.lease_seconds() < self._due:
                return pause
            await self._ask()
        now = clock.lease_seconds()
        if self._failed or now - self._last_contact > self._cut_off:
            self._reclaim_not_before = now + setup.heartbeat * _HEARTBEAT_MARGIN
        self._failed, self._last_contact = False, now
        if now < max(self._reclaim_not_before, self._due):
            return pause
        self._due = now + setup.every - pause / 2 if setup.every > pause else now
        found = await self._store.reclaim(
            setup.queues, limit=setup.batch, lease=setup.lease, worker=setup.worker, token=mint_token()
        )
        if found.set_aside:
            self.on_set_aside(found.set_aside)
        await settle_reclaimed(
            self._store, found, self._loss("LeaseLost", "the worker did not extend the lease")
        )
        if len(found.jobs) >= setup.batch:
            self._due = 0.0
            return 0.0
        return pause

    def _loss(self, kind: str, cause: str) -> Loss:
        return Loss(kind, cause, keep_dead=self._setup.keep_dead, on_decided=self._setup.on_decided)

    async def _reclaim_from_dead(self) -> bool:
        """Reclaim the jobs of dead workers.

        Returns whether it has asked the store: only if a worker on this host has died.
        """
        if time.monotonic() >= self._recheck_foreign_at:  # an id given by the user may be in use again
            self._foreign_workers.clear()
            self._recheck_foreign_at = time.monotonic() + _FOREIGN_RECHECK
        setup = self._setup
        dead = setup.proven_dead(self._foreign_workers)
        self._foreign_workers &= dead
        if not dead - self._foreign_workers:
            return False
        listed = self._store.can(Capability.WORKERS)
        if listed:
            known = {info.id for info in await self._store.workers()}
            self._foreign_workers |= dead - known
            dead &= known
        for worker in sorted(dead - self._foreign_workers - {setup.worker}):
            cause = f"worker {worker} died"
            loss = self._loss("WorkerLost", cause)
            lost = await reclaim_all(self._store, worker, by=setup.worker, lease=setup.lease, loss=loss)
            if listed:
                await self._store.retire(worker)
            elif not lost:  # it may be a worker of another store, which needs the proof
                self._foreign_workers.add(worker)
                continue
            # otherwise another worker has removed it and reported the loss
            if setup.remove_dead(worker) is not False:
                setup.on_lost(worker, cause, len(lost))
        return True

    async def _ask(self) -> None:
        """Ask the store anything: whether it answers, before leases are reclaimed.

        On a Cluster the list of workers is in the part that all queues share; the clock may be another's.
        """
        if self._store.can(Capability.WORKERS):
            await self._store.workers()
        else:
            await self._store.now()


async def reclaim_all(store: Store, dead: str, *, by: str, lease: int, loss: Loss) -> list[Job]:
    """Reclaim all jobs that the dead worker held and decide their outcome; returns the jobs as they were.

    The worker `by` leases them (ms) until they are settled.
    """
    jobs: list[Job] = []
    while True:
        found = await store.reclaim((), limit=500, lease=lease, worker=by, token=mint_token(), of=[dead])
        await settle_reclaimed(store, found, loss)
        jobs += found.jobs
        if len(found.jobs) < 500:
            return jobs
