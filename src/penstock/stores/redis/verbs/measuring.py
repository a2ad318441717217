"""Statistics on Redis: a hash of tasks per queue and period, which expires, and the groups of errors."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.job import TERMINAL, State
from penstock.core.task_stats import TaskStats
from penstock.stores.contract import (
    ERRORS_KEPT,
    MOST_ERROR_GROUPS,
    MOST_STATS_TASKS,
    REPORTS_REMEMBERED,
    SIZE_SAMPLE,
    ErrorGroup,
    QueueSize,
    Resolution,
    StatsPage,
    StatsReport,
    StatsRow,
)
from penstock.stores.redis.batching import chunks
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.isolation import AWAY, each, isolated
from penstock.stores.redis.layout import NUMBER
from penstock.stores.redis.verbs.depths import depth_keys
from penstock.stores.redis.verbs.known_queues import known, now_of
from penstock.stores.redis.wire.calls import Call

__all__ = ["add_stats", "drop_stats", "queue_sizes", "read_errors", "read_stats"]

#: Most periods that are read in one round trip.
_STEP = 256
#: The keys of a queue that grow with its jobs, without lists of up to 1 000 available jobs.
_LARGE = [
    *("jobs", "due", "expiring", "over", "leases", "held", "unique", "unique/until", "oldest", "parked"),
    *("out", "ends", "flows", "waits"),
    *(f"state/{NUMBER[state]}" for state in State if state is not State.RUNNING),
    *(f"ended/{NUMBER[state]}" for state in sorted(TERMINAL)),
]
_RESOLUTIONS = [word for one in Resolution for word in (one.value, one.length, one.kept)]

_Fields = tuple[str, str, str, int, int, int, str]
_stats_of = msgspec.msgpack.Decoder(TaskStats).decode
_error_of = msgspec.msgpack.Decoder(_Fields).decode


@isolated
def add_stats(context: Context, reports: Sequence[StatsReport]) -> CallPlan[list[bool]]:
    """Add reports, each in a script of its own, in one round trip.

    Reports of a queue with a key of a wrong type are lost: repeating them would not help.
    """
    calls = [(report.queue, _report(context, report)) for report in reports]
    answers = (yield from each(context, calls)) if calls else []
    return [
        answer is not AWAY or context.spoiled.why(report.queue) is not None
        for report, answer in zip(reports, answers, strict=True)
    ]


def _report(context: Context, report: StatsReport) -> Call:
    args: list[bytes | str | int] = [report.source, report.number, REPORTS_REMEMBERED, MOST_STATS_TASKS]
    args += [MOST_ERROR_GROUPS, ERRORS_KEPT, len(Resolution), *_RESOLUTIONS, len(report.tasks)]
    for count in report.tasks:
        args += [count.task, msgspec.msgpack.encode(count.stats)]
    for one in report.errors:
        args += [one.group, one.task, one.kind, one.message, one.count, one.job]
    return context.call("add_stats", [report.queue], args)


@isolated
def read_stats(
    context: Context, resolution: Resolution, span: int, queue: str | None, task: str | None
) -> CallPlan[StatsPage]:
    """Read the hash of each period, or the field of one task."""
    names = (yield from known(context)) if queue is None else [queue]
    now, length = int((yield from now_of(context))), resolution.length
    oldest = max(resolution.oldest(now), (now - span) // length)
    wanted = [(name, period) for name in names for period in range(oldest, now // length + 1)]
    rows: list[StatsRow] = []
    for some in chunks(wanted, _STEP):
        keys = [_key(context, name, resolution, period) for name, period in some]
        calls = [
            (name, command(key, "HGETALL", key) if task is None else command(key, "HGET", key, task))
            for (name, _), key in zip(some, keys, strict=True)
        ]
        answers = yield from each(context, calls)
        for (name, period), answer in zip(some, answers, strict=True):
            if answer is not AWAY and answer:
                fields = answer if task is None else [task.encode(), answer]
                rows += _rows(name, period * length, fields)
    return StatsPage(rows, now)


def _key(context: Context, queue: str, resolution: Resolution, period: int) -> bytes:
    return context.redis_keys.queue(queue) + f":stats/{resolution.value}/{period}".encode()


def drop_stats(context: Context, queue: str) -> CallPlan[None]:
    """Delete the statistics of a queue by their names, which follow from the time.

    Later periods, of a clock that was set back, could only be found by a scan: they stay until they expire.
    """
    now = int((yield from now_of(context)))
    keys = [
        _key(context, queue, one, period)
        for one in Resolution
        for period in range(one.oldest(now), now // one.length + 1)
    ]
    keys += depth_keys(context, queue)
    raise_errors((yield [command(keys[0], "UNLINK", *keys)]))


def _rows(queue: str, at: int, fields: Sequence[bytes]) -> list[StatsRow]:
    found = []
    for task, text in sorted(zip(fields[0::2], fields[1::2], strict=True)):
        try:
            found.append(StatsRow(queue, task.decode(), at, _stats_of(text)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # not written by Penstock
    return found


@isolated
def read_errors(context: Context, queue: str | None, task: str | None) -> CallPlan[list[ErrorGroup]]:
    """Read the groups of each queue."""
    names = (yield from known(context)) if queue is None else [queue]
    oldest = int((yield from now_of(context))) - ERRORS_KEPT
    calls = []
    for name in names:
        key = context.redis_keys.queue(name) + b":errors"
        calls.append((name, command(key, "HGETALL", key)))
    answers = (yield from each(context, calls)) if calls else []
    found = [
        group
        for name, answer in zip(names, answers, strict=True)
        if answer is not AWAY
        for group in _groups(name, answer)
        if group.last > oldest and task in (None, group.task)
    ]
    return sorted(found, key=lambda group: -group.last)


def _groups(queue: str, fields: Sequence[bytes]) -> list[ErrorGroup]:
    found = []
    for group, text in zip(fields[0::2], fields[1::2], strict=True):
        try:
            found.append(ErrorGroup(queue, group.decode(), *_error_of(text)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # not written by Penstock
    return found


@isolated
def queue_sizes(context: Context, names: Sequence[str] | None) -> CallPlan[list[QueueSize]]:
    """Ask the server for the memory of each large key, which it estimates from some of its fields."""
    every = yield from known(context)
    wanted = [name for name in every if names is None or name in names]
    asked: list[tuple[str, Call]] = []
    for name in wanted:
        keys = [context.redis_keys.queue(name) + f":{part}".encode() for part in _LARGE]
        asked.append((name, command(keys[0], "HLEN", keys[0])))
        asked += [(name, command(key, "MEMORY", "USAGE", key, "SAMPLES", SIZE_SAMPLE)) for key in keys]
    answers = (yield from each(context, asked)) if asked else []
    found = []
    for n, name in enumerate(wanted):
        jobs, *sizes = answers[n * (1 + len(_LARGE)) : (n + 1) * (1 + len(_LARGE))]
        if AWAY not in (jobs, *sizes):
            found.append(QueueSize(name, sum(size or 0 for size in sizes), jobs > SIZE_SAMPLE))
    return found
