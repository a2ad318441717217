"""The number of each state in the tables, and the sets of states that verbs and statements use.

The numbers are part of the schema: partial indexes compare with them (`migrations/0001_jobs.sql`,
`0003_states.sql`, `0013_steps.sql`). Statements name a state as `{available}`; `sql.py` puts the number
there.
"""

from __future__ import annotations

from penstock.core.job import State

__all__ = [
    "AVAILABLE",
    "CANCELLED",
    "CODE",
    "COLLECTING",
    "COMPLETED",
    "DEAD",
    "ENDED",
    "PARKED",
    "PREDICATES",
    "QUEUED",
    "RETRYABLE",
    "RUNNING",
    "SCHEDULED",
    "STATES",
    "SUSPENDED",
    "WAITING",
]

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
