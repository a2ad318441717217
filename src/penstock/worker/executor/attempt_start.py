"""The moment in which an attempt begins, just before its function is called: on the loop or in a thread."""

from __future__ import annotations

import time

from penstock.app.attempt import Attempt
from penstock.core.events import EventBus, JobStarted
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs

__all__ = ["LeaseRevoked", "Starter"]


class LeaseRevoked(Exception):
    """The job is somebody else's by now: its function was not called."""


class Starter:
    """Begins attempts. Its methods may be called from any thread."""

    def __init__(self, events: EventBus, leased_jobs: LeasedJobs, lease: float) -> None:
        self._events = events
        self._leased_jobs = leased_jobs
        #: For how long (s) a fetched job is surely ours.
        self.lease = lease

    def begin(self, leased: LeasedJob) -> Attempt:
        """The attempt's clock starts here. NotBegun if its supervisor has taken the job back.

        Until now it could, as it does while something else blocks us, and if we die it is known that
        the function had not begun.
        """
        if not self._leased_jobs.try_start(leased):
            raise LeaseRevoked
        if self._events.active:
            spec, now = leased.job.spec, leased.store_now()
            self._events.emit(JobStarted(now, spec.id, spec.queue, spec.task, leased.job.attempt))
        return self.clock(leased)

    def clock(self, leased: LeasedJob) -> Attempt:
        """Reckon its time from now on: for a process task once more when its child begins."""
        leased.started = now = time.monotonic()
        spec = leased.job.spec
        if spec.timeout is not None:
            leased.ends = now + spec.timeout / 1000
        if spec.deadline is not None:
            left = now + (spec.deadline - leased.store_now()) / 1000
            leased.ends = left if leased.ends is None else min(leased.ends, left)
        self._leased_jobs.clock_starts(leased)
        leased.attempt = attempt = Attempt(leased.job, leased.report, leased.ends)
        if leased.interrupt is not None:  # meanwhile, and who did that saw no attempt to tell
            attempt.ask_to_stop()
        return attempt
