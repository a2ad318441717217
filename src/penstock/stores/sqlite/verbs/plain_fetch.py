"""The fast path of fetch: many plain jobs, read in one step and leased in another.

`sqlite3` gives the GIL away at each step of a statement, and waits for up to 5 ms to have it back while the
worker runs jobs in another thread. `UPDATE … RETURNING` takes a step per job; these statements take two.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.core.job import Job, NewJob, State
from penstock.stores.sqlite.blobs import CANNOT_DECODE
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.transaction_context import TransactionContext

__all__ = ["LEAST", "LeaseTerms", "lease_plain_jobs"]

_READY_PLAIN = SQL["fetch.ready_plain"]
_LEASE_PLAIN = SQL["fetch.lease_plain"]

#: For fewer jobs, one statement costs less than two.
LEAST = 16

_RUNNING = State.RUNNING
_specs_of = msgspec.msgpack.Decoder(list[NewJob]).decode
#: The head of a msgpack array whose length follows in 2 bytes.
_ARRAY = b"\xdc"
#: -priority, place, seq, attempt, lost, enqueued_at, due, expires_at, cancel_asked
_Row = tuple[int, int, int, int, int, int, int, int | None, int]
_rows_of = msgspec.json.Decoder(list[_Row]).decode


class LeaseTerms(NamedTuple):
    """The last parameters of the statements that lease jobs."""

    charge: int
    now: int
    token: str
    worker: str
    until: int


def lease_plain_jobs(
    tx: TransactionContext, queue: QueueContext, want: int, terms: LeaseTerms
) -> list[Job] | None:
    """Lease the first `want` (at most 65 535) available jobs of a queue.

    Returns None, and changes nothing, if there are fewer, or if one is not plain, is large or cannot be read.
    """
    cx = tx.cx
    seqs, rows_json, specs_hex, special = cx.execute(_READY_PLAIN, (queue.qid, want)).fetchone()
    if special != 0:  # None: there is no job
        return None
    try:
        rows = _rows_of(rows_json)
        specs = _specs_of(_ARRAY + want.to_bytes(2, "big") + bytes.fromhex(specs_hex))
    except CANNOT_DECODE:
        return None
    if rows != sorted(rows) or cx.execute(_LEASE_PLAIN, (seqs, *terms)).rowcount != want:
        return None
    charge, now, token, worker, _ = terms
    return [
        Job(
            spec,
            _RUNNING,
            seq,
            attempt + charge,
            lost,
            enqueued_at,
            due,
            now,
            None,
            expires_at,
            token,
            worker,
            False,
            asked == 1,
        )
        for spec, (_, _, seq, attempt, lost, enqueued_at, due, expires_at, asked) in zip(
            specs, rows, strict=True
        )
    ]
