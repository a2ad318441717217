"""Schedules in plain words, and expressions that must cost nothing."""

from __future__ import annotations

import time

import pytest

from penstock.core.schedule import Schedule
from penstock.errors import ConfigError
from penstock.inspector import preview
from penstock.inspector.schedule_words import in_words
from tests.cases import each


@each(
    "text, words",
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/10 9-17 * * MON-FRI", "every 10 minutes from 09:00 to 17:59, Monday to Friday"),
        ("0 * * * *", "every hour"),
        ("5,35 * * * *", "every hour at minutes 5 and 35"),
        ("0 */2 * * *", "every 2 hours"),
        ("30 9-17 * * *", "every hour from 09:30 to 17:30"),
        ("30 3 * * *", "every day at 03:30"),
        ("0 9,17 * * 1-5", "Monday to Friday at 09:00 and 17:00"),
        ("0 0 * * 0", "every Sunday at 00:00"),
        ("0 0 * * 1,3,5", "on Monday, Wednesday and Friday at 00:00"),
        ("0 8 * * 5#3", "on the third Friday at 08:00"),
        ("0 8 * * 5L", "on the last Friday at 08:00"),
        ("0 0 1 * *", "on day 1 of each month at 00:00"),
        ("0 0 L * *", "on the last day at 00:00"),
        ("0 12 13 * FRI", "on day 13 or every Friday at 12:00"),
        ("0 8 1,15 3-5 *", "on days 1 and 15 from March to May at 08:00"),
        ("0 9 * JAN,JUL *", "every day in January and July at 09:00"),
        ("0 0 */2 * *", "every 2 days of the month at 00:00"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("30 15 10 * * *", "every day at 10:15:30"),
        ("@daily", "every day at 00:00"),
        ("every 30s", "every 30 seconds"),
        ("every 1h", "every hour"),
        ("0 0 * */3 *", "every day in January, April, July and October at 00:00"),
        ("0 0 * * 0,7", "every Sunday at 00:00"),
        ("1-5 * * * *", ""),
        ("*/40 * * * *", ""),  # minutes 0 and 40: 40 and 20 minutes apart
        ("0 */5 * * *", ""),
        ("0 0 */2 * 1", ""),  # both have to match: too unusual to say
    ],
)
def test_a_schedule_is_said_in_plain_words(text: str, words: str) -> None:
    assert in_words(Schedule.of(text)) == words


@pytest.mark.parametrize(
    "text",
    [
        "0 0 1--100000000 * *",
        "0 0 1-100000000 * *",
        "*/5 * * * 99999999999999999999999",
        "0-100000000000/1 * * * * *",
        "0 0 30 2 *",
        "*" * 100_000,
        "1," * 50_000 + "1 * * * *",
        "every 99999999999999999999999w",
        "\x00 * * * *",
    ],
)
def test_a_hostile_expression_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError):
        preview(text, None, 0, 5)
    assert len(in_words(Schedule(text))) < 60
    assert time.process_time() - began < 0.5
