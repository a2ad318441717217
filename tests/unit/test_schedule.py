"""Schedules: cron in a time zone, intervals, and days of clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
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


#: Zones whose clocks change by other steps than an hour, not on the hour, at midnight, or by a whole day.
ODD_ZONES = {
    "Australia/Lord_Howe": ("2026-04-04", "2026-10-03"),  # half an hour
    "Pacific/Chatham": ("2026-04-04", "2026-09-26"),  # at 2:45
    "Antarctica/Troll": ("2026-03-28", "2026-10-24"),  # two hours
    "America/St_Johns": ("2026-03-07", "2026-10-31"),  # an offset of half an hour
    "America/Santiago": ("2026-04-04", "2026-09-05"),  # no midnight; an hour before midnight twice
    "Asia/Beirut": ("2026-03-28", "2026-10-24"),
    "America/Havana": ("2026-03-07", "2026-10-31"),
    "Atlantic/Azores": ("2026-03-28", "2026-10-24"),
    "Africa/Casablanca": ("2026-02-14", "2026-03-21"),
    "Europe/Dublin": ("2026-03-28", "2026-10-24"),
    "Asia/Kathmandu": ("1985-12-31",),  # a quarter of an hour
    "Asia/Pyongyang": ("2018-05-04",),
    "America/Caracas": ("2007-12-08", "2016-04-30"),
    "Pacific/Apia": ("2011-12-29",),  # a day is left out
}
EVERY = set(range(60))
#: Expressions that go by elapsed time, with their minutes, hours and days of the week.
BY_ELAPSED_TIME: dict[str, tuple[set[int], set[int], set[int]]] = {
    "0 */3 * * *": ({0}, set(range(0, 24, 3)), EVERY),
    "*/20 3 * * *": ({0, 20, 40}, {3}, EVERY),
    "*/5 3 * * *": (set(range(0, 60, 5)), {3}, EVERY),
    "40 * * * *": ({40}, EVERY, EVERY),
    "0 * * * *": ({0}, EVERY, EVERY),
    "10,50 */2 * * *": ({10, 50}, set(range(0, 24, 2)), EVERY),
    "*/20 0 * * *": ({0, 20, 40}, {0}, EVERY),
    "*/20 0,1,2,23 * * SUN": ({0, 20, 40}, {0, 1, 2, 23}, {6}),
    "*/7 * * * *": (set(range(0, 60, 7)), EVERY, EVERY),
}


@pytest.mark.parametrize("tz", ODD_ZONES)
def test_in_every_zone_each_minute_whose_clock_time_matches_is_an_instant(tz: str) -> None:
    """Compared with a look at every minute of the four days around a change of the clocks."""
    zone = ZoneInfo(tz)
    for day in ODD_ZONES[tz]:
        start = ms(f"{day}T00:00:00+00:00") // 60_000 - 1_440
        minutes = [
            (minute, datetime.fromtimestamp(minute * 60, zone))
            for minute in range(start + 1, start + 4 * 1_440)
        ]
        assert len({local.utcoffset() for _, local in minutes}) > 1, f"no change of the clocks at {day}"
        for cron, (of_minute, of_hour, of_day) in BY_ELAPSED_TIME.items():
            expected = [
                minute * 60_000
                for minute, local in minutes
                if local.minute in of_minute and local.hour in of_hour and local.weekday() in of_day
            ]
            schedule = Schedule.of(cron, tz=tz)
            found = schedule.between(start * 60_000, (start + 4 * 1_440 - 1) * 60_000, 10_000)
            assert found == expected, f"{cron} in {tz} at {day}"


@pytest.mark.parametrize("tz", ODD_ZONES)
def test_in_every_zone_each_fixed_time_of_a_day_has_one_instant(tz: str) -> None:
    """The first one if it comes twice, and the end of the gap if it is left out."""
    zone = ZoneInfo(tz)
    for day in ODD_ZONES[tz]:
        start = datetime.fromisoformat(day) - timedelta(days=1)
        for cron, (of_minute, of_hour) in {
            "15 2 * * *": ({15}, {2}),
            "0 0 * * *": ({0}, {0}),
            "30 0,1,2,3,23 * * *": ({30}, {0, 1, 2, 3, 23}),
        }.items():
            named = [start + timedelta(minutes=n) for n in range(1, 4 * 1_440)]
            named = [one for one in named if one.minute in of_minute and one.hour in of_hour]
            expected = {_first_at_or_after(one, zone) for one in named}
            after = round(start.replace(tzinfo=zone).timestamp()) * 1_000
            found = Schedule.of(cron, tz=tz).between(after, max(expected), 100)
            assert found == sorted(expected), f"{cron} in {tz} at {day}"


def _first_at_or_after(named: datetime, zone: ZoneInfo) -> int:
    """The first instant at which clocks show this time, or a later one because they pass it over."""
    while True:
        real = named.replace(tzinfo=zone).astimezone(UTC)
        if real.astimezone(zone).replace(tzinfo=None) == named:
            return round(real.timestamp()) * 1_000
        named += timedelta(minutes=1)


def test_a_clock_that_changes_by_half_an_hour_loses_no_run() -> None:
    def on(cron: str) -> list[str]:
        return [one[11:16] for one in times(cron, "2026-10-03T14:00:00Z", 3, "Australia/Lord_Howe")]

    assert on("0 */3 * * *") == ["03:00", "06:00", "09:00"]
    assert on("*/20 3 * * *") == ["03:00", "03:20", "03:40"]
    assert on("15 2 * * *")[0] == "02:30", "2:15 is left out: the end of the gap"


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
