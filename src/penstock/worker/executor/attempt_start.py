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

    def clock(self, leased: LeasedJob) -> Attempt:
        """Start the attempt's clock; for a process task once more when its child starts."""
        leased.started = now = time.monotonic()
        spec = leased.job.spec
        if spec.timeout is not None:
            leased.ends = now + spec.timeout / 1000
        if spec.deadline is not None:
            left = now + (spec.deadline - leased.store_now()) / 1000
            leased.ends = left if leased.ends is None else min(leased.ends, left)
        self._leased_jobs.clock_starts(leased)
        leased.attempt = attempt = Attempt(leased.job, leased.report, leased.ends)
        if leased.interrupt is not None:  # interrupted before the attempt existed
            attempt.ask_to_stop()
        return attempt
