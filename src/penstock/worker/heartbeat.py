"""Extends this worker's leases from a thread of its own, even while the event loop is blocked.

The thread has its own small event loop and calls the store every `heartbeat`. Between its calls it checks
whether the worker's main loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from penstock.core import clock
from penstock.core.errors import StoreError
from penstock.maintenance.service import ProblemLog
from penstock.stores.contract import HeartbeatRequest, LeaseStatus
from penstock.worker.event_loop import LoopMonitor
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs, store_lines
from penstock.worker.setup import WorkerSetup

_log = logging.getLogger("penstock.worker")
_BATCH = 1_000
#: Log lines may delay the next heartbeat by at most this (s), and by no more than the interval.
_LINES_WITHIN = 1.0


class Heartbeat:
    """Extends all leases of this worker.

    `on_lease_status` is called on the main loop for each lease whose status is not HELD. `on_failed` is
    called in the heartbeat's thread when the store was unreachable; the next heartbeat then follows after a
    tenth of the interval.

    `send_now` sends the next heartbeat early: for cancellations, progress, or a recorded start.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        leased_jobs: LeasedJobs,
        loop_monitor: LoopMonitor,
        *,
        on_lease_status: Callable[[LeasedJob, LeaseStatus], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._store = setup.app.store
        self._leased_jobs = leased_jobs
        self._lease = setup.config.lease
        self._every = setup.config.heartbeat / 1000
        self._loop_monitor = loop_monitor
        self._on_lease_status = on_lease_status
        self._on_failed = on_failed
        self._table = setup.supervision.table
        self._main = asyncio.get_running_loop()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="penstock-heartbeat", daemon=True)
        self.problem_log = ProblemLog(_log)
        #: Monotonic time of the last heartbeat that the store answered.
        self.last_answered = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def send_now(self) -> None:
        """Send the next heartbeat now."""
        self._wake.set()

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread after the heartbeat that is in progress."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    # ── in the thread ────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            next_heartbeat = clock.lease_seconds() + self._every
            while not self._stopping:
                pause = min(next_heartbeat - clock.lease_seconds(), self._loop_monitor.block_report)
                woken = self._wake.wait(max(0.0, pause))
                self._wake.clear()
                self._loop_monitor.check()
                if woken or clock.lease_seconds() >= next_heartbeat:
                    next_heartbeat = clock.lease_seconds() + self._every
                    try:
                        if not runner.run(self._send_heartbeat()):
                            next_heartbeat = clock.lease_seconds() + self._every / 10
                    except Exception:  # noqa: BLE001  # boundary: without this thread the leases expire
                        _log.exception("heartbeat failed; the next one follows as usual")

    async def _send_heartbeat(self) -> bool:
        leased_jobs = list(self._leased_jobs)
        for start in range(0, len(leased_jobs), _BATCH):
            part = leased_jobs[start : start + _BATCH]
            requests = [self._request_of(leased) for leased in part]
            sent = clock.lease_seconds()
            try:
                statuses = await self._extend(part, requests)
            except StoreError as error:
                self.problem_log.report("heartbeat failed: store unreachable", error)
                self._on_failed()
                return False
            for leased, request, status in zip(part, requests, statuses, strict=True):
                if status is LeaseStatus.UNKNOWN:
                    continue
                if request.progress is not None:
                    leased.stored_progress = request.progress
                if status is not LeaseStatus.LOST:
                    leased.extended = sent
                if status is not LeaseStatus.HELD:
                    self._main.call_soon_threadsafe(self._on_lease_status, leased, status)
        self.last_answered = time.monotonic()
        if self._table is not None:
            self._table.record_heartbeat()
        await self._store_lines(leased_jobs)
        return True

    async def _store_lines(self, leased_jobs: list[LeasedJob]) -> None:
        """Store the lines that jobs have logged, once all leases are extended."""
        logs = [(one.job.lease, one.log) for one in leased_jobs if one.log is not None and one.log.waits]
        within = min(_LINES_WITHIN, self._every)
        await store_lines(self._store, logs, self._lease, within=within, problem_log=self.problem_log)

    async def _extend(self, batch: list[LeasedJob], requests: list[HeartbeatRequest]) -> list[LeaseStatus]:
        try:
            return await self._store.extend(requests)
        except StoreError:
            raise
        except Exception:  # noqa: BLE001  # boundary: one attempt's progress must not cost the others their leases
            _log.exception(
                "sending %d heartbeats together failed; extending without progress, then each progress alone",
                len(requests),
            )
            return await self._extend_without_progress(batch, requests)

    async def _extend_without_progress(
        self, batch: list[LeasedJob], requests: list[HeartbeatRequest]
    ) -> list[LeaseStatus]:
        """Extend all leases first, then store each attempt's progress alone.

        A failed progress is not retried.
        """
        statuses = await self._store.extend([replace(request, progress=None) for request in requests])
        for leased, request in zip(batch, requests, strict=True):
            if request.progress is None:
                continue
            try:
                await self._store.extend([request])
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001  # boundary: as above
                leased.stored_progress = request.progress
                _log.error("job %s: progress could not be stored: %s", leased.job.id, error)
        return statuses

    def _request_of(self, leased: LeasedJob) -> HeartbeatRequest:
        # remembered once it is stored; the attempt may report more at any moment
        progress = None if leased.progress is leased.stored_progress else leased.progress
        return HeartbeatRequest(
            leased.job.lease, self._lease, started=bool(leased.started), progress=progress
        )
