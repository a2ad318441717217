"""Statistics: what workers report of tasks and errors, samples of the depths of queues, and sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from penstock.core.stats import OTHER, QueueDepth, TaskStats, enqueued_between, sum_of
from penstock.stores.contract import (
    ERRORS_KEPT,
    MOST_ERROR_GROUPS,
    MOST_STATS_TASKS,
    REPORTS_REMEMBERED,
    SIZE_SAMPLE,
    DepthPage,
    DepthRow,
    ErrorCount,
    ErrorGroup,
    QueueSize,
    Resolution,
    StatsPage,
    StatsReport,
    StatsRow,
    TaskCount,
)
from penstock.stores.sql.statements import SQL
from penstock.stores.sql.transaction_context import NEEDS_WRITE, NeedsWrite, TransactionContext
from penstock.stores.sql.verbs.operating import queue_rows

_LAST_REPORT = SQL["measuring.last_report"]
_SET_REPORT = SQL["measuring.set_report"]
_FORGET_REPORTS = SQL["measuring.forget_reports"]
_TASKS = SQL["measuring.tasks"]
_ONE = SQL["measuring.one"]
_PUT = SQL["measuring.put"]
_FORGET_PERIODS = SQL["measuring.forget_periods"]
_FORGET_FUTURE = SQL["measuring.forget_future"]
_ROWS = SQL["measuring.rows"]
_ERROR = SQL["measuring.error"]
_FORGET_ERRORS = SQL["measuring.forget_errors"]
_GROUPS = SQL["measuring.groups"]
_OLDEST_GROUPS = SQL["measuring.oldest_groups"]
_FORGET_GROUP = SQL["measuring.forget_group"]
_ERRORS = SQL["measuring.errors"]
_SIZE = SQL["measuring.size"]

#: About the size of a job without its variable columns: its numbers, and its places in indexes (bytes).
_FIXED = 150
#: The number of each resolution in the tables of statistics.
RESOLUTION_CODES = {Resolution.MINUTE: 0, Resolution.HOUR: 1, Resolution.DAY: 2}
_decode = msgspec.msgpack.Decoder(TaskStats).decode
_encode = msgspec.msgpack.encode


def add_stats(tx: TransactionContext, reports: Sequence[StatsReport]) -> list[bool]:
    for report in reports:
        queue = tx.queue(report.queue)
        if queue is not None and _is_new(tx, queue.qid, report):
            _add_tasks(tx, queue.qid, report.tasks)
            _add_errors(tx, queue.qid, report.errors)
    return [True] * len(reports)


def _is_new(tx: TransactionContext, qid: int, report: StatsReport) -> bool:
    last = tx.execute(_LAST_REPORT, (qid, report.source)).fetchone()
    if last is not None and last[0] >= report.number:
        return False
    tx.execute(_SET_REPORT, (qid, report.source, report.number, tx.now))
    tx.execute(_FORGET_REPORTS, (qid, tx.now - REPORTS_REMEMBERED))
    return True


def _add_tasks(tx: TransactionContext, qid: int, counts: Sequence[TaskCount]) -> None:
    for resolution, code in RESOLUTION_CODES.items():
        period = qid, code, tx.now // resolution.length
        for count in counts:
            task, stats = count.task, _stored(tx, (*period, count.task))
            if stats is None and tx.execute(_TASKS, period).fetchone()[0] >= MOST_STATS_TASKS:
                task, stats = OTHER, _stored(tx, (*period, OTHER))
            sums = sum_of([stats, count.stats]) if stats else count.stats
            tx.execute(_PUT, (*period, task, _encode(sums)))
        tx.execute(_FORGET_PERIODS, (qid, code, resolution.oldest(tx.now)))
        tx.execute(_FORGET_FUTURE, (qid, code, tx.now // resolution.length + 1))


def _stored(tx: TransactionContext, key: tuple[int, int, int, str]) -> TaskStats | None:
    row = tx.execute(_ONE, key).fetchone()
    return None if row is None else _read(row[0]) or TaskStats()


def _read(blob: bytes) -> TaskStats | None:
    """Read a stored record; None if it is damaged."""
    try:
        return _decode(blob)
    except msgspec.DecodeError:
        return None


def _add_errors(tx: TransactionContext, qid: int, counts: Sequence[ErrorCount]) -> None:
    for one in counts:
        tx.execute(
            _ERROR, (qid, one.group, one.task, one.kind, one.message, one.count, tx.now, tx.now, one.job)
        )
    if not counts:
        return
    tx.execute(_FORGET_ERRORS, (qid, tx.now - ERRORS_KEPT))
    beyond = tx.execute(_GROUPS, (qid,)).fetchone()[0] - MOST_ERROR_GROUPS
    for name, *facts in tx.execute(_OLDEST_GROUPS, (qid, beyond)).fetchall() if beyond > 0 else []:
        tx.execute(_ERROR, (qid, "", OTHER, "", "", *facts))
        tx.execute(_FORGET_GROUP, (qid, name))


def read_stats(
    tx: TransactionContext, resolution: Resolution, span: int, queue: str | None, task: str | None
) -> StatsPage:
    length = resolution.length
    oldest = max(resolution.oldest(tx.now), (tx.now - span) // length)
    rows = [
        StatsRow(name, found, period * length, stats)
        for qid, name in _queues(tx, queue)
        for found, period, blob in tx.execute(
            _ROWS, (qid, RESOLUTION_CODES[resolution], oldest, tx.now // length, task)
        )
        if (stats := _read(blob)) is not None
    ]
    return StatsPage(rows, tx.now)


def read_errors(tx: TransactionContext, queue: str | None, task: str | None) -> list[ErrorGroup]:
    found = [
        ErrorGroup(name, *row)
        for qid, name in _queues(tx, queue)
        for row in tx.execute(_ERRORS, (qid, tx.now - ERRORS_KEPT, task))
    ]
    return sorted(found, key=lambda group: -group.last)


def _queues(tx: TransactionContext, name: str | None) -> list[tuple[int, str]]:
    if name is None:
        return [(row.qid, row.name) for row in queue_rows(tx)]
    return [(queue.qid, name) for queue in tx.known([name])]


def queue_sizes(tx: TransactionContext, names: Sequence[str] | None) -> list[QueueSize]:
    return [
        _size_of(tx, row.qid, row.name, sum(row.counts))
        for row in queue_rows(tx)
        if names is None or row.name in names
    ]


def _size_of(tx: TransactionContext, qid: int, name: str, jobs: int) -> QueueSize:
    some, variable = tx.execute(_SIZE, (qid, SIZE_SAMPLE)).fetchone()
    taken = _FIXED * some + (variable or 0)
    return QueueSize(name, taken * max(jobs, some) // max(1, some), jobs > some)


# ── depths of queues ─────────────────────────────────────────────────────────────────────────────


_UNSAMPLED = SQL["depths.unsampled"]
_NEW_QUEUES = SQL["depths.new"]
_SAMPLE = SQL["depths.sample"]
_FORGET_DEPTHS = SQL["depths.forget"]
_DEPTHS = SQL["depths.rows"]
_MINUTE = Resolution.MINUTE.length


def probe_sample_depths(tx: TransactionContext) -> int | NeedsWrite:
    """Answer by reading alone if this minute has its samples: most workers find those of another one."""
    if tx.execute(_UNSAMPLED, (tx.namespace, tx.now // _MINUTE)).fetchone():
        return NEEDS_WRITE
    return _left_of_minute(tx)


def sample_depths(tx: TransactionContext) -> int:
    minute, day = tx.now // _MINUTE, tx.now // Resolution.DAY.length
    new = json.dumps([qid for (qid,) in tx.execute(_NEW_QUEUES, (tx.namespace, day))])
    for resolution in reversed(Resolution):  # minutes last: what they have is not added again
        code, period = RESOLUTION_CODES[resolution], tx.now // resolution.length
        tx.execute(_SAMPLE, (tx.namespace, minute, code, period, new))
        tx.execute(_FORGET_DEPTHS, (code, resolution.oldest(tx.now), period + 1))
    return _left_of_minute(tx)


def _left_of_minute(tx: TransactionContext) -> int:
    return _MINUTE - tx.now % _MINUTE


def read_depths(tx: TransactionContext, resolution: Resolution, span: int, queue: str | None) -> DepthPage:
    length = resolution.length
    oldest = max(resolution.oldest(tx.now), (tx.now - span) // length)
    found = tx.execute(
        _DEPTHS, (tx.namespace, RESOLUTION_CODES[resolution], oldest, tx.now // length, queue)
    ).fetchall()
    rows: list[DepthRow] = []
    for (name, total), some in groupby(sorted(found, key=_place), lambda row: row[:2]):
        of_queue = list(some)
        enqueued = enqueued_between([row[3] for row in of_queue], total)
        rows += [
            DepthRow(name, row[2] * length, QueueDepth(*[*row[4:], number]))
            for row, number in zip(of_queue, enqueued, strict=True)
        ]
    return DepthPage(rows, tx.now)


def _place(row: Sequence[Any]) -> tuple[str, int]:
    name, _, period, *_ = row
    return name, period
