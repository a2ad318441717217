"""What changes a job besides its attempts: acts of operators, and calls with its unique key.

Pure functions. `ACTS` is the table of operators' acts; `lifecycle.decide` is its counterpart for outcomes.
A store reads the state of the job, asks `change_of`, and applies the answer in the same step. The store's
part is what concerns other jobs: the numbers of places, admission to partitions, the holders of unique keys
(`key_change` of the two states), the members of batches, and flows.

A unique key is taken when a job enters the phases of its rule (queued, running, finished), never inside them,
so that no job waits for one. The Lua counterparts for Redis are `scripts/lib/places.lua` and `insert.lua`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from penstock.core.job import QUEUED, Job, NewJob, State
from penstock.core.lifecycle import first_state
from penstock.core.outcomes import QueuePosition
from penstock.core.unique import FINISHED_PHASE, QUEUED_PHASE, REPLACES_ARGUMENTS, RUNNING_PHASE, UniqueKey


class ChangeKind(enum.StrEnum):
    """A kind of act that changes the state of a job."""

    RETRY = "retry"
    RESCHEDULE = "reschedule"
    DISCARD = "discard"
    COMPLETE = "complete"

    __hash__ = str.__hash__


class JobChange(msgspec.Struct, frozen=True):
    """What an act makes of a job in one state, for a store to apply.

    - `state`: the new state. If it is one of `TERMINAL`, the job ends now with the reason and the result of
      the act, and is kept for `lifecycle.kept`. Nothing else of the job changes, and no attempt is counted.
    - `place`: TAIL if the job becomes available, behind all others of its priority; else OWN, the same.
    - `anew`: the job is as if it were new. Attempts (`lifecycle.attempts_counted`) and losses count from 0;
      result, reason, `ended_at`, the request to stop and an expiry that has passed are cleared. A member's
      batch is changed in its place; a member of no batch becomes a batch of one.

    If a job that had ended changes, its end is first undone in its flow. Without `anew`, a job that waits for
    the end of its batch does not change.
    """

    state: State
    place: QueuePosition = QueuePosition.OWN
    anew: bool = False


_OPEN = (*QUEUED, State.SUSPENDED)
_FAILED = (State.DEAD, State.CANCELLED)
_NEW = JobChange(State.AVAILABLE, QueuePosition.TAIL, anew=True)
_NOW = JobChange(State.AVAILABLE, QueuePosition.TAIL)

#: What each act makes of a job that is due at once. A state that is not named stays as it is.
ACTS: Mapping[ChangeKind, Mapping[State, JobChange]] = {
    ChangeKind.RETRY: dict.fromkeys((*_OPEN, *_FAILED, State.COMPLETED), _NEW),
    ChangeKind.RESCHEDULE: dict.fromkeys(QUEUED - {State.PARKED}, _NOW),
    ChangeKind.DISCARD: dict.fromkeys(_OPEN, JobChange(State.DEAD)),
    ChangeKind.COMPLETE: dict.fromkeys((*_OPEN, *_FAILED), JobChange(State.COMPLETED)),
}
_LATER = JobChange(State.SCHEDULED)


def change_of(kind: ChangeKind, state: State, *, later: bool = False) -> JobChange | None:
    """The change of a job in this state; None: it stays as it is. `later`: the act sets a due time ahead."""
    change = ACTS[kind].get(state)
    return _LATER if later and change is _NOW else change


# ── edits, copies and moves of queued jobs ───────────────────────────────────────────────────────


_ARGUMENTS = UniqueKey("", replace=REPLACES_ARGUMENTS)


def is_as_seen(job: Job, seen: Job) -> bool:
    """Whether a queued job has not changed since it was seen, so that no attempt of it has started meanwhile.

    A fetch changes the attempts, the losses or, if the job goes back uncharged, the due time.
    """
    return job.state in QUEUED and not job.in_batch and _version(job) == _version(seen)


def _version(job: Job) -> tuple[object, ...]:
    return job.generation, job.state, job.run_at, job.attempt, job.lost, job.spec.payload


def arguments_only(new: NewJob) -> NewJob:
    """A call that replaces a job's arguments and what is computed from them: `changes.replaced`."""
    return replace(new, unique=_ARGUMENTS)


def copied_spec(spec: NewJob, id: str, now: int) -> NewJob:
    """The request for a copy of a job: due now, without its unique key, or an expiry that has passed."""
    over = spec.expires_at is not None and spec.expires_at <= now
    return replace(
        spec, id=id, unique=None, delay=0, run_at=None, expires_at=None if over else spec.expires_at
    )


def moved_spec(job: Job, queue: str) -> NewJob:
    """The request for a queued job in another queue: due and expiring at the same instants as before."""
    later = job.state in (State.SCHEDULED, State.RETRYABLE)
    unique = job.spec.unique
    return replace(
        job.spec,
        queue=queue,
        delay=0,
        run_at=job.run_at if later else None,
        expires_in=None,
        expires_at=job.expires_at,
        unique=None if unique is None else replace(unique, replace=0),
    )


# ── unique keys: when a job takes and frees its key, and how a call replaces a queued job ────────


class KeyChange(enum.Enum):
    """The change of a job's unique key in a transition."""

    STAYS = "stays"  # held or not, as before
    TAKEN = "taken"  # if no other job holds it and its period is not over
    FREED = "freed"  # if this job holds it


def phase(state: State | None) -> int:
    """The phase of a state, as a bit of `UniqueKey.phases`; 0: no unique key is held in this state."""
    if state in QUEUED or state is State.SUSPENDED:
        return QUEUED_PHASE
    if state is State.RUNNING:
        return RUNNING_PHASE
    return FINISHED_PHASE if state is State.COMPLETED else 0


def key_change(phases: int, before: State | None, after: State | None) -> KeyChange:
    """The change of a unique key with these phases in a transition; None: the job does not exist."""
    held, holds = phases & phase(before), phases & phase(after)
    if bool(held) is bool(holds):
        return KeyChange.STAYS
    return KeyChange.TAKEN if holds else KeyChange.FREED


def until(unique: UniqueKey, enqueued_at: int) -> int | None:
    """The end of the unique key's period; None: without a period."""
    return None if unique.period is None else enqueued_at + unique.period


def outlives_its_job(phases: int, state: State) -> bool:
    """Whether a unique key with a period stays held after this ended job is removed."""
    return state is State.COMPLETED and bool(phases & FINISHED_PHASE)


def expiry_of(new: NewJob, now: int) -> int | None:
    """The instant from which a job enqueued now may no longer start; None: no expiry."""
    ends = [] if new.expires_in is None else [now + new.expires_in]
    if new.expires_at is not None:
        ends.append(new.expires_at)
    return min(ends, default=None)


def replaced(job: Job, new: NewJob, now: int) -> Job | None:
    """The queued job after a call with its unique key has replaced it; None if the call does not replace it.

    Replacing `arguments` changes the payload and the values computed from it: partition, tenant and batch.
    Replacing `run_at` changes the job's times: due time, expiry and deadline. Everything else stays: id,
    position, enqueued_at, attempts, errors, checkpoint, priority, headers, and its own unique rule. A job
    that is available, parked or waiting stays so unless its new time is in the future, or it `moves`. A job
    that is already in a started batch is not replaced.
    """
    unique = new.unique
    if unique is None or not unique.replace or job.state not in QUEUED or job.in_batch:
        return None
    job = replace(job, spec=replaced_spec(job.spec, new))
    if not unique.replaces_run_at:
        return job
    job = replace(job, expires_at=expiry_of(new, now))
    state, due = first_state(job.spec, now)  # with its own batch terms, if any
    if state is State.SCHEDULED or job.state in (State.SCHEDULED, State.RETRYABLE):
        return replace(job, state=state, run_at=due)
    return job


def moves(before: NewJob, after: NewJob) -> bool:
    """Whether replacing a job has changed its partition, tenant or batch.

    If so, it leaves the old ones. If it is available, waiting or collecting, it joins the new ones like a job
    that becomes available now.
    """
    return (before.partition, before.tenant, before.batch_terms) != (
        after.partition,
        after.tenant,
        after.batch_terms,
    )


def replaced_spec(spec: NewJob, new: NewJob) -> NewJob:
    """The combined request of all producers of a replaced job."""
    if new.unique is not None and new.unique.replaces_arguments:
        spec = replace(spec, payload=new.payload, partition=new.partition, tenant=new.tenant)
        # the job's task decides whether it has a batch
        if spec.batch_terms is not None and new.batch_terms is not None:
            spec = replace(spec, batch_terms=new.batch_terms)
    if new.unique is not None and new.unique.replaces_run_at:
        spec = replace(
            spec,
            delay=new.delay,
            run_at=new.run_at,
            expires_in=new.expires_in,
            expires_at=new.expires_at,
            deadline=new.deadline,
        )
    return spec
