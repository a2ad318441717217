"""The query of `wait` between two notifications: whether there is something to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class LookResult(NamedTuple):
    """What a wait has found."""

    wake: Wake
    counts: WakeCounts
    due: int | None  # the first instant at which something is due; None if the wait ends
    now: int


def look(
    tx: TransactionContext,
    queues: Sequence[str],
    until: int,
    before: WakeCounts,
    parked: Sequence[str],
    ends_at_due: bool,
) -> LookResult:
    """Return the flags of a wait that ends at `until`, and the counts so far.

    - `before`: the counts that were reported last; `parked`: as in `Consuming.wait`.
    - `ends_at_due`: whether what is due before the end is work.
    """
    wake, first = Wake.NOTHING, None
    found = tx.known(queues)
    if any(limits.gives(tx, queue, parked=queue.name in parked) for queue in found):
        wake |= Wake.WORK
    else:
        first = next_due(tx, found)
        for due in (first if ends_at_due else None, limits.opens(tx, found)):
            if due is not None and (due <= tx.now or due < until):
                wake |= Wake.WORK
    now = wake_counts(tx)
    return LookResult(wake | now.wake_since(before), now, first, tx.now)
