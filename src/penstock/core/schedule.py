"""Schedules and entries of periodic jobs: a cron expression in a time zone, or a fixed interval.

Cron expressions are read and computed by `cronsim`, with `core/cron.py`. The rules are those of Debian's
cron, also when clocks change and an hour is missing or repeated. A sixth field, in front, is for seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice, takewhile

import msgspec

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import Duration, milliseconds
from penstock.core.job import NewJob, Ref, stand_in

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS = (("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_MINUTE = 60_000


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """A schedule. `text` is a cron expression, an alias such as `@daily`, or an interval such as `every 30s`.

    `every` counts from the beginning of 1970 (UTC), so that all workers compute the same instants.
    """

    text: str
    tz: str = "UTC"

    @classmethod
    def of(cls, text: str | None = None, *, every: Duration | None = None, tz: str | None = None) -> Schedule:
        """Make a schedule from a user's text or interval. Raises ConfigError for an invalid one."""
        if (text is None) == (every is None):
            raise ConfigError("a schedule is a cron expression or every=: give one of the two")
        if every is None:
            assert text is not None
            return _of_text(text, tz)
        if tz is not None:
            raise ConfigError(f"every= does not depend on a time zone: leave tz={tz!r} out")
        return cls(_every_text(every))

    @property
    def key(self) -> str:
        """A text that is equal for equal schedules."""
        return f"{self.text} {self.tz}"

    @property
    def cron(self) -> str | None:
        """The cron expression, also that of an alias; None for an interval."""
        return None if _period(self.text) is not None else _expression(self.text)

    def instants(self, after: int) -> Iterator[int]:
        """The instants after `after` (in ms), in order."""
        period = _period(self.text)
        if period is not None:
            return _multiples(period, after)
        return _cron(_expression(self.text), self.tz, after)

    def next(self, after: int) -> int | None:
        """The first instant after this one; None if there is none."""
        return next(self.instants(after), None)

    def between(self, after: int, until: int, most: int) -> list[int]:
        """The first instants in (after, until], at most `most`."""
        return list(islice(takewhile(lambda instant: instant <= until, self.instants(after)), most))

    def latest(self, after: int, until: int, most: int) -> list[int]:
        """The last instants in (after, until], at most `most`, without computing all earlier ones."""
        if most <= 0 or after >= until:
            return []
        span = 60 * _MINUTE
        while True:
            start = max(after, until - span)
            found = [*takewhile(lambda instant: instant <= until, self.instants(start))]
            if len(found) >= most or start == after:
                return found[-most:]
            span *= 4


class Misfire(enum.StrEnum):
    """The policy for instants that passed while no worker ran."""

    SKIP = "skip"
    ONCE = "once"  # run the latest
    ALL = "all"  # run all of them, up to `catch_up`

    __hash__ = str.__hash__


class Overlap(enum.StrEnum):
    """The policy for an instant at which the entry's previous job has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    REPLACE = "replace"  # cancel the previous job, or ask it to stop if it runs

    __hash__ = str.__hash__


class NewEntry(msgspec.Struct, frozen=True, array_like=True):
    """A periodic entry as its author wrote it. Stores write it as it is; add new fields only at the end.

    `job` is the template of the entry's jobs; its queue is the entry's. `catch_up` is the maximum for
    `Misfire.ALL`. `by_code`: registered by an app's code; workers of other apps do not enqueue its jobs.
    """

    name: str
    job: NewJob
    schedule: Schedule
    misfire: Misfire = Misfire.ONCE
    catch_up: int = 100
    overlap: Overlap = Overlap.ALLOW
    jitter: int = 0
    by_code: bool = False

    @property
    def ref(self) -> Ref:
        """The entry's address: a name is unique in its queue."""
        return Ref(self.job.queue, self.name)


class Entry(msgspec.Struct, frozen=True):
    """A stored entry, as it was at one instant.

    All instants up to the `watermark` are done. `revision` changes with every change except of the watermark.
    `last` is the id of its newest job. `enqueued` and `skipped` count jobs. `unreadable` is the reason why
    the stored entry cannot be read (see `unreadable_entry`).
    """

    spec: NewEntry
    revision: int
    watermark: int
    paused: bool = False
    last: str | None = None
    enqueued: int = 0
    skipped: int = 0
    unreadable: str | None = None

    @property
    def ref(self) -> Ref:
        return self.spec.ref


def unreadable_entry(ref: Ref, raw: bytes, cause: str) -> Entry:
    """The entry shown in place of an unreadable one: paused, never due, without jobs."""
    job = stand_in(Ref(ref.queue, ""), raw)
    return Entry(NewEntry(ref.id, job, Schedule("")), 0, 0, paused=True, unreadable=cause)


def id_at(name: str, instant: int) -> str:
    """The id of the job of an entry for an instant of its schedule."""
    return f"{name}@{datetime.fromtimestamp(instant // 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


# ── reading a user's text ────────────────────────────────────────────────────────────────────────


def _of_text(text: str, tz: str | None) -> Schedule:
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is not a schedule: write '*/5 * * * *', '@daily', or every='30s'")
    words = text.split()
    if words and words[0].lower() in ("every", "@every"):
        return Schedule.of(every="".join(words[1:]), tz=tz)
    schedule = Schedule(" ".join(words), "UTC" if tz is None else tz)
    _check_cron(schedule)
    return schedule


def _every_text(every: Duration) -> str:
    period = milliseconds(every, what="every")
    if period < 1_000 or period % 1_000:
        raise ConfigError(f"every={every!r} must be whole seconds, 1s or more")
    unit, size = next((unit, size) for unit, size in _UNITS if period % size == 0)
    return f"every {period // size}{unit}"


def _check_cron(schedule: Schedule) -> None:
    from cronsim import CronSimError

    zone(schedule.tz)
    text = schedule.text
    try:
        comes = schedule.next(0)
    except CronSimError as error:
        why = str(error)
        raise ConfigError(
            f"{text!r} is not a cron expression: {why[:1].lower()}{why[1:]}; write minute, hour, "
            "day of month, month, day of week (or six fields, seconds first), as in '*/5 * * * *'"
        ) from None
    if comes is None:
        raise ConfigError(f"{text!r} never comes: no date matches it")


def _expression(text: str) -> str:
    if not text.startswith("@"):
        return text
    found = _ALIASES.get(text.lower())
    if found is None:
        near = did_you_mean(text, _ALIASES)
        raise ConfigError(f"{text!r} is not a schedule{near or '; the aliases are ' + ', '.join(_ALIASES)}")
    return found


@lru_cache(maxsize=256)
def _period(text: str) -> int | None:
    """The interval in ms; None for a cron expression."""
    word, _, period = text.partition(" ")
    return milliseconds(period, what="every") if word == "every" else None


@lru_cache(maxsize=256)
def zone(name: str) -> tzinfo:
    """The time zone of this name. Raises ConfigError."""
    if name == "UTC":  # cronsim is faster with this one
        return UTC
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        pass
    known = zoneinfo.available_timezones()
    if not known:
        raise ConfigError(f"tz={name!r}: this machine knows no time zones; pip install tzdata")
    near = did_you_mean(name, known) if isinstance(name, str) else ""
    raise ConfigError(f"tz={name!r} is not a time zone{near or '; write one like Europe/Berlin, or UTC'}")


# ── computing instants ───────────────────────────────────────────────────────────────────────────


def _multiples(period: int, after: int) -> Iterator[int]:
    instant = after // period * period
    while True:
        instant += period
        yield instant


def _cron(expression: str, tz: str, after: int) -> Iterator[int]:
    """The instants of a cron expression.

    A seconds field is handled here: with one, cronsim ignores clock changes.
    """
    from penstock.core.cron import Cron

    fields = expression.split()
    seconds = [0]
    if len(fields) == 6:
        seconds = sorted(Cron(expression, datetime.now(UTC)).seconds)
        expression = " ".join(fields[1:])
    # start before the minute of `after`, which may have seconds left
    start = datetime.fromtimestamp(after // _MINUTE * 60 - 1, UTC).astimezone(zone(tz))
    last = after
    for minute in Cron(expression, start):
        begins = round(minute.timestamp()) * 1_000
        for second in seconds:
            instant = begins + second * 1_000
            if instant > last:  # a repeated hour may lead back in time
                yield instant
                last = instant
