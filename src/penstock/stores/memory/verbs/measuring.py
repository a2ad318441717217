"""Statistics of the memory store."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.stores.contract import (
    ERRORS_KEPT,
    ErrorGroup,
    Resolution,
    StatsPage,
    StatsReport,
    StatsRow,
)
from penstock.stores.memory.state import MemoryState

__all__ = ["add_stats", "read_errors", "read_stats"]


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
        if oldest <= period
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
