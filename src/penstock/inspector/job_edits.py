"""Edit the arguments of a queued job that is still as the operator has seen it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from penstock.core.job import QUEUED, Job, NewJob, Ref
from penstock.inspector.requests import Change
from penstock.stores.contract import JobEdit, Store

__all__ = ["edit_job", "version_of"]

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
    why_unreadable: Callable[[Job], str | None],
) -> Change:
    """Give a queued job the arguments of `rewrite(job)`, which raises ArgumentError if they do not fit.

    `version`: refuse a job whose arguments have changed since it had this version.
    """
    for _ in range(_TRIES):
        (job,) = await store.get([ref])
        if job is None:
            return Change(ref.queue, ref.id, "missing", "no such job")
        version = version_of(job) if version is None else version
        why = _why_not(job, version, why_unreadable)
        if why is not None:
            return Change(ref.queue, ref.id, "refused", f"not edited: {why}")
        (done,) = await store.edit_jobs([JobEdit(job, rewrite(job))])
        if done:
            return Change(ref.queue, ref.id, "done", f"edited (is {job.state.value})")
    return Change(ref.queue, ref.id, "refused", "not edited: it keeps changing: try again")


def _why_not(job: Job, version: str, why_unreadable: Callable[[Job], str | None]) -> str | None:
    if job.in_batch:
        return f"part of the batch {job.batch}, which has its arguments already"
    if job.state not in QUEUED:
        return f"it is {job.state.value}"
    if job.members:
        return "it is a batch: its members have the arguments"
    if job.spec.unreadable:
        return "its record cannot be read"
    if (why := why_unreadable(job)) is not None:
        return why
    if version_of(job) != version:
        return "its arguments have changed since they were shown"
    return None
