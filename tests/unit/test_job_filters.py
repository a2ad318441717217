"""Filters of jobs as people write them: the parser that all interfaces have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from penstock.cli.commands import jobs
from penstock.core.errors import ConfigError
from penstock.core.job import Ref, State
from penstock.inspector import FILTERS, filter_texts, read_filter
from penstock.stores.contract import JobFilter, TimeRange

NOW = 1_800_000_000_000
MINUTE = 60_000
#: The filters that the command line does not have.
WITHOUT_OPTION = {"time", "before", "not-task", "not-state"}


def read(**given: Sequence[str]) -> JobFilter:
    values = {name.replace("_", "-"): texts for name, texts in given.items()}
    return read_filter(values, now=NOW, written=lambda name, text: f"--{name} {text!r}")


def test_nothing_given_selects_every_job() -> None:
    assert read() == JobFilter()
    assert msgspec.json.encode(read()) == b"{}"


def test_each_filter_is_read() -> None:
    filter = read(
        queue=["a", "b", "a"],
        state=["Dead", "running"],
        task=["t"],
        worker=["w1"],
        flow=["q/f"],
        header=["tenant=ann", "note=a=b"],
        text=["4711"],
        not_task=["u"],
    )
    assert filter == JobFilter(
        queues=("a", "b"),
        states=(State.DEAD, State.RUNNING),
        task="t",
        worker="w1",
        flow=Ref("q", "f"),
        headers={"tenant": "ann", "note": "a=b"},
        text="4711",
        not_tasks=("u",),
    )


def test_excluded_states_are_left_out() -> None:
    assert read(state=["dead", "running"], not_state=["dead"]).states == (State.RUNNING,)
    assert State.DEAD not in read(not_state=["dead"]).states
    with pytest.raises(ConfigError, match="every state is excluded"):
        read(state=["dead"], not_state=["dead"])


@pytest.mark.parametrize(
    ("text", "instant"),
    [("2m", NOW - 2 * MINUTE), ("+2m", NOW + 2 * MINUTE), ("1970-01-01T00:01:00Z", MINUTE)],
)
def test_a_time_counts_from_now_or_is_a_timestamp(text: str, instant: int) -> None:
    assert read(since=[text]).enqueued == TimeRange(instant)


def test_a_range_is_of_the_time_that_is_named() -> None:
    assert read(time=["due"], until=["+1m"]).due == TimeRange(None, NOW + MINUTE)
    both = read(time=["ended"], since=["2m"], before=["1m"])
    assert (both.ended, both.enqueued) == (TimeRange(NOW - 2 * MINUTE), TimeRange(None, NOW - MINUTE))
    assert read(until=["1m"], before=["2m"]).enqueued == TimeRange(None, NOW - 2 * MINUTE)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"state": ["ded"]}, r"'ded' is not a state \(did you mean 'dead'\?\)"),
        ({"header": ["x"]}, "--header 'x' is not NAME=VALUE"),
        ({"header": ["=x"]}, "--header '=x' is not NAME=VALUE"),
        ({"flow": ["f"]}, "--flow 'f' names no queue: write QUEUE/ID"),
        ({"flow": ["q/"]}, "--flow 'q/' is not QUEUE/ID: "),
        ({"time": ["soon"]}, "--time 'soon' is not one of enqueued, due, ended"),
        ({"since": ["soon"]}, r"--since 'soon' is not a time: write 2h \(ago\), \+2h, or 2026-"),
        ({"until": ["2026-13-01T00:00:00Z"]}, "--until '2026-13-01T00:00:00Z' is not a time: write 2026-"),
        ({"before": ["2026-11-20"]}, "has no time zone: write 2026-11-20T00:00:00Z for UTC"),
        ({"since": ["1h"], "until": ["2h"]}, "--since '1h' is not before --until '2h': no job can match"),
    ],
)
def test_an_error_quotes_the_filter_and_says_what_to_write(given: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read(**given)


@pytest.mark.parametrize(
    "filter",
    [
        JobFilter(),
        JobFilter(("a", "b"), (State.DEAD,), "t", "w", Ref("q", "f"), {"a": "b=c"}, "x y", not_tasks=("u",)),
        JobFilter(enqueued=TimeRange(MINUTE, NOW)),
        JobFilter(due=TimeRange(MINUTE), enqueued=TimeRange(None, NOW)),
        JobFilter(ended=TimeRange(None, NOW)),
    ],
)
def test_a_filter_is_read_as_it_was_written(filter: JobFilter) -> None:
    texts = filter_texts(filter)
    assert read_filter(texts, now=0, written=lambda name, text: name) == filter


def test_the_command_line_has_the_filters_under_the_same_names() -> None:
    options = {option.name for option in jobs.list_.params}
    assert FILTERS.keys() - WITHOUT_OPTION <= options
    assert not WITHOUT_OPTION & options
