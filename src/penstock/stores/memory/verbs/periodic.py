"""Periodic entries: they are put, paused and deleted, and a tick enqueues what is due of one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.job import Ref
from penstock.core.lifecycle import REPLACED
from penstock.core.schedule import Entry, NewEntry, Overlap
from penstock.stores.contract import Moved, Tick, Ticked, Timetable, Verdict
from penstock.stores.memory.state import Shelf
from penstock.stores.memory.verbs.producing import cancel_one, enqueue_one

__all__ = ["delete_entries", "entries", "pause_entries", "put_entries", "tick"]


def entries(shelf: Shelf, names: Sequence[str] | None) -> Timetable:
    queues = shelf.known(None if names is None else sorted(set(names)))
    found = [queue.entries[name] for queue in queues for name in sorted(queue.entries)]
    return Timetable(found, shelf.clock.now())


def put_entries(shelf: Shelf, specs: Sequence[NewEntry]) -> list[Entry]:
    return [_put_entry(shelf, spec, shelf.clock.now()) for spec in specs]


def _put_entry(shelf: Shelf, spec: NewEntry, now: int) -> Entry:
    entries = shelf.queue(spec.job.queue).entries
    before = entries.get(spec.name)
    if before is None:
        entry = Entry(spec, revision=now, watermark=now)
    elif before.spec == spec:
        return before
    else:
        same = before.spec.schedule == spec.schedule
        entry = _revised(replace(before, spec=spec), now, from_now=not same)
    entries[spec.name] = entry
    shelf.waiters.tell_settings()
    return entry


def pause_entries(shelf: Shelf, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
    return [_pause_entry(shelf, ref, paused, shelf.clock.now()) for ref in refs]


def _pause_entry(shelf: Shelf, ref: Ref, paused: bool, now: int) -> Entry | None:
    entry = _entry(shelf, ref)
    if entry is None or entry.paused is paused:
        return entry
    entry = _revised(replace(entry, paused=paused), now, from_now=not paused)
    shelf.queues[ref.queue].entries[ref.id] = entry
    shelf.waiters.tell_settings()
    return entry


def _revised(entry: Entry, now: int, *, from_now: bool) -> Entry:
    """Another revision of it; from now: what was due before is let go."""
    watermark = max(entry.watermark, now) if from_now else entry.watermark
    return replace(entry, revision=max(entry.revision + 1, now), watermark=watermark)


def delete_entries(shelf: Shelf, refs: Sequence[Ref]) -> list[bool]:
    return [_delete_entry(shelf, ref) for ref in refs]


def _delete_entry(shelf: Shelf, ref: Ref) -> bool:
    if _entry(shelf, ref) is None:
        return False
    del shelf.queues[ref.queue].entries[ref.id]
    shelf.waiters.tell_settings()
    return True


def tick(shelf: Shelf, ticks: Sequence[Tick]) -> list[Ticked]:
    return [_tick(shelf, one, shelf.clock.now()) for one in ticks]


def _tick(shelf: Shelf, one: Tick, now: int) -> Ticked:
    entry = _entry(shelf, one.ref)
    if entry is None:
        return Ticked(Moved.GONE)
    if entry.paused or (entry.revision, entry.watermark) != (one.revision, one.watermark):
        return Ticked(Moved.STALE)
    if now < one.not_before:
        return Ticked(Moved.EARLY)
    last, new = entry.last, []
    for job in one.jobs:
        if one.overlap is not Overlap.ALLOW and last is not None and _unfinished(shelf, one.ref.queue, last):
            if one.overlap is Overlap.SKIP:
                continue
            cancel_one(shelf, Ref(one.ref.queue, last), REPLACED, now)
        if enqueue_one(shelf, job, now).verdict is Verdict.NEW:
            last = job.id
            new.append(job.id)
    shelf.queues[one.ref.queue].entries[one.ref.id] = replace(
        entry,
        watermark=one.to,
        last=last,
        enqueued=entry.enqueued + len(new),
        skipped=entry.skipped + len(one.jobs) - len(new),
    )
    return Ticked(Moved.APPLIED, tuple(new))


def _entry(shelf: Shelf, ref: Ref) -> Entry | None:
    queue = shelf.queues.get(ref.queue)
    return None if queue is None else queue.entries.get(ref.id)


def _unfinished(shelf: Shelf, queue: str, id: str) -> bool:
    row = shelf.row(Ref(queue, id))
    return row is not None and not row.job.ended
