"""A queue within one transaction: its row, its limits, and the changes of its counters."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from penstock.stores.rate_limiter import Drain, RateLimiter
from penstock.stores.sqlite.blobs import limits_of
from penstock.stores.sqlite.sql import SQL

__all__ = ["QueueContext"]

_COUNTS = SQL["counters.counts"]


class QueueContext:
    """A queue as read at the start of the transaction, and the transaction's changes of its counters."""

    __slots__ = (
        "_counts",
        "_cx",
        "closed",
        "deltas",
        "ended_throttle",
        "fair",
        "has_partitions",
        "head",
        "miscounted",
        "mixed",
        "name",
        "newest",
        "paused",
        "qid",
        "rate_limiter",
        "refused",
        "tail",
    )

    def __init__(self, cx: sqlite3.Connection, name: str, row: Sequence[Any], now: int) -> None:
        self._cx = cx
        self._counts: Sequence[int] | None = None
        self.name = name
        (
            qid,
            paused,
            closed,
            tail,
            head,
            newest,
            limits,
            throttled_until,
            next_start,
            count,
            at,
            since,
            partitioned,
            fair,
        ) = row
        self.qid: int = qid
        self.tail: int = tail
        self.head: int = head
        self.newest: int = newest  # generation of the newest job of the file
        self.has_partitions = partitioned == 1
        self.fair: int | None = fair  # places of the fair share begin after this one; None: no fair share
        self.paused = paused == 1
        self.closed = closed == 1
        self.deltas: list[int] | None = None
        #: The rate limiter; None if the queue has no limits and no throttle.
        self.rate_limiter: RateLimiter | None = None
        self.ended_throttle = 0  # when the last throttle ended, if it has
        if limits is not None or throttled_until > now:
            self.rate_limiter = RateLimiter(
                limits_of(limits), throttled_until, next_start, Drain(count, at, since)
            )
        else:
            self.ended_throttle = throttled_until
        self.refused = 0  # number of new jobs that this transaction refused because the queue is full
        self.miscounted = False  # True if the stored counts were found to be wrong
        self.mixed = False  # True if the deltas come from more than new jobs

    @property
    def has_dependents(self) -> bool:
        """True if a change of one job may change others; see partitions.py."""
        return self.has_partitions or self.fair is not None

    @property
    def counts(self) -> Sequence[int]:
        """The number of jobs by state, as stored at the first access."""
        if self._counts is None:
            found: Sequence[int] = self._cx.execute(_COUNTS, (self.qid,)).fetchone()
            self._counts = found
        return self._counts

    def count(self, state: int) -> int:
        """Return the number of jobs in this state, including this transaction's changes so far."""
        return self.counts[state] + (0 if self.deltas is None else self.deltas[state])
