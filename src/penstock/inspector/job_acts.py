"""What an operator may do with jobs: retry, cancel, move and others, for any number of jobs."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from penstock.codec import MAX_BYTES
from penstock.core.changes import copied_spec, moved_spec
from penstock.core.errors import ConfigError
from penstock.core.ids import check_queue, mint
from penstock.core.job import QUEUED, TERMINAL, Job, NewJob, Ref, State
from penstock.core.lifecycle import COMPLETED_BY_HAND, DISCARDED, OPERATOR_CANCELLED
from penstock.stores.contract import EnqueueStatus, JobMove, Store
from penstock.stores.encrypted import unreadable_check
from penstock.stores.job_log import is_log

# ── outcomes ─────────────────────────────────────────────────────────────────────────────────────


class Change(msgspec.Struct, frozen=True):
    """The outcome of a change to one job. `outcome`: done, asked (a running job was asked to stop), refused,
    or missing; `says` explains it."""

    queue: str
    id: str
    outcome: str
    says: str


_NOT_TAKEN = {
    EnqueueStatus.EXISTS: "the queue {} has a job with this id",
    EnqueueStatus.CLOSED: "the queue {} is closed",
    EnqueueStatus.FULL: "the queue {} is full",
    EnqueueStatus.UNREPLICATED: "too few replicas of the queue {} have confirmed it",
    EnqueueStatus.UNKNOWN: "the answer was lost, and the queue {} may have it or not",
}


def why_not_taken(status: EnqueueStatus, queue: str) -> str:
    """Why the queue has not taken a job, or not safely, in words."""
    return _NOT_TAKEN.get(status, "the queue {} cannot store it").format(queue)


# ── moves ────────────────────────────────────────────────────────────────────────────────────────

#: How often a job is tried that changes between the look and the move, e.g. because it became due.
_TRIES = 3


async def move_jobs(store: Store, refs: Sequence[Ref], to: str) -> list[Change]:
    """Move queued jobs to the queue `to`. A repeat finds nothing: a moved job has left its old queue."""
    check_queue(to)
    done: dict[Ref, Change] = {}
    for last in (n == _TRIES - 1 for n in range(_TRIES)):
        rest = [ref for ref in dict.fromkeys(refs) if ref not in done]
        if not rest:
            break
        moves: list[JobMove] = []
        for ref, job in zip(rest, await store.get(rest), strict=True):
            if job is None:
                done[ref] = Change(ref.queue, ref.id, "missing", "no such job")
            elif (why := await _why_not(store, job, to)) is not None:
                done[ref] = _refused(ref, why)
            else:
                moves.append(JobMove(job, moved_spec(job, to), job.errors, job.checkpoint))
        for move, answer in zip(moves, await store.move_jobs(moves) if moves else [], strict=True):
            ref, before = move.seen.ref, move.seen.state
            if answer is None:
                if last:
                    done[ref] = _refused(ref, "it keeps changing: try again")
            elif answer.status in (EnqueueStatus.EXISTS, EnqueueStatus.CLOSED, EnqueueStatus.FULL):
                done[ref] = _refused(ref, why_not_taken(answer.status, to))
            else:
                done[ref] = Change(ref.queue, ref.id, "done", f"moved to {to} (was {before.value})")
    return [done[ref] for ref in refs]


def _refused(ref: Ref, why: str) -> Change:
    return Change(ref.queue, ref.id, "refused", f"not moved: {why}")


async def _why_not(store: Store, job: Job, to: str) -> str | None:
    if job.queue == to:
        return "it is in that queue"
    if job.in_batch:
        return f"part of the batch {job.batch}: change the batch instead"
    if job.state not in QUEUED:
        return f"it is {job.state.value}"
    if job.members:
        return "it is a batch"
    if job.spec.flow is not None:
        return f"it is part of the flow {job.spec.flow.id}"
    if job.spec.unreadable:
        return "its record cannot be read"
    if (why := unreadable_check(store)(job)) is not None:
        return why
    steps = [] if job.fetched_at is None else await store.steps(job.ref, largest=0)
    if any(not is_log(step) for step in steps):
        return "it has recorded steps, which are bound to its queue"
    return None


# ── which acts a state permits ───────────────────────────────────────────────────────────────────


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
    | COMPLETE | not running and not completed | completed, with a given result |
    | MOVE | queued | in another queue, due as before |
    """

    RETRY = "retry"
    RUN_NOW = "run-now"
    RESCHEDULE = "reschedule"
    CANCEL = "cancel"
    DELETE = "delete"
    DUPLICATE = "duplicate"
    DISCARD = "discard"
    COMPLETE = "complete"
    MOVE = "move"

    __hash__ = str.__hash__


def every_state(act: JobAct) -> tuple[State, ...]:
    """The states of all jobs that an act can change: a filter by them alone selects everything."""
    return _EVERY.get(act, tuple(State))


def usual_states(act: JobAct) -> tuple[State, ...]:
    """The states of the jobs that an act is meant for, if nobody names any: a retry is of dead jobs."""
    return _USUAL.get(act) or every_state(act)


_COMPLETABLE = frozenset(State) - {State.RUNNING, State.COMPLETED}
_USUAL = {
    JobAct.RETRY: (State.DEAD,),
    JobAct.RUN_NOW: (State.SCHEDULED, State.RETRYABLE),
    JobAct.RESCHEDULE: tuple(sorted(QUEUED - {State.PARKED})),
}
_EVERY = {
    JobAct.CANCEL: tuple(state for state in State if state not in TERMINAL),
    JobAct.DELETE: tuple(state for state in State if state is not State.RUNNING),
    JobAct.DISCARD: tuple(sorted(QUEUED | {State.SUSPENDED})),
    JobAct.COMPLETE: tuple(sorted(_COMPLETABLE)),
    JobAct.MOVE: tuple(sorted(QUEUED)),
}


#: The acts after which the function of a job that has ended starts again.
START_AGAIN = (JobAct.RETRY, JobAct.DUPLICATE)
_SPARED = "at-most-once, and it has started: name it by its id to start it again"


def result_of(text: str) -> bytes | None:
    """The result that is stored for this JSON text; None for "".

    Raises ConfigError if it is not JSON, or larger than a worker's result may be by default (`max_result`).
    """
    if not text:
        return None
    try:
        msgspec.json.decode(text)
        result = text.encode()
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise ConfigError(f"the result is not JSON: {error}") from None
    if len(result) > MAX_BYTES:
        raise ConfigError(f"the result has {len(result)} bytes, and may have {MAX_BYTES}")
    return result


def would_start_again(job: Job) -> bool:
    """Whether this at-most-once job has started: after a retry its function may do its work twice."""
    return job.spec.at_most_once and (job.started or job.attempt > 0)


# ── acts on jobs ─────────────────────────────────────────────────────────────────────────────────

#: The copy is in the store: it is new, a repeated step has made it before, or a failover may still lose it.
_STORED = (EnqueueStatus.NEW, EnqueueStatus.EXISTS, EnqueueStatus.UNREPLICATED)
#: How long (ms) a copy that is made under a name is kept after its end, at least: if the step that made it is
#: repeated, by another worker some seconds later, the copy is still known.
_COPY_KEPT = 60_000


class JobActs:
    """Acts on jobs of a store.

    `delay` (ms) or `run_at` (an instant) is for RESCHEDULE, `to` (a queue) for MOVE, `reason` for DISCARD,
    COMPLETE and CANCEL, `result` (JSON; none if it is empty) for COMPLETE. `once`: a name under which each
    job is duplicated at most once. `spare_at_most_once`: RETRY and DUPLICATE refuse jobs that would start
    again although they are at-most-once (`would_start_again`).

    Raises ConfigError for a result that is not JSON.
    """

    def __init__(
        self,
        store: Store,
        *,
        delay: int = 0,
        run_at: int | None = None,
        to: str = "",
        reason: str = "",
        result: str = "",
        once: str = "",
        spare_at_most_once: bool = False,
    ) -> None:
        self._store = store
        self._delay = delay
        self._run_at = run_at
        self._to = to
        self._reason = reason
        self._result = result_of(result)
        self._once = once
        self._spare = spare_at_most_once
        self._why_unreadable = unreadable_check(store)

    async def apply(
        self, act: JobAct, refs: Sequence[Ref], jobs: Sequence[Job] | None = None
    ) -> list[Change]:
        """Do it, and return what became of each job. What is done already is refused or changes nothing.

        `jobs`: the jobs, if they were just read; it saves RETRY a read.
        """
        if not refs:
            return []
        if act in START_AGAIN:
            return await self._start_again(act, refs, await self._store.get(refs) if jobs is None else jobs)
        return await self._apply(act, refs)

    async def _start_again(
        self, act: JobAct, refs: Sequence[Ref], jobs: Sequence[Job | None]
    ) -> list[Change]:
        """Do an act after which jobs start again: it says so of at-most-once jobs, or spares them."""
        again = {job.ref for job in jobs if job is not None and would_start_again(job)}
        changes = iter(await self._apply(act, [ref for ref in refs if not self._spare or ref not in again]))
        if not again:
            return [*changes]
        if self._spare:
            spared = {ref: Change(ref.queue, ref.id, "refused", _SPARED) for ref in again}
            return [spared.get(ref) or next(changes) for ref in refs]
        return [
            replace(change, says=f"{change.says}; at-most-once: it starts again")
            if change.outcome == "done" and ref in again
            else change
            for ref, change in zip(refs, changes, strict=True)
        ]

    async def _apply(self, act: JobAct, refs: Sequence[Ref]) -> list[Change]:
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
            JobAct.COMPLETE: self._complete,
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

    async def _complete(self, refs: Sequence[Ref]) -> list[Change]:
        hidden = await self._hidden(refs, "completed") if self._result is not None else {}
        rest = [ref for ref in refs if ref not in hidden]
        reason = f"{COMPLETED_BY_HAND}: {self._reason}" if self._reason else COMPLETED_BY_HAND
        before = await self._store.complete(rest, result=self._result, reason=reason)
        pairs = zip(rest, before, strict=True)
        done = [changed(ref, state, "completed", _COMPLETABLE) for ref, state in pairs]
        changes = iter(await self._refuse_members(done, before))
        return [hidden[ref] if ref in hidden else next(changes) for ref in refs]

    async def _hidden(self, refs: Sequence[Ref], did: str) -> dict[Ref, Change]:
        """The refusal of each job that cannot be decrypted here: new contents would be stored in clear."""
        jobs = [job for job in await self._store.get(refs) if job is not None]
        causes = [(job, self._why_unreadable(job)) for job in jobs]
        return {
            job.ref: Change(job.queue, job.id, "refused", f"not {did}: {why}")
            for job, why in causes
            if why is not None
        }

    async def _move(self, refs: Sequence[Ref]) -> list[Change]:
        return await move_jobs(self._store, refs, self._to)

    async def _duplicate(self, refs: Sequence[Ref]) -> list[Change]:
        """Enqueue a copy of each job under a new id, without its unique key and its flow."""
        jobs, now = await self._store.get(refs), await self._store.now()
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
        return Change(ref.queue, ref.id, "asked", "asked to stop")
    if state in (State.COMPLETED, State.DEAD, State.COLLECTING):
        return Change(ref.queue, ref.id, "refused", f"not cancelled: it is {state.value}")
    return Change(ref.queue, ref.id, "done", "cancelled")
