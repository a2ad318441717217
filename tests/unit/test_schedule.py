"""Schedules: cron in a time zone, intervals, and days of clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.schedule import Schedule
from penstock.errors import ConfigError

BERLIN = ZoneInfo("Europe/Berlin")
YEAR = 366 * 86_400_000


def ms(text: str) -> int:
    """An instant, as it is written in Berlin if it says nothing else."""
    instant = datetime.fromisoformat(text)
    return round(instant.replace(tzinfo=instant.tzinfo or BERLIN).timestamp() * 1000)


def times(schedule: str, after: str, n: int, tz: str = "Europe/Berlin") -> list[str]:
    found = Schedule.of(schedule, tz=tz).between(ms(after), ms(after) + YEAR, n)
    return [
        datetime.fromtimestamp(instant / 1000, ZoneInfo(tz)).isoformat(" ", "seconds") for instant in found
    ]


# ── cron ──


def test_cron_goes_by_the_clock_of_its_time_zone() -> None:
    assert times("0 9 * * MON", "2026-11-20", 2) == ["2026-11-23 09:00:00+01:00", "2026-11-30 09:00:00+01:00"]
    assert times("0 9 1 * *", "2026-06-20", 1, "America/New_York") == ["2026-07-01 09:00:00-04:00"]


def test_the_first_instant_comes_after_the_one_that_is_asked_for() -> None:
    hourly = Schedule.of("0 * * * *")
    assert hourly.next(ms("2026-11-20T10:00:00Z")) == ms("2026-11-20T11:00:00Z")
    assert hourly.next(ms("2026-11-20T10:00:00Z") - 1) == ms("2026-11-20T10:00:00Z")


@pytest.mark.parametrize(
    ("name", "cron"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_names_stand_for_expressions(name: str, cron: str) -> None:
    assert times(name, "2026-03-01", 20) == times(cron, "2026-03-01", 20)


def test_a_sixth_field_in_front_is_for_seconds() -> None:
    assert times("*/20 30 9 * * *", "2026-11-20 09:30:10", 4) == [
        "2026-11-20 09:30:20+01:00",
        "2026-11-20 09:30:40+01:00",
        "2026-11-21 09:30:00+01:00",
        "2026-11-21 09:30:20+01:00",
    ]


# ── the days of changing clocks: in Berlin 2:00 is 3:00 on 2026-03-29, and 3:00 is 2:00 on 2026-10-25 ──


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_that_is_left_out_comes_at_the_end_of_the_gap(cron: str) -> None:
    assert times(cron, "2026-03-28 12:00", 2) == ["2026-03-29 03:00:00+02:00", "2026-03-30 02:30:00+02:00"]
    assert times(cron, "2026-03-29 03:00", 1) == ["2026-03-30 02:30:00+02:00"], "and not twice"


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_that_comes_twice_counts_once(cron: str) -> None:
    assert times(cron, "2026-10-24 12:00", 2) == ["2026-10-25 02:30:00+02:00", "2026-10-26 02:30:00+01:00"]
    # whoever asks between the two of them, too
    assert times(cron, "2026-10-25T02:10:00+01:00", 1) == ["2026-10-26 02:30:00+01:00"]


def test_what_goes_by_the_minute_goes_on_through_both() -> None:
    spring = Schedule.of("*/20 * * * *", tz="Europe/Berlin")
    for day in ("2026-03-29", "2026-10-25"):
        found = spring.between(ms(day), ms(f"{day} 12:00"), 100)
        assert {b - a for a, b in pairwise(found)} == {20 * 60_000}


def test_a_day_of_another_length_has_its_midnight() -> None:
    assert times("@daily", "2026-03-28 12:00", 2) == [
        "2026-03-29 00:00:00+01:00",
        "2026-03-30 00:00:00+02:00",
    ]
    assert times("@daily", "2026-10-24 12:00", 2) == [
        "2026-10-25 00:00:00+02:00",
        "2026-10-26 00:00:00+01:00",
    ]


CRONS = [
    "30 2 * * *",
    "*/7 * * * *",
    "0 2-3 * * *",
    "*/20 2 * * *",
    "10,40 30 2 * * *",
    "0 0 1 * *",
    "every 7m",
]


@given(st.sampled_from(CRONS), st.integers(ms("2026-03-01"), ms("2026-12-01")), st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_instants_are_the_same_wherever_one_begins(cron: str, start: int, hours: int) -> None:
    schedule = Schedule.of(cron, tz=None if cron.startswith("every") else "Europe/Berlin")
    end = start + hours * 3_600_000
    found = schedule.between(start, end, 10**6)
    assert sorted(set(found)) == found
    middle = start + (end - start) // 3
    assert schedule.between(start, middle, 10**6) + schedule.between(middle, end, 10**6) == found
    for most in (1, 5, 100):
        assert schedule.latest(start, end, most) == found[-most:]


def test_the_latest_jobs_are_found_without_a_scan() -> None:
    every_second = Schedule.of(every=1)
    assert every_second.latest(0, ms("2026-11-20T00:00:00Z"), 2) == [
        ms("2026-11-19T23:59:59Z"),
        ms("2026-11-20T00:00:00Z"),
    ]
    assert (
        every_second.latest(5, 5, 9) == every_second.latest(0, 9, 9) == every_second.latest(0, 9999, 0) == []
    )


# ── every ──


def test_every_counts_from_the_beginning_of_1970() -> None:
    assert Schedule.of(every="90m").between(0, 4 * 3_600_000, 9) == [5_400_000, 10_800_000]
    assert Schedule.of(every=30).next(ms("2026-11-20T10:00:10Z")) == ms("2026-11-20T10:00:30Z")


@pytest.mark.parametrize(
    ("every", "text"), [(1, "every 1s"), ("1h30m", "every 90m"), ("48h", "every 2d"), ("7d", "every 1w")]
)
def test_every_is_written_in_one_way(every: str, text: str) -> None:
    assert Schedule.of(every=every) == Schedule(text) == Schedule.of(text) == Schedule.of(f"@{text}")


# ── what makes no sense ──


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("61 * * * *", "'61 * * * *' is not a cron expression: bad minute"),
        ("* * * *", "wrong number of fields; write minute, hour"),
        ("", "wrong number of fields"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 * * MON-", "bad day-of-week"),
        ("@dayly", "did you mean '@daily'"),
        ("@", "the aliases are @yearly"),
        ("every", "is not a duration"),
        ("every 0s", "whole seconds, 1s or more"),
        ("every -5s", "is negative"),
        ("every 1500ms", "whole seconds, 1s or more"),
        (5, "5 is not a schedule"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schedule.of(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tz", ["Europe/Berln", "Europe", "../etc/passwd", "", "/", 5])
def test_an_unknown_time_zone_is_refused(tz: str) -> None:
    with pytest.raises(ConfigError, match=r"tz=.* is not a time zone"):
        Schedule.of("@daily", tz=tz)


def test_a_time_zone_without_clock_times_and_two_schedules_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave tz='Europe/Berlin' out"):
        Schedule.of(every="5m", tz="Europe/Berlin")
    for both in ({}, {"text": "@daily", "every": 5}):
        with pytest.raises(ConfigError, match="give one of the two"):
            Schedule.of(**both)


def test_utc_is_the_time_zone_of_who_names_none() -> None:
    assert Schedule.of("@daily").next(0) == round(datetime(1970, 1, 2, tzinfo=UTC).timestamp() * 1000)
