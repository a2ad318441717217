"""promote, for a store with a waiting worker: one of the promoted jobs is leased in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.stores.contract import Due, Fetched, Share, WorkerOffer
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs import limits
from penstock.stores.sqlite.verbs.fetching import fetch
from penstock.stores.sqlite.verbs.needs_write import NEEDS_WRITE, NeedsWrite
from penstock.stores.sqlite.verbs.promoting import probe_promote, promote

__all__ = ["probe_promote_and_lease", "promote_and_lease"]


def probe_promote_and_lease(
    tx: TransactionContext, queues: Sequence[str], limit: int, waits_for: Sequence[str], offer: WorkerOffer
) -> tuple[Due, Fetched | None] | NeedsWrite:
    due = probe_promote(tx, queues, limit)
    return NEEDS_WRITE if due is NEEDS_WRITE else (due, None)


def promote_and_lease(
    tx: TransactionContext, queues: Sequence[str], limit: int, waits_for: Sequence[str], offer: WorkerOffer
) -> tuple[Due, Fetched | None]:
    """Promote, and lease one available job to the worker that waits for these queues, as its fetch would."""
    notified = tx.work
    due = promote(tx, queues, limit)
    if due.moved == 0:
        return due, None
    _next_verb(tx)
    shares = [Share(queue, 1, 1, 1) for queue in waits_for]
    found = fetch(tx, shares, 1, offer.lease, offer.worker, offer.token, charge=True)
    due = replace(due, set_aside=(*due.set_aside, *found.set_aside))
    if due.moved == len(found.jobs) and not notified:
        _next_verb(tx)
        known = tx.known(queues)
        # a plain job that has started concerns no other worker
        tx.work = any(queue.has_dependents or limits.gives(tx, queue) for queue in known)
    return due, found


def _next_verb(tx: TransactionContext) -> None:
    tx.flush()
    tx.begin()
