"""Listings for operators: jobs, queues, parked jobs, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from heapq import merge
from typing import Any

from penstock.core.errors import ConfigError
from penstock.core.job import Job, Ref, State
from penstock.stores.contract import (
    PARTITION_SHOWN,
    DayCount,
    Page,
    Parked,
    PartitionInfo,
    QueueInfo,
    QueueStats,
)
from penstock.stores.redis.batching import jobs_from
from penstock.stores.redis.context import CallPlan, Context, command, int_or_zero, raise_errors
from penstock.stores.redis.isolation import AWAY, alone, any_of, isolated
from penstock.stores.redis.keys import packed
from penstock.stores.redis.layout import NUMBER, STATES, counters_of
from penstock.stores.redis.reading import shown
from penstock.stores.redis.stored_limits import layers_of, limits_of
from penstock.stores.redis.verbs.known_queues import known, now_of
from penstock.stores.redis.verbs.producing import get

__all__ = ["find", "infos_of", "list_jobs", "parked", "partition", "queues", "stats"]

_NEWEST = 1 << 53
#: Most jobs that one script returns.
_PAGE = 500


class _Lister:
    """Reads the jobs of one queue, newest first, page by page."""

    def __init__(
        self, context: Context, queue: str, states: str, before: int, page: int, worker: str | None
    ) -> None:
        self._context = context
        self._queue = queue
        self._states = states
        self._before = before
        self._page = page
        self._worker = worker
        self.jobs: list[Job] = []
        self.done = False

    def more(self) -> CallPlan[None]:
        """Read one more page."""
        args: list[bytes | str | int] = [self._before, self._page, self._states, self._worker or ""]
        (answer,) = raise_errors((yield [self._context.call("list_jobs", [self._queue], args)]))
        rows = jobs_from(answer)
        jobs = yield from shown(self._context, self._queue, rows)
        self.jobs += jobs
        self.done = len(rows) < self._page
        if jobs:
            self._before = jobs[-1].generation

    def at_least(self, wanted: int, task: str | None) -> CallPlan[list[Job]]:
        """Return at least `wanted` jobs of this task and the worker, or all if there are fewer."""
        found: list[Job] = []
        while len(found) < wanted and not self.done:
            yield from self.more()
            found = [
                job
                for job in self.jobs
                if (task is None or job.task == task) and (self._worker in (None, job.worker))
            ]
        return found


@isolated
def list_jobs(
    context: Context,
    queue: str | None,
    state: State | None,
    task: str | None,
    worker: str | None,
    after: str | None,
    limit: int,
) -> CallPlan[Page]:
    """Return a page of jobs, newest first, of one queue or of all queues."""
    limit = max(1, limit)
    before, last = _cursor(after)
    names = (yield from known(context)) if queue is None else [queue]
    if worker is not None and state not in (None, State.RUNNING):
        return Page([], None)
    wanted = [State.RUNNING] if worker is not None else [*State] if state is None else [state]
    states = ",".join(str(NUMBER[one]) for one in wanted)
    page = min(_PAGE, limit + 1) if task is None and worker is None else _PAGE
    parts: list[list[tuple[int, str, Job]]] = []
    for name in names:
        # jobs with equal generations, which different queues may give, are ordered by queue
        lister = _Lister(context, name, states, before + (name > last), page, worker)
        listed = lister.at_least(limit + 1, task)
        found = yield from listed if queue is not None else alone(context, name, listed)
        if found is not AWAY:
            parts.append([(-job.generation, name, job) for job in found[: limit + 1]])
    jobs = [job for _, _, job in merge(*parts, key=lambda one: one[:2])]
    more = len(jobs) > limit
    return Page(jobs[:limit], f"{jobs[limit - 1].generation}:{jobs[limit - 1].queue}" if more else None)


def _cursor(after: str | None) -> tuple[int, str]:
    """Return the generation and queue of a cursor; raises ConfigError if it is not one."""
    if after is None:
        return _NEWEST, "~~"
    number, colon, queue = after.partition(":")
    if not colon or not number.isascii() or not number.isdigit() or len(number) > 30:
        raise ConfigError(f"after={after!r} is not a cursor: pass the `next` of the previous page")
    return int(number), queue


@isolated
def find(context: Context, id: str) -> CallPlan[list[Job]]:
    """Find the jobs with this id in all queues."""
    names = yield from known(context)
    if not context.apart:
        jobs = yield from get(context, [Ref(name, id) for name in names])
        return [job for job in jobs if job is not None]
    found: list[Job] = []
    away = False
    for name in names:
        answer = yield from alone(context, name, get(context, [Ref(name, id)]))
        if answer is AWAY:
            away = True
        else:
            found += [job for job in answer if job is not None]
    if away and not found:  # the job may be in a queue that is away
        raise context.unavailable(names)
    return found


@isolated
def queues(context: Context, names: Sequence[str] | None) -> CallPlan[list[QueueInfo]]:
    """Return all queues, or those of these names, with their counts and settings."""
    listed = (yield from known(context)) if names is None else sorted(set(names))
    infos = yield from infos_of(context, listed)
    return [info for info in infos if info is not None]


def infos_of(context: Context, names: Sequence[str]) -> CallPlan[list[QueueInfo | None]]:
    """Return the counts and settings of these queues, None for each that does not exist."""
    calls = [(name, context.call("info", [name], [])) for name in names]
    answers = (yield from any_of(context, calls)) if names else []
    return [
        QueueInfo(name, {}, away=str(context.unavailable([name]))) if answer is AWAY else _info(name, answer)
        for name, answer in zip(names, answers, strict=True)
    ]


def _info(name: str, answer: list[Any]) -> QueueInfo | None:
    """Read the answer of info.lua."""
    there, paused, closed, oldest, limits, by_operator, by_code, held, opens, *numbers = answer
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
        int(held) if held else None,
        layers=layers_of(by_operator, by_code, in_effect),
        opens=int(opens) if opens else None,
    )


@isolated
def parked(context: Context) -> CallPlan[list[Parked]]:
    """Count parked jobs, by queue and task."""
    names = yield from known(context)
    calls = []
    for name in names:
        key = context.redis_keys.queue(name)
        calls.append((name, command(key, "HGETALL", key + b":parked")))
    answers = (yield from any_of(context, calls)) if names else []
    return [
        Parked(name, task.decode(errors="backslashreplace"), int_or_zero(n))
        for name, of_tasks in zip(names, answers, strict=True)
        if of_tasks is not AWAY
        for task, n in sorted(zip(of_tasks[0::2], of_tasks[1::2], strict=True))
    ]


@isolated
def stats(context: Context, days: int) -> CallPlan[list[QueueStats]]:
    """Return the totals and daily counts of each queue."""
    names = yield from known(context)
    now = yield from now_of(context)
    calls = []
    for name in names:
        key = context.redis_keys.queue(name)
        calls.append((name, command(key, "HMGET", key + b":meta", "counters", "processed", "failed")))
        calls.append((name, command(key, "HGETALL", key + b":days")))
    answers = (yield from any_of(context, calls)) if names else []
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
        if totals is not AWAY and daily is not AWAY and totals[0] is not None
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
