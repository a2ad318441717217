"""What an operator may do with jobs: retry, cancel, move and others, for any number of jobs."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

from msgspec.structs import replace

from penstock.core.ids import mint
from penstock.core.job import QUEUED, TERMINAL, Job, NewJob, Ref, State
from penstock.core.job_changes import copied_spec
from penstock.core.lifecycle import DISCARDED, OPERATOR_CANCELLED
from penstock.inspector.job_moves import move_jobs
from penstock.inspector.requests import Change, why_not_taken
from penstock.stores.contract import EnqueueStatus, Store
from penstock.stores.encrypted import unreadable_check

__all__ = ["JobAct", "JobActs", "every_state", "usual_states"]


class JobAct(enum.StrEnum):
    """An act on jobs.

    | act | for jobs that are | the jobs are then |
    |---|---|---|
    | RETRY | ended or queued | available, with all attempts |
    | RUN_NOW | scheduled or retryable | available |
    | RESCHEDULE | queued | due at another time |
    | CANCEL | unfinished | cancelled; running ones are asked to stop |
    | DELETE | not running | gone |
    | DUPLICATE | in any state | as before, and a copy of each is available |
    | DISCARD | queued or suspended | dead |
    | MOVE | queued | in another queue, due as before |
    """

    RETRY = "retry"
    RUN_NOW = "run-now"
    RESCHEDULE = "reschedule"
    CANCEL = "cancel"
    DELETE = "delete"
    DUPLICATE = "duplicate"
    DISCARD = "discard"
    MOVE = "move"

    __hash__ = str.__hash__


def every_state(act: JobAct) -> tuple[State, ...]:
    """The states of all jobs that an act can change: a filter by them alone selects everything."""
    return _EVERY.get(act, tuple(State))


def usual_states(act: JobAct) -> tuple[State, ...]:
    """The states of the jobs that an act is meant for, if nobody names any: a retry is of dead jobs."""
    return _USUAL.get(act) or every_state(act)


_USUAL = {
    JobAct.RETRY: (State.DEAD,),
    JobAct.RUN_NOW: (State.SCHEDULED, State.RETRYABLE),
    JobAct.RESCHEDULE: tuple(sorted(QUEUED - {State.PARKED})),
}
_EVERY = {
    JobAct.CANCEL: tuple(state for state in State if state not in TERMINAL),
    JobAct.DELETE: tuple(state for state in State if state is not State.RUNNING),
    JobAct.DISCARD: tuple(sorted(QUEUED | {State.SUSPENDED})),
    JobAct.MOVE: tuple(sorted(QUEUED)),
}


#: The copy is in the store: it is new, a repeated step has made it before, or a failover may still lose it.
_STORED = (EnqueueStatus.NEW, EnqueueStatus.EXISTS, EnqueueStatus.UNREPLICATED)
#: How long (ms) a copy that is made under a name is kept after its end, at least: if the step that made it is
#: repeated, by another worker some seconds later, the copy is still known.
_COPY_KEPT = 60_000


class JobActs:
    """Acts on jobs of a store.

    `delay` (ms) or `run_at` (an instant) is for RESCHEDULE, `to` (a queue) for MOVE, `reason` for DISCARD and
    CANCEL. `once`: a name under which each job is duplicated at most once.
    """

    def __init__(
        self,
        store: Store,
        *,
        delay: int = 0,
        run_at: int | None = None,
        to: str = "",
        reason: str = "",
        once: str = "",
    ) -> None:
        self._store = store
        self._delay = delay
        self._run_at = run_at
        self._to = to
        self._reason = reason
        self._once = once
        self._why_unreadable = unreadable_check(store)

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
            JobAct.DUPLICATE: self._duplicate,
            JobAct.DISCARD: self._discard,
            JobAct.MOVE: self._move,
        }
        return await acts[act](refs)

    def has_made(self, id: str) -> bool:
        """Whether the job with this id is a copy that was made under the name `once`."""
        return bool(self._once) and id == _marked(self._once, id[:_OWN])

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
        done = [changed(ref, states.get(ref), "made available", allowed) for ref in refs]
        return await self._refuse_members(done, [states.get(ref) for ref in refs])

    async def _reschedule(self, refs: Sequence[Ref]) -> list[Change]:
        before = await self._store.reschedule(refs, delay=self._delay, run_at=self._run_at)
        done = [
            changed(ref, state, "rescheduled", QUEUED - {State.PARKED})
            for ref, state in zip(refs, before, strict=True)
        ]
        return await self._refuse_members(done, before)

    async def _cancel(self, refs: Sequence[Ref]) -> list[Change]:
        states = await self._store.cancel(refs, reason=self._reason or OPERATOR_CANCELLED)
        done = [_cancelled(ref, state) for ref, state in zip(refs, states, strict=True)]
        return await self._refuse_members(done, states)

    async def _delete(self, refs: Sequence[Ref]) -> list[Change]:
        before = await self._store.delete(refs)
        done = [changed(ref, state, "deleted") for ref, state in zip(refs, before, strict=True)]
        return await self._refuse_members(done, before)

    async def _discard(self, refs: Sequence[Ref]) -> list[Change]:
        before = await self._store.discard(refs, reason=self._reason or DISCARDED)
        allowed = QUEUED | {State.SUSPENDED}
        done = [changed(ref, state, "discarded", allowed) for ref, state in zip(refs, before, strict=True)]
        return await self._refuse_members(done, before)

    async def _move(self, refs: Sequence[Ref]) -> list[Change]:
        return await move_jobs(self._store, refs, self._to, self._why_unreadable)

    async def _duplicate(self, refs: Sequence[Ref]) -> list[Change]:
        """Enqueue a copy of each job under a new id, without its unique key and its flow."""
        jobs, now = await self._store.get(refs), (await self._store.entries([])).now
        copies = {
            job.ref: self._copy(job, now)
            for job in jobs
            if job is not None and self._why_not_copied(job) is None
        }
        answers = dict(zip(copies, await self._store.enqueue(list(copies.values())), strict=True))
        done = []
        for ref, job in zip(refs, jobs, strict=True):
            if job is None:
                done.append(changed(ref, None, ""))
            elif ref not in copies:
                why = self._why_not_copied(job)
                done.append(Change(ref.queue, ref.id, "refused", f"not duplicated: {why}"))
            elif answers[ref].status not in _STORED:
                why = why_not_taken(answers[ref].status, ref.queue)
                done.append(Change(ref.queue, ref.id, "refused", f"not duplicated: {why}"))
            else:
                done.append(Change(ref.queue, ref.id, "done", f"duplicated as {copies[ref].id}"))
        return done

    def _why_not_copied(self, job: Job) -> str | None:
        if job.members:
            return "it is a batch"
        if job.spec.flow is not None and job.spec.flow.inputs:
            return f"it takes results of the flow {job.spec.flow.id}: retry the flow from its node instead"
        return "its record cannot be read" if job.spec.unreadable else self._why_unreadable(job)

    def _copy(self, job: Job, now: int) -> NewJob:
        """A copy of the job. With `once`, its id is always the same: a repeated step copies nothing."""
        spec = replace(job.spec, flow=None)
        if not self._once:
            return copied_spec(spec, mint(), now)
        own = sha256(f"{self._once}/{job.queue}/{job.id}".encode()).hexdigest()[:_OWN]
        spec = replace(spec, retention=max(spec.retention, _COPY_KEPT))
        return copied_spec(spec, _marked(self._once, own), now)

    async def _refuse_members(self, done: list[Change], before: Sequence[State | None]) -> list[Change]:
        """Mark members of a running batch as refused; their state does not show the membership."""
        collecting = [n for n, state in enumerate(before) if state is State.COLLECTING]
        refs = [Ref(done[n].queue, done[n].id) for n in collecting]
        for n, job in zip(collecting, await self._store.get(refs) if refs else [], strict=True):
            if job is not None and job.in_batch:
                why = f"part of the batch {job.batch}: change the batch instead"
                done[n] = Change(job.queue, job.id, "refused", why)
        return done


#: The characters of a copy's id that tell of which job it is; the others tell under which name it was made.
_OWN = 24


def _marked(once: str, own: str) -> str:
    return own + sha256(f"{once}/{own}".encode()).hexdigest()[:8]


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
