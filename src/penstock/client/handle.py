"""A job as its producer holds it: where it stands, what came of it, and how to call it off."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from penstock.client.progress_stream import ProgressStream
from penstock.client.timeouts import Patience, aask, ask, refuse_in_loop
from penstock.codec import ANY_RESULT, ResultCodec
from penstock.core.duration import Duration, instant_ms, milliseconds
from penstock.core.errors import ConfigError, JobCancelled, JobDead, JobNotFound, ResultNotKept, ResultTimeout
from penstock.core.job import Job, Ref, State, Unkept
from penstock.encryption import shown_text
from penstock.stores.contract import Store

__all__ = [
    "Handle",
    "belongs_to",
    "keeps_result",
    "name_of",
    "outcome_of",
    "refuse_unkept",
    "with_end",
]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Handle(msgspec.Struct, Generic[R_co], frozen=True, eq=False):
    """The address of a stored job, and a way to it. Handles of the same job are equal.

    Every verb has an async twin with an `a` before its name. `existing` is True where a unique job was
    enqueued again: then this is the handle of the one that was there.
    """

    _store: Store
    queue: str
    id: str
    task: str = ""
    _codec: ResultCodec = ANY_RESULT
    #: How long the finished job is kept (ms); None: only the job itself knows.
    _retention: int | None = None
    existing: bool = False
    #: What was heard of the job's end by whoever gave this handle away.
    _end: tuple[Job | None] | None = None
    #: The job waited in the outbox when this handle was made: that it is not there means nothing.
    _unsent: bool = False

    @property
    def ref(self) -> Ref:
        return Ref(self.queue, self.id)

    def status(self) -> State | Unkept:
        """Where the job stands now.

        Once it is gone: `Unkept.ENDED` if this handle comes from its enqueue and the job keeps nothing (its
        task is annotated `-> None`, or its retention is 0); any other raises JobNotFound.
        """
        return _status(self, self.job())

    async def astatus(self) -> State | Unkept:
        return _status(self, await self.ajob())

    def job(self) -> Job | None:
        """All that is known of the job; None when it is not there (any more)."""
        return self._store.sync.get([self.ref])[0]

    async def ajob(self) -> Job | None:
        return (await self._store.get([self.ref]))[0]

    def result(self, timeout: Duration | None = None) -> R_co:
        """What the task returned, waiting for it at most `timeout`; None waits for as long as it takes.

        Raises ResultNotKept at once where retention keeps nothing, ResultTimeout, JobDead, JobCancelled,
        or JobNotFound. An outage of the store is waited through; StoreUnavailable is raised if it outlasts
        the timeout. Blocks the thread, and is therefore refused where an event loop runs: `aresult`.
        """
        patience = Patience(timeout)
        if self._end is not None:
            return self._told()
        refuse_in_loop("handle.result()", "await handle.aresult()")
        if not keeps_result(self):
            refuse_unkept(self, ask(patience, self.job))
        while True:
            (job,) = ask(patience, lambda: self._store.sync.wait_for_end([self.ref], timeout=patience.left))
            if job is None or job.ended or patience.over:
                return outcome_of(self, job, patience)

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        patience = Patience(timeout)
        if self._end is not None:
            return self._told()
        if not keeps_result(self):
            refuse_unkept(self, await aask(patience, self.ajob))
        while True:
            (job,) = await aask(patience, lambda: self._store.wait_for_end([self.ref], timeout=patience.left))
            if job is None or job.ended or patience.over:
                return outcome_of(self, job, patience)

    def follow_progress(self, every: Duration = "1s", timeout: Duration | None = None) -> ProgressStream:
        """What the job says of its progress, until it ends: `for` in a thread, `async for` in an event loop.

        Begins with what was said last, if anything was. The store is asked once in `every` (50 ms at least),
        and tells of the end at once; what is said in between is passed over, and so may be the job's last
        words. Raises ResultTimeout if it has not ended within `timeout`, and JobNotFound if it never was.
        """
        missing = None if self._retention == 0 or not self._codec.keeps else _gone(self)
        return ProgressStream(self._store, self.ref, name_of(self), missing, every, timeout)

    def cancel(self, reason: str | None = None) -> State | None:
        """Call the job off: CANCELLED at once while it is queued; RUNNING: it has been asked to stop.

        An ended job keeps its state, which comes back; None: it is not there.
        """
        return self._store.sync.cancel([self.ref], **_because(reason))[0]

    async def acancel(self, reason: str | None = None) -> State | None:
        return (await self._store.cancel([self.ref], **_because(reason)))[0]

    def reschedule(self, *, run_at: datetime | None = None, delay: Duration | None = None) -> State | None:
        """Give a queued job a new time; the state before comes back, and a running or ended job is left."""
        return self._store.sync.reschedule([self.ref], **_when(run_at, delay))[0]

    async def areschedule(
        self, *, run_at: datetime | None = None, delay: Duration | None = None
    ) -> State | None:
        return (await self._store.reschedule([self.ref], **_when(run_at, delay)))[0]

    def retry(self) -> State | None:
        """Make an ended or queued job available now, as new; the state before comes back."""
        return self._store.sync.retry([self.ref])[0]

    async def aretry(self) -> State | None:
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

    def _told(self) -> R_co:
        """The result, by what was heard of the end."""
        (job,) = self._end or (None,)
        if not keeps_result(self):
            refuse_unkept(self, job)
        return outcome_of(self, job, None)


# ── what those who wait for several know of a handle ─────────────────────────────────────────────


def name_of(handle: Handle[Any]) -> str:
    of = f" of {handle.task}" if handle.task else ""
    return f"job {handle.id}{of} in the queue {handle.queue!r}"


def belongs_to(handle: Handle[Any], store: Store) -> bool:
    """Whether its job is in the store of this store object."""
    return handle._store is store


def with_end(handle: Handle[R], job: Job | None) -> Handle[R]:
    """A handle of the same job that knows how it ended: its `result` asks the store no more."""
    return msgspec.structs.replace(handle, _end=(job,))


def keeps_result(handle: Handle[Any]) -> bool:
    """Whether we know that the result will be there; raises ResultNotKept where it surely will not."""
    if handle._retention == 0:
        raise _not_kept(handle)
    return handle._retention is not None


def refuse_unkept(handle: Handle[Any], job: Job | None) -> None:
    """Somebody else enqueued it: the job knows what its retention is."""
    if job is None:
        raise _gone(handle) if handle._codec.keeps else _not_kept(handle)
    if job.spec.retention == 0:
        raise _not_kept(handle)


def outcome_of(handle: Handle[R], job: Job | None, patience: Patience | None) -> R:
    """The result, or the error that says why there is none."""
    job = _found(handle, job)
    if job.state is State.COMPLETED:
        result: R = None if job.result is None else handle._codec.decode(job.result)  # type: ignore[assignment]
        return result
    if job.state is State.DEAD:
        last = job.errors[-1] if job.errors else None
        why = f"{last.kind}: {last.message}" if last else job.reason or "nobody knows why"
        said = f" ({job.reason})" if last and job.reason and job.reason != why else ""
        said += f" with its batch {job.batch}" if job.batch else ""
        raise JobDead(shown_text(f"{name_of(handle)} failed for good{said}: {why}"), job.errors)
    if job.state is State.CANCELLED:
        why = shown_text(job.reason or "no reason given")
        raise JobCancelled(f"{name_of(handle)} was cancelled: {why}")
    raise ResultTimeout(f"{name_of(handle)} has not ended within {patience}: it is {job.state.value}")


def _status(handle: Handle[Any], job: Job | None) -> State | Unkept:
    if job is None and handle._retention == 0 and not handle._unsent:
        return Unkept.ENDED
    return _found(handle, job).state


def _found(handle: Handle[Any], job: Job | None) -> Job:
    if job is None:
        raise _gone(handle)
    return job


def _gone(handle: Handle[Any]) -> JobNotFound:
    return JobNotFound(f"{name_of(handle)} is not there: it has ended and was not kept, or never was")


def _not_kept(handle: Handle[Any]) -> ResultNotKept:
    return ResultNotKept(
        f"{name_of(handle)} keeps no result: its task is annotated `-> None` or its retention is 0; "
        "set retention= on the task or the call to keep finished jobs"
    )


# ── arguments ────────────────────────────────────────────────────────────────────────────────────


def _because(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason}


def _when(run_at: datetime | None, delay: Duration | None) -> dict[str, Any]:
    if (run_at is None) == (delay is None):
        raise ConfigError("reschedule() takes either run_at= (an aware datetime) or delay= (a duration)")
    if run_at is not None:
        return {"run_at": instant_ms(run_at)}
    return {"delay": milliseconds(delay or 0, what="delay")}
