"""What a new job whose key is held leads to: it is turned away, or its holder gets what it asks for."""

from __future__ import annotations

from penstock.core.job import Job, NewJob, State
from penstock.core.unique_rules import moves, replaced
from penstock.stores.contract import Enqueued, Verdict
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.rows import AVAILABLE, CODE, GROUPED, STATES, WAITING, job_of, spec_blob
from penstock.stores.sqlite.transaction_context import SQL, Queue, Step
from penstock.stores.sqlite.verbs.batches import enter, left, set_key
from penstock.stores.sqlite.verbs.keys import holder

__all__ = ["conflict"]

_LOOK = SQL["keys.look"]
_REPLACE = SQL["keys.replace"]


def conflict(step: Step, queue: Queue, new: NewJob) -> Enqueued | None:
    """What the holder of its key makes of a new job; None if nobody holds it."""
    assert new.unique is not None
    found = holder(step, queue, new.unique.key)
    if found is None:
        return None
    id, seq = found
    if new.unique.replace and _replace(step, queue, seq, new):
        return Enqueued(Verdict.REPLACED, id)
    return Enqueued(Verdict.DUPLICATE, id)


def _replace(step: Step, queue: Queue, seq: int, new: NewJob) -> bool:
    row = step.cx.execute(_LOOK, (seq,)).fetchone()
    if row is None:  # the key has outlived its job
        return False
    before = job_of(row)
    job = replaced(before, new, step.now)
    if job is None:
        return False
    if moves(before.spec, job.spec):
        _move(step, queue, seq, before, job)
        return True
    code, old = CODE[job.state], CODE[before.state]
    place = step.tails(queue, 1) + 1 if code == AVAILABLE != old else None
    tie = partitions.look(step, seq) if queue.tied and code != old else None
    step.cx.execute(_REPLACE, (seq, code, job.run_at, job.expires_at, spec_blob(job.spec), place))
    after: int | None = code
    if tie is not None:
        stands = tie.place if place is None else place
        after = partitions.became(step, queue, tie, code, stands, at_tail=place is not None)
    step.move(queue, old, after)
    if code != old and job.is_member:
        _change_group(step, queue, seq, job, old)
    return True


def _move(step: Step, queue: Queue, seq: int, before: Job, job: Job) -> None:
    """A queued job becomes this one, of another lane, turn or group."""
    tie = partitions.leave(step, queue, seq)
    code, old = CODE[job.state], CODE[before.state]
    if code == WAITING:
        code = AVAILABLE
    tail = step.tails(queue, 1) + 1
    place = tail if code == AVAILABLE else None
    step.cx.execute(_REPLACE, (seq, code, job.run_at, job.expires_at, spec_blob(job.spec), place))
    partitions.join(step, queue, seq, job.spec, tail)
    after: int | None = code
    if queue.tied and code == AVAILABLE:
        after = partitions.became(
            step, queue, partitions.look(step, seq)._replace(state=None), code, tail, at_tail=True
        )
    step.move(queue, old, after)
    if job.is_member:
        _change_key(step, queue, seq, before, job)
    if tie.lane is not None:
        partitions.advance(step, queue, tie.lane)


def _change_key(step: Step, queue: Queue, seq: int, before: Job, job: Job) -> None:
    assert before.spec.group is not None
    assert job.spec.group is not None
    if before.state is State.GROUPED:
        left(step, queue, job.task, before.spec.group.key)
    set_key(step, seq, job.spec.group.key)
    if job.state is State.GROUPED:
        enter(step, queue, seq, job.spec)


def _change_group(step: Step, queue: Queue, seq: int, job: Job, old: int) -> None:
    """A member has left its group for a later time, or its time has come."""
    assert job.spec.group is not None
    if old == GROUPED:
        left(step, queue, job.task, job.spec.group.key)
    elif job.state is STATES[GROUPED]:
        enter(step, queue, seq, job.spec)
