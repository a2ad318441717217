"""Extends leases for worker processes that cannot do so, and kills processes that are past a deadline."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from penstock.config import Config
from penstock.core import clock
from penstock.core.errors import StoreError
from penstock.core.job import Lease
from penstock.core.lifecycle import released
from penstock.core.outcomes import QueuePosition
from penstock.maintenance.service import ProblemLog
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Settlement, Share, Store
from penstock.worker.shared_lease_table import Header, LeaseEntry
from penstock.worker.supervisor.worker_process import WorkerProcess

_log = logging.getLogger("penstock.supervisor")
#: How often a child's table is read while its event loop runs (ns).
_LOOK_NS = 1_000_000_000
#: Additional time (ns) before a child is killed: it may be about to give up an attempt that does not react.
_SLACK_NS = 250_000_000


class LeaseKeeper:
    """Watches worker processes through their shared lease tables.

    - A child that has sent no heartbeat for 1.4 intervals: its leases are extended for it.
    - A child whose event loop is blocked: jobs that it has leased and not started are released, also those of
      a fetch whose reply it cannot read.
    - A child whose table something else has written to: it is killed, for nobody can watch it.
    - A child with an attempt past its deadline by `kill_grace`: it is killed.
    """

    def __init__(self, config: Config, problem_log: ProblemLog) -> None:
        self._config = config
        self._problem_log = problem_log
        #: A child whose event loop has not run for this long (s) does not start its prefetched jobs. The loop
        #: marks that it runs every 20 ms while a job waits, every 50 ms while one runs, else every third of
        #: `block_report`.
        self._slot_wait = max(0.08, config.slot_wait / 1000 + 0.03)
        self._idle_tick = config.block_report / 3_000

    def check(self, open_store: Callable[[], Store], child: WorkerProcess, group: asyncio.TaskGroup) -> None:
        """Check this child once. Never waits for the store: store calls are tasks in `group`."""
        now = time.monotonic_ns()
        header = child.table.header()
        if damage := child.table.damage(child.pid):
            child.kill(f"killed by its supervisor: its lease table was overwritten ({damage})")
            return
        if header.pid == 0:
            return
        blocked = (now - header.loop_ns) / 1e9
        if blocked < self._slot_wait and now - child.looked_ns < _LOOK_NS:
            return
        child.looked_ns = now
        held = child.table.entries()
        self._kill_overdue(child, held, now)
        if child.extending is not None and not child.extending.done():
            return  # the last call to the store is still pending
        silent = (now - header.heartbeat_ns) / 1e9
        every = self._config.heartbeat / 1000
        to_extend = held if silent > every * 1.4 and (now - child.extended_ns) / 1e9 > every else []
        to_release: list[LeaseEntry] = []
        if blocked > self._slot_wait:
            unbegun_for = self._config.lease / 1000 - self._slot_wait
            fetched_before = int((clock.lease_seconds() + unbegun_for) * 1e9)
            to_release = child.table.revoke(
                [e for e in held if not e.started and e.until_ns < fetched_before]
            )
        fetch = self._revoked_fetch(child, header, now)
        if to_extend or to_release or fetch:
            child.extended_ns = now if to_extend else child.extended_ns
            child.extending = group.create_task(
                self._extend_and_release(open_store(), child, to_extend, silent, to_release, fetch)
            )

    def _revoked_fetch(self, child: WorkerProcess, header: Header, now: int) -> str | None:
        """The token of the fetch whose reply the blocked child cannot read; None if there is none to ask for.

        The store may lease its jobs late, if it was slow or if it had only an offer. So it is asked again, in
        pauses that grow while the child stays blocked.
        """
        blocked = now - header.loop_ns
        limit = self._slot_wait + (self._idle_tick if header.idle else 0.05)
        if blocked < limit * 1e9 or (now - child.asked_ns) * 8 < blocked or not child.table.fetches:
            return None
        child.asked_ns = now
        return child.table.revoke_fetch()

    async def _extend_and_release(
        self,
        store: Store,
        child: WorkerProcess,
        to_extend: list[LeaseEntry],
        silent: float,
        to_release: list[LeaseEntry],
        fetch: str | None,
    ) -> None:
        """Extend its leases, and release jobs that it has leased but not started: of its table, and of the
        fetch with this token."""
        try:
            if to_extend:
                await self._extend(store, child, to_extend, silent)
            if to_release:
                await self._release(store, [entry.lease for entry in to_release])
            if fetch:
                await self._release_fetched(store, child, fetch)
        except StoreError as error:
            self._problem_log.report("the supervisor cannot reach the store", error)
        except Exception as error:  # noqa: BLE001  # boundary: a bug here must not stop the children
            self._problem_log.report(f"worker {child.id} cannot be checked", error)

    async def _extend(
        self, store: Store, child: WorkerProcess, held: list[LeaseEntry], silent: float
    ) -> None:
        requests = [HeartbeatRequest(e.lease, self._config.lease, started=e.started) for e in held]
        lost = (await store.extend(requests)).count(LeaseStatus.LOST)
        _log.warning(
            "worker %s (pid %d) has sent no heartbeat for %.1f s: the supervisor extends its %d lease(s)%s",
            child.id,
            child.pid,
            silent,
            len(requests) - lost,
            f"; {lost} had expired" if lost else "",
        )

    async def _release_fetched(self, store: Store, child: WorkerProcess, token: str) -> None:
        """Release the jobs leased under this token; the fetch leases no more of them."""
        shares = [Share(queue, 0, 0) for queue in child.queues]
        fetched = await store.fetch(shares, limit=0, lease=self._config.lease, worker=child.id, token=token)
        if fetched.jobs:
            await self._release(store, [job.lease for job in fetched.jobs])

    async def _release(self, store: Store, leases: list[Lease]) -> None:
        move = released(QueuePosition.OWN)
        await store.settle([Settlement(lease, move) for lease in leases])

    def _kill_overdue(self, child: WorkerProcess, held: list[LeaseEntry], now: int) -> None:
        grace = self._config.kill_grace * 1_000_000 + _SLACK_NS
        overdue = [e for e in held if e.started and e.deadline_ns and now > e.deadline_ns]
        for entry in overdue:
            if now > entry.deadline_ns + grace:
                child.overdue = {(e.queue, e.id): (e.deadline_ns - e.started_ns) / 1e9 for e in overdue}
                child.kill(
                    f"killed by its supervisor: job {entry.id} was past its deadline and did not react"
                )
                return
