"""The verbs for periodic entries: list, store, pause and delete entries, and enqueue their jobs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from penstock.core.job import NewJob, Ref
from penstock.core.schedule import Entry, NewEntry, Overlap
from penstock.stores.contract.request import OfRefs, Request


class Timetable(msgspec.Struct, frozen=True):
    """Periodic entries, ordered by queue and name, and the store's clock."""

    entries: list[Entry]
    now: int


class Tick(msgspec.Struct, frozen=True):
    """One step of a periodic entry: move its watermark `to` an instant, and enqueue the jobs up to there.

    - `revision`, `watermark`: those of the entry as it was read. The tick applies only if both still match.
    - `not_before`: the earliest instant, by the store's clock, at which the tick applies.
    - `jobs`: jobs for the queue of the entry, in the order of their instants.
    """

    ref: Ref
    revision: int
    watermark: int
    to: int
    not_before: int
    overlap: Overlap = Overlap.ALLOW
    jobs: tuple[NewJob, ...] = ()


class TickStatus(enum.StrEnum):
    """The status of one tick. Only an APPLIED tick changes anything."""

    APPLIED = "applied"
    STALE = "stale"  # the entry was changed, paused, or ticked by another worker
    EARLY = "early"  # the store's clock has not reached `not_before`
    GONE = "gone"  # the entry does not exist
    UNKNOWN = "unknown"  # this part of the store is unreachable, while other parts answer

    __hash__ = str.__hash__


class TickResult(msgspec.Struct, frozen=True):
    """The answer for one tick: its status, and the ids of the jobs that were enqueued, not skipped."""

    status: TickStatus
    enqueued: tuple[str, ...] = ()


class Entries(Request[Timetable], frozen=True):
    """List the periodic entries of these queues, or of all if None."""

    queues: Sequence[str] | None = None


class PutEntries(Request[list[Entry]], frozen=True):
    """Store periodic entries; an entry of the same name in the same queue is replaced.

    - An entry that is equal to the stored one does not change.
    - The watermark of a new entry, or of an entry with a changed schedule, becomes now: runs that were
      due before are not enqueued. A watermark in the future stays. The watermark of an unchanged schedule
      stays, too.
    - A paused entry stays paused.
    - Missing queues are created.

    Answer: the stored entries, in order.
    """

    entries: Sequence[NewEntry]


class PauseEntries(OfRefs[list[Entry | None]], frozen=True):
    """Pause periodic entries (`paused=True`) or resume them.

    The watermark of a resumed entry becomes now, unless it lies in the future: runs missed during the
    pause are not enqueued.

    Answer: the entries after the change, in order; None for an entry that does not exist.
    """

    paused: bool


class DeleteEntries(OfRefs[list[bool]], frozen=True):
    """Delete periodic entries. Their jobs stay.

    Answer: one bool per ref; False for an entry that does not exist.
    """


class TickEntries(Request[list[TickResult]], frozen=True):
    """Move the watermark of each entry and enqueue its jobs, in one step.

    - A tick applies only if the entry has not changed since it was read. So exactly one of several
      concurrent callers succeeds.
    - A job is skipped if its id or unique key is taken, or if its queue is closed or full.
    - `Overlap.SKIP`: a job is skipped if the entry's last job has not ended.
    - `Overlap.REPLACE`: the entry's last job is cancelled first, as by `cancel` (`lifecycle.REPLACED`).
    - A job that is NEW becomes the entry's last job. A job that is REPLACED counts as skipped.

    Answer: one `TickResult` per tick, in order.
    """

    verb: ClassVar[str] = "tick"

    ticks: Sequence[Tick]
