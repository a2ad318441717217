"""enqueue, get and cancel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.changes import expiry_of, moves, replaced
from penstock.core.errors import QueueClosed
from penstock.core.flow import NewFlow
from penstock.core.job import QUEUED, Job, NewJob, Ref, State
from penstock.core.lifecycle import first_state
from penstock.core.limits import OnFull
from penstock.stores.contract import UNWRITABLE, Enqueued, EnqueueStatus, no_room, unwritable
from penstock.stores.text_encoding import asked_because, storable
from tests.oracle import indexes, keys, transitions
from tests.oracle.rows import Holder, MemoryQueue, Row
from tests.oracle.state import MemoryState

__all__ = ["admit", "cancel", "cancel_one", "enqueue", "enqueue_one", "get", "replace_content"]


def enqueue(memory: MemoryState, jobs: Sequence[NewJob]) -> list[Enqueued]:
    now = memory.clock.now()
    refused: Counter[str] = Counter()
    answers: list[Enqueued] = []
    for new in jobs:
        try:
            answers.append(enqueue_one(memory, new, now, refused=refused))
        except UNWRITABLE as error:
            answers.append(unwritable(new, error))
    return answers


def enqueue_one(
    memory: MemoryState, new: NewJob, now: int, *, follows: bool = False, refused: Counter[str] | None = None
) -> Enqueued:
    """Enqueue one job.

    `follows`: it follows a settled job, so a closed or full queue takes it. `refused`: counts, by queue, the
    jobs of the same call that found their queue full.
    """
    queue = memory.queue(new.queue)
    if new.id in queue.rows:
        return Enqueued(EnqueueStatus.EXISTS, new.id)
    if queue.closed and not follows:
        return Enqueued(EnqueueStatus.CLOSED, new.id)
    if new.unique is not None and (holder := keys.holder_of(memory, queue, new.unique.key, now)) is not None:
        return _replace(memory, queue, holder, new, now)
    refused = Counter() if refused is None else refused
    full = None if follows else queue.full(now, refused[new.queue])
    if full is not None:
        refused[new.queue] += 1
        waits = queue.rate_limiter.limits.on_full is OnFull.WAIT
        return Enqueued(EnqueueStatus.FULL, new.id, full[1], size=full[0], waits=waits)
    state, run_at = first_state(new, now)
    number, expires_at = memory.generation + 1, expiry_of(new, now)
    job = Job(new, state, number, enqueued_at=now, run_at=run_at, expires_at=expires_at)
    transitions.add(memory, job, queue, now)
    return Enqueued(EnqueueStatus.NEW, new.id)


def admit(memory: MemoryState, flow: NewFlow, now: int) -> None:
    """Raise QueueClosed or QueueFull if a queue does not take the jobs with which a new flow starts."""
    for name, count in flow.starts:
        queue = memory.queue(name)
        if queue.closed:
            raise QueueClosed(name)
        full = queue.full(now, 0, count)
        if full is not None:
            waits = queue.rate_limiter.limits.on_full is OnFull.WAIT
            raise no_room(name, count, *full, waits=waits)


def _replace(memory: MemoryState, queue: MemoryQueue, holder: Holder, new: NewJob, now: int) -> Enqueued:
    """Replace the content of the key's holder by that of the new job, if the holder can be replaced."""
    row = memory.rows.get(holder.generation)
    job = None if row is None else replaced(row.job, new, now)
    if row is None or job is None:
        return Enqueued(EnqueueStatus.DUPLICATE, holder.id)
    replace_content(memory, row, job, now)
    return Enqueued(EnqueueStatus.REPLACED, holder.id)


def replace_content(memory: MemoryState, row: Row, job: Job, now: int) -> None:
    """Replace a queued job by `job`: `changes.replaced`."""
    if moves(row.job.spec, job.spec):
        transitions.move(memory, row, job, now)
        return
    if (job.state, job.run_at) == (row.job.state, row.job.run_at):  # the job keeps its place
        memory.expiring.drop(row.generation)
        if job.expires_at is not None:
            memory.expiring.put(row.generation, job.expires_at)
        row.job = job
        return
    indexes.take(memory, row)
    row.job = job
    if job.state in (State.AVAILABLE, State.COLLECTING):
        transitions.put_available(memory, row, now)
    else:
        transitions.put(memory, row)


def get(memory: MemoryState, refs: Sequence[Ref]) -> list[Job | None]:
    return [None if row is None else row.job for row in map(memory.row, refs)]


def cancel(memory: MemoryState, refs: Sequence[Ref], reason: str) -> list[State | None]:
    now = memory.clock.now()
    return [cancel_one(memory, ref, reason, now) for ref in refs]


def cancel_one(memory: MemoryState, ref: Ref, reason: str, now: int) -> State | None:
    row = memory.row(ref)
    if row is None:
        return None
    if (row.job.state in QUEUED or row.job.state is State.SUSPENDED) and not row.job.in_batch:
        if memory.has_undo(row):
            if not row.job.cancel_asked:
                _ask_to_undo(memory, row, asked_because(reason), now)
            return State.RUNNING
        transitions.end_queued(memory, row, storable(reason), now)
    elif row.job.state is State.RUNNING and not row.job.cancel_asked:
        row.job = replace(row.job, cancel_asked=True)
        row.cancel_reason = asked_because(reason)
        memory.waiters.notify_cancel()
    return row.job.state


def _ask_to_undo(memory: MemoryState, row: Row, reason: str | None, now: int) -> None:
    """Ask a job that is not running to stop: the worker that takes it undoes its steps."""
    row.job = replace(row.job, cancel_asked=True, reason=reason)
    row.cancel_reason = reason
    if row.job.state not in (State.AVAILABLE, State.WAITING):
        transitions.wake(memory, row, now)
