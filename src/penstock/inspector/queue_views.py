"""Queues, their totals, parked jobs and collecting batches as operators see them.

Instants are ISO 8601 in UTC to the millisecond, durations are seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.formats import instant, iso
from penstock.core.job import State
from penstock.inspector.limit_views import LimitsView, limits_by_code, limits_view, sources_of_limits
from penstock.stores.contract import BatchInfo, Parked, QueueInfo, QueueStats, WorkerInfo

__all__ = [
    "BatchView",
    "ParkedView",
    "QueueStatsView",
    "QueueView",
    "batch_view",
    "parked_view",
    "queue_view",
    "queue_views",
    "stats_view",
    "takes_parked",
]


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


def queue_view(info: QueueInfo) -> QueueView:
    """A queue's counts in the order of the lifecycle, its switches and limits."""
    counts = {state.value: info.counts[state] for state in State if info.counts.get(state)}
    return QueueView(
        info.name,
        counts,
        info.paused,
        info.closed,
        iso(info.oldest_available),
        limits_view(info.limits),
        iso(info.throttled_until),
        _waits_for(info),
        info.away,
        sources_of_limits(info.layers),
        limits_by_code(info.layers),
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
