"""The query of `wait` between two notifications: whether there is something to do."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.stores.contract import Wake
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs import limits
from penstock.stores.sqlite.verbs.promoting import next_due
from penstock.stores.wake_counts import WakeCounts

__all__ = ["look", "wake_counts"]

_WAKE_COUNTS = SQL["counters.wake_counts"]


def wake_counts(tx: TransactionContext) -> WakeCounts:
    row = tx.execute(_WAKE_COUNTS, (tx.namespace,)).fetchone()
    return WakeCounts(0, 0) if row is None else WakeCounts(*row)


def look(
    tx: TransactionContext, queues: Sequence[str], until: int, before: WakeCounts, parked: Sequence[str]
) -> tuple[Wake, WakeCounts]:
    """Return the flags of a wait that ends at `until`, and the counts so far.

    `before`: the counts that were reported last; `parked`: as in `Consuming.wait`.
    """
    wake = Wake.NOTHING
    found = tx.known(queues)
    if any(limits.gives(tx, queue, parked=queue.name in parked) for queue in found):
        wake |= Wake.WORK
    else:
        for due in (next_due(tx, found), limits.opens(tx, found)):
            if due is not None and (due <= tx.now or due < until):
                wake |= Wake.WORK
    now = wake_counts(tx)
    return wake | now.wake_since(before), now
