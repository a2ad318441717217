"""Statistics of the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from penstock.core.job import Job
from penstock.stores.contract import (
    ERRORS_KEPT,
    SIZE_SAMPLE,
    ErrorGroup,
    QueueSize,
    Resolution,
    StatsPage,
    StatsReport,
    StatsRow,
)
from tests.oracle.rows import MemoryQueue
from tests.oracle.state import MemoryState

__all__ = ["add_stats", "queue_sizes", "read_errors", "read_stats"]

#: About the size of a job without its arguments, result and errors (bytes).
_JOB = 1_500


def add_stats(memory: MemoryState, reports: Sequence[StatsReport]) -> list[bool]:
    now = memory.clock.now()
    for report in reports:
        queue = memory.queues.get(report.queue)
        if queue is None or not queue.statistics.is_new(report.source, report.number, now):
            continue
        for count in report.tasks:
            queue.statistics.add(count, now)
        for error in report.errors:
            queue.statistics.add_errors(queue.name, error, now)
    return [True] * len(reports)


def read_stats(
    memory: MemoryState, resolution: Resolution, span: int, queue: str | None, task: str | None
) -> StatsPage:
    now, length = memory.clock.now(), resolution.length
    oldest = max(resolution.oldest(now), (now - span) // length)
    rows = [
        StatsRow(one.name, name, period * length, stats)
        for one in memory.known(None if queue is None else [queue])
        for period, tasks in sorted(one.statistics.periods[resolution].items())
        if oldest <= period <= now // length
        for name, stats in sorted(tasks.items())
        if task in (None, name)
    ]
    return StatsPage(rows, now)


def read_errors(memory: MemoryState, queue: str | None, task: str | None) -> list[ErrorGroup]:
    oldest = memory.clock.now() - ERRORS_KEPT
    found = [
        group
        for one in memory.known(None if queue is None else [queue])
        for group in one.statistics.errors.values()
        if task in (None, group.task) and group.last > oldest
    ]
    return sorted(found, key=lambda group: -group.last)


def queue_sizes(memory: MemoryState, names: Sequence[str] | None) -> list[QueueSize]:
    wanted = None if names is None else sorted(set(names))
    return [_size_of(queue) for queue in memory.known(wanted)]


def _size_of(queue: MemoryQueue) -> QueueSize:
    jobs, some = len(queue.rows), [row.job for row in islice(queue.rows.values(), SIZE_SAMPLE)]
    taken = sum(_JOB + len(job.spec.payload) + len(job.result or b"") + _errors(job) for job in some)
    return QueueSize(queue.name, taken * jobs // max(1, len(some)), jobs > len(some))


def _errors(job: Job) -> int:
    return sum(len(error.message) + len(error.traceback) for error in job.errors)
