"""A producer's handle of a job: its state, its result, its progress, and how to cancel it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from penstock.client.timeouts import (
    WaitLimit,
    acall_through_outage,
    await_end,
    call_through_outage,
    refuse_in_loop,
    wait_for_end,
)
from penstock.codec import ANY_RESULT, ResultCodec
from penstock.core import errors
from penstock.core.formats import Duration, instant_ms, milliseconds, shown_text
from penstock.core.job import QUEUED, Job, Progress, Ref, State, Unkept
from penstock.core.portable import in_process
from penstock.stores.contract import Store, WorkerInfo

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@in_process("send handle.queue and handle.id, and use app.handle(id, queue) there")
class Handle(msgspec.Struct, Generic[R_co], frozen=True, eq=False):
    """The address of a stored job and the operations on it. Handles of the same job are equal.

    Every method has an async twin with the prefix `a`. `existing` is True if a unique job was enqueued
    again: then this is the handle of the existing job.
    """

    _store: Store
    queue: str
    id: str
    task: str = ""
    _codec: ResultCodec = ANY_RESULT
    #: How long the finished job is kept (ms); None: known only from the stored job.
    _retention: int | None = None
    existing: bool = False
    #: The ended job (or None), if it was known when this handle was made; the store is then not asked.
    _end: tuple[Job | None] | None = None
    #: Whether the job was in the outbox when this handle was made: it may not be in the store yet.
    _unsent: bool = False

    @property
    def ref(self) -> Ref:
        return Ref(self.queue, self.id)

    def status(self) -> State | Unkept:
        """The job's current state.

        After the job is gone: `Unkept.ENDED` if this handle comes from its enqueue and the job keeps nothing
        (its task is annotated `-> None`, or its retention is 0); otherwise JobNotFound is raised.
        """
        return _status(self, self.job())

    async def astatus(self) -> State | Unkept:
        """Like `status`, without blocking the event loop."""
        return _status(self, await self.ajob())

    def job(self) -> Job | None:
        """The stored job with all its facts; None if it does not exist (any more)."""
        return self._store.sync.get([self.ref])[0]

    async def ajob(self) -> Job | None:
        """Like `job`, without blocking the event loop."""
        return (await self._store.get([self.ref]))[0]

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the task's result, for at most `timeout` (None: without a limit), and return it.

        Raises ResultNotKept at once if retention keeps nothing; otherwise ResultTimeout, JobDead,
        ResultCancelled or JobNotFound. During an outage of the store it keeps waiting, and raises
        StoreUnavailable if the outage outlasts the timeout. This method blocks the thread, so it is refused
        in an event loop: use `aresult` there.
        """
        wait_limit = WaitLimit(timeout)
        if self._end is not None:
            return self._known_result()
        refuse_in_loop("handle.result()", "await handle.aresult()")
        if not keeps_result(self):
            refuse_unkept(self, call_through_outage(wait_limit, self.job))
        while True:
            job = wait_for_end(self._store, self.ref, wait_limit)
            if job is None or job.ended:
                return outcome_of(self, job)
            if wait_limit.over:
                raise late(self, job, wait_limit, _workers_now(self._store))

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Like `result`, in an event loop: other tasks run while it waits."""
        wait_limit = WaitLimit(timeout)
        if self._end is not None:
            return self._known_result()
        if not keeps_result(self):
            refuse_unkept(self, await acall_through_outage(wait_limit, self.ajob))
        while True:
            job = await await_end(self._store, self.ref, wait_limit)
            if job is None or job.ended:
                return outcome_of(self, job)
            if wait_limit.over:
                raise late(self, job, wait_limit, await _aworkers_now(self._store))

    def follow_progress(self, every: Duration = "1s", timeout: Duration | None = None) -> ProgressStream:
        """Iterate over the job's progress until it ends: `for` in a thread, `async for` in an event loop.

        Starts with the latest progress, if any. The store is asked once per `every` (at least 50 ms), and the
        iteration stops as soon as the job has ended. Progress between two questions is skipped, possibly also
        the job's last. Raises ResultTimeout if the job has not ended within `timeout`, and JobNotFound if it
        does not exist.
        """
        missing = None if self._retention == 0 or not self._codec.keeps else _gone(self)
        return ProgressStream(self._store, self.ref, name_of(self), missing, every, timeout)

    def cancel(self, reason: str | None = None) -> State | None:
        """Cancel the job. CANCELLED: it was queued, and is cancelled now. RUNNING: it was asked to stop.

        An ended job is not changed, and its state is returned. None: the job does not exist.
        """
        return self._store.sync.cancel([self.ref], **_because(reason))[0]

    async def acancel(self, reason: str | None = None) -> State | None:
        """Like `cancel`, without blocking the event loop."""
        return (await self._store.cancel([self.ref], **_because(reason)))[0]

    def reschedule(self, *, run_at: datetime | None = None, delay: Duration | None = None) -> State | None:
        """Give a queued job a new time; returns its state before. A running or ended job is not changed."""
        return self._store.sync.reschedule([self.ref], **_when(run_at, delay))[0]

    async def areschedule(
        self, *, run_at: datetime | None = None, delay: Duration | None = None
    ) -> State | None:
        """Like `reschedule`, without blocking the event loop."""
        return (await self._store.reschedule([self.ref], **_when(run_at, delay)))[0]

    def retry(self) -> State | None:
        """Make an ended or queued job available now, with all its attempts; returns its state before."""
        return self._store.sync.retry([self.ref])[0]

    async def aretry(self) -> State | None:
        """Like `retry`, without blocking the event loop."""
        return (await self._store.retry([self.ref]))[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle):
            return NotImplemented
        return (self.queue, self.id) == (other.queue, other.id)

    def __hash__(self) -> int:
        return hash((self.queue, self.id))

    def __repr__(self) -> str:
        existing = ", existing" if self.existing else ""
        return f"<Handle of {name_of(self)}{existing}>"

    if not TYPE_CHECKING:  # type checkers know the attributes, and refuse all others

        def __getattr__(self, name: str) -> Any:
            from penstock.core.peer_words import no_attribute  # only for this message

            raise no_attribute(self, "Handle", name)

    def _known_result(self) -> R_co:
        """The result of a job whose end is known to this handle."""
        (job,) = self._end or (None,)
        if not keeps_result(self):
            refuse_unkept(self, job)
        return outcome_of(self, job)


# ── for functions that wait for several handles ──────────────────────────────────────────────────


def name_of(handle: Handle[Any]) -> str:
    of = f" of {handle.task}" if handle.task else ""
    return f"job {handle.id}{of} in the queue {handle.queue!r}"


def belongs_to(handle: Handle[Any], store: Store) -> bool:
    """Whether the handle was made by the app of this store object."""
    return handle._store is store


def with_end(handle: Handle[R], job: Job | None) -> Handle[R]:
    """A handle of the same job that knows its end: `result` does not ask the store."""
    return msgspec.structs.replace(handle, _end=(job,))


def keeps_result(handle: Handle[Any]) -> bool:
    """Whether the result is known to be kept. Raises ResultNotKept if it is known not to be."""
    if handle._retention == 0:
        raise _not_kept(handle)
    return handle._retention is not None


def refuse_unkept(handle: Handle[Any], job: Job | None) -> None:
    """Raise ResultNotKept or JobNotFound by the stored job, for a handle that does not know its retention."""
    if job is None:
        raise _gone(handle) if handle._codec.keeps else _not_kept(handle)
    if job.spec.retention == 0:
        raise _not_kept(handle)


def outcome_of(handle: Handle[R], job: Job | None) -> R:
    """The result of a job that has ended. Raises the error that says why there is none."""
    job = _existing(handle, job)
    if job.state is State.COMPLETED:
        result: R = None if job.result is None else handle._codec.decode(job.result)  # type: ignore[assignment]
        return result
    if job.state is State.DEAD:
        last = job.errors[-1] if job.errors else None
        why = f"{last.kind}: {last.message}" if last else job.reason or "no reason recorded"
        note = f" ({job.reason})" if last and job.reason and job.reason != why else ""
        note += f" with its batch {job.batch}" if job.batch else ""
        raise errors.JobDead(shown_text(f"{name_of(handle)} failed for good{note}: {why}"), job.errors)
    why = shown_text(job.reason or "no reason given")
    raise errors.ResultCancelled(f"{name_of(handle)} was cancelled: {why}")


def late(
    handle: Handle[Any], job: Job, wait_limit: WaitLimit, workers: Sequence[WorkerInfo] | None
) -> errors.ResultTimeout:
    """The error of a job that has not ended in time; it says so if no live worker would start the job."""
    note = ""
    if workers is not None and job.state in QUEUED:
        serving = [worker for worker in workers if job.queue in worker.queues]
        if not serving:
            note = f"; no live worker serves the queue {job.queue!r}"
        elif not any(job.task in worker.tasks or job.queue in worker.handled for worker in serving):
            note = f"; no live worker of the queue {job.queue!r} knows the task {job.task!r}"
    return errors.ResultTimeout(
        f"{name_of(handle)} has not ended within {wait_limit}: it is {job.state.value}{note}"
    )


def _workers_now(store: Store) -> list[WorkerInfo] | None:
    try:
        return store.sync.workers()
    except errors.StoreError:  # they are only for the message
        return None


async def _aworkers_now(store: Store) -> list[WorkerInfo] | None:
    try:
        return await store.workers()
    except errors.StoreError:
        return None


def _status(handle: Handle[Any], job: Job | None) -> State | Unkept:
    if job is None and handle._retention == 0 and not handle._unsent:
        return Unkept.ENDED
    return _existing(handle, job).state


def _existing(handle: Handle[Any], job: Job | None) -> Job:
    if job is None:
        raise _gone(handle)
    return job


def _gone(handle: Handle[Any]) -> errors.JobNotFound:
    return errors.JobNotFound(f"{name_of(handle)} is not there: it has ended and was not kept, or never was")


def _not_kept(handle: Handle[Any]) -> errors.ResultNotKept:
    return errors.ResultNotKept(
        f"{name_of(handle)} keeps no result: its task is annotated `-> None` or its retention is 0; "
        "set retention= on the task or the call to keep finished jobs"
    )


# ── arguments ────────────────────────────────────────────────────────────────────────────────────


def _because(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason}


def _when(run_at: datetime | None, delay: Duration | None) -> dict[str, Any]:
    if (run_at is None) == (delay is None):
        raise errors.ConfigError(
            "reschedule() takes either run_at= (an aware datetime) or delay= (a duration)"
        )
    if run_at is not None:
        return {"run_at": instant_ms(run_at)}
    return {"delay": milliseconds(delay or 0, what="delay")}


# ── progress until the job ends ──────────────────────────────────────────────────────────────────


#: Minimum interval of questions to the store (ms); workers store progress less often.
_MIN_INTERVAL = 50


class ProgressStream:
    """A job's progress: `for` in a thread, `async for` in an event loop. Ends when the job ends."""

    def __init__(
        self,
        store: Store,
        ref: Ref,
        name: str,
        missing: errors.JobNotFound | None,
        every: Duration,
        timeout: Duration | None,
    ) -> None:
        self._store = store
        self._ref = ref
        self._name = name
        self._missing = missing  # the error to raise if the job does not exist at the start
        self._every = milliseconds(every, what="every")
        self._wait_limit = WaitLimit(timeout)
        if self._every < _MIN_INTERVAL:
            raise errors.ConfigError(
                f"follow_progress(every={every!r}) asks the store too often: use {_MIN_INTERVAL}ms or more"
            )

    def __iter__(self) -> Generator[Progress, None, None]:
        refuse_in_loop("for … in handle.follow_progress()", "async for … in handle.follow_progress()")
        wait_limit, last_shown = self._wait_limit.restarted(), None
        (job,) = call_through_outage(wait_limit, lambda: self._store.sync.get([self._ref]))
        self._refuse_missing(job)
        while job is not None:
            if job.progress not in (None, last_shown):
                yield job.progress
            last_shown = job.progress  # None: a new attempt has started without progress
            if job.ended:
                return
            self._refuse_late(job, wait_limit)
            job = wait_for_end(self._store, self._ref, wait_limit, self._every)

    async def __aiter__(self) -> AsyncGenerator[Progress, None]:
        wait_limit, last_shown = self._wait_limit.restarted(), None
        (job,) = await acall_through_outage(wait_limit, lambda: self._store.get([self._ref]))
        self._refuse_missing(job)
        while job is not None:
            if job.progress not in (None, last_shown):
                yield job.progress
            last_shown = job.progress
            if job.ended:
                return
            self._refuse_late(job, wait_limit)
            job = await await_end(self._store, self._ref, wait_limit, self._every)

    def _refuse_missing(self, job: Job | None) -> None:
        if job is None and self._missing is not None:
            raise self._missing

    def _refuse_late(self, job: Job, wait_limit: WaitLimit) -> None:
        if wait_limit.over:
            raise errors.ResultTimeout(
                f"{self._name} has not ended within {wait_limit}: it is {job.state.value}"
            )
