"""Unique keys: who takes one, who gives one up, and what a new job makes of the holder of its key."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.holding import Hold, hold_after, outlives_its_job, replaced, until
from penstock.job import NewJob, State
from penstock.store import Enqueued, Verdict
from penstock.stores.sqlite import ties
from penstock.stores.sqlite.rows import AVAILABLE, CODE, STATES, job_of, numbers, spec_blob, spec_of
from penstock.stores.sqlite.step import SQL, Queue, Step
from penstock.unique import UniqueKey

__all__ = ["conflict", "drop_keys", "forget_key", "free_keys", "prune_keys", "shift_key", "take_key"]

_HOLDER = SQL["keys.holder"]
_TAKE = SQL["keys.take"]
_FREE = SQL["keys.free"]
_FREE_ENDLESS = SQL["keys.free_endless"]
_PRUNE = SQL["keys.prune"]
_DROP = SQL["keys.drop"]
_JOB = SQL["keys.job"]
_LOOK = SQL["keys.look"]
_REPLACE = SQL["keys.replace"]


def conflict(step: Step, queue: Queue, new: NewJob) -> Enqueued | None:
    """What the holder of its key makes of a new job; None if nobody holds it."""
    assert new.unique is not None
    found = _holder(step, queue, new.unique.key)
    if found is None:
        return None
    id, seq = found
    if new.unique.replace and _replace(step, queue, seq, new):
        return Enqueued(Verdict.REPLACED, id)
    return Enqueued(Verdict.DUPLICATE, id)


def _holder(step: Step, queue: Queue, key: str) -> tuple[str, int] | None:
    """Who holds a key; one whose period is over loses it here."""
    found = step.cx.execute(_HOLDER, (queue.qid, key)).fetchone()
    if found is None:
        return None
    id, end, seq = found
    if end is not None and end <= step.now:
        free_keys(step, [seq])
        return None
    return id, seq


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
    if tie is not None:
        stands = tie.place if place is None else place
        step.move(queue, old, ties.became(step, queue, tie, code, stands, at_tail=place is not None))
    else:
        step.move(queue, old, code)
    return True


def take_key(step: Step, queue: Queue, seq: int, id: str, unique: UniqueKey, enqueued_at: int) -> None:
    """If nobody else holds it, for what is left of its period."""
    end = until(unique, enqueued_at)
    if (end is None or end > step.now) and _holder(step, queue, unique.key) is None:
        step.cx.execute(_TAKE, (queue.qid, unique.key, seq, id, end))


def free_keys(step: Step, seqs: Sequence[int]) -> None:
    """Whatever these jobs hold."""
    if seqs:
        step.cx.execute(_FREE, (numbers(seqs),))


def forget_key(step: Step, seq: int, state: int, tied: int) -> None:
    """What a tied job holds that has ended, when it is kept no longer without anybody's asking for it."""
    if outlives_its_job(tied, STATES[state]):  # others hold nothing any more
        step.cx.execute(_FREE_ENDLESS, (seq,))


def shift_key(step: Step, queue: Queue, seq: int, tied: int, before: State | None, after: State) -> None:
    """What a step between these two states does to the key of a tied job, which is still there."""
    match hold_after(tied, before, after):
        case Hold.TAKEN:
            id, spec, enqueued_at = step.cx.execute(_JOB, (seq,)).fetchone()
            unique = spec_of(spec).unique
            if unique is not None:
                take_key(step, queue, seq, id, unique, enqueued_at)
        case Hold.FREED:
            free_keys(step, [seq])
        case Hold.STAYS:
            pass


def prune_keys(step: Step, queues: Sequence[Queue], limit: int) -> int:
    """Keys whose period is over; how many went."""
    gone = 0
    for queue in queues:
        gone += step.cx.execute(_PRUNE, (queue.qid, step.now, limit - gone)).rowcount
    return gone


def drop_keys(step: Step, queue: Queue) -> None:
    """All of a queue that is forgotten."""
    step.cx.execute(_DROP, (queue.qid,))
