"""The columns of the rows that statements return, in their order.

Statements take their lists of columns from these classes (`{job_columns}`, `{leased_columns}`,
`{queue_columns}`), so that the order is defined once. Code that reads many jobs unpacks the plain tuples of
sqlite3: a named tuple would cost 0.3 µs per row.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from penstock.stores.sqlite.states import STATES

__all__ = ["LeasedRow", "QueueRow", "SqliteJobRow"]


class SqliteJobRow(NamedTuple):
    """The columns of a job, in the order of the fields of `Job`."""

    spec: bytes
    state: int
    seq: int  # its generation
    attempt: int
    lost: int
    enqueued_at: int
    due: int
    fetched_at: int | None
    ended_at: int | None
    expires_at: int | None
    token: str | None
    worker: str | None
    started: int
    cancel_asked: int
    errors: bytes | None
    result: bytes | None
    progress: bytes | None
    checkpoint: bytes | None
    reason: str | None
    batch: str | None
    members: bytes | None


class LeasedRow(NamedTuple):
    """The columns of a just leased job. The first two are its sort key: RETURNING guarantees no order."""

    minus_priority: int
    place: int
    seq: int
    spec: bytes
    attempt: int
    lost: int
    enqueued_at: int
    due: int
    expires_at: int | None
    cancel_asked: int
    errors: bytes | None
    checkpoint: bytes | None
    unique_phases: int | None
    members: bytes | None


class QueueRow(NamedTuple):
    """The columns of a queue, for operators."""

    qid: int
    name: str
    paused: int
    closed: int
    scheduled: int
    retryable: int
    parked: int
    available: int
    running: int
    completed: int
    cancelled: int
    dead: int
    waiting: int
    collecting: int
    suspended: int
    enqueued: int
    processed: int
    failed: int
    limits: bytes | None
    limit_layers: bytes | None
    throttled_until: int

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of jobs, by the number of their state."""
        counts: tuple[int, ...] = _counts(self)
        return counts


_counts = attrgetter(*(state.value for state in STATES))
