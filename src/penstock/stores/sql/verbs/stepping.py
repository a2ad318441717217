"""record_steps, steps, await_signals, send_signals: what jobs remember, and the signals they wait for."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.job import Lease, Ref
from penstock.stores.contract import (
    LARGEST_MEMORY,
    MOST_STEPS,
    SIGNAL_GRACE,
    STEP_UNDO,
    EditStatus,
    KeptSignal,
    RecordedStep,
    RecordStatus,
    Signal,
    SignalStatus,
    SignalWait,
    SignalWaiter,
    StepEdit,
    StepRecord,
    StepRemoval,
    StoredStep,
)
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import numbers
from penstock.stores.sql.statements import AVAILABLE, ENDED, RUNNING, SQL, SUSPENDED
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext

_HOLDER = SQL["steps.holder"]
_MEMORY = SQL["steps.memory"]
_GROW = SQL["steps.grow"]
_ONE = SQL["steps.one"]
_REMOVE = SQL["steps.remove"]
_INSERT = SQL["steps.insert"]
_FILL = SQL["steps.fill"]
_CHANGE_WAIT = SQL["steps.change_wait"]
_END_WAIT = SQL["steps.end_wait"]
_ALL = SQL["steps.all"]
_PART = SQL["steps.part"]
_NAMED = SQL["steps.named"]
_WAITING = SQL["steps.waiting"]
_WAITING_ONE = SQL["steps.waiting_one"]
_STATE = SQL["steps.state"]
_WAKE = SQL["steps.wake"]
_WOKEN = SQL["steps.woken"]
_NEVER_EXPIRES = SQL["steps.never_expires"]
_RESUME = SQL["steps.resume"]
_FORGET = SQL["steps.forget"]
_FORGET_MEMORY = SQL["steps.forget_memory"]
_TAKE_SIGNAL = SQL["steps.take_signal"]
_SIGNAL = SQL["steps.signal"]
_STORE_SIGNAL = SQL["steps.store_signal"]
_DROP_SIGNALS = SQL["steps.drop_signals"]
_SIGNALS = SQL["steps.signals"]
_HAS_STEPS = SQL["steps.has_steps"]
_KEPT = SQL["steps.kept"]
_WAITERS = SQL["steps.waiters"]
_TO_TAIL = SQL["promote.move"]

_LOST, _FULL = RecordedStep(RecordStatus.LOST), RecordedStep(RecordStatus.FULL)
_STORED = RecordedStep(RecordStatus.STORED)


def record_steps(tx: TransactionContext, records: Sequence[StepRecord]) -> list[RecordedStep]:
    tx.notice_reboot()
    return [_record(tx, record) for record in records]


def _record(tx: TransactionContext, record: StepRecord) -> RecordedStep:
    if _held(tx, record.lease, record.by) is None:
        return _LOST
    seq, size = record.lease.generation, len(record.name.encode()) + len(record.value)
    before = tx.execute(_ONE, (seq, record.name)).fetchone()
    if before is not None and before[1] is not None:
        return _exists(*before[1:])
    if _full(tx, seq, size, new=before is None):
        return _FULL
    if before is None:
        tx.execute(_INSERT, (seq, record.name, tx.now, record.value, None, None, None))
    else:
        tx.execute(_END_WAIT, (before[0], tx.now, record.value))
    tx.execute(_GROW, (seq, size, int(before is None)))
    if record.name == STEP_UNDO:
        tx.execute(_NEVER_EXPIRES, (seq,))
    return _STORED


def forget_steps(tx: TransactionContext, removals: Sequence[StepRemoval]) -> list[RecordedStep]:
    tx.notice_reboot()
    return [_forget(tx, removal) for removal in removals]


def _forget(tx: TransactionContext, removal: StepRemoval) -> RecordedStep:
    if _held(tx, removal.lease, removal.by) is None:
        return _LOST
    seq = removal.lease.generation
    step = tx.execute(_ONE, (seq, removal.name)).fetchone()
    if step is None:
        return _STORED
    number, value = step[:2]
    if value is not None and removal.waiting:
        return _exists(*step[1:])
    size = 0 if value is None else len(removal.name.encode()) + len(value)
    tx.execute(_REMOVE, (number,))
    tx.execute(_GROW, (seq, -size, -1))
    return _STORED


def _exists(value: bytes, signal: str | None, key: str) -> RecordedStep:
    return RecordedStep(RecordStatus.EXISTS, value, None if signal is None else (signal, key))


def _held(tx: TransactionContext, lease: Lease, by: int) -> int | None:
    """Extend the lease and return the earliest time of a signal for its job, if the lease is held."""
    queue = tx.queue(lease.queue)
    if queue is None:
        return None
    terms = (lease.generation, queue.qid, lease.id, lease.token, tx.lease_now + by)
    row = tx.execute(_HOLDER, terms).fetchone()
    return None if row is None else int(row[0]) - SIGNAL_GRACE


def _full(tx: TransactionContext, seq: int, size: int, *, new: bool) -> bool:
    stored, n = tx.execute(_MEMORY, (seq,)).fetchone() or (0, 0)
    return stored + size > LARGEST_MEMORY or (new and n >= MOST_STEPS)


def steps(
    tx: TransactionContext, ref: Ref, names: Sequence[str] | None, largest: int | None
) -> list[StoredStep]:
    queue = tx.queue(ref.queue)
    if queue is None:
        return []
    if names is not None or largest is not None:
        return _part(tx, (queue.qid, ref.id, LARGEST_MEMORY if largest is None else largest), names)
    return [
        StoredStep(name, at, value, None if signal is None else (signal, key))
        for _, name, at, value, signal, key in sorted(tx.execute(_ALL, (queue.qid, ref.id)))
    ]


def _part(
    tx: TransactionContext, terms: tuple[int, str, int], names: Sequence[str] | None
) -> list[StoredStep]:
    if names is None:
        rows = list(tx.execute(_PART, terms))
    else:
        rows = [row for name in dict.fromkeys(names) for row in tx.execute(_NAMED, (*terms, name))]
    return [
        StoredStep(
            name,
            at,
            value,
            None if signal is None else (signal, key),
            0 if value is None else size - len(value),
        )
        for _, name, at, value, signal, key, size in sorted(rows)
    ]


# ── the life of a job ────────────────────────────────────────────────────────────────────────────


def state_after(tx: TransactionContext, seq: int, *, asked: bool) -> int:
    """The state of a job that suspends itself: AVAILABLE if its signal has come or it is to stop."""
    tx.execute(_NEVER_EXPIRES, (seq,))
    woken = tx.execute(_WOKEN, (seq,)).fetchone() is not None
    return AVAILABLE if woken or asked else SUSPENDED


def drop_memory(tx: TransactionContext, seqs: Sequence[int]) -> None:
    """Remove the steps of jobs that are removed."""
    if seqs:
        listed = (numbers(seqs),)
        tx.execute(_FORGET, listed)
        tx.execute(_FORGET_MEMORY, listed)


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


def await_signals(tx: TransactionContext, waits: Sequence[SignalWait]) -> list[RecordedStep]:
    tx.notice_reboot()
    return [_await(tx, wait) for wait in waits]


def _await(tx: TransactionContext, wait: SignalWait) -> RecordedStep:
    since = _held(tx, wait.lease, wait.by)
    if since is None:
        return _LOST
    seq, size = wait.lease.generation, len(wait.step.encode())
    before = tx.execute(_ONE, (seq, wait.step)).fetchone()
    if before is not None and before[1] is not None:
        return _exists(*before[1:])
    if _full(tx, seq, size, new=before is None):
        return _FULL
    data = _sent_before(tx, wait, since)
    if before is None:
        tx.execute(_INSERT, (seq, wait.step, tx.now, data, tx.namespace, wait.name, wait.key))
    else:
        if before[2:] != (wait.name, wait.key):
            tx.execute(_CHANGE_WAIT, (before[0], wait.name, wait.key))
        if data is not None:
            tx.execute(_FILL, (before[0], tx.now, data))
    tx.execute(_GROW, (seq, 0 if data is None else size + len(data), int(before is None)))
    return _STORED if data is None else _exists(data, wait.name, wait.key)


def _sent_before(tx: TransactionContext, wait: SignalWait, since: int) -> bytes | None:
    """Consume the stored signal that this job may receive, if there is one."""
    for flow in (wait.lease.id, ""):
        terms = (tx.namespace, wait.name, wait.key, flow, since, tx.now)
        row = tx.execute(_TAKE_SIGNAL, terms).fetchone()
        if row is not None:
            return bytes(row[0])
    return None


def send_signals(tx: TransactionContext, signals: Sequence[Signal]) -> list[SignalStatus]:
    stored: list[int] = []  # the number of stored signals, once it is known
    return [_send(tx, signal, stored) for signal in signals]


def _send(tx: TransactionContext, signal: Signal, stored: list[int]) -> SignalStatus:
    name = (tx.namespace, signal.name, signal.key)
    if signal.flow is None:
        row = tx.execute(_WAITING, name).fetchone()
    else:
        row = tx.execute(_WAITING_ONE, (*name, signal.flow)).fetchone()
    if row is not None:
        number, step, seq, state, queue = row
        tx.execute(_FILL, (number, tx.now, signal.data))
        tx.execute(_GROW, (seq, len(step.encode()) + len(signal.data), 0))
        if state == SUSPENDED:
            resume(tx, tx.some_queue(queue), seq)
        else:
            tx.execute(_WAKE, (seq,))
        return SignalStatus.RECEIVED
    return _store(tx, signal, stored)


def _store(tx: TransactionContext, signal: Signal, stored: list[int]) -> SignalStatus:
    name = (tx.namespace, signal.name, signal.key, signal.flow or "")
    row = tx.execute(_SIGNAL, name).fetchone()
    if row is not None and row[0] > tx.now:
        if not signal.replace:
            return SignalStatus.EXISTS
        tx.execute(_STORE_SIGNAL, (*name, tx.now, tx.now + signal.keep, signal.data))
        return SignalStatus.REPLACED
    if not stored:
        tx.execute(_DROP_SIGNALS, (tx.namespace, tx.now))
        stored += tx.execute(_SIGNALS, (tx.namespace,)).fetchone()
    if stored[0] >= signal.most:
        return SignalStatus.FULL
    stored[0] += 1
    tx.execute(_STORE_SIGNAL, (*name, tx.now, tx.now + signal.keep, signal.data))
    return SignalStatus.STORED


def wake_job(tx: TransactionContext, ref: Ref) -> None:
    """Make a suspended job available; one that still runs becomes available when it suspends itself."""
    queue = tx.queue(ref.queue)
    row = None if queue is None else tx.execute(_STATE, (queue.qid, ref.id)).fetchone()
    if queue is not None and row is not None and row[1] == SUSPENDED:
        resume(tx, queue, row[0])
    elif row is not None and row[1] not in ENDED:
        tx.execute(_WAKE, (row[0],))


def resume(tx: TransactionContext, queue: QueueContext, seq: int, state: int = SUSPENDED) -> None:
    """Make a job that is not due available, at the tail of its queue."""
    tx.execute(_RESUME, (seq, tx.now))
    if queue.has_dependents:
        partitions.to_tail(tx, queue, seq)
    else:
        tx.execute(_TO_TAIL, (tx.places_at_tail(queue, 1), numbers([seq])))
        tx.count_move(queue, state, AVAILABLE)


# ── for operators ────────────────────────────────────────────────────────────────────────────────


def edit_steps(tx: TransactionContext, ref: Ref, edits: Sequence[StepEdit]) -> EditStatus:
    tx.notice_reboot()
    queue = tx.queue(ref.queue)
    row = None if queue is None else tx.execute(_STATE, (queue.qid, ref.id)).fetchone()
    if queue is None or row is None:
        return EditStatus.MISSING
    seq, state = row
    if state == RUNNING:
        return EditStatus.RUNNING
    values = {edit.name: edit.value for edit in edits}
    known = {name: tx.execute(_ONE, (seq, name)).fetchone() for name in values}
    size = sum(_size(name, value) for name, value in values.items())
    size -= sum(_size(name, one[1]) for name, one in known.items() if one is not None)
    more = sum((value is not None) - (known[name] is not None) for name, value in values.items())
    stored, n = tx.execute(_MEMORY, (seq,)).fetchone() or (0, 0)
    if stored + size > LARGEST_MEMORY or n + more > MOST_STEPS:
        return EditStatus.FULL
    for name, value in values.items():
        before = known[name]
        if value is None:
            tx.execute(_REMOVE, (None if before is None else before[0],))
        elif before is None:
            tx.execute(_INSERT, (seq, name, tx.now, value, None, None, None))
        else:
            tx.execute(_FILL, (before[0], tx.now, value))
    tx.execute(_GROW, (seq, size, more))
    tx.execute(_HAS_STEPS, (seq,))
    if state == SUSPENDED:
        resume(tx, queue, seq)
    return EditStatus.APPLIED


def _size(name: str, value: bytes | None) -> int:
    """The bytes that a step counts for."""
    return 0 if value is None else len(name.encode()) + len(value)


def signals(
    tx: TransactionContext,
    name: str | None,
    key: str | None,
    after: tuple[str, str, str] | None,
    limit: int,
) -> list[KeptSignal]:
    rows = tx.execute(_KEPT, (tx.namespace, tx.now, name, key, *(after or ("", "", "")), limit))
    return [KeptSignal(of, at, flow or None, data, sent, keep) for of, at, flow, data, sent, keep in rows]


def forget_signals(tx: TransactionContext, names: Sequence[tuple[str, str, str | None]]) -> list[bool]:
    gone = [
        tx.execute(_TAKE_SIGNAL, (tx.namespace, name, key, flow or "", 0, tx.now)).fetchone()
        for name, key, flow in names
    ]
    return [row is not None for row in gone]


def signal_waiters(tx: TransactionContext, name: str, key: str, limit: int) -> list[SignalWaiter]:
    rows = tx.execute(_WAITERS, (tx.namespace, name, key, limit))
    return [SignalWaiter(Ref(queue, id), step, of) for queue, id, step, of in rows]
