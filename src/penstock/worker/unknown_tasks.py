"""Says which jobs came that cannot run here and were parked: by events, and a line in the log at times."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.core.events import EventBus, TaskUnknown
from penstock.core.job import Job

__all__ = ["UnknownTasks"]

_log = logging.getLogger("penstock.worker")

#: A release that renamed a task may leave a hundred thousand jobs of its old name: a line for each would
#: hide all others. The first one is told at once, and then so seldom (s).
_SAY_EVERY = 3.0


class UnknownTasks:
    """Counts and logs the jobs that this worker cannot run.

    `on_closed` is called when a task, or a raw queue, is found to be closed here.
    """

    def __init__(self, events: EventBus, on_closed: Callable[[], None]) -> None:
        self._events = events
        self._on_closed = on_closed
        self._said = float("-inf")
        self._unsaid = 0
        #: How many came so far.
        self.met = 0
        #: Tasks, and raw queues, of which jobs came that cannot be read or called here. A worker that says
        #: that it has them is given parked jobs at once, so of these it does not say so until it starts anew.
        self.closed_tasks: set[str] = set()
        self.closed_queues: set[str] = set()

    def tell(self, job: Job) -> None:
        """One more; it is about to be parked."""
        self.met += 1
        if self._events.active:
            self._events.emit(TaskUnknown(int(time.time() * 1000), job.id, job.queue, job.task, job.attempt))
        self._say(job, f"no task {job.task!r} in this worker; the job is parked")

    def tell_closed(self, job: Job, why: str) -> None:
        """One whose contents do not open here."""
        self.met += 1
        self._say(job, f"what it carries cannot be read here ({why}); the job is parked")
        if job.task not in self.closed_tasks or job.queue not in self.closed_queues:
            self.closed_tasks.add(job.task)
            self.closed_queues.add(job.queue)
            self._on_closed()

    def tell_misfit(self, job: Job, why: str) -> None:
        """One whose task takes other arguments here: it is of another release."""
        self.met += 1
        self._say(job, f"{why}; the job is parked")
        if job.task not in self.closed_tasks:
            self.closed_tasks.add(job.task)
            self._on_closed()

    def _say(self, job: Job, what: str) -> None:
        now = time.monotonic()
        if now - self._said < _SAY_EVERY:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more like it in between)" if self._unsaid else ""
        _log.warning("job %s: %s%s", job.id, what, more)
        self._said, self._unsaid = now, 0
