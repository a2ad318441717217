"""Queues, collecting batches and periodic entries as operators see them.

Instants are ISO 8601 in UTC to the millisecond, durations are seconds; lease tokens are never shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.errors import ConfigError
from penstock.core.formats import instant, iso, json_or_base64
from penstock.core.job import State
from penstock.core.lifecycle import UNREADABLE
from penstock.core.limit_layers import LimitLayers
from penstock.core.limits import QueueLimits
from penstock.core.schedule import Entry
from penstock.inspector.schedule_words import in_words
from penstock.stores.contract import BatchInfo, Parked, QueueInfo, QueueStats, WorkerInfo

__all__ = [
    "BatchView",
    "EntryView",
    "LimitsView",
    "ParkedView",
    "QueueStatsView",
    "QueueView",
    "batch_view",
    "entry_view",
    "parked_view",
    "queue_view",
    "queue_views",
    "stats_view",
    "takes_parked",
]


class LimitsView(msgspec.Struct, frozen=True):
    """The limits of a queue; None: no limit. `rate` is text that can be set again, ages are seconds."""

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
    """A queue: number of jobs per state, switches and limits, since when its oldest ready job waits, and
    until when it is throttled, if it is."""

    name: str
    counts: dict[str, int]
    paused: bool
    closed: bool
    oldest_available_at: str | None
    limits: LimitsView
    throttled_until: str | None
    waits_for: str | None  # why no ready job starts, as text
    away: str = ""  # why the queue cannot be read now
    #: Who has set each limit, "operator" or "code"; others have their default.
    set_by: dict[str, str] = {}
    #: The limits that the app's code sets, also where an operator's are in effect.
    by_code: dict[str, Any] = {}
    #: Number of live workers that fetch its jobs; None where it is not counted.
    workers: int | None = None
    #: If `max_running` keeps it from starting more: the first of the running jobs.
    held_by: list[str] = []
    #: Who made the latest change of what keeps it from starting jobs (a pause, a throttle), if known.
    stopped_by: str | None = None


class ParkedView(msgspec.Struct, frozen=True):
    """Number of parked jobs of a task in a queue. `known_to`: ids of the queue's workers that know the task
    and will take the jobs when they have free slots."""

    queue: str
    task: str
    jobs: int
    known_to: list[str]


class DayView(msgspec.Struct, frozen=True):
    """The jobs that ended on one UTC day."""

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
    """A periodic entry. `next_at` is its next instant without a job, without jitter; `by` is "code" or
    "operator"; `jitter` is in seconds; `last` is the id of its newest job."""

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
    words: str = ""  # the schedule as people say it; "" if there is no such sentence


def queue_view(info: QueueInfo) -> QueueView:
    """A queue's counts in the order of the lifecycle, its switches and limits."""
    counts = {state.value: info.counts[state] for state in State if info.counts.get(state)}
    return QueueView(
        info.name,
        counts,
        info.paused,
        info.closed,
        iso(info.oldest_available),
        _limits(info.limits),
        iso(info.throttled_until),
        _waits_for(info),
        info.away,
        _sources(info.layers),
        _by_code(info.layers),
    )


def queue_views(infos: Sequence[QueueInfo], workers: Sequence[WorkerInfo]) -> list[QueueView]:
    """Queues with the number of workers that fetch their jobs."""
    serving = Counter(name for w in workers if w.state == "running" for name in set(w.queues))
    return [replace(queue_view(info), workers=serving[info.name]) for info in infos]


def parked_view(parked: Parked, workers: Sequence[WorkerInfo]) -> ParkedView:
    """Parked jobs, with the workers that know their task."""
    knowing = [w.id for w in workers if takes_parked(w, parked)]
    return ParkedView(parked.queue, parked.task, parked.jobs, knowing)


def takes_parked(worker: WorkerInfo, parked: Parked) -> bool:
    """Whether the worker takes these parked jobs."""
    known = parked.task in worker.tasks or parked.queue in worker.handled
    return known and parked.queue in worker.queues


def _limits(limits: QueueLimits) -> LimitsView:
    rate = limits.rate
    return LimitsView(
        limits.max_size,
        limits.on_full.value,
        limits.max_running,
        None if rate is None else str(rate),
        None if rate is None else rate.burst,
        limits.keep_finished,
        limits.keep_dead,
        None if limits.keep_finished_for is None else limits.keep_finished_for / 1000,
        None if limits.keep_dead_for is None else limits.keep_dead_for / 1000,
    )


def _sources(layers: LimitLayers) -> dict[str, str]:
    found = {name: layers.source(_limit_of(name)) for name in LimitsView.__struct_fields__}
    return {name: source for name, source in found.items() if source != "default"}


def _by_code(layers: LimitLayers) -> dict[str, Any]:
    only = LimitLayers(code=layers.code)
    shown = msgspec.structs.asdict(_limits(only.limits()))
    return {name: value for name, value in shown.items() if only.source(_limit_of(name)) == "code"}


def _limit_of(name: str) -> str:
    """The limit that a name of the view belongs to: a burst is part of its rate."""
    return "rate" if name == "burst" else name


def stats_view(stats: QueueStats) -> QueueStatsView:
    """A queue's totals and days."""
    days = [DayView(d.day, d.processed, d.failed) for d in stats.days]
    return QueueStatsView(stats.name, stats.enqueued, stats.processed, stats.failed, days)


def batch_view(info: BatchInfo) -> BatchView:
    """A collecting batch, with instants as text."""
    return BatchView(
        queue=info.queue,
        task=info.task,
        key=info.key,
        size=info.size,
        oldest_at=instant(info.oldest),
        due_at=iso(info.due),
    )


def entry_view(entry: Entry, now: int) -> EntryView:
    """A periodic entry at the store's time `now`."""
    spec = entry.spec
    payload, base64 = json_or_base64(spec.job.payload)
    try:
        coming = None if entry.paused else spec.schedule.next(max(entry.watermark, now))
    except ConfigError:  # a time zone unknown on this machine
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
        words=in_words(spec.schedule) if entry.unreadable is None else "",
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
        return f"{running} of its jobs run, the maximum by its max_running"
    return None if info.limits.rate is None else f"its rate is {info.limits.rate}"
