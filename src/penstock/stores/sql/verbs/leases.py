"""extend and reclaim: extend leases that are still held, and lease lost jobs to another worker."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.job import Job
from penstock.core.lifecycle import LOST_BY
from penstock.stores.contract import Fetched, HeartbeatRequest, LeaseStatus
from penstock.stores.sql.rows import jobs_of, numbers, progress_blob, texts
from penstock.stores.sql.statements import RUNNING, SQL, StoredJobRow
from penstock.stores.sql.transaction_context import NEEDS_WRITE, NeedsWrite, TransactionContext

_EXTEND = SQL["extend.lease"]
_UNDER = SQL["fetch.under"]
_IS_UNDER = SQL["fetch.is_under"]
_RUN_OUT = SQL["reclaim.run_out"]
_HELD_BY = SQL["reclaim.held_by"]
_LEASE_ANEW = SQL["reclaim.lease"]


# ── extend ───────────────────────────────────────────────────────────────────────────────────────


def extend(tx: TransactionContext, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
    tx.notice_reboot()
    return [_extend(tx, request) for request in requests]


def must_last(requests: Sequence[HeartbeatRequest]) -> bool:
    """Return True if the data of one request must survive a power cut."""
    return any(request.lasting for request in requests)


def _extend(tx: TransactionContext, request: HeartbeatRequest) -> LeaseStatus:
    lease = request.lease
    queue = tx.queue(lease.queue)
    if queue is None:
        return LeaseStatus.LOST
    progress = None if request.progress is None else progress_blob(request.progress)
    held = (lease.generation, queue.qid, lease.id, lease.token)
    values = (tx.lease_now + request.by, int(request.started), progress, request.checkpoint)
    found = tx.execute(_EXTEND, (*held, *values)).fetchall()
    for (cancel_asked,) in found:
        return LeaseStatus.CANCEL_ASKED if cancel_asked else LeaseStatus.HELD
    return LeaseStatus.LOST


# ── reclaim ──────────────────────────────────────────────────────────────────────────────────────


def probe_reclaim(
    tx: TransactionContext,
    queues: Sequence[str],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    of: Sequence[str] | None,
) -> Fetched | NeedsWrite:
    if not tx.same_boot() or tx.execute(_IS_UNDER, (token,)).fetchone():
        return NEEDS_WRITE
    return (
        NEEDS_WRITE
        if _lost(tx, queues, min(limit, 1), of)
        else Fetched([], tx.now, set_aside=tx.take_set_aside())
    )


def reclaim(
    tx: TransactionContext,
    queues: Sequence[str],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    of: Sequence[str] | None,
) -> Fetched:
    tx.notice_reboot()
    jobs = jobs_of(tx.execute(_UNDER, (token,)))
    if not jobs:
        seqs = _lost(tx, queues, limit, of)
        jobs = _lease_anew(tx, seqs, lease, worker, token)
    return Fetched(jobs, tx.now, set_aside=tx.take_set_aside())


_SEQ = StoredJobRow._fields.index("seq")


def _lost(tx: TransactionContext, queues: Sequence[str], limit: int, of: Sequence[str] | None) -> list[int]:
    limit = max(0, limit)
    if of is not None:
        rows = tx.execute(_HELD_BY, (texts(of), tx.namespace, limit))
    else:
        running = [queue.qid for queue in tx.known(queues) if queue.count(RUNNING)]
        if not running:
            return []
        rows = tx.execute(_RUN_OUT, (tx.lease_now, numbers(running), limit))
    return [seq for (seq,) in rows]


def _lease_anew(tx: TransactionContext, seqs: list[int], lease: int, worker: str, token: str) -> list[Job]:
    if not seqs:
        return []
    until = tx.lease_now + lease
    rows = tx.execute(_LEASE_ANEW, (numbers(seqs), worker, token, until, LOST_BY)).fetchall()
    order = {seq: i for i, seq in enumerate(seqs)}
    return jobs_of(sorted(rows, key=lambda row: order[row[_SEQ]]))
