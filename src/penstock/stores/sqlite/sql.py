"""The SQL statements of `queries/`, with the names of states and column lists replaced.

A file is read once, at its first use. The texts stay constant, so SQLite prepares each statement once.
"""

from __future__ import annotations

from penstock.stores.sqlite.columns import LeasedRow, QueueRow, SqliteJobRow
from penstock.stores.sqlite.states import CODE, PREDICATES
from penstock.stores.statements import Statements

__all__ = ["ADMITTED", "ADMITTED_UNSTARTED", "SQL"]

#: Values of `penstock_job.admitted` for a job that its partition has admitted. ADMITTED_UNSTARTED: the job
#: has not started yet, and its start will count against the rate of the partition.
ADMITTED, ADMITTED_UNSTARTED = 1, 2

SQL = Statements(
    "penstock.stores.sqlite",
    "queries",
    words={
        **{state.value: str(code) for state, code in CODE.items()},
        **PREDICATES,
        "admitted_unstarted": str(ADMITTED_UNSTARTED),
        "job_columns": ", ".join(SqliteJobRow._fields),
        "leased_columns": ", ".join(LeasedRow._fields).replace("minus_priority", "-priority"),
        "queue_columns": ", ".join(QueueRow._fields),
    },
)
