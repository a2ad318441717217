"""A job as its producer holds it: where it stands, what came of it, and how to call it off."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from penstock.codec import ANY_RESULT, ResultCodec
from penstock.duration import Duration, format_ms, instant_ms, milliseconds
from penstock.errors import (
    ConfigError,
    JobCancelled,
    JobDead,
    JobNotFound,
    ResultNotKept,
    ResultTimeout,
)
from penstock.job import Job, Ref, State
from penstock.store import Store

__all__ = ["Handle", "refuse_in_loop"]

R_co = TypeVar("R_co", covariant=True)

#: Who waits without a limit asks the store again this often (ms); the store tells at once all the same.
_LONG = 60_000


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

    @property
    def ref(self) -> Ref:
        return Ref(self.queue, self.id)

    def status(self) -> State:
        """Where the job stands now; raises JobNotFound once it is gone."""
        return self._found(self.job()).state

    async def astatus(self) -> State:
        return self._found(await self.ajob()).state

    def job(self) -> Job | None:
        """All that is known of the job; None when it is not there (any more)."""
        return self._store.sync.get([self.ref])[0]

    async def ajob(self) -> Job | None:
        return (await self._store.get([self.ref]))[0]

    def result(self, timeout: Duration | None = None) -> R_co:
        """What the task returned, waiting for it at most `timeout`; None waits for as long as it takes.

        Raises ResultNotKept at once where retention keeps nothing, ResultTimeout, JobDead, JobCancelled,
        or JobNotFound. Blocks the thread, and is therefore refused where an event loop runs: `aresult`.
        """
        refuse_in_loop("handle.result()", "await handle.aresult()")
        limit = _limit(timeout)
        if not self._kept():
            self._refuse_unkept(self.job())
        while True:
            (job,) = self._store.sync.ended([self.ref], timeout=_LONG if limit is None else limit)
            if job is None or job.ended or limit is not None:
                return self._outcome(job, limit)

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        limit = _limit(timeout)
        if not self._kept():
            self._refuse_unkept(await self.ajob())
        while True:
            (job,) = await self._store.ended([self.ref], timeout=_LONG if limit is None else limit)
            if job is None or job.ended or limit is not None:
                return self._outcome(job, limit)

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
        return f"<Handle of {self._name}{existing}>"

    @property
    def _name(self) -> str:
        of = f" of {self.task}" if self.task else ""
        return f"job {self.id}{of} in the queue {self.queue!r}"

    def _kept(self) -> bool:
        """Whether we know that the result will be there; raises ResultNotKept where it surely will not."""
        if self._retention == 0:
            raise self._not_kept()
        return self._retention is not None

    def _refuse_unkept(self, job: Job | None) -> None:
        """Somebody else enqueued it: ask the job what its retention is."""
        if job is None:
            raise self._gone() if self._codec.keeps else self._not_kept()
        if job.spec.retention == 0:
            raise self._not_kept()

    def _outcome(self, job: Job | None, limit: int | None) -> R_co:
        job = self._found(job)
        if job.state is State.COMPLETED:
            result: R_co = None if job.result is None else self._codec.decode(job.result)  # type: ignore[assignment]
            return result
        if job.state is State.DEAD:
            last = job.errors[-1] if job.errors else None
            why = f"{last.kind}: {last.message}" if last else job.reason or "nobody knows why"
            said = f" ({job.reason})" if last and job.reason and job.reason != why else ""
            raise JobDead(f"{self._name} failed for good{said}: {why}", job.errors)
        if job.state is State.CANCELLED:
            raise JobCancelled(f"{self._name} was cancelled: {job.reason or 'no reason given'}")
        raise ResultTimeout(
            f"{self._name} has not ended within {format_ms(limit or 0)}: it is {job.state.value}"
        )

    def _found(self, job: Job | None) -> Job:
        if job is None:
            raise self._gone()
        return job

    def _gone(self) -> JobNotFound:
        return JobNotFound(f"{self._name} is not there: it has ended and was not kept, or never was")

    def _not_kept(self) -> ResultNotKept:
        return ResultNotKept(
            f"{self._name} keeps no result: its task is annotated `-> None` or its retention is 0; "
            "set retention= on the task or the call to keep finished jobs"
        )


def refuse_in_loop(what: str, instead: str) -> None:
    """Raise ConfigError where an event loop runs in this thread: blocking it may wait for itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(f"{what} would block the event loop that runs in this thread: use `{instead}`")


def _limit(timeout: Duration | None) -> int | None:
    return None if timeout is None else milliseconds(timeout, what="timeout")


def _because(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason}


def _when(run_at: datetime | None, delay: Duration | None) -> dict[str, Any]:
    if (run_at is None) == (delay is None):
        raise ConfigError("reschedule() takes either run_at= (an aware datetime) or delay= (a duration)")
    if run_at is not None:
        return {"run_at": instant_ms(run_at)}
    return {"delay": milliseconds(delay or 0, what="delay")}
