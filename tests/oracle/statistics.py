"""The statistics of one queue of the oracle."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from penstock.core.stats import OTHER, QueueDepth, TaskStats, depth_over_time, sum_of
from penstock.stores.contract import (
    ERRORS_KEPT,
    MOST_ERROR_GROUPS,
    MOST_STATS_TASKS,
    REPORTS_REMEMBERED,
    ErrorCount,
    ErrorGroup,
    Resolution,
    TaskCount,
)

__all__ = ["MemoryStatistics"]


class MemoryStatistics:
    """Statistics by period and task, depths by period, groups of errors, and the last reports."""

    def __init__(self) -> None:
        self.periods: dict[Resolution, dict[int, dict[str, TaskStats]]] = {one: {} for one in Resolution}
        self.depths: dict[Resolution, dict[int, QueueDepth]] = {one: {} for one in Resolution}
        #: The total of enqueued jobs at the first sample of each period that has a depth.
        self.totals: dict[Resolution, dict[int, int]] = {one: {} for one in Resolution}
        self.errors: dict[str, ErrorGroup] = {}  # by group, the latest error last
        self._reports: dict[str, tuple[int, int]] = {}  # by source: the last number, and when it came

    def is_new(self, source: str, number: int, now: int) -> bool:
        """Return whether this report was not added before, and remember it."""
        if self._reports.get(source, (0, 0))[0] >= number:
            return False
        self._reports[source] = number, now
        for other in [one for one, (_, at) in self._reports.items() if at <= now - REPORTS_REMEMBERED]:
            del self._reports[other]
        return True

    def add(self, count: TaskCount, now: int) -> None:
        """Add to the current minute, hour and day, and forget periods that are too old.

        Periods of a clock that was set back are forgotten as well, except for the next one.
        """
        for resolution, periods in self.periods.items():
            tasks = periods.setdefault(_current(periods, resolution, now), {})
            known = count.task in tasks or len(tasks) < MOST_STATS_TASKS
            name = count.task if known else OTHER
            tasks[name] = sum_of([tasks[name], count.stats]) if name in tasks else count.stats

    def add_depth(self, sample: QueueDepth, total: int, now: int) -> None:
        """Add to the current minute, hour and day, unless this minute has a sample. Forget as `add` does."""
        if now // Resolution.MINUTE.length in self.depths[Resolution.MINUTE]:
            return
        total = total if self.depths[Resolution.DAY] else 0
        for resolution, periods in self.depths.items():
            totals, period = self.totals[resolution], _current(periods, resolution, now)
            _current(totals, resolution, now)
            totals.setdefault(period, total)
            periods[period] = depth_over_time([periods[period], sample]) if period in periods else sample

    def add_errors(self, queue: str, count: ErrorCount, now: int) -> None:
        """Add to a group of errors, and forget the groups that are too old or too many."""
        found = self.errors.pop(count.group, None)
        first, before = (now, 0) if found is None else (found.first, found.count)
        self.errors[count.group] = ErrorGroup(
            queue,
            count.group,
            count.task,
            count.kind,
            count.message,
            before + count.count,
            first,
            now,
            count.job,
        )
        named = len(self.errors) - ("" in self.errors)
        for group in [one for one in self.errors if one][: max(0, named - MOST_ERROR_GROUPS)]:
            self._merge_into_other(self.errors.pop(group))
        for group in [one for one, facts in self.errors.items() if facts.last <= now - ERRORS_KEPT]:
            del self.errors[group]

    def _merge_into_other(self, gone: ErrorGroup) -> None:
        other = self.errors.get("")
        if other is None:
            self.errors[""] = replace(gone, group="", task=OTHER, kind="", message="")
            return
        self.errors[""] = replace(
            other,
            count=other.count + gone.count,
            first=min(other.first, gone.first),
            last=max(other.last, gone.last),
            job=gone.job,
        )


def _current(periods: dict[int, Any], resolution: Resolution, now: int) -> int:
    """The current period. Those that are too old or too late are removed."""
    period, oldest = now // resolution.length, resolution.oldest(now)
    for other in [one for one in periods if not oldest <= one <= period + 1]:
        del periods[other]
    return period
