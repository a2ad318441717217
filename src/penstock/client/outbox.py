"""Keeps new jobs in memory while the store is unreachable, and sends them in order when it is back.

Jobs in the outbox are lost if the process dies. A producer that prefers that risk to failing during an outage
asks for it with `App(outbox=N)`. One thread sends the jobs of all threads and event loops; it ends when the
outbox is empty.
"""

from __future__ import annotations

import atexit
import logging
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from penstock.core.errors import EnqueueUnknown, OutboxFull, PenstockError, StoreError, StoreUnavailable
from penstock.core.events import EventBus, JobEnqueued, JobNotEnqueued
from penstock.core.forks import reset_after_fork
from penstock.core.job import NewJob
from penstock.stores.contract import Enqueued, EnqueueStatus, Store

_log = logging.getLogger("penstock.outbox")

#: Number of jobs sent at once: within one atomic step of any store.
_CHUNK = 1_000
#: Pause of the sender after a failure (s): doubled each time, with jitter; short while a flush waits.
_FIRST_PAUSE, _LONGEST_PAUSE, _FLUSH_PAUSE = 0.1, 2.0, 0.1
#: Maximum wait for the store when an app is closed or the process ends (s).
_CLOSE_TIMEOUT = 2.0
#: Maximum number of ids in one log line.
_IDS_PER_LINE = 50


class _Kept(msgspec.Struct, frozen=True):
    """A job and the monotonic time of its arrival."""

    job: NewJob
    since: float


class Outbox:
    """Keeps at most `limit` jobs for a store that does not answer; 0: no outbox.

    Every job that leaves it is stored once, or logged with its id and reported as JobNotEnqueued.
    """

    def __init__(self, limit: int, store: Callable[[], Store], events: EventBus) -> None:
        self.limit = limit
        self._store = store
        self._events = events
        self.reset_in_child()
        reset_after_fork(self)
        if limit:
            _OUTBOXES.add(self)

    def reset_in_child(self) -> None:
        """Create the state of one process.

        A fork's child starts with an empty outbox; the parent sends its own.
        """
        self._changed = threading.Condition()
        self._jobs: deque[_Kept] = deque()
        self._sender: threading.Thread | None = None
        self._cause = ""
        self._flushes = 0
        self._flush_requested = threading.Event()

    @property
    def pending(self) -> int:
        """Number of jobs in the outbox, including those being sent."""
        return len(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def keep(self, jobs: Sequence[NewJob], error: PenstockError | None = None) -> list[None]:
        """Add all these jobs at the end. Raises OutboxFull if there is not room for all.

        `error` is the reason why the store did not take them; None: they wait for older jobs in the outbox.
        """
        with self._changed:
            if error is not None:
                self._cause = str(error)
            if len(self._jobs) + len(jobs) > self.limit:
                raise OutboxFull(self.limit, self._cause) from error
            first = not self._jobs
            if self._sender is None:
                self._start()  # first, because a process that ends cannot start a thread
            now = time.monotonic()
            self._jobs.extend([_Kept(job, now) for job in jobs])
        if first:
            _log.warning(
                "the store does not answer (%s): new jobs wait in memory, at most %d", self._cause, self.limit
            )
        return [None] * len(jobs)

    def keep_failed(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> Sequence[Enqueued | None]:
        """Add the jobs whose answer is FAILED, and replace their answers by None.

        If there is not room for all of them, none is added and the answers stay: the other jobs are stored.
        """
        failed = [answer.status is EnqueueStatus.FAILED for answer in answers]
        if not any(failed):
            return answers
        cause = next(answer.cause for answer in answers if answer.status is EnqueueStatus.FAILED)
        try:
            self.keep([job for job, it in zip(jobs, failed, strict=True) if it], StoreUnavailable(cause))
        except OutboxFull:
            return answers
        return [None if it else answer for answer, it in zip(answers, failed, strict=True)]

    def flush(self, timeout: float | None = None) -> bool:
        """Send now, and wait up to `timeout` seconds until the outbox is empty. True if it is."""
        if not self._jobs:
            return True
        with self._changed:
            self._flushes += 1
            self._flush_requested.set()
            try:
                return self._changed.wait_for(lambda: not self._jobs, timeout)
            finally:
                self._flushes -= 1

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Flush for `timeout` seconds; jobs that the store has not taken by then are given up and logged."""
        if self.flush(timeout):
            return
        with self._changed:
            given_up = [kept.job for kept in self._jobs]
            self._jobs.clear()
            self._jobs = deque()  # a sender that hangs in a call keeps the old deque and then ends
            self._sender = None
            self._changed.notify_all()
        self._report_not_enqueued(given_up, f"given up: the store did not take them in time ({self._cause})")

    # ── the sender ──

    def _start(self) -> None:
        _flush_at_exit()
        self._sender = threading.Thread(
            target=self._send_all, args=(self._jobs,), name="penstock-outbox", daemon=True
        )
        self._sender.start()

    def _send_all(self, jobs: deque[_Kept]) -> None:
        """Run in the sender's thread: send until the outbox is empty."""
        size, failures, sent = _CHUNK, 1, 0
        self._pause(failures)  # the store has just failed
        while chunk := self._next(jobs, size):
            left: set[int] = set()
            try:
                left = self._send(chunk)
            except StoreError as error:  # nothing was stored; retry later
                self._cause = str(error)
                left = set(range(len(chunk)))
            except BaseException as error:  # noqa: BLE001  # boundary: the sender must not end while jobs wait
                if len(chunk) > 1:
                    size = 1  # one of the jobs causes the error: send each alone
                    continue
                self._report_not_enqueued(chunk, f"not stored: {error}")
                size = _CHUNK
            self._done(jobs, len(chunk), left)
            sent += len(chunk) - len(left)
            failures = failures + 1 if left else 0
            if left:
                self._pause(failures)
        _log.info("the outbox is empty: %d job(s) went to the store", sent)

    def _next(self, jobs: deque[_Kept], size: int) -> list[NewJob]:
        with self._changed:
            chunk = list(islice(jobs, size))
            if not chunk and jobs is self._jobs:
                self._sender = None
        now = time.monotonic()
        return [_shortened(kept.job, int((now - kept.since) * 1000)) for kept in chunk]

    def _done(self, jobs: deque[_Kept], count: int, left: set[int]) -> None:
        """Remove the first `count` jobs except those at the positions `left`."""
        if len(left) == count:
            return
        with self._changed:
            done = [jobs.popleft() for _ in range(min(count, len(jobs)))]
            jobs.extendleft(kept for place, kept in reversed([*enumerate(done)]) if place in left)
            self._changed.notify_all()

    def _pause(self, failures: int) -> None:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures - 1, 8)) * random.uniform(0.5, 1)  # noqa: S311 (jitter, no secret)
        self._flush_requested.wait(_FLUSH_PAUSE if self._flushes else pause)
        self._flush_requested.clear()

    def _send(self, jobs: list[NewJob]) -> set[int]:
        """Send the jobs in one call; returns the positions of those that could not be stored."""
        try:
            answers = self._store().sync.enqueue(jobs)
        except EnqueueUnknown as error:
            self._report_not_enqueued(jobs, f"perhaps stored: the reply was lost ({error.cause})")
            return set()
        failed: set[int] = set()
        for place, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
            if answer.status is EnqueueStatus.FAILED:
                failed.add(place)
                self._cause = answer.cause
            else:
                self._handle_answer(job, answer)
        return failed

    # ── answers ──

    def _handle_answer(self, job: NewJob, answer: Enqueued) -> None:
        match answer.status:
            case EnqueueStatus.NEW:
                self._emit_stored(job)
            case EnqueueStatus.UNREPLICATED:
                _log.warning("from the outbox: job %s is stored, but %s", job.id, answer.cause)
                self._emit_stored(job)
            case EnqueueStatus.DUPLICATE:
                self._report_not_enqueued([job], f"not stored: the unique job {answer.id} exists")
            case EnqueueStatus.REPLACED:
                self._report_not_enqueued(
                    [job], f"not stored: it updated the existing unique job {answer.id}"
                )
            case EnqueueStatus.UNKNOWN:
                self._report_not_enqueued([job], f"perhaps stored: the reply was lost ({answer.cause})")
            case status:
                self._report_not_enqueued([job], f"not stored: {_REFUSALS.get(status, status)}")

    def _emit_stored(self, job: NewJob) -> None:
        if self._events.active:
            at = time.time_ns() // 1_000_000
            self._events.emit(JobEnqueued(at, job.id, job.queue, job.task, 0))

    def _report_not_enqueued(self, jobs: Sequence[NewJob], why: str) -> None:
        for start in range(0, len(jobs), _IDS_PER_LINE):
            some = jobs[start : start + _IDS_PER_LINE]
            ids = ", ".join(f"{job.id} ({job.task or 'raw'})" for job in some)
            _log.error("%d job(s) from the outbox: %s: %s", len(some), why, ids)
        if self._events.active:
            at = time.time_ns() // 1_000_000
            for job in jobs:
                self._events.emit(JobNotEnqueued(at, job.id, job.queue, job.task, 0, why))


_REFUSALS = {
    EnqueueStatus.EXISTS: "a job of this id exists",
    EnqueueStatus.CLOSED: "its queue is closed",
    EnqueueStatus.FULL: "its queue is full",
}


def _shortened(job: NewJob, waited: int) -> NewJob:
    """The job with its durations shortened by its time in the outbox, as if stored when it was enqueued."""
    if not job.delay and job.expires_in is None:
        return job
    expires_in = None if job.expires_in is None else max(1, job.expires_in - waited)
    return msgspec.structs.replace(job, delay=max(0, job.delay - waited), expires_in=expires_in)


# ── exit of the process ──

_OUTBOXES: weakref.WeakSet[Outbox] = weakref.WeakSet()
_at_exit: list[Callable[[], None]] = []


def _flush_at_exit() -> None:
    """Register the flush at exit once per process, after a store was used (exits run in reverse order)."""
    if not _at_exit:
        _at_exit.append(atexit.register(_close_all))


def _close_all() -> None:
    ends = time.monotonic() + _CLOSE_TIMEOUT
    for outbox in list(_OUTBOXES):
        if outbox.pending:
            outbox.close(max(0.0, ends - time.monotonic()))
            outbox._events.close()
