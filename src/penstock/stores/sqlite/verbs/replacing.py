"""What a new job whose key is held leads to: it is turned away, or its holder gets what it asks for."""

from __future__ import annotations

from penstock.holding import replaced
from penstock.job import Job, NewJob
from penstock.store import Enqueued, Verdict
from penstock.stores.sqlite import ties
from penstock.stores.sqlite.rows import AVAILABLE, CODE, GROUPED, STATES, job_of, spec_blob
from penstock.stores.sqlite.step import SQL, Queue, Step
from penstock.stores.sqlite.verbs.grouping import enter, left
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
    code, old = CODE[job.state], CODE[before.state]
    place = step.tails(queue, 1) + 1 if code == AVAILABLE != old else None
    tie = ties.look(step, seq) if queue.tied and code != old else None
    step.cx.execute(_REPLACE, (seq, code, job.run_at, job.expires_at, spec_blob(job.spec), place))
    after: int | None = code
    if tie is not None:
        stands = tie.place if place is None else place
        after = ties.became(step, queue, tie, code, stands, at_tail=place is not None)
    step.move(queue, old, after)
    if code != old and job.is_member:
        _change_group(step, queue, seq, job, old)
    return True


def _change_group(step: Step, queue: Queue, seq: int, job: Job, old: int) -> None:
    """A member has left its group for a later time, or its time has come."""
    assert job.spec.group is not None
    if old == GROUPED:
        left(step, queue, job.task, job.spec.group.key)
    elif job.state is STATES[GROUPED]:
        enter(step, queue, seq, job.spec)
