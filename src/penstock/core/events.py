"""Events for listeners, and the report for health callbacks; a slow or failing listener delays no job.

Events go through a bounded queue to one thread that calls the listeners, so that no attempt waits for them.
When the queue is full, the newest event is dropped and counted in `EventBus.dropped`. Without listeners no
event is made (`if bus.active`).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from penstock.core import lazy
from penstock.core.forks import reset_after_fork

__all__ = [
    "Event",
    "EventBus",
    "JobCancelled",
    "JobCompleted",
    "JobDied",
    "JobEnqueued",
    "JobFailed",
    "JobNotEnqueued",
    "JobParked",
    "JobReleased",
    "JobSnoozed",
    "JobStarted",
    "LateResultRefused",
    "LoopBlocked",
    "RecordSetAside",
    "TaskUnknown",
    "WorkerLost",
    "WorkerStarted",
    "WorkerStopped",
]

_log = logging.getLogger("penstock.events")


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base class of all events.

    `at` is ms since the epoch, by the clock of the process that emits the event.
    """

    at: int


class _JobEvent(Event, frozen=True):
    id: str
    queue: str
    task: str
    attempt: int


class JobEnqueued(_JobEvent, frozen=True):
    """A producer's job was stored (attempt is 0)."""


class JobNotEnqueued(_JobEvent, frozen=True):
    """A job from the outbox was not stored, or perhaps not (attempt is 0); `error` says why."""

    error: str


class JobStarted(_JobEvent, frozen=True):
    """An attempt's function is about to run."""


class JobCompleted(_JobEvent, frozen=True):
    """An attempt returned. `seconds` is its run time."""

    seconds: float


class JobFailed(_JobEvent, frozen=True):
    """An attempt failed and the job will run again, `delay` ms from now."""

    error: str
    delay: int


class JobDied(_JobEvent, frozen=True):
    """The job failed for good."""

    error: str


class JobCancelled(_JobEvent, frozen=True):
    """The job was cancelled."""

    reason: str


class JobSnoozed(_JobEvent, frozen=True):
    """The attempt was snoozed for `delay` ms, or by RateLimited for its key or queue."""

    delay: int


class JobReleased(_JobEvent, frozen=True):
    """The job was released to its queue; the attempt does not count."""


class LateResultRefused(_JobEvent, frozen=True):
    """An attempt ended after another worker had got its lease: its outcome was ignored."""


class JobParked(_JobEvent, frozen=True):
    """A job of a known task was parked: its arguments are from another release, or cannot be read here."""

    reason: str


class TaskUnknown(_JobEvent, frozen=True):
    """A job of a task that this worker does not know was parked."""


class RecordSetAside(Event, frozen=True):
    """A record in the store could not be read, and was set aside (see `store.SetAside`)."""

    kind: str
    queue: str
    id: str
    cause: str


class LoopBlocked(Event, frozen=True):
    """The worker's event loop has not run for `seconds`; `stack` is its stack."""

    worker: str
    seconds: float
    stack: str


class WorkerStarted(Event, frozen=True):
    """A worker process has started to fetch jobs."""

    worker: str


class WorkerStopped(Event, frozen=True):
    """A worker process has drained and ends."""

    worker: str


class WorkerLost(Event, frozen=True):
    """A worker process died; `cause` says how (signal, exit code, out of memory)."""

    worker: str
    cause: str
    jobs: int


E = TypeVar("E", bound=Event)
Listener = Callable[[Any], None]


class EventBus:
    """Passes events to listeners in a thread of its own."""

    def __init__(self, *, capacity: int = 10_000) -> None:
        self._listeners: list[tuple[type[Event], Listener]] = []
        self._capacity = capacity
        #: Whether there is a listener; check it before making an event.
        self.active = False
        #: Number of events dropped because the queue was full.
        self.dropped = 0
        self.reset_in_child()
        reset_after_fork(self)

    def reset_in_child(self) -> None:
        """Create the state of one process: a fork's child delivers its own events, the parent its own."""
        self._queue: queue.Queue[Event | None] = queue.Queue(self._capacity)
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # re-entrant: a signal handler may emit

    def listen(self, kind: type[E], listener: Callable[[E], None]) -> None:
        """Call `listener` with every event of this class or a subclass."""
        self._listeners.append((kind, listener))
        self.active = True

    def emit(self, event: Event) -> None:
        """Queue an event for the listeners; never blocks, never raises."""
        if not self.active:
            return
        self._ensure_thread()
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def _ensure_thread(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._deliver, name="penstock-events", daemon=True)
                self._thread.start()

    def _deliver(self) -> None:
        while (event := self._queue.get()) is not None:
            for kind, listener in self._listeners:
                if not isinstance(event, kind):
                    continue
                try:
                    if (why := lazy.refused(listener(event))) is not None:
                        raise TypeError(why)
                except BaseException:  # noqa: BLE001  # boundary: a listener is user code; the next one must still be called
                    _log.exception("the listener %r failed on %s", listener, type(event).__name__)

    def close(self, timeout: float = 2.0) -> None:
        """Deliver queued events for at most `timeout` seconds, then stop."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        thread.join(timeout)


class Health(msgspec.Struct, frozen=True):
    """The argument of a health callback. `at` is ms since the epoch, by the clock of the worker's host."""

    at: int
    worker: str
    #: "running", "quiet" (fetches no more jobs) or "draining".
    state: str
    #: Whether the store has just accepted a write of this worker.
    store_reachable: bool
    #: The reason why the store is unreachable; None if it is reachable.
    store_error: str | None
    #: Number of slots; slots given up because their attempt is stuck; running attempts.
    concurrency: int
    lost_slots: int
    running: int
    #: Number of fetched jobs that wait for a slot.
    buffered: int
    #: Number of outcomes that wait for the store.
    unsent: int
    #: Seconds since the last successful fetch and heartbeat. A full worker does not fetch.
    since_fetch: float
    since_heartbeat: float
    #: Number of jobs that this process has parked since its start because it does not know their task.
    parked: int = 0
