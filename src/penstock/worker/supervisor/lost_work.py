"""Reclaims the jobs that a worker process had leased when it died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from penstock.config import Config
from penstock.core.errors import StoreError
from penstock.core.job import Job, Lease, Ref, State
from penstock.core.lifecycle import LOST_BY, Transition
from penstock.maintenance.reclaimer import reclaim_all
from penstock.maintenance.service import ProblemLog
from penstock.stores.contract import Store
from penstock.worker.locks import remove_dead
from penstock.worker.shared_lease_table import LeaseEntry, LeaseTable

__all__ = ["LostWork", "final_entries"]


def final_entries(table: LeaseTable) -> list[LeaseEntry]:
    """The leases of a dead worker process. Those that have not started cannot start any more.

    Its child processes may outlive it by some milliseconds, with calls that lie ready in them.
    """
    table.revoke([entry for entry in table.entries() if not entry.started])
    return table.entries()


class LostWork:
    """Reclaims the jobs of one dead worker process.

    `held` are the entries of its lease table. `overdue` maps the jobs that it was killed for to their timeout
    messages. `by` is the supervisor's id. `reportable_deaths` returns how many deaths can be reported to the
    next worker process; None if the app has no listeners and no callbacks. Further deaths are left to other
    workers.
    """

    def __init__(
        self,
        worker: str,
        held: Sequence[LeaseEntry],
        overdue: Mapping[tuple[str, str], str],
        cause: str,
        *,
        by: str,
        config: Config,
        reportable_deaths: Callable[[], int | None],
        problem_log: ProblemLog,
        on_reclaimed: Callable[[], None] | None = None,
    ) -> None:
        self._worker = worker
        self._started_leases = {entry.lease: entry.started for entry in held}
        self._timeouts = overdue
        self._cause = cause
        self._by = by
        self._config = config
        self._reportable_deaths = reportable_deaths
        self._problem_log = problem_log
        self._on_reclaimed = on_reclaimed
        self._fetched: dict[Ref, Lease] = {}
        self._deaths = 0
        #: Jobs (queue, id) that became dead here; the next worker process reports them.
        self.dead: list[tuple[str, str]] = []

    async def take_back(self, open_store: Callable[[], Store]) -> None:
        """Reclaim and decide all its jobs, retrying for some seconds if the store does not answer."""
        for pause in (0.05, 0.2, 1.0, 5.0, None):
            try:
                return await self._reclaim(open_store())
            except StoreError as error:
                self._problem_log.report(f"the jobs of worker {self._worker} cannot be reclaimed yet", error)
                if pause is None:
                    return  # its leases expire by themselves
                await asyncio.sleep(pause)
            except Exception as error:  # noqa: BLE001  # boundary: a bug here must not stop the children
                self._problem_log.report(f"the jobs of worker {self._worker} cannot be reclaimed", error)
                return

    async def _reclaim(self, store: Store) -> None:
        self._fetched |= await _fetched_leases(store, self._worker)
        await reclaim_all(
            store,
            self._worker,
            self._by,
            self._config.lease,
            "WorkerLost",
            self._cause,
            started=self._started,
            overdue=self._overdue,
            keep_dead=self._config.keep_dead,
            on_decided=self._on_decided,
            leave=self._leave,
        )
        await store.retire(self._worker)
        remove_dead(self._worker)

    # ── how its jobs are decided ─────────────────────────────────────────────────────────────────

    def _started(self, job: Job) -> bool | None:
        lease = self._fetched.get(job.ref)
        if lease is None:
            return None  # it had reclaimed another worker's attempt, which its table does not list
        return self._started_leases.get(lease, job.started)

    def _overdue(self, job: Job) -> str | None:
        return self._timeouts.get((job.queue, job.id))

    def _on_decided(self, job: Job, move: Transition) -> None:
        if self._on_reclaimed is not None:
            self._on_reclaimed()
        if move.state is State.DEAD:
            self.dead.append((job.queue, job.id))

    def _leave(self, move: Transition) -> bool:
        """Whether to leave this death to a worker, which can call the app's listeners and callbacks; the
        supervisor cannot."""
        most = self._reportable_deaths()
        if move.state is not State.DEAD or most is None:
            return False
        self._deaths += 1
        return self._deaths > most


async def _fetched_leases(store: Store, worker: str) -> dict[Ref, Lease]:
    """The leases that the worker had fetched, without those that it had reclaimed from others."""
    found: dict[Ref, Lease] = {}
    after: str | None = None
    while True:
        page = await store.list_jobs(state=State.RUNNING, worker=worker, after=after, limit=500)
        for job in page.jobs:
            if not (job.reason or "").startswith(LOST_BY):
                found[job.ref] = job.lease
        if (after := page.next) is None:
            return found
