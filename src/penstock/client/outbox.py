"""Holds new jobs in memory while the store is away, and sends them in their order when it is back.

What waits here dies with the process: a producer that would rather lose a job in a crash than fail a
request while the store is down says so, `App(outbox=N)`. One thread of ours sends, whoever enqueued (a
thread, any event loop); it lives as long as something waits.
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
from penstock.core.forks import begins_anew
from penstock.core.job import NewJob
from penstock.stores.contract import Enqueued, EnqueueStatus, Store

__all__ = ["Outbox"]

_log = logging.getLogger("penstock.outbox")

#: Jobs sent at once: few enough for one atomic step of any store.
_CHUNK = 1_000
#: How long the sender rests after it has failed (s): doubled each time, with jitter; short while one waits.
_FIRST_REST, _LONGEST_REST, _HURRIED_REST = 0.1, 2.0, 0.1
#: How long an app that is closed, or a process that ends, waits for the store (s).
_LAST_WORDS = 2.0
#: Ids in one line of the log.
_IDS_A_LINE = 50


class _Kept(msgspec.Struct, frozen=True):
    """A job, and when it came (monotonic)."""

    job: NewJob
    since: float


class Outbox:
    """At most `limit` jobs on their way to a store that does not answer; 0: no outbox.

    Every job that comes out of it is stored once, or logged with its id and told as JobNotEnqueued.
    """

    def __init__(self, limit: int, store: Callable[[], Store], events: EventBus) -> None:
        self.limit = limit
        self._store = store
        self._events = events
        self.begin_life()
        begins_anew(self)
        if limit:
            _OUTBOXES.add(self)

    def begin_life(self) -> None:
        """What belongs to one process: a fork's child starts with an empty one, the parent sends its own."""
        self._changed = threading.Condition()
        self._jobs: deque[_Kept] = deque()
        self._sender: threading.Thread | None = None
        self._cause = ""
        self._hurrying = 0
        self._hurry = threading.Event()

    @property
    def pending(self) -> int:
        """How many jobs wait here, those on their way to the store included."""
        return len(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def keep(self, jobs: Sequence[NewJob], error: PenstockError | None = None) -> list[None]:
        """Take all of these jobs, behind those that are here; raises OutboxFull if not all have room.

        `error` is why the store did not take them; without, they wait for those before them.
        """
        with self._changed:
            if error is not None:
                self._cause = str(error)
            if len(self._jobs) + len(jobs) > self.limit:
                raise OutboxFull(self.limit, self._cause) from error
            first = not self._jobs
            if self._sender is None:
                self._start()  # before they are here: a process that ends may not be able to
            now = time.monotonic()
            self._jobs.extend([_Kept(job, now) for job in jobs])
        if first:
            _log.warning(
                "the store does not answer (%s): new jobs wait in memory, at most %d", self._cause, self.limit
            )
        return [None] * len(jobs)

    def keep_failed(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> Sequence[Enqueued | None]:
        """Take those of which the store says that it could not; None in the place of their answers.

        Without room for all of them they stay failed, for the others of the call are stored.
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
        """Send now, and wait (s) until nothing is left; whether that is so."""
        if not self._jobs:
            return True
        with self._changed:
            self._hurrying += 1
            self._hurry.set()
            try:
                return self._changed.wait_for(lambda: not self._jobs, timeout)
            finally:
                self._hurrying -= 1

    def close(self, timeout: float = _LAST_WORDS) -> None:
        """Flush; what the store does not take in time (s) is given up and said."""
        if self.flush(timeout):
            return
        with self._changed:
            given_up = [kept.job for kept in self._jobs]
            self._jobs.clear()
            self._jobs = deque()  # the sender, if it hangs in a call, keeps to the old one and then ends
            self._sender = None
            self._changed.notify_all()
        self._say_not_enqueued(given_up, f"given up, the store did not take them in time ({self._cause})")

    # ── the sender ──

    def _start(self) -> None:
        _flush_at_exit()
        self._sender = threading.Thread(
            target=self._send_all, args=(self._jobs,), name="penstock-outbox", daemon=True
        )
        self._sender.start()

    def _send_all(self, jobs: deque[_Kept]) -> None:
        """The life of the sender: from the first job of an outage to the last."""
        size, failures, sent = _CHUNK, 1, 0
        self._rest(failures)  # the store has just failed
        while chunk := self._next(jobs, size):
            left: set[int] = set()
            try:
                left = self._send(chunk)
            except StoreError as error:  # it took nothing, and may take it later
                self._cause = str(error)
                left = set(range(len(chunk)))
            except BaseException as error:  # noqa: BLE001  # boundary: jobs wait here, the sender must not die before them
                if len(chunk) > 1:
                    size = 1  # one of them is to blame: which?
                    continue
                self._say_not_enqueued(chunk, f"not stored: {error}")
                size = _CHUNK
            self._done(jobs, len(chunk), left)
            sent += len(chunk) - len(left)
            failures = failures + 1 if left else 0
            if left:
                self._rest(failures)
        _log.info("the outbox is empty: %d job(s) went to the store", sent)

    def _next(self, jobs: deque[_Kept], size: int) -> list[NewJob]:
        with self._changed:
            chunk = list(islice(jobs, size))
            if not chunk and jobs is self._jobs:
                self._sender = None
        now = time.monotonic()
        return [_aged(kept.job, int((now - kept.since) * 1000)) for kept in chunk]

    def _done(self, jobs: deque[_Kept], count: int, left: set[int]) -> None:
        """Of the first `count`, those at the places `left` stay."""
        if len(left) == count:
            return
        with self._changed:
            done = [jobs.popleft() for _ in range(min(count, len(jobs)))]
            jobs.extendleft(kept for place, kept in reversed([*enumerate(done)]) if place in left)
            self._changed.notify_all()

    def _rest(self, failures: int) -> None:
        pause = min(_LONGEST_REST, _FIRST_REST * 2 ** min(failures - 1, 8)) * random.uniform(0.5, 1)  # noqa: S311 (jitter, no secret)
        self._hurry.wait(_HURRIED_REST if self._hurrying else pause)
        self._hurry.clear()

    def _send(self, jobs: list[NewJob]) -> set[int]:
        """One call of the store; the places of those that it could not store."""
        try:
            answers = self._store().sync.enqueue(jobs)
        except EnqueueUnknown as error:
            self._say_not_enqueued(jobs, f"perhaps stored: the reply was lost ({error.cause})")
            return set()
        failed: set[int] = set()
        for place, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
            if answer.status is EnqueueStatus.FAILED:
                failed.add(place)
                self._cause = answer.cause
            else:
                self._hear(job, answer)
        return failed

    # ── what became of them ──

    def _hear(self, job: NewJob, answer: Enqueued) -> None:
        match answer.status:
            case EnqueueStatus.NEW:
                self._tell_stored(job)
            case EnqueueStatus.UNREPLICATED:
                _log.warning("from the outbox: the job %s is stored, but %s", job.id, answer.cause)
                self._tell_stored(job)
            case EnqueueStatus.DUPLICATE:
                self._say_not_enqueued([job], f"not stored: the unique job {answer.id} is there")
            case EnqueueStatus.REPLACED:
                self._say_not_enqueued(
                    [job], f"not stored: the unique job {answer.id} was given what it asked for"
                )
            case EnqueueStatus.UNKNOWN:
                self._say_not_enqueued([job], f"perhaps stored: the reply was lost ({answer.cause})")
            case status:
                self._say_not_enqueued([job], f"not stored: {_REFUSALS.get(status, status)}")

    def _tell_stored(self, job: NewJob) -> None:
        if self._events.active:
            at = time.time_ns() // 1_000_000
            self._events.emit(JobEnqueued(at, job.id, job.queue, job.task, 0))

    def _say_not_enqueued(self, jobs: Sequence[NewJob], why: str) -> None:
        for start in range(0, len(jobs), _IDS_A_LINE):
            some = jobs[start : start + _IDS_A_LINE]
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


def _aged(job: NewJob, waited: int) -> NewJob:
    """The job as it would be had the store taken it when it was enqueued: its durations began then."""
    if not job.delay and job.expires_in is None:
        return job
    expires_in = None if job.expires_in is None else max(1, job.expires_in - waited)
    return msgspec.structs.replace(job, delay=max(0, job.delay - waited), expires_in=expires_in)


# ── the end ──

_OUTBOXES: weakref.WeakSet[Outbox] = weakref.WeakSet()
_at_exit: list[Callable[[], None]] = []


def _flush_at_exit() -> None:
    """Once per process, and not before a store was used: what is registered last goes first."""
    if not _at_exit:
        _at_exit.append(atexit.register(_close_all))


def _close_all() -> None:
    ends = time.monotonic() + _LAST_WORDS
    for outbox in list(_OUTBOXES):
        if outbox.pending:
            outbox.close(max(0.0, ends - time.monotonic()))
            outbox._events.close()
