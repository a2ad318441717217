"""The tables as Python sees them: numbers of states, columns of rows, and the SQL statements of `sqlite/`.

A state's number is part of the schema: partial indexes compare with it (`migrations/0001_jobs.sql`,
`0003_states.sql`, `0013_steps.sql`). Statements name a state as `{available}` and a list of columns as
`{job_columns}`, which are replaced here, so that numbers and orders are defined once.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from penstock.core.job import State
from penstock.stores.statements import Statements

#: A state's number is its index here.
STATES = (
    State.SCHEDULED,
    State.RETRYABLE,
    State.PARKED,
    State.AVAILABLE,
    State.RUNNING,
    State.COMPLETED,
    State.CANCELLED,
    State.DEAD,
    State.WAITING,
    State.COLLECTING,
    State.SUSPENDED,
)
CODE = {state: code for code, state in enumerate(STATES)}
(
    SCHEDULED,
    RETRYABLE,
    PARKED,
    AVAILABLE,
    RUNNING,
    COMPLETED,
    CANCELLED,
    DEAD,
    WAITING,
    COLLECTING,
    SUSPENDED,
) = range(len(STATES))

ENDED = (COMPLETED, CANCELLED, DEAD)
#: The states of jobs that have not started and may still start.
QUEUED = (SCHEDULED, RETRYABLE, PARKED, AVAILABLE, WAITING, COLLECTING)

#: Conditions on the column `state`, written exactly as in the partial indexes that they choose.
PREDICATES = {
    "is_due_later": f"(state < {PARKED} OR state = {SUSPENDED})",
    "is_queued": f"(state < {RUNNING} OR state > {DEAD})",
    "has_not_ended": f"(state <= {RUNNING} OR state > {DEAD})",
}


# ── columns ──────────────────────────────────────────────────────────────────────────────────────

# The columns of the rows that statements return, in their order. Code that reads many jobs unpacks the plain
# tuples of sqlite3: a named tuple would cost 0.3 µs per row.


class StoredJobRow(NamedTuple):
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


# ── statements ───────────────────────────────────────────────────────────────────────────────────

# A file is read once, at its first use. The texts stay constant, so SQLite prepares each statement once.


#: Values of `penstock_job.admitted` for a job that its partition has admitted. ADMITTED_UNSTARTED: the job
#: has not started yet, and its start will count against the rate of the partition.
ADMITTED, ADMITTED_UNSTARTED = 1, 2

SQL = Statements(
    "penstock.stores.sql",
    "sqlite",
    words={
        **{state.value: str(code) for state, code in CODE.items()},
        **PREDICATES,
        "admitted_unstarted": str(ADMITTED_UNSTARTED),
        "job_columns": ", ".join(StoredJobRow._fields),
        "leased_columns": ", ".join(LeasedRow._fields).replace("minus_priority", "-priority"),
        "queue_columns": ", ".join(QueueRow._fields),
    },
)
