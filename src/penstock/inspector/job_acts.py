"""What an operator may do with jobs, each act for any number of jobs: retry, move, duplicate, and others."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.ids import check_queue, mint
from penstock.core.job import QUEUED, TERMINAL, Job, NewJob, Ref, State
from penstock.core.lifecycle import OPERATOR_CANCELLED
from penstock.inspector.requests import Change
from penstock.stores.contract import EnqueueStatus, Store

__all__ = ["JobAct", "JobActs", "parse_job_act"]

#: The header of a moved job: the queue that it comes from.
MOVED_FROM = "penstock-moved-from"
#: The copy of a moved job is due this long (ms) after the move began, if the process that moves it dies in
#: the middle. Otherwise it has the due time of the original by then.
_MOVE_GRACE = 3_600_000
_MOVED = QUEUED - {State.COLLECTING}


class JobAct(enum.StrEnum):
    """An act on jobs.

    | act | for jobs that are | the jobs are then |
    |---|---|---|
    | RETRY | ended or queued | available, with all attempts |
    | RUN_NOW | scheduled or retryable | available |
    | RESCHEDULE | queued | due at another time |
    | CANCEL | unfinished | cancelled; running ones are asked to stop |
    | DELETE | not running | gone |
    | MOVE | queued | in another queue, with all attempts |
    | DUPLICATE | in any state | as before, and a copy of each is available |
    """

    RETRY = "retry"
    RUN_NOW = "run-now"
    RESCHEDULE = "reschedule"
    CANCEL = "cancel"
    DELETE = "delete"
    MOVE = "move"
    DUPLICATE = "duplicate"

    __hash__ = str.__hash__


class JobActs:
    """Acts on jobs of a store. `delay` (ms) is for RESCHEDULE, `queue` for MOVE."""

    def __init__(self, store: Store, *, delay: int = 0, queue: str = "") -> None:
        self._store = store
        self._delay = delay
        self._queue = queue

    async def apply(self, act: JobAct, refs: Sequence[Ref]) -> list[Change]:
        """Do it, and return what became of each job. What is done already is refused or changes nothing."""
        if not refs:
            return []
        acts: dict[JobAct, Callable[[Sequence[Ref]], Awaitable[list[Change]]]] = {
            JobAct.RETRY: self._retry,
            JobAct.RUN_NOW: self._run_now,
            JobAct.RESCHEDULE: self._reschedule,
            JobAct.CANCEL: self._cancel,
            JobAct.DELETE: self._delete,
            JobAct.MOVE: self._move,
            JobAct.DUPLICATE: self._duplicate,
        }
        return await acts[act](refs)

    def check(self, act: JobAct) -> None:
        """Raise ConfigError if the act lacks an argument."""
        if act is JobAct.MOVE:
            check_queue(self._queue)

    # ── acts ─────────────────────────────────────────────────────────────────────────────────────

    async def _retry(self, refs: Sequence[Ref]) -> list[Change]:
        before = await self._store.retry(refs)
        return [changed(ref, state, "retried") for ref, state in zip(refs, before, strict=True)]

    async def _run_now(self, refs: Sequence[Ref]) -> list[Change]:
        jobs = await self._store.get(refs)
        later = [
            job.ref for job in jobs if job is not None and job.state in (State.SCHEDULED, State.RETRYABLE)
        ]
        states = {job.ref: job.state for job in jobs if job is not None}
        if later:
            states |= dict(zip(later, await self._store.reschedule(later, delay=0), strict=True))  # type: ignore[arg-type]
        allowed = frozenset({State.SCHEDULED, State.RETRYABLE})
        return [changed(ref, states.get(ref), "made available", allowed) for ref in refs]

    async def _reschedule(self, refs: Sequence[Ref]) -> list[Change]:
        before = await self._store.reschedule(refs, delay=self._delay)
        done = [
            changed(ref, state, "rescheduled", QUEUED - {State.PARKED})
            for ref, state in zip(refs, before, strict=True)
        ]
        return await self._refuse_members(done, before)

    async def _cancel(self, refs: Sequence[Ref]) -> list[Change]:
        states = await self._store.cancel(refs, reason=OPERATOR_CANCELLED)
        return [_cancelled(ref, state) for ref, state in zip(refs, states, strict=True)]

    async def _delete(self, refs: Sequence[Ref]) -> list[Change]:
        before = await self._store.delete(refs)
        done = [changed(ref, state, "deleted") for ref, state in zip(refs, before, strict=True)]
        return await self._refuse_members(done, before)

    async def _duplicate(self, refs: Sequence[Ref]) -> list[Change]:
        """Enqueue a copy of each job under a new id, without its unique key and its flow."""
        jobs = await self._store.get(refs)
        copies = {
            job.ref: replace(job.spec, id=mint(), unique=None, flow=None, delay=0, run_at=None)
            for job in jobs
            if job is not None and not job.spec.unreadable and not job.members
        }
        answers = dict(zip(copies, await self._store.enqueue(list(copies.values())), strict=True))
        done = []
        for ref, job in zip(refs, jobs, strict=True):
            if job is None:
                done.append(changed(ref, None, ""))
            elif ref not in copies:
                why = "it is a batch" if job.members else "its record cannot be read"
                done.append(Change(ref.queue, ref.id, "refused", f"not duplicated: {why}"))
            elif answers[ref].status is not EnqueueStatus.NEW:
                why = f"the queue answered {answers[ref].status.value}"
                done.append(Change(ref.queue, ref.id, "refused", f"not duplicated: {why}"))
            else:
                done.append(Change(ref.queue, ref.id, "done", f"duplicated as {copies[ref].id}"))
        return done

    async def _move(self, refs: Sequence[Ref]) -> list[Change]:
        """Move queued jobs, in steps that lose no job and start none twice.

        1. Copies are enqueued in the other queue, due much later. 2. The originals are deleted, unless they
        have started. 3. The copies of deleted originals get their due time, the others are deleted.
        A repeated move continues where the one before has ended.
        """
        jobs = dict(zip(refs, await self._store.get(refs), strict=True))
        done = {ref: self._why_not_moved(ref, job) for ref, job in jobs.items()}
        moved = [job for ref, job in jobs.items() if job is not None and done[ref] is None]
        copies = [self._copy(job) for job in moved]
        taken = await self._store.enqueue(copies) if copies else []
        going: list[Job] = []
        for job, answer in zip(moved, taken, strict=True):
            if answer.status is EnqueueStatus.NEW or await self._is_copy(job):
                going.append(job)
            else:
                why = f"the queue {self._queue!r} answered {answer.status.value}"
                done[job.ref] = Change(job.queue, job.id, "refused", f"not moved: {why}")
        deleted = await self._store.delete([job.ref for job in going]) if going else []
        kept: list[Ref] = []
        for job, state in zip(going, deleted, strict=True):
            to = Ref(self._queue, job.id)
            if state in _MOVED:
                await self._store.reschedule([to], run_at=job.run_at)
                done[job.ref] = Change(job.queue, job.id, "done", f"moved to {self._queue} (was {state})")
            else:
                kept.append(to)
                done[job.ref] = changed(job.ref, state, "moved", frozenset())
        if kept:
            await self._store.delete(kept)
        return [one for one in done.values() if one is not None]

    def _why_not_moved(self, ref: Ref, job: Job | None) -> Change | None:
        if job is None:
            return changed(ref, None, "")
        if ref.queue == self._queue:
            return Change(ref.queue, ref.id, "refused", "not moved: it is in this queue")
        if job.state not in _MOVED:
            return changed(ref, job.state, "moved", _MOVED)
        if job.spec.flow is not None:
            return Change(ref.queue, ref.id, "refused", "not moved: it is a node of a flow")
        if job.spec.unreadable or job.members:
            what = "a batch" if job.members else "unreadable"
            return Change(ref.queue, ref.id, "refused", f"not moved: it is {what}")
        return None

    def _copy(self, job: Job) -> NewJob:
        headers = {**(job.spec.headers or {}), MOVED_FROM: job.queue}
        return replace(
            job.spec,
            queue=self._queue,
            headers=headers,
            delay=_MOVE_GRACE,
            run_at=None,
            expires_in=None,
            expires_at=job.expires_at,
        )

    async def _is_copy(self, job: Job) -> bool:
        """Whether the job in the other queue is the copy of a move that was cut off."""
        (found,) = await self._store.get([Ref(self._queue, job.id)])
        if found is None or found.state is not State.SCHEDULED:
            return False
        return (found.spec.headers or {}).get(MOVED_FROM) == job.queue

    async def _refuse_members(self, done: list[Change], before: Sequence[State | None]) -> list[Change]:
        """Mark members of a running batch as refused; their state does not show the membership."""
        collecting = [n for n, state in enumerate(before) if state is State.COLLECTING]
        refs = [Ref(done[n].queue, done[n].id) for n in collecting]
        for n, job in zip(collecting, await self._store.get(refs) if refs else [], strict=True):
            if job is not None and job.in_batch:
                why = f"part of the batch {job.batch}: change the batch instead"
                done[n] = Change(job.queue, job.id, "refused", why)
        return done


def parse_job_act(text: str) -> JobAct:
    """Read the name of an act. Raises ConfigError."""
    try:
        return JobAct(text.lower())
    except ValueError:
        known = [act.value for act in JobAct]
        near = did_you_mean(text.lower(), known)
        raise ConfigError(f"{text!r} is no act on jobs{near}: one of {', '.join(known)}") from None


def changed(
    ref: Ref,
    before: State | None,
    done: str,
    allowed: frozenset[State] = QUEUED | TERMINAL | {State.SUSPENDED},
) -> Change:
    """What became of a job that was in the state `before`, in words."""
    if before is None:
        return Change(ref.queue, ref.id, "missing", "no such job")
    if before not in allowed:
        return Change(ref.queue, ref.id, "refused", f"not {done}: it is {before.value}")
    return Change(ref.queue, ref.id, "done", f"{done} (was {before.value})")


def _cancelled(ref: Ref, state: State | None) -> Change:
    if state is None:
        return Change(ref.queue, ref.id, "missing", "no such job")
    if state is State.RUNNING:
        return Change(ref.queue, ref.id, "asked", "running: asked to stop")
    if state in (State.COMPLETED, State.DEAD, State.COLLECTING):
        return Change(ref.queue, ref.id, "refused", f"not cancelled: it is {state.value}")
    return Change(ref.queue, ref.id, "done", "cancelled")
