"""Periodic entries: list, put, pause and delete them; tick enqueues their jobs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.job import Ref
from penstock.core.lifecycle import REPLACED
from penstock.core.schedule import Entry, NewEntry, Overlap
from penstock.stores.contract import EnqueueStatus, Tick, TickResult, TickStatus, Timetable
from tests.oracle.state import MemoryState
from tests.oracle.verbs.producing import cancel_one, enqueue_one

__all__ = ["delete_entries", "entries", "pause_entries", "put_entries", "tick"]


def entries(memory: MemoryState, names: Sequence[str] | None) -> Timetable:
    queues = memory.known(None if names is None else sorted(set(names)))
    found = [queue.entries[name] for queue in queues for name in sorted(queue.entries)]
    return Timetable(found, memory.clock.now())


def put_entries(memory: MemoryState, specs: Sequence[NewEntry]) -> list[Entry]:
    return [_put_entry(memory, spec, memory.clock.now()) for spec in specs]


def _put_entry(memory: MemoryState, spec: NewEntry, now: int) -> Entry:
    entries = memory.queue(spec.job.queue).entries
    before = entries.get(spec.name)
    if before is None:
        entry = Entry(spec, revision=now, watermark=now)
    elif before.spec == spec:
        return before
    else:
        same = before.spec.schedule == spec.schedule
        entry = _revised(replace(before, spec=spec), now, from_now=not same)
    entries[spec.name] = entry
    memory.waiters.notify_settings()
    return entry


def pause_entries(memory: MemoryState, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
    return [_pause_entry(memory, ref, paused, memory.clock.now()) for ref in refs]


def _pause_entry(memory: MemoryState, ref: Ref, paused: bool, now: int) -> Entry | None:
    entry = _entry(memory, ref)
    if entry is None or entry.paused is paused:
        return entry
    entry = _revised(replace(entry, paused=paused), now, from_now=not paused)
    memory.queues[ref.queue].entries[ref.id] = entry
    memory.waiters.notify_settings()
    return entry


def _revised(entry: Entry, now: int, *, from_now: bool) -> Entry:
    """Return the next revision of an entry. `from_now`: runs that were due before are skipped."""
    watermark = max(entry.watermark, now) if from_now else entry.watermark
    return replace(entry, revision=max(entry.revision + 1, now), watermark=watermark)


def delete_entries(memory: MemoryState, refs: Sequence[Ref]) -> list[bool]:
    return [_delete_entry(memory, ref) for ref in refs]


def _delete_entry(memory: MemoryState, ref: Ref) -> bool:
    if _entry(memory, ref) is None:
        return False
    del memory.queues[ref.queue].entries[ref.id]
    memory.waiters.notify_settings()
    return True


def tick(memory: MemoryState, ticks: Sequence[Tick]) -> list[TickResult]:
    return [_tick(memory, one, memory.clock.now()) for one in ticks]


def _tick(memory: MemoryState, one: Tick, now: int) -> TickResult:
    entry = _entry(memory, one.ref)
    if entry is None:
        return TickResult(TickStatus.GONE)
    if entry.paused or (entry.revision, entry.watermark) != (one.revision, one.watermark):
        return TickResult(TickStatus.STALE)
    if now < one.not_before:
        return TickResult(TickStatus.EARLY)
    last, new = entry.last, []
    for job in one.jobs:
        if one.overlap is not Overlap.ALLOW and last is not None and _unfinished(memory, one.ref.queue, last):
            if one.overlap is Overlap.SKIP:
                continue
            cancel_one(memory, Ref(one.ref.queue, last), REPLACED, now)
        if enqueue_one(memory, job, now).status is EnqueueStatus.NEW:
            last = job.id
            new.append(job.id)
    memory.queues[one.ref.queue].entries[one.ref.id] = replace(
        entry,
        watermark=one.to,
        last=last,
        enqueued=entry.enqueued + len(new),
        skipped=entry.skipped + len(one.jobs) - len(new),
    )
    return TickResult(TickStatus.APPLIED, tuple(new))


def _entry(memory: MemoryState, ref: Ref) -> Entry | None:
    queue = memory.queues.get(ref.queue)
    return None if queue is None else queue.entries.get(ref.id)


def _unfinished(memory: MemoryState, queue: str, id: str) -> bool:
    row = memory.row(Ref(queue, id))
    return row is not None and not row.job.ended
