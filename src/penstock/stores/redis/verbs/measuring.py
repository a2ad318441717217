"""Depths of queues and statistics on Redis.

Samples of depths: a hash per queue and resolution, which has a place per period. Statistics: a hash of tasks
per queue and period, which expires, and the groups of errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec

from penstock.core.job import TERMINAL, State
from penstock.core.stats import QueueDepth, TaskStats, enqueued_between
from penstock.stores.contract import (
    ERRORS_KEPT,
    MOST_ERROR_GROUPS,
    MOST_STATS_TASKS,
    REPORTS_REMEMBERED,
    SIZE_SAMPLE,
    DepthPage,
    DepthRow,
    ErrorGroup,
    QueueSize,
    Resolution,
    StatsPage,
    StatsReport,
    StatsRow,
)
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.isolation import MISSING, call_any, call_each, skips_corrupt_queues
from penstock.stores.redis.layout import NUMBER, counters_of
from penstock.stores.redis.script_arguments import chunks
from penstock.stores.redis.verbs.known_queues import known, now_of
from penstock.stores.redis.wire.calls import Call

#: Most queues of one script, which then blocks the server for at most 5 ms, and of one round trip that reads.
_SAMPLED, _READ = 50, 100
_DEPTH_RESOLUTIONS = [word for one in Resolution for word in (one.value, one.length, one.kept)]
_MINUTE = Resolution.MINUTE.length


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """A period with its depth, as a script stores it; see `QueueDepth`."""

    period: int
    samples: int
    available: int
    running: int
    later: int
    peak: int
    #: The total of enqueued jobs at the first sample of the period; None in older records.
    total: int | None = None

    def depth(self, enqueued: int | None) -> QueueDepth:
        return QueueDepth(self.samples, self.available, self.running, self.later, self.peak, enqueued)


_decode = msgspec.msgpack.Decoder(_Record).decode


@skips_corrupt_queues
def sample_depths(context: Context) -> CallPlan[int]:
    """Sample all queues, some in each script, in one round trip."""
    names = yield from known(context)
    groups = [[name] for name in names] if context.queue_by_queue else chunks(names, _SAMPLED)
    calls = [(few[0], context.call("sample_depths", few, _DEPTH_RESOLUTIONS)) for few in groups]
    if calls:
        yield from call_any(context, calls)
    return _MINUTE - int((yield from now_of(context))) % _MINUTE


@skips_corrupt_queues
def read_depths(
    context: Context, resolution: Resolution, span: int, queue: str | None
) -> CallPlan[DepthPage]:
    """Read the depths of each queue by one command, and its total of enqueued jobs by another."""
    names = (yield from known(context)) if queue is None else [queue]
    now, length = int((yield from now_of(context))), resolution.length
    periods = range(max(resolution.oldest(now), (now - span) // length), now // length + 1)
    rows: list[DepthRow] = []
    for some in chunks(names, _READ):
        calls = [call for name in some for call in _reads(context, name, resolution)]
        answers = yield from call_each(context, calls)
        for name, records, counters in zip(some, answers[0::2], answers[1::2], strict=True):
            if records is MISSING or counters is MISSING:
                continue
            found = [one for one in _records(records) if one.period in periods]
            enqueued = enqueued_between([one.total for one in found], counters_of(counters).enqueued)
            rows += [
                DepthRow(name, one.period * length, one.depth(number))
                for one, number in zip(found, enqueued, strict=True)
            ]
    return DepthPage(rows, now)


def depth_keys(context: Context, queue: str) -> list[bytes]:
    """The keys of a queue's depths."""
    return [_depths_key(context, queue, one) for one in Resolution]


def _depths_key(context: Context, queue: str, resolution: Resolution) -> bytes:
    return context.redis_keys.queue(queue) + f":depth/{resolution.value}".encode()


def _reads(context: Context, queue: str, resolution: Resolution) -> list[tuple[str, Call]]:
    """The commands that read its depths, and its counters."""
    depths, meta = _depths_key(context, queue, resolution), context.redis_keys.queue(queue) + b":meta"
    return [(queue, command(depths, "HVALS", depths)), (queue, command(meta, "HGET", meta, "counters"))]


def _records(values: Sequence[bytes]) -> list[_Record]:
    """The records of a queue, oldest first."""
    found = []
    for value in values:
        try:
            found.append(_decode(value))
        except msgspec.DecodeError:
            continue  # not written by Penstock
    return sorted(found, key=attrgetter("period"))


# ── statistics ──


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


@skips_corrupt_queues
def add_stats(context: Context, reports: Sequence[StatsReport]) -> CallPlan[list[bool]]:
    """Add reports, each in a script of its own, in one round trip.

    Reports of a queue with a key of a wrong type are lost: repeating them would not help.
    """
    calls = [(report.queue, _report(context, report)) for report in reports]
    answers = yield from call_each(context, calls)
    return [
        answer is not MISSING or context.corrupt.why(report.queue) is not None
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


@skips_corrupt_queues
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
        answers = yield from call_each(context, calls)
        for (name, period), answer in zip(some, answers, strict=True):
            if answer is not MISSING and answer:
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


@skips_corrupt_queues
def read_errors(context: Context, queue: str | None, task: str | None) -> CallPlan[list[ErrorGroup]]:
    """Read the groups of each queue."""
    names = (yield from known(context)) if queue is None else [queue]
    oldest = int((yield from now_of(context))) - ERRORS_KEPT
    calls = [context.on_key(name, b":errors", "HGETALL") for name in names]
    answers = yield from call_each(context, calls)
    found = [
        group
        for name, answer in zip(names, answers, strict=True)
        if answer is not MISSING
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


@skips_corrupt_queues
def queue_sizes(context: Context, names: Sequence[str] | None) -> CallPlan[list[QueueSize]]:
    """Ask the server for the memory of each large key, which it estimates from some of its fields."""
    every = yield from known(context)
    wanted = [name for name in every if names is None or name in names]
    asked: list[tuple[str, Call]] = []
    for name in wanted:
        keys = [context.redis_keys.queue(name) + f":{part}".encode() for part in _LARGE]
        asked.append((name, command(keys[0], "HLEN", keys[0])))
        asked += [(name, command(key, "MEMORY", "USAGE", key, "SAMPLES", SIZE_SAMPLE)) for key in keys]
    answers = yield from call_each(context, asked)
    found = []
    for n, name in enumerate(wanted):
        jobs, *sizes = answers[n * (1 + len(_LARGE)) : (n + 1) * (1 + len(_LARGE))]
        if MISSING not in (jobs, *sizes):
            found.append(QueueSize(name, sum(size or 0 for size in sizes), jobs > SIZE_SAMPLE))
    return found
