"""Rules of unique keys: when a job takes and frees its key, and how a call replaces a queued job.

Stores apply these rules when a job moves between the phases queued, running and finished. A key is taken when
a job enters the rule's phases, never inside them, so that no job waits for one. The Lua counterparts for
Redis are `scripts/lib/places.lua` and `replacing.lua`.
"""

from __future__ import annotations

import enum

from msgspec.structs import replace

from penstock.core.job import QUEUED, Job, NewJob, State
from penstock.core.lifecycle import first_state
from penstock.core.unique import WHILE_FINISHED, WHILE_QUEUED, WHILE_RUNNING, UniqueKey

__all__ = [
    "KeyChange",
    "expiry_of",
    "key_change",
    "moves",
    "outlives_its_job",
    "phase",
    "replaced",
    "replaced_spec",
    "until",
]


class KeyChange(enum.Enum):
    """The change of a job's unique key in a transition."""

    STAYS = "stays"  # held or not, as before
    TAKEN = "taken"  # if no other job holds it and its period is not over
    FREED = "freed"  # if this job holds it


def phase(state: State | None) -> int:
    """The phase of a state, as a bit of `UniqueKey.states`; 0: no unique key is held in this state."""
    if state in QUEUED or state is State.SUSPENDED:
        return WHILE_QUEUED
    if state is State.RUNNING:
        return WHILE_RUNNING
    return WHILE_FINISHED if state is State.COMPLETED else 0


def key_change(states: int, before: State | None, after: State | None) -> KeyChange:
    """The change of a unique key with these states in a transition; None: the job does not exist."""
    held, holds = states & phase(before), states & phase(after)
    if bool(held) is bool(holds):
        return KeyChange.STAYS
    return KeyChange.TAKEN if holds else KeyChange.FREED


def until(unique: UniqueKey, enqueued_at: int) -> int | None:
    """The end of the unique key's period; None: without a period."""
    return None if unique.period is None else enqueued_at + unique.period


def outlives_its_job(states: int, state: State) -> bool:
    """Whether a unique key with a period stays held after this ended job is removed."""
    return state is State.COMPLETED and bool(states & WHILE_FINISHED)


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
        if (
            spec.batch_terms is not None and new.batch_terms is not None
        ):  # its task decides whether it has one
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
