"""Joins the parts that run attempts: admission, runners, interruption, outcome reporter."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from penstock.app.app import App
from penstock.config import Config
from penstock.core.errors import AttemptCancelled, AttemptLost, Interrupted
from penstock.stores.contract import LeaseStatus
from penstock.worker.executor.admission import Admission
from penstock.worker.executor.attempt_start import Starter
from penstock.worker.executor.interruption import Interruption
from penstock.worker.executor.outcome_reporter import OutcomeReporter, Settle
from penstock.worker.executor.process_attempts import ProcessAttempts
from penstock.worker.executor.recorded_start import RecordedStart
from penstock.worker.executor.runners import Runners
from penstock.worker.executor.slots import Slots
from penstock.worker.executor.thread_attempts import ThreadAttempts
from penstock.worker.executor.thread_prefetch import ThreadPrefetch
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs
from penstock.worker.pools import Done
from penstock.worker.unknown_tasks import UnknownTasks

__all__ = ["Executor"]

_log = logging.getLogger("penstock.worker")


class Executor:
    """Starts leased jobs as slots allow, and reports each end exactly once.

    `admission` accepts and starts a job, `Runners` run it, `OutcomeReporter` reports its end.
    `supervised`: whether child processes get `config`; otherwise they read their own.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        leased_jobs: LeasedJobs,
        slots: Slots,
        unknown_tasks: UnknownTasks,
        *,
        settle: Settle,
        on_slot_lost: Callable[[], None],
        on_lease_lost: Callable[[], None],
        supervised: bool,
        queue_slots: Mapping[str, int],
    ) -> None:
        self._slots = slots
        self._outcomes = OutcomeReporter(
            app.events,
            leased_jobs,
            slots,
            unknown_tasks,
            settle=settle,
            keep_dead=config.keep_dead,
            on_lease_lost=on_lease_lost,
        )
        starter = Starter(app.events, leased_jobs, config.lease / 1000)
        self._threads = ThreadAttempts(starter, slots.concurrency, self._threads_done)
        self._processes = ProcessAttempts(
            starter,
            slots.process_slots,
            app,
            config,
            supervised=supervised,
            end=self._outcomes.end,
            on_ends=self._process_calls_ended,
        )
        self._runners = Runners(slots, starter, self._threads, self._processes, self._ended)
        recorded = RecordedStart(
            app.store,
            slots,
            self._outcomes,
            self._runners,
            start_ready=self._start_ready,
            lease=config.lease,
        )
        self._prefetch = ThreadPrefetch(slots)
        self.admission = Admission(
            app,
            leased_jobs,
            slots,
            self._prefetch,
            self._outcomes,
            unknown_tasks,
            self._runners,
            recorded,
            processes=self._processes,
            lease=config.lease / 1000,
            slot_wait=config.slot_wait / 1000,
            queue_slots=queue_slots,
        )
        self._interruption = Interruption(
            slots,
            self._outcomes,
            self._threads,
            self._processes,
            grace=config.thread_grace / 1000,
            ended=self._ended,
            on_slot_lost=on_slot_lost,
        )
        self._waiting, self._backlog = slots.waiting, self.admission.backlog.jobs

    def interrupt(self, leased: LeasedJob, why: type[Interrupted]) -> None:
        """Make a leased job stop: AttemptTimeout, AttemptCancelled or AttemptLost."""
        self._interruption.interrupt(leased, why)

    def on_lease_status(self, leased: LeasedJob, status: LeaseStatus) -> None:
        """React to a heartbeat that found a lease lost, or a cancellation of its job."""
        if status is LeaseStatus.LOST:
            if not leased.over:
                _log.warning("job %s: its lease was lost; its outcome will be ignored", leased.job.id)
            self.interrupt(leased, AttemptLost)
        else:
            self.interrupt(leased, AttemptCancelled)

    def thread_of(self, leased: LeasedJob) -> int | None:
        """The ident of the thread that runs an attempt now; None if no thread does."""
        return self._threads.thread_of(leased)

    def has_progress(self) -> bool:
        """Whether an attempt has reported progress, or logged lines, that are not stored yet."""
        return any(leased.has_news for leased in self._slots.attempts)

    def watch(self) -> float:
        """Interrupt attempts past their time and release jobs that wait too long; returns the seconds until
        the next check."""
        now = time.monotonic()
        if waiting := self._processes.watch(now):
            self._slots.take_back(waiting)
            self._slots.freed.set()  # calls are not short any more: the fetcher looks past them
            if not self.admission.stopping:
                self._start_ready()
        self._interruption.watch(now)
        if self._prefetch.is_stuck(now):
            self._return_prefetched()
            if not self.admission.stopping:
                self._start_ready()  # those of them that have a slot
        self.admission.release_late(now)
        return 0.02 if self.admission.waiting else 0.05

    # ── ending ───────────────────────────────────────────────────────────────────────────────────

    def stop_starting(self) -> None:
        """Start no more jobs, and release those that have not started."""
        self._return_unstarted()
        self.admission.stop()
        for leased in self._slots.attempts:
            if leased.attempt is not None:
                leased.attempt.stopping = True

    async def idle(self) -> None:
        """Wait until no attempt runs."""
        while self._slots.attempts:
            self._slots.freed.clear()
            await self._slots.freed.wait()

    def release_running(self) -> None:
        """Release and stop all running attempts, at the end of the drain time. Their results are ignored."""
        self._interruption.release_all()

    def close(self) -> None:
        """Close runners, threads and child processes. Call it when no attempt runs."""
        self._runners.close()
        self._threads.close()
        self._processes.close()

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _ended(self, leased: LeasedJob, error: BaseException | None, result: bytes | None) -> None:
        self._outcomes.end(leased, error, result)
        if self._waiting or self._backlog:
            self.admission.start_ready()

    def _threads_done(self, batch: list[Done]) -> None:
        slots, end = self._slots, self._outcomes.end
        spent, ends = slots.busy_seconds, slots.ends
        for leased, value, error in batch:
            if error is None and leased.plan.encode is not None:
                end(leased, None, value)
            else:
                end(leased, error)
        self._prefetch.measure(slots.busy_seconds - spent, slots.ends - ends)
        self.admission.start_ready()

    def _process_calls_ended(self) -> None:
        self.admission.start_ready()
        if self._processes.fetchable() != 0:
            self._slots.freed.set()

    def _start_ready(self) -> None:
        self.admission.start_ready()

    def _return_prefetched(self) -> None:
        """Move thread calls that have not started back to the buffer."""
        self._prefetch.depth = 0
        self._slots.take_back(self._threads.take_back())

    def _return_unstarted(self) -> None:
        """Move thread and process calls that have not started back to the buffer."""
        self._return_prefetched()
        self._slots.take_back(self._processes.take_back())
