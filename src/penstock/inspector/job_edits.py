"""Edit the arguments of a job that is still as the operator has seen it, and retry it with them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from penstock.core.changes import copied_spec
from penstock.core.job import QUEUED, TERMINAL, Job, NewJob, Ref, State
from penstock.inspector.job_acts import Change, why_not_taken
from penstock.stores.contract import EnqueueStatus, JobEdit, Store
from penstock.stores.encrypted import unreadable_check

#: How often a job is tried that changes between the look and the edit, but not in its arguments.
_TRIES = 3


def version_of(job: Job) -> str:
    """A short text that changes with the job's arguments, and with a new job of the same id."""
    return sha256(b"%d/%b" % (job.generation, job.spec.payload)).hexdigest()[:16]


async def edit_job(
    store: Store,
    ref: Ref,
    rewrite: Callable[[Job], NewJob],
    *,
    version: str | None,
) -> Change:
    """Give a queued job the arguments of `rewrite(job)`, which raises ArgumentError if they do not fit.

    `version`: refuse a job whose arguments have changed since it had this version.
    """
    for _ in range(_TRIES):
        (job,) = await store.get([ref])
        if job is None:
            return Change(ref.queue, ref.id, "missing", "no such job")
        version = version_of(job) if version is None else version
        why = _why_not(store, job, version)
        if why is not None:
            return Change(ref.queue, ref.id, "refused", f"not edited: {why}")
        (done,) = await store.edit_jobs([JobEdit(job, rewrite(job))])
        if done:
            return Change(ref.queue, ref.id, "done", f"edited (is {job.state.value})")
    return Change(ref.queue, ref.id, "refused", "not edited: it keeps changing: try again")


async def retry_edited(
    store: Store,
    ref: Ref,
    rewrite: Callable[[Job], NewJob],
    *,
    version: str | None,
    nonce: str = "",
) -> Change:
    """Retry a job with the arguments of `rewrite(job)`, with all its attempts.

    A queued job is edited. An ended one is replaced by a copy with a new id, without its unique key and an
    expiry that has passed; a completed one stays beside its copy. The copy is stored first, so that a crash
    loses nothing. `nonce`: random text for the id of the copy of a completed job; without it, a guess of
    the arguments could be confirmed by the id.
    """
    (job,) = await store.get([ref])
    if job is None or job.state not in TERMINAL:
        change = await edit_job(store, ref, rewrite, version=version)
        if change.outcome == "done":
            await _retry_if_queued(store, ref)
            return Change(ref.queue, ref.id, "done", "retried with new arguments")
        return change
    why = "it is a node of a flow: retry it as it is" if job.spec.flow is not None else None
    why = why or _why_not(store, job, version or version_of(job), TERMINAL)
    if why is not None:
        return Change(ref.queue, ref.id, "refused", f"not retried: {why}")
    new = rewrite(job)
    copy = copied_spec(new, _id_of_copy(job, new, nonce), await store.now())
    (answer,) = await store.enqueue([copy])
    if answer.status not in (EnqueueStatus.NEW, EnqueueStatus.EXISTS):
        why = why_not_taken(answer.status, ref.queue)
        return Change(ref.queue, ref.id, "refused", f"not retried: {why}")
    if job.state is not State.COMPLETED:
        await store.delete([ref])
    if answer.status is EnqueueStatus.EXISTS:
        why = f"it was retried with other arguments before, as {copy.id}"
        return Change(ref.queue, ref.id, "refused", f"not retried: {why}")
    return Change(ref.queue, copy.id, "done", f"enqueued with new arguments as {copy.id}")


async def _retry_if_queued(store: Store, ref: Ref) -> None:
    """Retry an edited job, unless a worker has taken it at once: a completed job would run again."""
    (job,) = await store.get([ref])
    fresh = job is not None and job.state is State.AVAILABLE and not job.attempt
    if job is not None and job.state in QUEUED and not fresh:
        await store.retry([ref])


def _id_of_copy(job: Job, new: NewJob, nonce: str) -> str:
    """The id of the copy, the same for each request: of two, one makes it.

    A completed job stays, so it may have several copies, with different arguments.
    """
    payload = nonce.encode() + new.payload if job.state is State.COMPLETED else b""
    origin = f"{job.queue}/{job.id}/{job.generation}/retry/".encode()
    return sha256(origin + payload).hexdigest()[:32]


def _why_not(store: Store, job: Job, version: str, states: frozenset[State] = QUEUED) -> str | None:
    if job.in_batch:
        return f"part of the batch {job.batch}, which has its arguments already"
    if job.state not in states:
        return f"it is {job.state.value}"
    if job.members:
        return "it is a batch: its members have the arguments"
    if job.spec.unreadable:
        return "its record cannot be read"
    if (why := unreadable_check(store)(job)) is not None:
        return why
    if version_of(job) != version:
        return "its arguments have changed since they were shown"
    return None
