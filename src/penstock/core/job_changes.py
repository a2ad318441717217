"""Rules of changes to queued jobs: whether a job is still as it was seen, and what a moved job is."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.job import QUEUED, Job, NewJob, State
from penstock.core.unique import REPLACES_ARGUMENTS, UniqueKey

__all__ = ["arguments_only", "copied_spec", "is_as_seen", "moved_spec"]

_ARGUMENTS = UniqueKey("", replace=REPLACES_ARGUMENTS)


def is_as_seen(job: Job, seen: Job) -> bool:
    """Whether a queued job has not changed since it was seen, so that no attempt of it has started meanwhile.

    A fetch changes the attempts, the losses or, if the job goes back uncharged, the due time.
    """
    return job.state in QUEUED and not job.in_batch and _version(job) == _version(seen)


def _version(job: Job) -> tuple[object, ...]:
    return job.generation, job.state, job.run_at, job.attempt, job.lost, job.spec.payload


def arguments_only(new: NewJob) -> NewJob:
    """A call that replaces a job's arguments and what is computed from them: `unique_rules.replaced`."""
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
