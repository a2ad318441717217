"""The look that `wait` takes between two notifications: whether there is anything for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.stores.contract import Wake
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs import limits
from penstock.stores.sqlite.verbs.promoting import next_due

__all__ = ["Heard", "heard", "look"]

_HEARD = SQL["counters.heard"]


class Heard(NamedTuple):
    """How many requests to stop, and changes of settings, there had been."""

    cancels: int
    changes: int


def heard(tx: TransactionContext) -> Heard:
    row = tx.execute(_HEARD, (tx.namespace,)).fetchone()
    return Heard(0, 0) if row is None else Heard(*row)


def look(
    tx: TransactionContext, queues: Sequence[str], until: int, before: Heard, parked: Sequence[str]
) -> tuple[Wake, Heard]:
    """What there is for a wait that ends at `until` and had heard of `before`; `parked`: as `wait` says."""
    wake = Wake.NOTHING
    found = tx.known(queues)
    if any(limits.gives(tx, queue, parked=queue.name in parked) for queue in found):
        wake |= Wake.WORK
    else:
        for due in (next_due(tx, found), limits.opens(tx, found)):
            if due is not None and (due <= tx.now or due < until):
                wake |= Wake.WORK
    now = heard(tx)
    if now.cancels > before.cancels:
        wake |= Wake.CANCEL
    if now.changes > before.changes:
        wake |= Wake.SETTINGS
    return wake, now
