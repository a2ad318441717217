"""Starts attempts: the step just before the function is called, on the event loop or in a thread."""

from __future__ import annotations

import time

from penstock.app.attempt import Attempt
from penstock.core.events import EventBus, JobStarted
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs

__all__ = ["LeaseRevoked", "Starter"]


class LeaseRevoked(Exception):
    """The supervisor has revoked the job's lease: its function was not called."""


class Starter:
    """Starts attempts. Its methods may be called from any thread."""

    def __init__(self, events: EventBus, leased_jobs: LeasedJobs, lease: float) -> None:
        self._events = events
        self._leased_jobs = leased_jobs
        #: Time (s) for which a fetched job's lease is certain.
        self.lease = lease

    def begin(self, leased: LeasedJob) -> Attempt:
        """Start the attempt and its clock. Raises LeaseRevoked if the supervisor has revoked the job.

        Until now the supervisor could revoke it, as it does while this process is blocked. If the process
        dies before this point, the lease table shows that the function had not started.
        """
        if not self._leased_jobs.try_start(leased):
            raise LeaseRevoked
        if self._events.active:
            spec, now = leased.job.spec, leased.store_now()
            self._events.emit(JobStarted(now, spec.id, spec.queue, spec.task, leased.job.attempt))
        return self.clock(leased)

    def seen(self, leased: LeasedJob, started: float) -> None:
        """Start the clock of an attempt whose function started in a child process at this monotonic instant.

        The child has marked the start in the lease table.
        """
        leased.started = started
        leased.ends = self._end_of(leased)
        self._leased_jobs.clock_starts(leased)
        self.emit_started(leased)

    def emit_started(self, leased: LeasedJob) -> None:
        """Tell the app's listeners that the attempt has started."""
        if self._events.active:
            spec = leased.job.spec
            now = leased.store_now() - int((time.monotonic() - leased.started) * 1000)
            self._events.emit(JobStarted(now, spec.id, spec.queue, spec.task, leased.job.attempt))

    def seconds_left(self, leased: LeasedJob) -> float | None:
        """Seconds until the attempt's timeout or deadline, if it started now; None without one."""
        spec = leased.job.spec
        left = None if spec.timeout is None else spec.timeout / 1000
        if spec.deadline is not None:
            until = (spec.deadline - leased.store_now()) / 1000
            left = until if left is None else min(left, until)
        return left

    def _end_of(self, leased: LeasedJob) -> float | None:
        """The monotonic instant at which the started attempt times out; None without a limit."""
        spec = leased.job.spec
        ends = None if spec.timeout is None else leased.started + spec.timeout / 1000
        if spec.deadline is not None:
            until = time.monotonic() + (spec.deadline - leased.store_now()) / 1000
            ends = until if ends is None else min(ends, until)
        return ends

    def entry(self, leased: LeasedJob) -> tuple[int, int] | None:
        """The job's entry in the lease table, for the child that marks its start."""
        return self._leased_jobs.entry(leased)

    @property
    def table_file(self) -> int | None:
        """The file of the lease table, for children."""
        return self._leased_jobs.table_file

    def clock(self, leased: LeasedJob) -> Attempt:
        """Start the attempt's clock; for a process task with middleware once more when its child starts."""
        leased.started = time.monotonic()
        leased.ends = self._end_of(leased)
        self._leased_jobs.clock_starts(leased)
        leased.attempt = attempt = Attempt(leased.job, leased.report, leased.ends, leased)
        if leased.interrupt is not None:  # interrupted before the attempt existed
            attempt.ask_to_stop()
        return attempt
