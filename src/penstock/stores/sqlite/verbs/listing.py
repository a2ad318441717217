"""What an operator sees: jobs page by page, queues with their counts, statistics, workers."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.errors import ConfigError
from penstock.job import Job, State
from penstock.store import DayCount, Page, QueueInfo, QueueStats, WorkerInfo
from penstock.stores.sqlite.rows import (
    AVAILABLE,
    CODE,
    ENDED,
    GROUPED,
    RUNNING,
    STATES,
    WAITING,
    Row,
    job_of,
    numbers,
    worker_of,
)
from penstock.stores.sqlite.step import SQL, Step, counts_of

__all__ = ["SILENT", "cheaper_to_gather", "find", "gather", "info", "list_jobs", "queues", "stats", "workers"]

_ALL = SQL["queues.all"]
_ONE = SQL["queues.one"]
_OLDEST = SQL["queues.oldest"]
_DAYS = SQL["queues.days"]
_WORKERS = SQL["queues.workers"]
_ALL_JOBS = SQL["list.all_jobs"]
_BY_AGE = SQL["list.by_age"]
_THESE = SQL["list.these"]
_HELD = SQL["list.held"]
_QUEUE = SQL["list.queue"]
_FIND = SQL["list.find"]
_IN_STATE = {
    **dict.fromkeys((0, 1), SQL["list.due"]),
    2: SQL["list.parked"],
    AVAILABLE: SQL["list.available"],
    RUNNING: SQL["list.running"],
    **dict.fromkeys(ENDED, SQL["list.ended"]),
    WAITING: SQL["list.other"],
    GROUPED: SQL["groups.grouped"],
}

_DAY = 86_400_000
_DAYS_KEPT = 90
#: A worker that has not announced itself for longer counts as gone (ms).
SILENT = 60_000
#: How many available jobs are looked at for the oldest one; beyond these, in the order of their queue,
#: an older one can only be a job that was enqueued with a time long past.
_LOOKED_AT = 4_000
#: So many jobs are always gathered by their index.
_FEW = 2_000
_END = 2**63 - 1
#: Where the counts by state, and the totals, stand in a queue's row.
_COUNTS = slice(4, 4 + len(STATES))
_TOTALS = slice(_COUNTS.stop, _COUNTS.stop + 3)


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────


def list_jobs(
    step: Step,
    queue: str | None,
    state: State | None,
    task: str | None,
    worker: str | None,
    after: str | None,
    limit: int,
) -> Page:
    limit = max(1, limit)
    below = _END if after is None else _cursor(after)
    few = _few(step, queue, state, worker, limit)
    if few is None:
        jobs = _by_age(step, queue, state, task, below, limit + 1)
    else:
        jobs = _of_few(step, few, queue, state, task, below, limit + 1)
    more = len(jobs) > limit
    return Page(jobs[:limit], str(jobs[limit - 1].generation) if more else None)


def _cursor(after: str) -> int:
    if not after.isascii() or not after.isdigit():
        raise ConfigError(f"after={after!r} is not a cursor: pass on the `next` of the page before")
    return min(int(after), _END)


def _by_age(
    step: Step, queue: str | None, state: State | None, task: str | None, below: int, limit: int
) -> list[Job]:
    found = None if queue is None else step.queue(queue)
    if queue is not None and found is None:
        return []
    qid = None if found is None else found.qid
    code = None if state is None else CODE[state]
    return [job_of(row) for row in step.cx.execute(_BY_AGE, (below, qid, code, task, step.namespace, limit))]


def _few(
    step: Step, queue: str | None, state: State | None, worker: str | None, limit: int
) -> list[int] | None:
    """The generations of all that may match, if an index gives them cheaply."""
    cx = step.cx
    if worker is not None:
        return [seq for (seq,) in cx.execute(_HELD, (worker, step.namespace))]
    if queue is None and state is None:
        return None
    rows = [row for row in cx.execute(_ALL, (step.namespace,)) if queue is None or row[1] == queue]
    code = None if state is None else CODE[state]
    if not cheaper_to_gather(step, sum(_matching(row, code) for row in rows), limit):
        return None
    return [seq for row in rows if _matching(row, code) for seq in gather(step, row[0], code)]


def cheaper_to_gather(step: Step, matches: int, limit: int) -> bool:
    """Whether to fetch all generations that match by their index and sort them, or to walk all jobs in order:
    a walk meets one match in all/matches jobs, gathering costs every match once."""
    if matches <= _FEW:
        return True
    (all_jobs,) = step.cx.execute(_ALL_JOBS).fetchone()
    return bool(matches * matches <= limit * all_jobs)


def gather(step: Step, qid: int, code: int | None) -> list[int]:
    """The generations of a queue's jobs, all or those of one state, in any order."""
    if code is None:
        found = step.cx.execute(_QUEUE, (qid,))
    else:
        found = step.cx.execute(_IN_STATE[code], (qid, code))
    return [seq for (seq,) in found]


def _matching(row: Row, code: int | None) -> int:
    """How many jobs of a queue's row have this state."""
    counts = row[_COUNTS]
    return int(sum(counts) if code is None else counts[code])


def _of_few(
    step: Step,
    few: list[int],
    queue: str | None,
    state: State | None,
    task: str | None,
    below: int,
    limit: int,
) -> list[Job]:
    seqs = sorted((seq for seq in few if seq < below), reverse=True)
    found: list[Job] = []
    size = limit if task is None and queue is None and state is None else max(limit, 500)
    for start in range(0, len(seqs), size):
        for row in step.cx.execute(_THESE, (numbers(seqs[start : start + size]),)):
            job = job_of(row)
            if (
                (queue is None or job.queue == queue)
                and (state is None or job.state is state)
                and (task is None or job.task == task)
            ):
                found.append(job)
                if len(found) == limit:
                    return found
    return found


def find(step: Step, id: str) -> list[Job]:
    return [job_of(row) for row in step.cx.execute(_FIND, (step.namespace, id))]


# ── queues and workers ───────────────────────────────────────────────────────────────────────────


def queues(step: Step) -> list[QueueInfo]:
    return [_info(step, row) for row in step.cx.execute(_ALL, (step.namespace,)).fetchall()]


def info(step: Step, name: str) -> QueueInfo:
    """One queue, which must be there."""
    return _info(step, step.cx.execute(_ONE, (step.namespace, name)).fetchone())


def _info(step: Step, row: Row) -> QueueInfo:
    qid, name, paused, closed = row[:4]
    counts = counts_of(row[_COUNTS])
    oldest = None
    if State.AVAILABLE in counts:
        oldest = step.cx.execute(_OLDEST, (qid, _LOOKED_AT)).fetchone()[0]
    return QueueInfo(name, counts, paused == 1, closed == 1, oldest)


def stats(step: Step, days: int) -> list[QueueStats]:
    newer_than = step.now // _DAY - min(days, _DAYS_KEPT)
    rows = step.cx.execute(_ALL, (step.namespace,)).fetchall()
    return [
        QueueStats(
            row[1],
            *row[_TOTALS],
            [DayCount(_day_name(d), p, f) for d, p, f in step.cx.execute(_DAYS, (row[0], newer_than))],
        )
        for row in rows
    ]


def _day_name(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


def workers(step: Step) -> list[WorkerInfo]:
    rows = step.cx.execute(_WORKERS, (step.namespace, step.now - SILENT))
    return sorted((worker_of(info) for (info,) in rows), key=lambda w: (w.started_at, w.id))
