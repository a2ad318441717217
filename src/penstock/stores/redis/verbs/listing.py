"""Listings for operators: queues, parked jobs, statistics, partitions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.core.job import Ref
from penstock.stores.contract import (
    PARTITION_SHOWN,
    DayCount,
    Parked,
    PartitionInfo,
    QueueInfo,
    QueueStats,
)
from penstock.stores.redis.context import CallPlan, Context, int_or_zero, raise_errors
from penstock.stores.redis.isolation import MISSING, call_any, skips_corrupt_queues
from penstock.stores.redis.layout import STATES, counters_of, packed
from penstock.stores.redis.reading import shown
from penstock.stores.redis.stored_limits import layers_of, limits_of
from penstock.stores.redis.verbs.known_queues import known, now_of


@skips_corrupt_queues
def queues(context: Context, names: Sequence[str] | None) -> CallPlan[list[QueueInfo]]:
    """Return all queues, or those of these names, with their counts and settings."""
    listed = (yield from known(context)) if names is None else sorted(set(names))
    infos = yield from infos_of(context, listed)
    return [info for info in infos if info is not None]


def infos_of(context: Context, names: Sequence[str]) -> CallPlan[list[QueueInfo | None]]:
    """Return the counts and settings of these queues, None for each that does not exist."""
    calls = [(name, context.call("info", [name], [])) for name in names]
    answers = yield from call_any(context, calls)
    return [
        QueueInfo(name, {}, away=str(context.unavailable([name])))
        if answer is MISSING
        else _info(name, answer)
        for name, answer in zip(names, answers, strict=True)
    ]


def _info(name: str, answer: list[Any]) -> QueueInfo | None:
    """Read the answer of info.lua."""
    there, paused, closed, oldest, limits, by_operator, by_code, throttled_until, opens, *numbers = answer
    if not there:
        return None
    counts = {state: n for state, n in zip(STATES, numbers, strict=True) if n}
    in_effect = limits_of(limits)
    return QueueInfo(
        name,
        counts,
        bool(paused),
        bool(closed),
        int(oldest) if oldest else None,
        in_effect,
        int(throttled_until) if throttled_until else None,
        layers=layers_of(by_operator, by_code, in_effect),
        opens_at=int(opens) if opens else None,
    )


@skips_corrupt_queues
def parked(context: Context) -> CallPlan[list[Parked]]:
    """Count parked jobs, by queue and task."""
    names = yield from known(context)
    calls = [context.on_key(name, b":parked", "HGETALL") for name in names]
    answers = yield from call_any(context, calls)
    return [
        Parked(name, task.decode(errors="backslashreplace"), int_or_zero(n))
        for name, of_tasks in zip(names, answers, strict=True)
        if of_tasks is not MISSING
        for task, n in sorted(zip(of_tasks[0::2], of_tasks[1::2], strict=True))
    ]


@skips_corrupt_queues
def stats(context: Context, days: int) -> CallPlan[list[QueueStats]]:
    """Return the totals and daily counts of each queue."""
    names = yield from known(context)
    now = yield from now_of(context)
    calls = []
    for name in names:
        calls.append(context.on_key(name, b":meta", "HMGET", "counters", "processed", "failed"))
        calls.append(context.on_key(name, b":days", "HGETALL"))
    answers = yield from call_any(context, calls)
    oldest = int(now) // 86_400_000 - min(days, 90)
    return [
        QueueStats(
            name,
            counters_of(totals[0]).enqueued,
            int_or_zero(totals[1]),
            int_or_zero(totals[2]),
            _days(daily, oldest),
        )
        for name, totals, daily in zip(names, answers[0::2], answers[1::2], strict=True)
        if totals is not MISSING and daily is not MISSING and totals[0] is not None
    ]


def _days(daily: list[bytes], oldest: int) -> list[DayCount]:
    """Return the daily counts of the days after `oldest`, newest first."""
    counts: dict[int, dict[bytes, int]] = {}
    for field, n in zip(daily[0::2], daily[1::2], strict=True):
        day, _, what = field.partition(b"/")
        counts.setdefault(int_or_zero(day), {})[what] = int_or_zero(n)
    return [
        DayCount(_day_name(day), counts[day].get(b"processed", 0), counts[day].get(b"failed", 0))
        for day in sorted(counts, reverse=True)
        if day > oldest
    ]


def _day_name(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


def partition(context: Context, ref: Ref) -> CallPlan[PartitionInfo | None]:
    (answer,) = raise_errors(
        (yield [context.call("partition", [ref.queue], [packed(ref.id), PARTITION_SHOWN])])
    )
    if answer is None:
        return None
    key, waiting, before, due = answer[:4]
    rows = list(zip(answer[4::3], answer[5::3], answer[6::3], strict=True))
    admitted = yield from shown(context, ref.queue, rows)
    return PartitionInfo(
        key.decode(),
        admitted,
        int(waiting),
        None if before == b"" else int(before),
        int(due) if due else None,
    )
