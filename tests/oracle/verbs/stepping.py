"""record_steps, steps, await_signals, send_signals: what jobs remember, and the signals they wait for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.job import Lease, Ref, State
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
from tests.oracle import transitions
from tests.oracle.rows import Row
from tests.oracle.state import MemoryState
from tests.oracle.steps import JobSteps, StoredSignal

__all__ = ["await_signals", "forget_steps", "record_steps", "send_signals", "steps", "wake_job"]

_LOST, _FULL = RecordedStep(RecordStatus.LOST), RecordedStep(RecordStatus.FULL)
_STORED = RecordedStep(RecordStatus.STORED)


def record_steps(memory: MemoryState, records: Sequence[StepRecord]) -> list[RecordedStep]:
    return [_record(memory, record) for record in records]


def _record(memory: MemoryState, record: StepRecord) -> RecordedStep:
    row = _held(memory, record.lease, record.by)
    if row is None:
        return _LOST
    known = memory.steps.get(row.generation, JobSteps())
    before = known.stored.get(record.name)
    if before is not None and before.value is not None:
        return RecordedStep(RecordStatus.EXISTS, before.value, before.signal)
    size = len(record.name.encode()) + len(record.value)
    if _full(known, size, new=before is None):
        return _FULL
    if before is not None and before.signal is not None:
        memory.signals.unwatch(before.signal, row.generation, record.name)
    memory.steps[row.generation] = known
    known.stored[record.name] = StoredStep(record.name, memory.clock.now(), record.value)
    known.bytes += size
    if record.name == STEP_UNDO:
        row.job = replace(row.job, expires_at=None)
    return _STORED


def forget_steps(memory: MemoryState, removals: Sequence[StepRemoval]) -> list[RecordedStep]:
    return [_forget(memory, removal) for removal in removals]


def _forget(memory: MemoryState, removal: StepRemoval) -> RecordedStep:
    row = _held(memory, removal.lease, removal.by)
    if row is None:
        return _LOST
    known = memory.steps.get(row.generation, JobSteps())
    step = known.stored.get(removal.name)
    if step is None:
        return _STORED
    if step.value is None and step.signal is not None:
        memory.signals.unwatch(step.signal, row.generation, removal.name)
    elif removal.waiting:
        return RecordedStep(RecordStatus.EXISTS, step.value, step.signal)
    else:
        known.bytes -= len(removal.name.encode()) + len(step.value or b"")
    del known.stored[removal.name]
    return _STORED


def _held(memory: MemoryState, lease: Lease, by: int) -> Row | None:
    """The row of the job if this lease is held; extends the lease."""
    row = memory.leased(lease)
    if row is not None:
        row.lease_until = memory.clock.lease_now() + by
        row.queue.leases.move(row.generation, row.lease_until)
    return row


def _full(known: JobSteps, size: int, *, new: bool) -> bool:
    return known.bytes + size > LARGEST_MEMORY or (new and len(known.stored) >= MOST_STEPS)


def steps(
    memory: MemoryState, ref: Ref, names: Sequence[str] | None, largest: int | None
) -> list[StoredStep]:
    row = memory.row(ref)
    known = None if row is None else memory.steps.get(row.generation)
    if known is None:
        return []
    found = list(known.stored.values())
    if names is not None:
        wanted = frozenset(names)
        found = [step for step in found if step.name in wanted]
    return found if largest is None else [step.within(largest) for step in found]


# ── signals ──


def await_signals(memory: MemoryState, waits: Sequence[SignalWait]) -> list[RecordedStep]:
    return [_await(memory, wait) for wait in waits]


def _await(memory: MemoryState, wait: SignalWait) -> RecordedStep:
    row = _held(memory, wait.lease, wait.by)
    if row is None:
        return _LOST
    known = memory.steps.get(row.generation, JobSteps())
    before = known.stored.get(wait.step)
    if before is not None and before.value is not None:
        return RecordedStep(RecordStatus.EXISTS, before.value, before.signal)
    if _full(known, len(wait.step.encode()), new=before is None):
        return _FULL
    now, signal = memory.clock.now(), (wait.name, wait.key)
    data = _sent_before(memory, signal, row, now)
    if before is not None and before.signal is not None and (data is not None or before.signal != signal):
        memory.signals.unwatch(before.signal, row.generation, wait.step)
    memory.steps[row.generation] = known
    at = now if before is None or data is not None else before.at
    known.stored[wait.step] = StoredStep(wait.step, at, data, signal)
    if data is None:
        memory.signals.watch(signal, row.generation, wait.step, row.job.id)
        return _STORED
    known.bytes += len(wait.step.encode()) + len(data)
    return RecordedStep(RecordStatus.EXISTS, data, signal)


def _sent_before(memory: MemoryState, signal: tuple[str, str], row: Row, now: int) -> bytes | None:
    """Consume the stored signal that this job may receive, if there is one."""
    since = 0 if row.job.spec.flow is not None else row.job.enqueued_at - SIGNAL_GRACE
    for name in ((*signal, row.job.id), (*signal, None)):
        found = memory.signals.stored.get(name)
        if found is not None and found.keep_until > now and found.sent_at >= since:
            return memory.signals.stored.pop(name).data
    return None


def send_signals(memory: MemoryState, signals: Sequence[Signal]) -> list[SignalStatus]:
    return [_send(memory, signal) for signal in signals]


def _send(memory: MemoryState, signal: Signal) -> SignalStatus:
    now, box = memory.clock.now(), memory.signals
    name = signal.name, signal.key, signal.flow
    while waits := box.waiting.get(name):
        generation, step = next(iter(waits))
        box.unwatch((signal.name, signal.key), generation, step)
        row = memory.rows.get(generation)
        # the code of a job that has ended waits again if the job is retried
        if row is not None and not row.job.ended and _deliver(memory, row, step, signal, now):
            return SignalStatus.RECEIVED
    if (found := box.stored.get(name)) is not None and found.keep_until > now:
        if not signal.replace:
            return SignalStatus.EXISTS
        box.stored[name] = StoredSignal(signal.data, now, now + signal.keep)
        return SignalStatus.REPLACED
    if len(box.stored) >= signal.most:
        box.drop_expired(now)
    if len(box.stored) >= signal.most:
        return SignalStatus.FULL
    box.stored[name] = StoredSignal(signal.data, now, now + signal.keep)
    return SignalStatus.STORED


def _deliver(memory: MemoryState, row: Row, step: str, signal: Signal, now: int) -> bool:
    """Give the signal to a job if its step waits for it, and wake the job if it is suspended."""
    known = memory.steps[row.generation]
    before = known.stored[step]
    if before.value is not None or before.signal != (signal.name, signal.key):
        return False
    known.stored[step] = StoredStep(step, now, signal.data, (signal.name, signal.key))
    known.bytes += len(step.encode()) + len(signal.data)
    wake_job(memory, row, now)
    return True


def wake_job(memory: MemoryState, row: Row, now: int) -> None:
    """Make a suspended job available; one that still runs becomes available when it suspends itself."""
    if row.job.state is State.SUSPENDED:
        transitions.wake(memory, row, now)
    elif (known := memory.steps.get(row.generation)) is not None:
        known.woken = True


# ── for operators ──


def edit_steps(memory: MemoryState, ref: Ref, edits: Sequence[StepEdit]) -> EditStatus:
    row = memory.row(ref)
    if row is None:
        return EditStatus.MISSING
    if row.job.state is State.RUNNING:
        return EditStatus.RUNNING
    known = memory.steps.get(row.generation, JobSteps())
    after = dict(known.stored)
    for edit in {edit.name: edit for edit in edits}.values():
        before = after.pop(edit.name, None)
        if edit.value is not None:
            at = memory.clock.now()
            step = StoredStep(edit.name, at, edit.value, None if before is None else before.signal)
            after = {**after, edit.name: step} if before is None else _in_place(known, after, step)
    size = sum(len(one.name.encode()) + len(one.value) for one in after.values() if one.value is not None)
    if size > LARGEST_MEMORY or len(after) > MOST_STEPS:
        return EditStatus.FULL
    for name, step in known.stored.items():
        if step.value is None and step.signal is not None and after.get(name) is not step:
            memory.signals.unwatch(step.signal, row.generation, name)
    known.stored, known.bytes = after, size
    memory.steps[row.generation] = known
    if row.job.state is State.SUSPENDED:
        wake_job(memory, row, memory.clock.now())
    return EditStatus.APPLIED


def _in_place(known: JobSteps, after: dict[str, StoredStep], step: StoredStep) -> dict[str, StoredStep]:
    """The steps with this one at the place that it had."""
    changed = {**after, step.name: step}
    return {name: changed[name] for name in [*known.stored, *after] if name in changed}


def signals(
    memory: MemoryState, name: str | None, key: str | None, after: tuple[str, str, str] | None, limit: int
) -> list[KeptSignal]:
    now = memory.clock.now()
    found = [
        KeptSignal(*names, one.data, one.sent_at, one.keep_until)
        for names, one in memory.signals.stored.items()
        if one.keep_until > now and name in (None, names[0]) and key in (None, names[1])
    ]
    behind = [one for one in found if after is None or (one.name, one.key, one.flow or "") > after]
    return sorted(behind, key=lambda one: (one.name, one.key, one.flow or ""))[:limit]


def forget_signals(memory: MemoryState, names: Sequence[tuple[str, str, str | None]]) -> list[bool]:
    now = memory.clock.now()
    gone = [memory.signals.stored.pop(name, None) for name in names]
    return [one is not None and one.keep_until > now for one in gone]


def signal_waiters(memory: MemoryState, name: str, key: str, limit: int) -> list[SignalWaiter]:
    found = []
    for generation, step in memory.signals.waiting.get((name, key, None), ()):
        row = memory.rows.get(generation)
        if row is not None and not row.job.ended:
            of = memory.steps[generation].stored.get(f"{step}!of")
            found.append(SignalWaiter(row.job.ref, step, None if of is None else of.value))
    return found[:limit]
