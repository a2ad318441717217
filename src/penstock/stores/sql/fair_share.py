"""Fair share: give available jobs places such that each tenant starts one job per round.

A queue has a fair share from its first job with a tenant on. Other queues do not use this module.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.relations import Tenant
from penstock.stores.sql.rows import RowBefore, spec_of
from penstock.stores.sql.statements import AVAILABLE, SQL, LeasedRow
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext

_BEGIN = SQL["fair_share.begin"]
_ROUND = SQL["fair_share.round"]
_NEXT = SQL["fair_share.next"]
_SET_TAIL = SQL["fair_share.set_tail"]
_SET_NEXT = SQL["fair_share.set_next"]
_DROP_KEY = SQL["fair_share.drop_key"]
_FETCHED = SQL["fair_share.fetched"]
_DROP_PAST = SQL["fair_share.drop_past"]
_ANY_KEY = SQL["fair_share.any_key"]
_RESTART = SQL["fair_share.restart"]
_DROP_KEYS = SQL["fair_share.drop_keys"]
_DROP_ROUNDS = SQL["fair_share.drop_rounds"]

_NO_TENANT = Tenant("")  # in a queue with a fair share, jobs without a tenant count as one more tenant


def begin(tx: TransactionContext, queue: QueueContext, place: int) -> None:
    """Make the queue fair if it is not: places of the fair share begin after this place."""
    if queue.fair is None:
        queue.fair = place
        tx.execute(_BEGIN, (queue.qid, place))


def _terms(before: RowBefore) -> Tenant:
    return spec_of(before.seq, before.spec).tenant or _NO_TENANT


def draw(tx: TransactionContext, queue: QueueContext, before: RowBefore) -> int:
    """Return a place at the tail of the job's tenant."""
    assert queue.fair is not None
    of, tenant = (queue.qid, before.priority), _terms(before)
    now, tail = tx.execute(_ROUND, of).fetchone() or (queue.fair, 0)
    first: int = max(tail, now + 1)
    found = tx.execute(_NEXT, (*of, tenant.key)).fetchone()
    place: int = first if found is None else max(first, *found)
    if place == first:
        tx.execute(_SET_TAIL, (*of, now, first + 1))
    tx.execute(_SET_NEXT, (*of, tenant.key, place + tenant.step))
    return place


def give_back(tx: TransactionContext, queue: QueueContext, before: RowBefore) -> None:
    """Give back the place of an available job that leaves the queue without being fetched."""
    if queue.fair is None or before.place <= queue.fair:
        return
    of, tenant = (queue.qid, before.priority), _terms(before)
    found = tx.execute(_NEXT, (*of, tenant.key)).fetchone()
    if found is None:
        return
    now, tail = tx.execute(_ROUND, of).fetchone()
    (end,) = found
    place = end - tenant.step + 1  # plus 1: another job of the tenant may have the place before
    if place < max(tail, now + 1):
        tx.execute(_DROP_KEY, (*of, tenant.key))
    else:
        tx.execute(_SET_NEXT, (*of, tenant.key, place))


def fetched(tx: TransactionContext, queue: QueueContext, rows: Iterable[LeasedRow]) -> None:
    """Advance the round after jobs were leased: new tenants get places after these jobs."""
    assert queue.fair is not None
    rows = list(rows)
    last: dict[int, int] = {}
    for row in rows:
        if row.place > last.get(-row.minus_priority, queue.fair):
            last[-row.minus_priority] = row.place
    for priority, place in last.items():
        if tx.execute(_FETCHED, (queue.qid, priority, place)).rowcount:
            tx.execute(_DROP_PAST, (queue.qid, priority, place, 2 * len(rows) + 16))


def is_idle(tx: TransactionContext, queue: QueueContext) -> bool:
    """Return True if the queue stores places of tenants although no job is available."""
    if queue.fair is None or queue.count(AVAILABLE):
        return False
    return tx.execute(_ANY_KEY, (queue.qid,)).fetchone() is not None


def prune(tx: TransactionContext, queue: QueueContext) -> None:
    """Delete the places of all tenants if no job is available: all start equal again."""
    if is_idle(tx, queue):
        tx.execute(_RESTART, (queue.qid,))
        tx.execute(_DROP_KEYS, (queue.qid,))


def drop(tx: TransactionContext, queue: QueueContext) -> None:
    """Delete the fair share of a queue."""
    tx.execute(_DROP_KEYS, (queue.qid,))
    tx.execute(_DROP_ROUNDS, (queue.qid,))
