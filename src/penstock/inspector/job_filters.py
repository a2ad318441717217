"""Filters of jobs: how people write them, and which jobs of a filter an act selects.

Every interface has the filters of `FILTERS` under these names, as options or as query parameters, and calls
`read_filter`. `filter_texts` is its inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import starmap
from typing import Any, NamedTuple

from msgspec.structs import replace

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import instant, instant_ms, milliseconds
from penstock.core.ids import check_id, check_queue
from penstock.core.job import Ref, State
from penstock.inspector.job_acts import JobAct, every_state, usual_states
from penstock.stores.contract import JobFilter, JobOrder, TimeRange, check_search

# ── values, as people write them ─────────────────────────────────────────────────────────────────

#: The times of a job that may be in a range: fields of `JobFilter`.
TIMES = ("enqueued", "due", "ended")
_FORMS = "2h (ago), +2h, or 2026-11-20T08:30:00Z"


def parse_state(text: str) -> State:
    """Read a state's name. Raises ConfigError."""
    try:
        return State(text.lower())
    except ValueError:
        known = [s.value for s in State]
        near = did_you_mean(text.lower(), known)
        raise ConfigError(f"{text!r} is not a state{near}: one of {', '.join(known)}") from None


def parse_address(text: str) -> Ref | str:
    """Read an address: `"queue/id"` becomes a Ref; a bare id, to be looked up in all queues, stays text."""
    queue, slash, id = text.rpartition("/")
    return Ref(check_queue(queue), check_id(id)) if slash else check_id(text)


class _Value(NamedTuple):
    """One value of a filter. `written`: the filter and the value as the user wrote them, for errors; `now`:
    the instant (ms) from which a time such as 2h counts."""

    text: str
    written: str
    now: int


def _text(value: _Value) -> str:
    return value.text


def _state(value: _Value) -> State:
    return parse_state(value.text)


def _header(value: _Value) -> tuple[str, str]:
    name, equals, content = value.text.partition("=")
    if not name or not equals:
        raise ConfigError(f"{value.written} is not NAME=VALUE")
    return name, content


def _flow(value: _Value) -> Ref:
    try:
        ref = parse_address(value.text)
    except ConfigError as error:
        raise ConfigError(f"{value.written} is not QUEUE/ID: {error}") from None
    if not isinstance(ref, Ref):
        raise ConfigError(f"{value.written} names no queue: write QUEUE/ID")
    return ref


def _time(value: _Value) -> str:
    if value.text not in TIMES:
        raise ConfigError(f"{value.written} is not one of {', '.join(TIMES)}")
    return value.text


def _instant(value: _Value) -> int:
    """An instant in ms: `2h` before now, `+2h` from now, or a timestamp."""
    text = value.text
    if "T" in text or "-" in text.strip("+-"):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(f"{value.written} is not a time: write 2026-11-20T08:30:00Z") from None
        if moment.tzinfo is None:
            raise ConfigError(f"{value.written} has no time zone: write {moment.isoformat()}Z for UTC")
        return instant_ms(moment)
    try:
        offset = milliseconds(text.removeprefix("+"))
    except ConfigError:
        raise ConfigError(f"{value.written} is not a time: write {_FORMS}") from None
    return value.now + offset if text.startswith("+") else value.now - offset


# ── the filters ──────────────────────────────────────────────────────────────────────────────────


class FilterKind(NamedTuple):
    """How the values of a filter are read. `several`: it may be given several times."""

    read: Callable[[_Value], Any]
    several: bool = False


#: The filters of jobs by name. The range from `since` until `until` is of the time that `time` names, by
#: default of the enqueue; `before` is an end of the time of the enqueue beside such a range.
FILTERS: dict[str, FilterKind] = {
    "text": FilterKind(_text),
    "task": FilterKind(_text),
    "queue": FilterKind(_text, several=True),
    "state": FilterKind(_state, several=True),
    "worker": FilterKind(_text),
    "header": FilterKind(_header, several=True),
    "flow": FilterKind(_flow),
    "not-task": FilterKind(_text, several=True),
    "not-state": FilterKind(_state, several=True),
    "time": FilterKind(_time),
    "since": FilterKind(_instant),
    "until": FilterKind(_instant),
    "before": FilterKind(_instant),
}


def read_filter(
    given: Mapping[str, Sequence[str]], *, now: int, written: Callable[[str, str], str]
) -> JobFilter:
    """The filter of these values, by the names of `FILTERS`. Raises ConfigError, which quotes the value.

    `now`: the instant (ms) from which a time such as 2h counts. `written`: a filter and a value as the
    interface has them, such as `--since '2h'`.
    """
    values = {
        name: tuple(
            dict.fromkeys(kind.read(_Value(text, written(name, text), now)) for text in given.get(name, ()))
        )
        for name, kind in FILTERS.items()
    }
    one = {name: found[-1] for name, found in values.items() if found and not FILTERS[name].several}
    range = TimeRange(one.get("since"), one.get("until"))
    if range.since is not None and range.until is not None and range.since >= range.until:
        since, until = (written(name, given[name][-1]) for name in ("since", "until"))
        raise ConfigError(f"{since} is not before {until}: no job can match")
    filter = JobFilter(
        queues=values["queue"],
        states=_left(values["state"], values["not-state"]),
        task=one.get("task"),
        worker=one.get("worker"),
        flow=one.get("flow"),
        headers=dict(values["header"]),
        text=one.get("text", ""),
        not_tasks=values["not-task"],
    )
    if range != TimeRange():  # a range that is not given is not stored with a bulk act
        filter = replace(filter, **{one.get("time", "enqueued"): range})
    return replace(filter, enqueued=before(filter.enqueued, one["before"])) if "before" in one else filter


def _left(wanted: tuple[State, ...], excluded: tuple[State, ...]) -> tuple[State, ...]:
    """The states that are wanted, or all, without those that are excluded."""
    if not excluded:
        return wanted
    left = tuple(state for state in wanted or State if state not in excluded)
    if not left:
        raise ConfigError("every state is excluded")
    return left


def filter_texts(filter: JobFilter) -> dict[str, list[str]]:
    """The values from which `read_filter` makes this filter, with instants in the place of times that move.

    Of ranges of due and ended, one is written.
    """
    texts: dict[str, Sequence[str | None]] = {
        "text": [filter.text],
        "task": [filter.task],
        "queue": filter.queues,
        "state": [state.value for state in filter.states],
        "worker": [filter.worker],
        "header": [f"{name}={value}" for name, value in filter.headers.items()],
        "flow": [f"{ref.queue}/{ref.id}" for ref in (filter.flow,) if ref is not None],
        "not-task": filter.not_tasks,
    }
    ranged = next((name for name in ("ended", "due") if getattr(filter, name) != TimeRange()), "enqueued")
    for name, end, at in ends_of_ranges(filter):
        if name == ranged:
            texts |= {end: [instant(at)]} | ({} if name == "enqueued" else {"time": [name]})
        elif name == "enqueued" and end == "until":
            texts["before"] = [instant(at)]
    return {name: given for name, values in texts.items() if (given := [value for value in values if value])}


def ends_of_ranges(filter: JobFilter) -> Iterator[tuple[str, str, int]]:
    """The ends of the filter's ranges of time: which time, "since" or "until", and the instant (ms)."""
    for name in TIMES:
        range: TimeRange = getattr(filter, name)
        if range.since is not None:
            yield name, "since", range.since
        if range.until is not None:
            yield name, "until", range.until


# ── what a bulk act selects ──────────────────────────────────────────────────────────────────────


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


def before(range: TimeRange, instant: int) -> TimeRange:
    """The part of the range before this instant."""
    return replace(range, until=instant if range.until is None else min(range.until, instant))


def _ranges(filter: JobFilter) -> tuple[TimeRange, ...]:
    return tuple(getattr(filter, name) for name in TIMES)


def _without_times(filter: JobFilter) -> JobFilter:
    return replace(filter, **dict.fromkeys(TIMES, TimeRange()))


def _overlap(one: TimeRange, other: TimeRange) -> bool:
    return not (_is_before(one, other) or _is_before(other, one))


def _is_before(one: TimeRange, other: TimeRange) -> bool:
    return one.until is not None and other.since is not None and one.until <= other.since
