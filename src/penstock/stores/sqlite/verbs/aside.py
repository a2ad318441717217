"""Jobs that cannot be read: what becomes of them, whatever verb has met them, and what is shown of them."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.job import UNREADABLE_TASK, Job, Ref, stand_in
from penstock.core.lifecycle import set_aside
from penstock.stores.contract import SetAside
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.rows import Row, Unreadable, job_of, numbers, spec_blob, unreadable_job
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import DEAD, ENDED, GROUPED, STATES
from penstock.stores.sqlite.transaction_context import QueueContext, TransactionContext
from penstock.stores.sqlite.verbs.batches import end_members, left

__all__ = ["put_aside", "show"]

_LOOK = SQL["aside.look"]
_END = SQL["aside.end"]
_UNLINK = SQL["aside.unlink"]
_FREE = SQL["keys.free"]


def put_aside(tx: TransactionContext, causes: Mapping[int, str]) -> None:
    """These jobs, by generation, are dead from now on, hold nothing, and can be read: as stand-ins."""
    lanes: dict[tuple[str, str], None] = {}
    for seq, cause in causes.items():
        row = tx.execute(_LOOK, (seq,)).fetchone()
        if row is not None:
            _put_aside(tx, seq, cause, *row)
            if row[5] is not None:
                lanes[row[0], row[5]] = None
    for name, lane in lanes:  # when none of them stands there any more
        partitions.advance(tx, tx.some_queue(name), lane)


def show(tx: TransactionContext, row: Row) -> Job:
    """The job of a row as `job_of` takes it; for one that cannot be read, what is shown in its place."""
    try:
        return job_of(row)
    except Unreadable as error:
        name, id, *_ = tx.execute(_LOOK, (row[2],)).fetchone()
        return unreadable_job(row, Ref(name, id), error.causes[row[2]])


def _put_aside(
    tx: TransactionContext,
    seq: int,
    cause: str,
    name: str,
    id: str,
    state: int,
    spec: bytes,
    task: str,
    lane: str | None,
    group: str | None,
    batch: str | None,
    is_batch: bool,
) -> None:
    queue, to = tx.some_queue(name), set_aside(cause)
    until = tx.now + to.keep
    if is_batch:
        end_members(tx, queue, id, DEAD, until, to.reason)
        tx.execute(_UNLINK, (queue.qid, id))
    raw = spec_blob(stand_in(Ref(name, id), spec))
    tx.execute(_END, (seq, tx.now, until, to.reason, raw, UNREADABLE_TASK))
    tx.execute(_FREE, (numbers([seq]),))
    _count(tx, queue, state)
    if state == GROUPED and batch is None and group is not None:
        left(tx, queue, task, group)
    tx.found.append(SetAside("job", name, id, cause))


def _count(tx: TransactionContext, queue: QueueContext, state: int) -> None:
    """One that had ended was counted then."""
    tx.move(queue, state if 0 <= state < len(STATES) else None, DEAD)
    if state not in ENDED:
        tx.settled(queue, 1, 1)
