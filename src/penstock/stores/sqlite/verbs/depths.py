"""Samples of the depths of queues, in a SQLite file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from penstock.core.queue_depth import QueueDepth, enqueued_between
from penstock.stores.contract import DepthPage, DepthRow, Resolution
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.measuring import RESOLUTION_CODES
from penstock.stores.sqlite.verbs.needs_write import NEEDS_WRITE, NeedsWrite

__all__ = ["probe_sample_depths", "read_depths", "sample_depths"]

_UNSAMPLED = SQL["depths.unsampled"]
_NEW = SQL["depths.new"]
_SAMPLE = SQL["depths.sample"]
_FORGET = SQL["depths.forget"]
_ROWS = SQL["depths.rows"]
_MINUTE = Resolution.MINUTE.length


def probe_sample_depths(tx: TransactionContext) -> int | NeedsWrite:
    """Answer by reading alone if this minute has its samples: most workers find those of another one."""
    if tx.execute(_UNSAMPLED, (tx.namespace, tx.now // _MINUTE)).fetchone():
        return NEEDS_WRITE
    return _left(tx)


def sample_depths(tx: TransactionContext) -> int:
    minute, day = tx.now // _MINUTE, tx.now // Resolution.DAY.length
    new = json.dumps([qid for (qid,) in tx.execute(_NEW, (tx.namespace, day))])
    for resolution in reversed(Resolution):  # minutes last: what they have is not added again
        code, period = RESOLUTION_CODES[resolution], tx.now // resolution.length
        tx.execute(_SAMPLE, (tx.namespace, minute, code, period, new))
        tx.execute(_FORGET, (code, resolution.oldest(tx.now), period + 1))
    return _left(tx)


def _left(tx: TransactionContext) -> int:
    return _MINUTE - tx.now % _MINUTE


def read_depths(tx: TransactionContext, resolution: Resolution, span: int, queue: str | None) -> DepthPage:
    length = resolution.length
    oldest = max(resolution.oldest(tx.now), (tx.now - span) // length)
    found = tx.execute(
        _ROWS, (tx.namespace, RESOLUTION_CODES[resolution], oldest, tx.now // length, queue)
    ).fetchall()
    rows: list[DepthRow] = []
    for (name, total), some in groupby(sorted(found, key=_place), lambda row: row[:2]):
        of_queue = list(some)
        enqueued = enqueued_between([row[3] for row in of_queue], total)
        rows += [
            DepthRow(name, row[2] * length, QueueDepth(*[*row[4:], number]))
            for row, number in zip(of_queue, enqueued, strict=True)
        ]
    return DepthPage(rows, tx.now)


def _place(row: Sequence[Any]) -> tuple[str, int]:
    name, _, period, *_ = row
    return name, period
