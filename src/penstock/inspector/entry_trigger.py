"""Enqueue a job of a periodic entry now, without a change of its schedule."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from penstock.core.errors import ConfigError
from penstock.core.ids import mint
from penstock.core.job import NewJob, Ref
from penstock.core.schedule import Entry
from penstock.encryption import why_not_here
from penstock.inspector.requests import Change
from penstock.stores.contract import EnqueueStatus, Store, Tick, TickStatus

__all__ = ["trigger"]

#: How often an entry is tried that a worker ticks between the look and the trigger.
_TRIES = 3


async def trigger(store: Store, entry: Entry) -> Change:
    """Enqueue one job of the entry now; its watermark stays, so that its next jobs come at their instants.

    The overlap rule of the entry applies, except to a paused entry. Raises ConfigError if the entry, or the
    contents of its jobs, cannot be read here.
    """
    ref = entry.ref
    for _ in range(_TRIES):
        table = await store.entries([ref.queue])
        found = next((one for one in table.entries if one.ref == ref), None)
        if found is None:
            return Change(ref.queue, ref.id, "missing", "no such periodic entry")
        _check_readable(found)
        job = _job(found, table.now)
        if found.paused:
            (enqueued,) = await store.enqueue([job])
            return _change(ref, job, enqueued.status is EnqueueStatus.NEW)
        tick = _tick(found, job)
        (answer,) = await store.tick([tick])
        if answer.status is TickStatus.APPLIED:
            return _change(ref, job, job.id in answer.enqueued)
        if answer.status is TickStatus.UNKNOWN:
            return Change(ref.queue, ref.id, "refused", "not triggered: its queue is unreachable")
    return Change(ref.queue, ref.id, "refused", "not triggered: it keeps changing: try again")


def _tick(entry: Entry, job: NewJob) -> Tick:
    """A tick that enqueues the job and leaves the watermark where it is."""
    mark = entry.watermark
    overlap = entry.spec.overlap
    return Tick(entry.ref, entry.revision, mark, to=mark, not_before=0, overlap=overlap, jobs=(job,))


def _check_readable(entry: Entry) -> None:
    why = entry.unreadable or why_not_here(entry.spec.job.payload)
    if why is not None:
        raise ConfigError(f"the periodic entry {entry.spec.name!r} cannot be triggered here: {why}")


def _job(entry: Entry, now: int) -> NewJob:
    """A job of the entry that is due now. Its id tells that no instant of the schedule has made it."""
    at = datetime.fromtimestamp(now // 1_000, UTC)
    id = f"{entry.spec.name}@{at:%Y%m%dT%H%M%SZ}-{mint()[-8:]}"
    return replace(entry.spec.job, id=id, delay=0, run_at=None)


def _change(ref: Ref, job: NewJob, new: bool) -> Change:
    if new:
        return Change(ref.queue, ref.id, "done", f"triggered: job {job.id}")
    why = "its last job has not ended, another job holds its unique key, or its queue is closed or full"
    return Change(ref.queue, ref.id, "refused", f"not triggered: {why}")
