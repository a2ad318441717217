"""Joins the parts that run attempts, and watches the attempts while there are any."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.errors import AttemptCancelled, AttemptLost
from penstock.maintenance.service import Service
from penstock.stores.contract import LeaseStatus
from penstock.worker.event_loop import LoopMonitor
from penstock.worker.executor.admission import Admission
from penstock.worker.executor.attempt import Attempts
from penstock.worker.executor.interruption import Interruption
from penstock.worker.executor.process_attempts import ProcessAttempts
from penstock.worker.executor.runners import Runners
from penstock.worker.executor.settler import Settler
from penstock.worker.executor.slots import Slots, StalledSlots
from penstock.worker.executor.thread_attempts import ThreadAttempts
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.plan import Plans
from penstock.worker.setup import WorkerSetup
from penstock.worker.unknown_tasks import UnknownTasks

if TYPE_CHECKING:
    from penstock.worker.executor.step_runner import StepRunner


_log = logging.getLogger("penstock.worker")


class Executor:
    """Starts leased jobs as slots allow, and reports each end exactly once; `attempt.py` tells how.

    `on_slot_lost` is called when a slot was given up, `on_stalled` when the queues that slots wait for have
    changed.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        slots: Slots,
        unknown_tasks: UnknownTasks,
        settler: Settler,
        *,
        on_slot_lost: Callable[[], None],
        on_stalled: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._step_executor: StepRunner | None = None
        attempts = Attempts(setup, slots, unknown_tasks, settler)
        self._threads = ThreadAttempts(attempts)
        self._processes = ProcessAttempts(attempts, setup)
        self._runners = runners = Runners(attempts, self._threads, self._processes)
        plans = Plans(setup.app, setup.config.lease, self._step_runner)
        self.admission = Admission(setup, plans, runners, unknown_tasks)
        self._interruption = Interruption(setup.config, runners, on_slot_lost)
        #: Whether the slots wait for each other's jobs.
        self.stalled = StalledSlots(setup, slots, on_stalled)

    def on_lease_status(self, leased: LeasedJob, status: LeaseStatus) -> None:
        """React to a heartbeat that found a lease lost, or a cancellation of its job.

        A run that only undoes goes on: there is nothing left to cancel.
        """
        if status is LeaseStatus.LOST:
            if not leased.over:
                _log.warning("job %s: its lease was lost; its outcome will be ignored", leased.job.id)
            self._interruption.interrupt(leased, AttemptLost)
        elif leased.undoes is None:
            self._interruption.interrupt(leased, AttemptCancelled)

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
            self._slots.freed.set()  # calls are not short any more: the fetcher looks past them
            self._take_back(waiting)
        self._interruption.watch(now)
        if self._threads.prefetch.is_stuck(now):
            self._take_back(self._threads.take_back())
        self.admission.release_late(now)
        self.stalled.look()
        return 0.02 if self.admission.waiting else 0.05

    # ── ending ───────────────────────────────────────────────────────────────────────────────────

    def stop_starting(self) -> None:
        """Start no more jobs, and release those that have not started."""
        for calls in (self._threads, self._processes):
            self._slots.take_back(calls.take_back())
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
        if self._step_executor is not None:
            self._step_executor.close()
        self._processes.close()

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _step_runner(self) -> StepRunner:
        if self._step_executor is None:
            from penstock.worker.executor.step_runner import StepRunner  # most workers run no steps

            self._step_executor = StepRunner(self._slots.concurrency, self._processes.new_pool)
        return self._step_executor

    def _take_back(self, batch: list[LeasedJob]) -> None:
        """Move calls that have not started back to the buffer; those that have a slot start again."""
        self._slots.take_back(batch)
        if not self.admission.stopping:
            self.admission.start_arrived()


# ── at short intervals ───────────────────────────────────────────────────────────────────────────

#: New progress brings the next heartbeat forward at most this often (s).
_PROGRESS_EVERY = 0.25


class AttemptWatch(Service):
    """Calls `executor.watch` while attempts run or jobs wait for a slot; sleeps otherwise."""

    name = "watch"

    def __init__(
        self, executor: Executor, slots: Slots, heartbeat: Heartbeat, loop_monitor: LoopMonitor
    ) -> None:
        super().__init__()
        self._executor = executor
        self._slots = slots
        self._heartbeat = heartbeat
        self._loop_monitor = loop_monitor
        self._progress_at = 0.0

    async def tick(self) -> float:
        executor, slots = self._executor, self._slots
        if not slots.running and not executor.admission.waiting:
            slots.started.clear()
            self._loop_monitor.set_idle(True)
            await slots.started.wait()
        self._loop_monitor.tick()
        self._loop_monitor.set_idle(False)
        now = time.monotonic()
        if now - self._progress_at > _PROGRESS_EVERY and executor.has_progress():
            self._progress_at = now
            self._heartbeat.send_now()
        return executor.watch()

    def stop(self) -> None:
        super().stop()
        self._slots.started.set()
