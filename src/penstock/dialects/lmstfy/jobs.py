"""lmstfy's jobs as jobs of Penstock, and back."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.duration import LONGEST
from penstock.core.job import AttemptError, Job, NewJob, State
from penstock.core.lifecycle import EXPIRED, Transition, decide, kept
from penstock.core.outcomes import LeaseLost
from penstock.core.retry import Fixed
from penstock.core.unique import ALL_STATES, UniqueKey, key_digest
from penstock.dialects.lmstfy.bodies import job_json
from penstock.dialects.lmstfy.job_ids import elapsed_ms

__all__ = [
    "TASK",
    "acknowledged",
    "after_ttr",
    "exists",
    "lease_text",
    "new_job",
    "request_key",
    "shown",
    "ttl_left",
]

#: The task of every job that is published here.
TASK = "lmstfy"
#: A lost job is delivered again at once.
_AT_ONCE = Fixed(0)
#: For this long (ms) a repeated publish request gets the id of the first one.
_REMEMBERED = 86_400_000
_ACKNOWLEDGED = Transition(State.COMPLETED)


def new_job(
    queue: str,
    id: str,
    body: bytes,
    *,
    delay: int,
    ttl: int,
    tries: int,
    attributes: Mapping[str, str] | None,
    unique: UniqueKey | None = None,
) -> NewJob:
    """The job of a publish request; `queue` is the store's, `delay` and `ttl` are in seconds.

    Its dead letter is kept until it is respawned or deleted. `unique`: the key of the request.
    """
    return NewJob(
        id,
        TASK,
        body,
        queue,
        delay=delay * 1_000,
        expires_in=ttl * 1_000 if ttl else None,
        timeout=None,
        max_attempts=tries,
        retry=_AT_ONCE,
        headers=dict(attributes) if attributes else None,
        keep_dead=LONGEST,
        unique=unique,
        fetch_starts=True,
    )


def request_key(key: str) -> UniqueKey:
    """The unique key of a publish request that a client may repeat: held for 24 hours, even after the job."""
    return UniqueKey(key_digest(TASK, "idempotency", key.encode()), _REMEMBERED, ALL_STATES)


def acknowledged() -> Transition:
    """The transition of a running job that was acknowledged: it is removed and counts as processed."""
    return _ACKNOWLEDGED


def after_ttr(job: Job, now: int) -> Transition:
    """The transition of a job that was not acknowledged within its TTR.

    - TTL over: cancelled as expired, as lmstfy neither delivers it again nor keeps it as a dead letter.
    - Else as `fetch_starts` says: to the tail of its queue at once, or dead if no try is left.
    """
    error = AttemptError.bounded(job.attempt, now, "LeaseLost", "not acknowledged within its TTR")
    if job.cancel_asked:
        return Transition(State.CANCELLED, keep=kept(job.spec, State.CANCELLED), lost=True)
    if job.expires_at is not None and job.expires_at <= now:
        keep = kept(job.spec, State.CANCELLED)
        return Transition(State.CANCELLED, keep=keep, lost=True, reason=EXPIRED)
    return decide(job, LeaseLost(error, started=True), now)


def exists(job: Job | None, now: int) -> bool:
    """Whether lmstfy would still have this job: it has not ended, or it is dead, and its TTL is not over."""
    if job is None or job.state in (State.COMPLETED, State.CANCELLED):
        return False
    return job.state is State.DEAD or job.expires_at is None or job.expires_at > now


def ttl_left(job: Job, now: int) -> int:
    """Seconds until the job's TTL is over, rounded half up; 0: never. A dead letter has no TTL."""
    if job.expires_at is None or job.state is State.DEAD:
        return 0
    return max(0, (job.expires_at - now + 500) // 1_000)


def lease_text(job: Job) -> str:
    """The lease of a job as a consume request shows it."""
    return f"{job.generation}-{job.token}"


def shown(
    job: Job,
    namespace: str,
    queue: str,
    now: int,
    *,
    remain_tries: int | None = None,
    message: str = "",
    lease: str = "",
) -> bytes:
    """A job as lmstfy shows it. `remain_tries` None: the tries that it has left."""
    left = max(0, job.spec.max_attempts - job.attempt) if remain_tries is None else remain_tries
    return job_json(
        namespace,
        queue,
        job.id,
        job.spec.payload,
        ttl=ttl_left(job, now),
        elapsed=elapsed_ms(job.id, now),
        remain_tries=left,
        attributes=job.spec.headers,
        message=message,
        lease=lease,
    )
