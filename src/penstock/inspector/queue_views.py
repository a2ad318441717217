"""Queues, and the collecting batches and periodic entries in them, as operators see them.

Instants are ISO 8601 in UTC to the millisecond, durations are seconds; a lease's token is never shown.
"""

from __future__ import annotations

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.job import State
from penstock.core.lifecycle import UNREADABLE
from penstock.core.schedule import Entry
from penstock.inspector.formats import instant, iso, json_or_base64
from penstock.stores.contract import BatchInfo, QueueInfo, QueueStats

__all__ = [
    "BatchView",
    "EntryView",
    "LimitsView",
    "ParkedView",
    "QueueStatsView",
    "QueueView",
    "batch_view",
    "entry_view",
    "queue_view",
    "stats_view",
]


class LimitsView(msgspec.Struct, frozen=True):
    """What was set for a queue; None: no limit. `rate` as it may be written, ages in seconds."""

    max_size: int | None
    on_full: str
    max_running: int | None
    rate: str | None
    burst: int | None
    keep_finished: int | None
    keep_dead: int | None
    keep_finished_for: float | None
    keep_dead_for: float | None


class QueueView(msgspec.Struct, frozen=True):
    """A queue: how many jobs in each state, its switches and limits, since when its oldest ready job waits,
    and until when it is held, if it is."""

    name: str
    counts: dict[str, int]
    paused: bool
    closed: bool
    oldest_available_at: str | None
    limits: LimitsView
    throttled_until: str | None
    waits_for: str | None  # why nothing that is ready starts, in words
    away: str = ""  # why nothing can be said of it now


class ParkedView(msgspec.Struct, frozen=True):
    """How many jobs of a task are parked in a queue; `known_to`: the workers of that queue that know the task
    (by their ids), which take them as they have room."""

    queue: str
    task: str
    jobs: int
    known_to: list[str]


class DayView(msgspec.Struct, frozen=True):
    """What ended on one UTC day."""

    day: str
    processed: int
    failed: int


class QueueStatsView(msgspec.Struct, frozen=True):
    """A queue's totals since its first job, and its last days, newest first."""

    name: str
    enqueued: int
    processed: int
    failed: int
    days: list[DayView]


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is still collecting; `due_at` None: not before it is full."""

    queue: str
    task: str
    key: str
    size: int
    oldest_at: str
    due_at: str | None


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic entry. `next_at` is its next instant that has no job yet, without the jitter; `by` is code
    or operator; `jitter` is seconds; `last` is the id of its newest job."""

    queue: str
    name: str
    task: str
    schedule: str
    tz: str
    paused: bool
    by: str
    next_at: str | None
    misfire: str
    catch_up: int
    overlap: str
    jitter: float
    last: str | None
    enqueued: int
    skipped: int
    payload: msgspec.Raw | None
    payload_base64: str | None


def queue_view(info: QueueInfo) -> QueueView:
    """A queue's counts in the order of the lifecycle, and its switches."""
    counts = {state.value: info.counts[state] for state in State if info.counts.get(state)}
    limits = info.limits
    rate = limits.rate
    return QueueView(
        info.name,
        counts,
        info.paused,
        info.closed,
        iso(info.oldest_available),
        LimitsView(
            limits.max_size,
            limits.on_full.value,
            limits.max_running,
            None if rate is None else str(rate),
            None if rate is None else rate.burst,
            limits.keep_finished,
            limits.keep_dead,
            None if limits.keep_finished_for is None else limits.keep_finished_for / 1000,
            None if limits.keep_dead_for is None else limits.keep_dead_for / 1000,
        ),
        iso(info.throttled_until),
        _waits_for(info),
        info.away,
    )


def stats_view(stats: QueueStats) -> QueueStatsView:
    """A queue's totals and days."""
    days = [DayView(d.day, d.processed, d.failed) for d in stats.days]
    return QueueStatsView(stats.name, stats.enqueued, stats.processed, stats.failed, days)


def batch_view(info: BatchInfo) -> BatchView:
    """A collecting batch, with its instants in words."""
    return BatchView(
        queue=info.queue,
        task=info.task,
        key=info.key,
        size=info.size,
        oldest_at=instant(info.oldest),
        due_at=iso(info.due),
    )


def entry_view(entry: Entry, now: int) -> EntryView:
    """A periodic entry, as it stands at this instant."""
    spec = entry.spec
    payload, base64 = json_or_base64(spec.job.payload)
    try:
        coming = None if entry.paused else spec.schedule.next(max(entry.watermark, now))
    except ConfigError:  # a time zone that this machine does not know
        coming = None
    return EntryView(
        queue=spec.job.queue,
        name=spec.name,
        task=spec.job.task,
        schedule=spec.schedule.text if entry.unreadable is None else UNREADABLE + entry.unreadable,
        tz=spec.schedule.tz,
        paused=entry.paused,
        by="code" if spec.by_code else "operator",
        next_at=iso(coming),
        misfire=spec.misfire,
        catch_up=spec.catch_up,
        overlap=spec.overlap,
        jitter=spec.jitter / 1000,
        last=entry.last,
        enqueued=entry.enqueued,
        skipped=entry.skipped,
        payload=payload,
        payload_base64=base64,
    )


def _waits_for(info: QueueInfo) -> str | None:
    if not info.counts.get(State.AVAILABLE):
        return None
    if info.paused:
        return "the queue is paused"
    if info.throttled_until is not None:
        return f"the queue is throttled until {iso(info.throttled_until)}"
    most, running = info.limits.max_running, info.counts.get(State.RUNNING, 0)
    if most is not None and running >= most:
        return f"{running} of its jobs run, as many as its max_running allows"
    return None if info.limits.rate is None else f"its rate is {info.limits.rate}"
