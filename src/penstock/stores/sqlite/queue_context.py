"""A queue within one transaction: its row, what it gives and takes, and how its counters change."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from penstock.stores.rate_limiter import Drain, Gate
from penstock.stores.sqlite.blobs import limits_of
from penstock.stores.sqlite.sql import SQL

__all__ = ["QueueContext"]

_COUNTS = SQL["counters.counts"]


class QueueContext:
    """A queue as the transaction found it, and what the transaction changes of its counters."""

    __slots__ = (
        "_counts",
        "_cx",
        "closed",
        "deltas",
        "fair",
        "gate",
        "has_partitions",
        "head",
        "miscounted",
        "mixed",
        "name",
        "newest",
        "paused",
        "qid",
        "refused",
        "tail",
    )

    def __init__(self, cx: sqlite3.Connection, name: str, row: Sequence[Any], now: int) -> None:
        self._cx = cx
        self._counts: Sequence[int] | None = None
        self.name = name
        qid, paused, closed, tail, head, newest, limits, held_until, tat, count, at, since, laned, fair = row
        self.qid: int = qid
        self.tail: int = tail
        self.head: int = head
        self.newest: int = newest  # generation of the newest job of the file
        self.has_partitions = laned == 1
        self.fair: int | None = fair  # places of fair share lie behind this one; None: it has none
        self.paused = paused == 1
        self.closed = closed == 1
        self.deltas: list[int] | None = None
        #: What may keep its jobs from starting, or new ones from entering; None: nothing.
        self.gate: Gate | None = None
        if limits is not None or held_until > now:
            self.gate = Gate(limits_of(limits), held_until, tat, Drain(count, at, since))
        self.refused = 0  # how many new jobs this transaction has found no room for
        self.miscounted = False  # whether its counts were seen to be untrue
        self.mixed = False  # whether the deltas are more than those of new jobs

    @property
    def has_dependents(self) -> bool:
        """Whether a change of one job may change others: see partitions.py."""
        return self.has_partitions or self.fair is not None

    @property
    def counts(self) -> Sequence[int]:
        """How many jobs of each state there were when somebody first asked."""
        if self._counts is None:
            found: Sequence[int] = self._cx.execute(_COUNTS, (self.qid,)).fetchone()
            self._counts = found
        return self._counts

    def count(self, state: int) -> int:
        """How many jobs of this state there are, with what this transaction has done so far."""
        return self.counts[state] + (0 if self.deltas is None else self.deltas[state])
