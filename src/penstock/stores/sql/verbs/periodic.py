"""Periodic entries: list, put, pause and delete them; tick enqueues their jobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.job import Ref
from penstock.core.lifecycle import REPLACED
from penstock.core.schedule import Entry, NewEntry, Overlap
from penstock.stores.contract import EnqueueStatus, Tick, TickResult, TickStatus, Timetable
from penstock.stores.sql.rows import entry_of
from penstock.stores.sql.statements import SQL
from penstock.stores.sql.transaction_context import NEEDS_WRITE, NeedsWrite, TransactionContext
from penstock.stores.sql.verbs.operating import queue_rows
from penstock.stores.sql.verbs.producing import cancel, enqueue_one, is_open

_OF_QUEUE = SQL["entries.of_queue"]
_ONE = SQL["entries.one"]
_INSERT = SQL["entries.insert"]
_CHANGE = SQL["entries.change"]
_PAUSE = SQL["entries.pause"]
_DELETE = SQL["entries.delete"]
_MOVE = SQL["tick.move"]

_blob = msgspec.msgpack.Encoder().encode


def entries(tx: TransactionContext, names: Sequence[str] | None) -> Timetable:
    if names is None:
        names = [row.name for row in queue_rows(tx)]
    queues = tx.known(sorted(set(names)))
    found = [
        entry_of(Ref(queue.name, name), row)
        for queue in queues
        for name, *row in tx.execute(_OF_QUEUE, (queue.qid,))
    ]
    return Timetable(found, tx.now)


def _entry(tx: TransactionContext, ref: Ref) -> Entry | None:
    queue = tx.queue(ref.queue)
    row = None if queue is None else tx.execute(_ONE, (queue.qid, ref.id)).fetchone()
    return None if row is None else entry_of(ref, row)


# ── changing entries ─────────────────────────────────────────────────────────────────────────────


def probe_put_entries(tx: TransactionContext, specs: Sequence[NewEntry]) -> list[Entry] | NeedsWrite:
    """Answer by reading alone if nothing changes: every worker puts its entries when it starts."""
    found = [_entry(tx, spec.ref) for spec in specs]
    there = [entry for entry in found if entry is not None]
    return there if [entry.spec for entry in there] == list(specs) else NEEDS_WRITE


def put_entries(tx: TransactionContext, specs: Sequence[NewEntry]) -> list[Entry]:
    return [_put(tx, spec) for spec in specs]


def _put(tx: TransactionContext, spec: NewEntry) -> Entry:
    queue, found = tx.some_queue(spec.job.queue), _entry(tx, spec.ref)
    if found is not None and found.spec == spec:
        return found
    terms = (queue.qid, spec.name, spec.schedule.key, _blob(spec), tx.now)
    tx.execute(_INSERT if found is None else _CHANGE, terms)
    tx.changes += 1
    return entry_of(spec.ref, tx.execute(_ONE, (queue.qid, spec.name)).fetchone())


def pause_entries(tx: TransactionContext, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
    return [_pause(tx, ref, paused) for ref in refs]


def _pause(tx: TransactionContext, ref: Ref, paused: bool) -> Entry | None:
    queue = tx.queue(ref.queue)
    if queue is not None:
        tx.changes += tx.execute(_PAUSE, (queue.qid, ref.id, int(paused), tx.now)).rowcount
    return _entry(tx, ref)


def delete_entries(tx: TransactionContext, refs: Sequence[Ref]) -> list[bool]:
    return [_delete(tx, ref) for ref in refs]


def _delete(tx: TransactionContext, ref: Ref) -> bool:
    queue = tx.queue(ref.queue)
    gone = 0 if queue is None else tx.execute(_DELETE, (queue.qid, ref.id)).rowcount
    tx.changes += gone
    return gone > 0


# ── tick ─────────────────────────────────────────────────────────────────────────────────────────


def tick(tx: TransactionContext, ticks: Sequence[Tick]) -> list[TickResult]:
    return [_tick(tx, one) for one in ticks]


def _tick(tx: TransactionContext, one: Tick) -> TickResult:
    queue, entry = tx.queue(one.ref.queue), _entry(tx, one.ref)
    if queue is None or entry is None:
        return TickResult(TickStatus.GONE)
    if entry.paused or (entry.revision, entry.watermark) != (one.revision, one.watermark):
        return TickResult(TickStatus.STALE)
    if tx.now < one.not_before:
        return TickResult(TickStatus.EARLY)
    last, new = entry.last, []
    for job in one.jobs:
        if one.overlap is not Overlap.ALLOW and last is not None and is_open(tx, Ref(queue.name, last)):
            if one.overlap is Overlap.SKIP:
                continue
            cancel(tx, [Ref(queue.name, last)], REPLACED)
        if enqueue_one(tx, job).status is EnqueueStatus.NEW:
            last = job.id
            new.append(job.id)
    skipped = len(one.jobs) - len(new)
    tx.execute(_MOVE, (queue.qid, one.ref.id, one.to, last, len(new), skipped))
    return TickResult(TickStatus.APPLIED, tuple(new))
