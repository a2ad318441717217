"""The fast path of fetch: many plain jobs, read in one step and leased in another.

`sqlite3` gives the GIL away at each step of a statement, and waits for up to 5 ms to have it back while the
worker runs jobs in another thread. `UPDATE … RETURNING` takes a step per job; these statements take two.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import msgspec

from penstock.core.job import Job, NewJob, State
from penstock.stores.sqlite.blobs import CANNOT_DECODE
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.transaction_context import TransactionContext

__all__ = ["LEAST", "MOST", "LeaseTerms", "lease_plain_jobs"]

_READY_PLAIN = SQL["fetch.ready_plain"]
_LEASE_PLAIN = SQL["fetch.lease_plain"]

#: For fewer jobs, one statement costs less than two; more would need too much memory at once.
LEAST, MOST = 16, 4_000

_RUNNING = State.RUNNING
_spec_of = msgspec.msgpack.Decoder(NewJob).decode
#: -priority, place, seq, attempt, lost, enqueued_at, due, expires_at, cancel_asked, length of the spec
_Row = tuple[int, int, int, int, int, int, int, int | None, int, int]
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
    """Lease the first `want` (LEAST to MOST) available jobs of a queue.

    Returns None, and changes nothing, if there are fewer, or if one is not plain, is large or cannot be read.
    """
    cx = tx.cx
    seqs, rows_json, specs_hex, special = cx.execute(_READY_PLAIN, (queue.qid, want)).fetchone()
    if special != 0:  # None: there is no job
        return None
    try:
        rows = _rows_of(rows_json)
        specs = _specs_in(bytes.fromhex(specs_hex), rows)
    except CANNOT_DECODE:
        return None
    if len(rows) != want or rows != sorted(rows) or not _lease(cx, seqs, terms, want):
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
        for spec, (_, _, seq, attempt, lost, enqueued_at, due, expires_at, asked, _) in zip(
            specs, rows, strict=True
        )
    ]


def _specs_in(joined: bytes, rows: list[_Row]) -> list[NewJob]:
    """Decode each spec by itself: two damaged ones could be readable together."""
    specs, at = [], 0
    for row in rows:
        end = at + row[-1]
        specs.append(_spec_of(joined[at:end]))
        at = end
    return specs


def _lease(cx: sqlite3.Connection, seqs: str, terms: LeaseTerms, want: int) -> bool:
    """Lease these jobs; if another program's trigger keeps one from it, lease none."""
    cx.execute("SAVEPOINT plain")
    all_leased = cx.execute(_LEASE_PLAIN, (seqs, *terms)).rowcount == want
    if not all_leased:
        cx.execute("ROLLBACK TO plain")
    cx.execute("RELEASE plain")
    return all_leased
