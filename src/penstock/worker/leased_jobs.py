"""What this worker has in hand: each leased job from its fetch to the answer to its settlement."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from penstock.app.attempt import Attempt
from penstock.core import clock
from penstock.core.errors import Interrupted
from penstock.core.job import Job, Progress
from penstock.worker.plan import Plan
from penstock.worker.shared_lease_table import LeaseTable

__all__ = ["LeasedJob", "LeasedJobs"]


class LeasedJob(msgspec.Struct, eq=False, gc=False):
    """One leased job. The executor moves it along; heartbeats read it.

    The garbage collector does not look at it: thousands come and go each second, and what refers back to
    it (its attempt, its asyncio task) is let go of when the attempt ends.
    """

    job: Job
    plan: Plan
    fetched: float  #: `clock.lease_seconds()` before the fetch was sent: what the lease is reckoned from
    now: int  #: the store's clock at the fetch
    arrived: float = 0.0  #: monotonic: since when it waits for a slot
    started: float = 0.0  #: monotonic; 0: its function has not begun
    ends: float | None = None  #: monotonic instant of its timeout or deadline
    handle: asyncio.Task[None] | None = None  #: what runs it on the loop, if anything does
    attempt: Attempt | None = None
    counted: bool = False  #: it takes one of the process slots
    elsewhere: bool = False  #: it has a slot, and is no plain call in a thread
    interrupt: type[Interrupted] | None = None  #: why we stop it, once we do
    interrupted_at: float = 0.0
    starts: float = 0.0  #: monotonic instant before which it must not begin: its place in a queue's rate
    took: float = 0.0  #: seconds that its function ran
    over: bool = False  #: its function has ended, or its slot was given up
    progress: Progress | None = None
    told: Progress | None = None  #: as much of it as the store knows
    slot: int = -1  #: its entry in the shared table

    def store_now(self) -> int:
        """The store's clock (ms), reckoned from the fetch."""
        return self.now + int((clock.lease_seconds() - self.fetched) * 1000)

    def report(self, _job: Job, progress: Progress) -> None:
        """The attempt says how far it is; the next heartbeat takes it along. Called from any thread."""
        self.progress = progress


class LeasedJobs:
    """All leased jobs of this worker process, mirrored in the table that its supervisor reads."""

    def __init__(self, table: LeaseTable | None = None) -> None:
        self._table = table
        self._leased: dict[int, LeasedJob] = {}
        #: Jobs in hand per queue that have not ended: what a queue's slots are counted by.
        self.per_queue: Counter[str] = Counter()

    def add(self, batch: Sequence[LeasedJob], until: float) -> None:
        """Leased jobs, until then by `clock.lease_seconds()`."""
        for leased in batch:
            self._leased[id(leased)] = leased
            self.per_queue[leased.job.spec.queue] += 1
        if self._table is not None:
            slots = self._table.put_many([leased.job for leased in batch], int(until * 1e9))
            for leased, slot in zip(batch, slots, strict=True):
                leased.slot = slot

    def try_start(self, leased: LeasedJob) -> bool:
        """Mark the start in the table; False if the supervisor has taken the job back meanwhile."""
        return self._table is None or self._table.try_start(leased.slot)

    def clock_starts(self, leased: LeasedJob) -> None:
        """Its function begins now: until when it may run."""
        if self._table is not None and leased.ends is not None:
            self._table.set_deadline(leased.slot, int(leased.ends * 1e9))

    def ended(self, leased: LeasedJob) -> None:
        """Its function is done: the slot of its queue is free."""
        self.per_queue[leased.job.spec.queue] -= 1

    def remove(self, leased: LeasedJob) -> None:
        """Its settlement was answered: nothing binds us to it any more."""
        if self._leased.pop(id(leased), None) is not None and self._table is not None:
            self._table.free(leased.slot)

    def __len__(self) -> int:
        return len(self._leased)

    def __iter__(self) -> Iterator[LeasedJob]:
        return iter(list(self._leased.values()))  # a copy: the heartbeat thread reads while we change
