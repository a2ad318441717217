"""Which jobs a bulk act selects: what its filter means, and when two filters select the same jobs."""

from __future__ import annotations

from itertools import starmap

from msgspec.structs import replace

from penstock.inspector.job_acts import JobAct, every_state, usual_states
from penstock.stores.contract import JobFilter, JobOrder, TimeRange, check_search

__all__ = ["filter_of_act", "is_everything", "select_same_jobs", "until"]


def filter_of_act(act: JobAct, filter: JobFilter) -> JobFilter:
    """The filter with the states for which the act is meant, if it names none. Raises ConfigError."""
    checked = check_search(filter, JobOrder.ENQUEUED)
    usual = usual_states(act)
    if checked.states or usual == every_state(act):
        return checked
    return check_search(replace(filter, states=usual), JobOrder.ENQUEUED)


def is_everything(act: JobAct, filter: JobFilter) -> bool:
    """Whether the filter selects all jobs that the act can change."""
    if replace(filter, states=()) != JobFilter():
        return False
    return not filter.states or set(filter.states) >= set(every_state(act))


def select_same_jobs(one: JobFilter, other: JobFilter) -> bool:
    """Whether the filters differ at most in their times, and these overlap.

    Most times count back from now, so they differ each time somebody asks for the same jobs.
    """
    ranges = zip(_ranges(one), _ranges(other), strict=True)
    return _without_times(one) == _without_times(other) and all(starmap(_overlap, ranges))


def until(range: TimeRange, instant: int) -> TimeRange:
    """The part of the range before this instant."""
    return replace(range, until=instant if range.until is None else min(range.until, instant))


def _ranges(filter: JobFilter) -> tuple[TimeRange, TimeRange, TimeRange]:
    return filter.enqueued, filter.due, filter.ended


def _without_times(filter: JobFilter) -> JobFilter:
    return replace(filter, enqueued=TimeRange(), due=TimeRange(), ended=TimeRange())


def _overlap(one: TimeRange, other: TimeRange) -> bool:
    return not (_is_before(one, other) or _is_before(other, one))


def _is_before(one: TimeRange, other: TimeRange) -> bool:
    return one.until is not None and other.since is not None and one.until <= other.since
