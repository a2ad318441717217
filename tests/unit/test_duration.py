"""Durations and instants: seconds, timedeltas, "5m" and aware datetimes are converted to ms."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.formats import Duration, format_ms, instant_ms, milliseconds
from penstock.errors import ConfigError
from tests.cases import each


@each(
    "value, ms",
    [
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (1, 1_000),
        (1.5, 1_500),
        (0.001, 1),
        (0.0001, 1),  # rounded up: nothing starts early
        (0.1 + 0.2, 300),  # but not for the noise of a float
        (timedelta(0), 0),
        (timedelta(minutes=5), 300_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=-1, hours=25), 3_600_000),
        ("0s", 0),
        ("250ms", 250),
        ("90s", 90_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1w", 604_800_000),
        ("1h30m", 5_400_000),
        ("1d 2h 3m 4s 5ms", 93_784_005),
        ("1.5h", 5_400_000),
        ("0.5ms", 1),
        (" 5M ", 300_000),
        (365 * 86_400 * 1_000, 365 * 86_400 * 1_000 * 1_000),
    ],
)
def test_a_duration_in_ms(value: Duration, ms: int) -> None:
    found = milliseconds(value)
    assert found == ms
    assert type(found) is int


@each(
    "value, says",
    [
        (-1, "negative"),
        (-0.001, "negative"),
        (float("nan"), "not a number"),
        (float("-inf"), "negative"),
        (float("inf"), "1000 years"),
        (10**20, "1000 years"),
        (timedelta(seconds=-1), "negative"),
        (timedelta.max, "1000 years"),
        ("-5s", "negative"),
        ("", "not a duration"),
        ("5", "not a duration"),
        ("5 minutes", "not a duration"),
        ("5x", "not a duration"),
        ("s", "not a duration"),
        ("5s!", "not a duration"),
        ("1e3s", "not a duration"),
        ("9999999999w", "1000 years"),
        ("1s" * 60, "not a duration"),  # too long: the time for such texts grows with the square
        ("9" * 30_000, "not a duration"),
        (True, "not a duration"),
        (None, "not a duration"),
        ([5], "not a duration"),
        (b"5s", "not a duration"),
        (datetime(2026, 1, 1, tzinfo=UTC), "not a duration"),
    ],
)
def test_what_is_no_duration_is_refused_by_its_name(value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        milliseconds(value, what="delay")  # type: ignore[arg-type]
    assert str(refused.value).startswith("delay=")


@given(st.integers(0, 1_000 * 365 * 86_400_000))
def test_whole_ms_stay_what_they_are(ms: int) -> None:
    assert milliseconds(timedelta(milliseconds=ms)) == ms
    assert milliseconds(f"{ms}ms") == ms


@given(st.floats(0, 10**9))
def test_nothing_starts_early(seconds: float) -> None:
    ms = milliseconds(seconds)
    assert seconds * 1_000 - 1e-6 <= ms < seconds * 1_000 + 1


# ── instants ──


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), 1_700_000_000_000),
        (datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC), 1_700_000_000_001),  # rounded up
        (datetime(2023, 11, 14, 22, 13, 20, 999_000, tzinfo=UTC), 1_700_000_000_999),
        (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), -1_000),
    ],
    ids=str,
)
def test_an_instant_in_ms(value: datetime, ms: int) -> None:
    assert instant_ms(value) == ms


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (datetime(2026, 1, 1), "naive"),
        (date(2026, 1, 1), "not a datetime"),
        (1_700_000_000, "not a datetime"),
        ("2026-01-01T00:00:00Z", "not a datetime"),
        (None, "not a datetime"),
    ],
    ids=repr,
)
def test_what_is_no_instant_is_refused_by_its_name(value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        instant_ms(value, what="expires_at")  # type: ignore[arg-type]
    assert str(refused.value).startswith("expires_at=")


# ── for people ──


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (1_500, "1.5s"),
        (59_940, "59.9s"),
        (60_000, "1m"),
        (125_000, "2m 5s"),
        (3_600_000, "1h"),
        (3_665_000, "1h 1m"),
        (90_000_000, "1d 1h"),
        (86_405_000, "1d 5s"),
    ],
)
def test_a_duration_for_people(ms: int, text: str) -> None:
    assert format_ms(ms) == text
