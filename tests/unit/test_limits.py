"""Rates and limits as users write them, and one clear error for each invalid value."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Rate
from penstock.errors import ConfigError
from tests.cases import each


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/min", Rate(100, 60_000)),
        ("200/s", Rate(200, 1_000)),
        ("5/2s", Rate(5, 2_000)),
        ("1/day", Rate(1, 86_400_000)),
        ("0.5/s", Rate(0.5, 1_000)),
        ("3 / 2 minutes", Rate(3, 120_000)),
        ("10/h", Rate(10, 3_600_000)),
        ("7/Week", Rate(7, 604_800_000)),
        ("1/250ms", Rate(1, 250)),
        (" 2/sec ", Rate(2, 1_000)),
    ],
)
def test_a_rate_is_read_and_written(text: str, rate: Rate) -> None:
    assert Rate.of(text) == rate
    assert Rate.of(str(rate)) == rate


def test_a_burst_is_said_beside_the_rate() -> None:
    assert Rate.of("100/min", burst=10) == Rate(100, 60_000, 10)
    assert Rate.of(Rate(100, 60_000, 10)) == Rate(100, 60_000, 10)
    assert Rate.of(Rate(100, 60_000, 10), burst=3) == Rate(100, 60_000, 3)


def test_the_step_is_the_time_between_two_starts() -> None:
    assert Rate.of("200/s").step == 5
    assert Rate.of("1/day").step == 86_400_000


@each(
    "value, burst, says",
    [
        ("0/s", None, "never let a job start"),
        ("-1/s", None, "never let a job start"),
        ("5/0s", None, "never let a job start"),
        ("100", None, "not a rate"),
        ("fast", None, "not a rate"),
        ("", None, "not a rate"),
        ("100/", None, "not a rate"),
        ("100/fortnight", None, "not a rate"),
        ("1/.s", None, "not a rate"),
        ("nan/s", None, "not a rate"),
        (5, None, "not a rate"),
        (None, None, "not a rate"),
        ("0.1/100w", None, "one per year"),
        ("5000000/s", None, "million per second"),
        (Rate(float("inf"), 1), None, "never let a job start"),
        (Rate(float("nan"), 1), None, "never let a job start"),
        (Rate(5, 1_500.5), None, "per_ms= is a whole number"),  # type: ignore[arg-type]
        (Rate(True, 1_000), None, "not a rate"),
        (Rate("5", 1_000), None, "not a rate"),  # type: ignore[arg-type]
        ("5/s", 0, "burst=0"),
        ("5/s", -1, "burst=-1"),
        ("5/s", 2.5, r"burst=2\.5"),
        ("5/s", True, "burst=True"),
        ("5/s", 10_000_000, "burst=10000000"),
    ],
)
def test_a_rate_that_makes_no_sense_gets_one_clear_error(value: Any, burst: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Rate.of(value, burst=burst, what="rate")
