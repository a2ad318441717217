"""Schedules in plain words: `30 9 * * 1-5` is "Monday to Friday at 09:30"."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.core.errors import ConfigError
from penstock.core.schedule import Schedule

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_UNITS = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week"}
_NTH = ("", "first", "second", "third", "fourth", "fifth")
_PART = re.compile(r"(\*|[0-9a-z]{1,3}(?:-[0-9a-z]{1,3})?)(?:/([0-9]{1,2}))?", re.IGNORECASE)
#: Longer expressions, and longer lists, are not said in words.
_LONGEST, _MOST_TIMES = 200, 6


class _NoWordsError(Exception):
    """The expression is too unusual for a sentence."""


@dataclass(frozen=True)
class _Field:
    """A field: its parts as pairs of first and last value. `step`: of `*/step`; `every`: any value."""

    parts: tuple[tuple[int, int], ...] = ()
    step: int = 0
    every: bool = False

    @property
    def values(self) -> list[int] | None:
        """Its single values; None if it has ranges or steps."""
        if self.every or self.step or any(first != last for first, last in self.parts):
            return None
        return [first for first, _ in self.parts]


def in_words(schedule: Schedule) -> str:
    """The schedule as people say it, without its time zone; "" if that would not be clearer."""
    text = schedule.text
    try:
        if text.startswith("every "):
            return _interval(text.removeprefix("every "))
        cron = schedule.cron
        return "" if cron is None or len(cron) > _LONGEST else _cron(cron.split())
    except (_NoWordsError, ConfigError):
        return ""


def _interval(text: str) -> str:
    unit = _UNITS.get(text[-1:])
    if unit is None or not text[:-1].isdigit():
        raise _NoWordsError
    return f"every {unit}" if text[:-1] == "1" else f"every {text[:-1]} {unit}s"


def _cron(fields: Sequence[str]) -> str:
    second = _field(fields[0], 59) if len(fields) == 6 else _Field(((0, 0),))
    if len(fields) not in (5, 6):
        raise _NoWordsError
    minute, hour = _field(fields[-5], 59), _field(fields[-4], 23)
    if 60 % (second.step or 1) or 60 % (minute.step or 1) or 24 % (hour.step or 1):
        raise _NoWordsError  # `*/40` is minutes 0 and 40 of each hour, not every 40 minutes
    when = _time(second, minute, hour)
    days = _days(fields[-3], fields[-1])
    months = _months(fields[-2])
    if when.startswith("every "):
        return ", ".join(part for part in (when, days, months) if part)
    if days.startswith("on day") and " or " not in days and not months:
        days = f"{days} of each month"
    return " ".join(part for part in (days or "every day", months, when) if part)


# ── times ────────────────────────────────────────────────────────────────────────────────────────


def _time(second: _Field, minute: _Field, hour: _Field) -> str:
    if second.values == [0]:
        return _without_seconds(minute, hour)
    hours = _during(hour, 0, 59)
    if minute.every and (second.every or second.step):
        each = "every second" if second.every else f"every {second.step} seconds"
        return f"{each}{hours}"
    if second.values is None or minute.values is None or hour.values is None:
        raise _NoWordsError
    times = [f"{h:02}:{m:02}:{s:02}" for h in hour.values for m in minute.values for s in second.values]
    return f"at {_and(times)}"


def _without_seconds(minute: _Field, hour: _Field) -> str:
    if minute.every:
        return f"every minute{_during(hour, 0, 59)}"
    if minute.step:
        each = f"every {minute.step} minutes" if minute.step > 1 else "every minute"
        return f"{each}{_during(hour, 0, 59)}"
    minutes = minute.values
    if minutes is None:
        raise _NoWordsError
    if hour.values is not None:
        times = [f"{h:02}:{m:02}" for h in hour.values for m in minutes]
        return f"at {_and(times)}"
    if hour.every or hour.step:
        each = f"every {hour.step} hours" if hour.step > 1 else "every hour"
        return each if minutes == [0] else f"{each} at {_minutes(minutes)}"
    if len(hour.parts) != 1 or len(minutes) != 1:
        raise _NoWordsError
    (first, last), m = hour.parts[0], minutes[0]
    return f"every hour from {first:02}:{m:02} to {last:02}:{m:02}"


def _during(hour: _Field, first: int, last: int) -> str:
    if hour.every:
        return ""
    if hour.step or len(hour.parts) != 1:
        raise _NoWordsError
    begin, end = hour.parts[0]
    return f" from {begin:02}:{first:02} to {end:02}:{last:02}"


def _minutes(minutes: Sequence[int]) -> str:
    return f"minute {minutes[0]}" if len(minutes) == 1 else f"minutes {_and([str(m) for m in minutes])}"


# ── days and months ──────────────────────────────────────────────────────────────────────────────


def _days(of_month: str, of_week: str) -> str:
    month, week = _of_month(of_month), _of_week(of_week)
    if month and week:
        if of_month.startswith("*") or of_week.startswith("*"):  # then both have to match
            raise _NoWordsError
        return f"{month} or {week}"
    return month or week


def _of_month(text: str) -> str:
    known = {"*": "", "?": "", "L": "on the last day", "LW": "on the last weekday"}
    if text.upper() in known:
        return known[text.upper()]
    field = _field(text, 31)
    if field.step:
        return f"every {field.step} days of the month"
    return f"on {'day' if field.values and len(field.values) == 1 else 'days'} {_ranges(field, str)}"


def _of_week(text: str) -> str:
    nth = re.fullmatch(r"([0-7]|[a-z]{3})(?:#([1-5])|(l))", text, re.IGNORECASE)
    if nth is not None:
        day = _DAYS[_value(nth[1], _DAYS[:7])]
        return f"on the last {day}" if nth[3] else f"on the {_NTH[int(nth[2])]} {day}"
    if text in ("*", "?"):
        return ""
    field = _field(text, 7, _DAYS[:7])
    if field.step:
        raise _NoWordsError
    said = _ranges(field, lambda day: _DAYS[day])
    return said if field.values is None else f"every {said}" if len(field.parts) == 1 else f"on {said}"


def _months(text: str) -> str:
    field = _field(text, 12, _MONTHS)
    if field.every:
        return ""
    if field.step:
        return f"in {_and(_MONTHS[1 :: field.step])}"
    said = _ranges(field, lambda month: _MONTHS[month])
    return f"in {said}" if field.values is not None else f"from {said}"


# ── fields ───────────────────────────────────────────────────────────────────────────────────────


def _field(text: str, most: int, names: Sequence[str] = ()) -> _Field:
    parts = text.split(",")
    if len(parts) > 31:
        raise _NoWordsError
    found: list[tuple[int, int]] = []
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None:
            raise _NoWordsError
        if match[1] == "*" and len(parts) == 1:
            step = int(match[2] or 1)
            return _Field(step=step) if step > 1 else _Field(every=True)
        if match[1] == "*" or match[2]:
            raise _NoWordsError
        first, _, last = match[1].partition("-")
        pair = _value(first, names), _value(last or first, names)
        pair = (0, 0) if pair == (7, 7) and most == 7 else pair  # both are Sunday
        if max(pair) > most or pair[0] > pair[1]:
            raise _NoWordsError
        found.append(pair)
    return _Field(tuple(sorted(set(found))))


def _value(text: str, names: Sequence[str]) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    found = [n for n, name in enumerate(names) if name and name[:3].lower() == text.lower()]
    if not found:
        raise _NoWordsError
    return found[0]


def _ranges(field: _Field, name: Callable[[int], str]) -> str:
    return _and(
        [name(first) if first == last else f"{name(first)} to {name(last)}" for first, last in field.parts]
    )


def _and(texts: Sequence[str]) -> str:
    if not texts or len(texts) > 2 * _MOST_TIMES:
        raise _NoWordsError
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
