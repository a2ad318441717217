"""The SQL statements of `queries/`, with states and repeated lists of columns put in by name.

The texts are made once, when a file is first used, and stay constant: SQLite prepares each one once.
"""

from __future__ import annotations

from penstock.stores.sqlite.columns import LeasedRow, QueueRow, SqliteJobRow
from penstock.stores.sqlite.states import CODE, PREDICATES
from penstock.stores.statements import Statements

__all__ = ["ADMITTED", "ADMITTED_UNSTARTED", "SQL"]

#: What `penstock_job.admitted` says of a job that its partition lets run; the second one has not started, and
#: its start will count against the rate of the partition.
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
