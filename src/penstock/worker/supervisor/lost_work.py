"""Reclaims the jobs that a worker process had leased when it died."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from penstock.app.deciding import Loss
from penstock.config import Config
from penstock.core.errors import StoreError
from penstock.core.job import Job, Lease, Ref, State
from penstock.core.lifecycle import LOST_BY, Transition, limit_passed
from penstock.maintenance.reclaimer import reclaim_all
from penstock.maintenance.service import ProblemLog
from penstock.stores.contract import Store
from penstock.worker.liveness import remove_dead
from penstock.worker.shared_lease_table import LeaseEntry, LeaseTable


def final_entries(table: LeaseTable) -> list[LeaseEntry]:
    """The leases of a dead worker process. Those that have not started cannot start any more.

    Its child processes may outlive it by some milliseconds, with calls that lie ready in them.
    """
    table.revoke([entry for entry in table.entries() if not entry.started])
    return table.entries()


@dataclasses.dataclass(frozen=True, slots=True)
class DeadWorker:
    """A worker process that has died."""

    id: str
    cause: str
    #: The final entries of its lease table.
    held: Sequence[LeaseEntry]
    #: The jobs (queue, id) that it was killed for, with the time (s) that each had from its start.
    overdue: Mapping[tuple[str, str], float]


class LostWork:
    """Reclaims the jobs of one dead worker process.

    `by` is the supervisor's id. `reportable_deaths` returns how many deaths can be reported to the next
    worker process; None if the app has no listeners and no callbacks. Further deaths are left to other
    workers. `on_reclaimed` is called for each job decided here.
    """

    def __init__(
        self,
        worker: DeadWorker,
        *,
        by: str,
        config: Config,
        reportable_deaths: Callable[[], int | None],
        problem_log: ProblemLog,
        on_reclaimed: Callable[[], None] | None = None,
    ) -> None:
        self._worker = worker
        self._started_leases = {entry.lease: entry.started for entry in worker.held}
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
        jobs = f"the jobs of worker {self._worker.id}"
        for pause in (0.05, 0.2, 1.0, 5.0, None):
            try:
                return await self._reclaim(open_store())
            except StoreError as error:
                self._problem_log.report(f"{jobs} cannot be reclaimed yet", error)
                if pause is None:
                    return  # its leases expire by themselves
                await asyncio.sleep(pause)
            except Exception as error:  # noqa: BLE001  # boundary: a bug here must not stop the children
                self._problem_log.report(f"{jobs} cannot be reclaimed", error)
                return

    async def _reclaim(self, store: Store) -> None:
        worker, config = self._worker, self._config
        self._fetched |= await _fetched_leases(store, worker.id)
        loss = Loss(
            "WorkerLost",
            worker.cause,
            keep_dead=config.keep_dead,
            started=self._started,
            timeout_message=self._timeout_message,
            leave=self._leave,
            on_decided=self._on_decided,
        )
        await reclaim_all(store, worker.id, by=self._by, lease=config.lease, loss=loss)
        await store.retire(worker.id)
        remove_dead(worker.id)

    # ── how its jobs are decided ─────────────────────────────────────────────────────────────────

    def _started(self, job: Job) -> bool | None:
        lease = self._fetched.get(job.ref)
        if lease is None:
            return None  # it had reclaimed another worker's attempt, which its table does not list
        return self._started_leases.get(lease, job.started)

    def _timeout_message(self, job: Job) -> str | None:
        seconds = self._worker.overdue.get((job.queue, job.id))
        if seconds is None:
            return None
        return f"{limit_passed(job, seconds)}; the attempt did not react: its process was killed"

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
