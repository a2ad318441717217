"""The moment in which an attempt begins, just before its function is called: on the loop or in a thread."""

from __future__ import annotations

import time

from penstock.app.attempt import Attempt
from penstock.core.events import EventBus, JobStarted
from penstock.worker.leased_jobs import Hold, Holdings

__all__ = ["NotBegun", "Starter"]


class NotBegun(Exception):
    """The job is somebody else's by now: its function was not called."""


class Starter:
    """Begins attempts. Its methods may be called from any thread."""

    def __init__(self, events: EventBus, holdings: Holdings, lease: float) -> None:
        self._events = events
        self._holdings = holdings
        #: For how long (s) a fetched job is surely ours.
        self.lease = lease

    def begin(self, hold: Hold) -> Attempt:
        """The attempt's clock starts here. NotBegun if its supervisor has taken the job back.

        Until now it could, as it does while something else blocks us, and if we die it is known that
        the function had not begun.
        """
        if not self._holdings.try_start(hold):
            raise NotBegun
        if self._events.active:
            spec, now = hold.job.spec, hold.store_now()
            self._events.emit(JobStarted(now, spec.id, spec.queue, spec.task, hold.job.attempt))
        return self.clock(hold)

    def clock(self, hold: Hold) -> Attempt:
        """Reckon its time from now on: for a process task once more when its child begins."""
        hold.started = now = time.monotonic()
        spec = hold.job.spec
        if spec.timeout is not None:
            hold.ends = now + spec.timeout / 1000
        if spec.deadline is not None:
            left = now + (spec.deadline - hold.store_now()) / 1000
            hold.ends = left if hold.ends is None else min(hold.ends, left)
        self._holdings.clock_starts(hold)
        hold.attempt = attempt = Attempt(hold.job, hold.report, hold.ends)
        if hold.interrupt is not None:  # meanwhile, and who did that saw no attempt to tell
            attempt.ask_to_stop()
        return attempt
