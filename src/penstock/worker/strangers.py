"""Says that jobs of unknown tasks came and were parked: an event for each, a line in the log now and then."""

from __future__ import annotations

import logging
import time

from penstock.events import EventBus, TaskUnknown
from penstock.job import Job

__all__ = ["Strangers"]

_log = logging.getLogger("penstock.worker")

#: A release that renamed a task may leave a hundred thousand jobs of its old name: a line for each would
#: hide all others. The first one is told at once, and then so seldom (s).
_SAY_EVERY = 3.0


class Strangers:
    """The jobs that this worker cannot run, as it has no such task."""

    def __init__(self, events: EventBus) -> None:
        self._events = events
        self._said = float("-inf")
        self._unsaid = 0
        #: How many came so far.
        self.met = 0

    def tell(self, job: Job) -> None:
        """One more; it is about to be parked."""
        self.met += 1
        if self._events.active:
            self._events.emit(TaskUnknown(int(time.time() * 1000), job.id, job.queue, job.task, job.attempt))
        now = time.monotonic()
        if now - self._said < _SAY_EVERY:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more like it in between)" if self._unsaid else ""
        _log.warning("job %s: no task %r in this worker; the job is parked%s", job.id, job.task, more)
        self._said, self._unsaid = now, 0
