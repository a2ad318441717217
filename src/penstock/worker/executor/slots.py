"""Counts slots: which attempts have one, which leased jobs wait for one, and what ended attempts took."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from penstock.worker.leased_jobs import Hold, Holdings

__all__ = ["Slots"]


class Slots:
    """The slots of one worker.

    An attempt takes a slot when it starts and leaves it when it ends or is given up. Thread prefetch starts
    more thread calls than there are slots: those beyond `concurrency` count as buffered.
    """

    def __init__(self, concurrency: int, process_slots: int, holdings: Holdings) -> None:
        self.concurrency = concurrency
        self.process_slots = process_slots
        self._holdings = holdings
        #: Leased jobs without a slot, next to start first. Always the same deque: it is read for each job.
        self.waiting: deque[Hold] = deque()
        #: Leased jobs that start within milliseconds, at the instant that their queue's rate allows.
        self.reserved: set[Hold] = set()
        #: Attempts that have been started and have not ended.
        self.attempts: set[Hold] = set()
        #: Process slots in use.
        self.process_busy = 0
        #: Attempts that are something else than a plain thread call.
        self.not_plain = 0
        #: Slots given up because their attempt does not react.
        self.lost = 0
        #: Set when a slot has become free.
        self.freed = asyncio.Event()
        #: Set when an attempt has started; the waiter clears it.
        self.started = asyncio.Event()
        #: Attempts started and ended so far, and the seconds that the ended ones ran.
        self.starts = 0
        self.ends = 0
        self.busy_seconds = 0.0
        #: Monotonic time at which the last attempt ended.
        self.last_end = 0.0

    @property
    def free(self) -> int:
        """Slots without an attempt."""
        return max(0, self.room() - len(self.reserved))

    @property
    def buffered(self) -> int:
        """Leased jobs without a slot, apart from the process backlog."""
        return len(self.waiting) + max(0, -self.room())

    @property
    def running(self) -> int:
        """Attempts that have a slot."""
        return len(self.attempts) - max(0, -self.room())

    def room(self) -> int:
        """Free slots; negative by the number of prefetched thread calls."""
        return self.concurrency - self.lost - len(self.attempts)

    def is_backed_up(self) -> bool:
        """Whether leased jobs wait for a slot."""
        return self.buffered > 0

    def take(self, hold: Hold, plain: bool) -> None:
        """Start counting this attempt. `plain`: it is a call in a thread with nothing around it."""
        self.attempts.add(hold)
        if not plain:
            hold.elsewhere = True
            self.not_plain += 1
            if hold.plan.run_in == "process":
                hold.counted = True
                self.process_busy += 1
        self.starts += 1
        self.started.set()

    def take_back(self, holds: list[Hold]) -> None:
        """Undo `take` for thread calls that have not begun: they wait for a slot again, first in line."""
        for hold in holds:
            self.attempts.discard(hold)
            if hold.elsewhere:
                hold.elsewhere = False
                self.not_plain -= 1
        self.starts -= len(holds)
        self.waiting.extendleft(reversed(holds))

    def leave(self, hold: Hold) -> None:
        """End this attempt's use of its slot."""
        hold.over = True
        hold.attempt = None  # they refer to each other: a cycle would leave each job to the garbage collector
        self.attempts.discard(hold)
        if hold.elsewhere:
            hold.elsewhere = False
            self.not_plain -= 1
            if hold.counted:
                hold.counted = False
                self.process_busy -= 1
        self._holdings.ended(hold)
        self.ends += 1
        if hold.started:
            self.last_end = now = time.monotonic()
            hold.took = hold.took or now - hold.started
            self.busy_seconds += hold.took
        self.freed.set()
