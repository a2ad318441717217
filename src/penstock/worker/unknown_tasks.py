"""Reports jobs that cannot run in this worker and were parked: by events, and by a rate-limited log line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from penstock.core.events import EventBus, TaskUnknown
from penstock.core.job import Job

_log = logging.getLogger("penstock.worker")

#: A renamed task may leave a hundred thousand jobs of its old name, and a line for each would hide all
#: others. The first is logged at once, the next ones at most once per this interval (s).
_LOG_EVERY = 3.0


class UnknownTasks:
    """Counts and logs the jobs that this worker cannot run.

    `on_closed` is called when a task or a raw queue becomes closed (see `closed_tasks`). `parks`: whether the
    store parks them; else they are due again later.
    """

    def __init__(self, events: EventBus, on_closed: Callable[[], None], *, parks: bool = True) -> None:
        self._parks = parks
        self._events = events
        self._on_closed = on_closed
        self._logged_at = float("-inf")
        self._unlogged = 0
        #: Number of parked jobs so far.
        self.count = 0
        #: Tasks, and raw queues, with jobs that cannot be decoded or called here. The store hands parked jobs
        #: to a worker that announces their task, so these are left out of the announcement until a restart.
        self.closed_tasks: set[str] = set()
        self.closed_queues: set[str] = set()

    def close_at_start(self, tasks: Mapping[str, str], queues: Mapping[str, str]) -> None:
        """Log the tasks, and the queues with a handler, whose jobs cannot run here, each with the reason."""
        for name, why in tasks.items():
            _log.error("the task %r cannot run here, and its jobs are parked: %s", name, why)
        for name, why in queues.items():
            _log.error("the handler of %r cannot run here, and its jobs are parked: %s", name, why)
        self.closed_tasks |= tasks.keys()
        self.closed_queues |= queues.keys()

    def report_unknown(self, job: Job) -> None:
        """Report a job whose task is unknown; it is about to be parked."""
        self.count += 1
        if self._events.active:
            self._events.emit(TaskUnknown(int(time.time() * 1000), job.id, job.queue, job.task, job.attempt))
        self._log_one(job, f"no task {job.task!r} in this worker; the job is parked")

    def report_unreadable(self, job: Job, why: str) -> None:
        """Report a job whose contents cannot be read here."""
        self._close(job, f"its contents cannot be read here ({why})")

    def report_refused(self, job: Job, why: str) -> None:
        """Report a job whose task, or handler, cannot run here."""
        self._close(job, f"it cannot run here ({why})")

    def _close(self, job: Job, why: str) -> None:
        self.count += 1
        self._log_one(job, f"{why}; the job is parked")
        if job.task not in self.closed_tasks or job.queue not in self.closed_queues:
            self.closed_tasks.add(job.task)
            self.closed_queues.add(job.queue)
            self._on_closed()

    def report_mismatch(self, job: Job, why: str) -> None:
        """Report a job whose arguments do not fit the task here: it is from another release."""
        self.count += 1
        self._log_one(job, f"{why}; the job is parked")
        if job.task not in self.closed_tasks:
            self.closed_tasks.add(job.task)
            self._on_closed()

    def _log_one(self, job: Job, what: str) -> None:
        now = time.monotonic()
        if now - self._logged_at < _LOG_EVERY:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more like it in between)" if self._unlogged else ""
        if not self._parks:  # the messages above stand whole, as docs/troubleshooting.md quotes them
            what = what.replace("; the job is parked", "; the job is due again later")
        _log.warning("job %s: %s%s", job.id, what, more)
        self._logged_at, self._unlogged = now, 0
