"""Move jobs to another queue: which jobs may be moved, and what became of each, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.ids import check_queue
from penstock.core.job import QUEUED, Job, Ref
from penstock.core.job_changes import moved_spec
from penstock.inspector.requests import Change, why_not_taken
from penstock.stores.contract import EnqueueStatus, JobMove, Store
from penstock.stores.job_log import is_log

__all__ = ["move_jobs"]

#: How often a job is tried that changes between the look and the move, e.g. because it became due.
_TRIES = 3


async def move_jobs(
    store: Store, refs: Sequence[Ref], to: str, why_unreadable: Callable[[Job], str | None]
) -> list[Change]:
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
            elif (why := await _why_not(store, job, to, why_unreadable)) is not None:
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


async def _why_not(
    store: Store, job: Job, to: str, why_unreadable: Callable[[Job], str | None]
) -> str | None:
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
    if (why := why_unreadable(job)) is not None:
        return why
    steps = [] if job.fetched_at is None else await store.steps(job.ref, largest=0)
    if any(not is_log(step) for step in steps):
        return "it has recorded steps, which are bound to its queue"
    return None
