"""The data of the oracle: queues, their jobs and partitions, and the holders of unique keys."""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.job import QUEUED, TERMINAL, Job, State
from penstock.core.relations import Partition
from penstock.core.schedule import Entry
from penstock.stores.contract import WorkerInfo
from penstock.stores.rate_limiter import RateLimiter
from tests.oracle.batch_buffer import BatchBuffer, BatchName
from tests.oracle.fair_share import FairShare
from tests.oracle.sorted import Sorted
from tests.oracle.statistics import MemoryStatistics

__all__ = ["DAY", "Holder", "MemoryQueue", "OpenPartition", "Row"]

#: A day (ms), for the daily counts.
DAY = 86_400_000


class Row:
    """A job, with data that only the store uses."""

    __slots__ = (
        "admitted",
        "at_tail",
        "cancel_reason",
        "charged",
        "generation",
        "job",
        "lease_until",
        "over_at",
        "place",
        "queue",
    )

    def __init__(self, job: Job, queue: MemoryQueue, place: int) -> None:
        self.job = job
        self.generation = job.generation
        self.queue = queue
        self.place = place  # among available jobs of its priority, the least first
        self.at_tail = True  # its place is at the tail; with a fair share, at the tail of its tenant
        self.admitted = False  # True if its partition has admitted it
        self.cancel_reason: str | None = None  # the reason of a request to stop while it ran
        self.charged = False  # True if the fetch of the current lease counted an attempt
        self.lease_until = 0  # by the clock of leases
        self.over_at = 0  # end of the retention of an ended job

    @property
    def batch_name(self) -> BatchName:
        """The name of the batch that this job is collected for."""
        terms = self.job.spec.batch_terms
        assert terms is not None
        return BatchName(self.job.task, terms.key)

    @property
    def fair_share(self) -> FairShare | None:
        """The fair share that gave this available job its place; None if none did."""
        queue = self.queue
        if queue.fair is None or self.place <= queue.fair:
            return None
        return queue.fair_share_of(self.job.spec.priority, queue.fair)

    @property
    def members(self) -> list[Row]:
        """The members of a batch that still exist."""
        found = (self.queue.rows.get(id) for id in self.job.members)
        return [member for member in found if member is not None and member.job.batch == self.job.id]

    def expired(self, now: int) -> bool:
        return self.job.expires_at is not None and self.job.expires_at <= now


class Holder(NamedTuple):
    """The holder of a unique key, and until when it holds the key; the job itself may have been removed."""

    generation: int
    id: str
    until: int | None


class OpenPartition:
    """A partition of a queue. It exists as long as it has jobs or other state."""

    __slots__ = ("admitted", "due", "key", "ready", "spent", "throttled_until", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.admitted: dict[int, Row] = {}
        self.ready: set[int] = set()  # with a rate: the admitted jobs that have not started
        self.waiting: Sorted[int, tuple[int, int]] = Sorted()  # by rank and place
        self.spent = 0.0  # until when recent starts count against its rate
        self.throttled_until = 0  # until when no job is admitted
        self.due: int | None = None  # when the first waiting job is admitted, if that depends on time alone

    def allowed_at(self, terms: Partition, now: int) -> int | None:
        """Return when the partition may admit one more job; None: only after another job leaves or starts."""
        if len(self.admitted) >= terms.most:
            return None
        return terms.allowed_at(len(self.ready), self.spent, self.throttled_until, now)


class MemoryQueue:
    """One queue: its indexes of jobs in the orders that the verbs need, and its settings and counts."""

    def __init__(self, name: str, rate_limiter: RateLimiter) -> None:
        self.name = name
        self.paused = False
        self.closed = False
        self.rate_limiter = rate_limiter
        self.rows: dict[str, Row] = {}
        self.counts = dict.fromkeys(State, 0)
        self.ready: Sorted[int, tuple[int, int]] = Sorted()  # available: by priority and place
        self.oldest: Sorted[int, int] = Sorted()  # available: by run_at
        self.parked: dict[str, Sorted[int, tuple[int, int]]] = {}  # by task; then as ready
        self.due: Sorted[int, int] = Sorted()  # scheduled and retryable: by run_at
        self.leases: Sorted[int, int] = Sorted()  # running: by the lease's end
        self.ended: dict[State, Sorted[int, int]] = {state: Sorted() for state in TERMINAL}  # by ended_at
        self.holders: dict[str, Holder] = {}  # by unique key
        self.key_ends: Sorted[int, int] = Sorted()  # holders of a key with a period: by its end
        self.partitions: dict[str, OpenPartition] = {}
        self.partition_due: Sorted[str, int] = Sorted()  # by key: when the next job is admitted
        self.fair: int | None = (
            None  # set by the first job with a tenant: places of the fair share begin after it
        )
        self.fair_share: dict[int, FairShare] = {}  # by priority
        self.entries: dict[str, Entry] = {}  # periodic entries
        self.batch_buffer = BatchBuffer()  # collecting batches
        self.enqueued = self.processed = self.failed = 0
        self.days: dict[int, tuple[int, int]] = {}  # days since the epoch: processed, failed
        self.statistics = MemoryStatistics()

    @property
    def running(self) -> int:
        return self.counts[State.RUNNING]

    def room(self, now: int) -> int | None:
        """Return how many jobs may be fetched from the queue now; None: any number."""
        return self.rate_limiter.room(self.running, now)

    def gives(self, now: int, *, parked: bool = False) -> bool:
        """Return True if a fetch would get an available job now, or, with `parked`, a parked one."""
        some = self.ready.first() or (parked and self.parked)
        return not self.paused and bool(some) and self.room(now) != 0

    def full_for(self, info: WorkerInfo | None) -> bool:
        """Return True if parked jobs of this worker's tasks wait, because `max_running` jobs run."""
        return (
            not self.paused and self.rate_limiter.full(self.running) and self.first_parked(info) is not None
        )

    def opens_at(self, now: int, info: WorkerInfo | None = None) -> int | None:
        """Return when a rate or throttle admits the next job that it blocks now; `info`: for parked jobs."""
        if self.paused or not (self.ready.first() or self.first_parked(info)):
            return None
        return None if self.room(now) != 0 else self.rate_limiter.opens_at(self.running, now)

    def first_parked(self, info: WorkerInfo | None) -> tuple[tuple[int, int], int] | None:
        """Return the first parked job that this worker can run; it comes before all available jobs."""
        if not self.parked or info is None:
            return None
        tasks = self.parked if self.name in info.handled else info.tasks
        firsts = (self.parked[task].first() for task in tasks if task in self.parked)
        return min((first for first in firsts if first is not None), default=None)

    def full(self, now: int, refused: int, more: int = 1) -> tuple[int, int] | None:
        """Return `max_size` and `retry_after` if the queue has no room for `more` jobs, else None.

        `refused`: the number of other jobs that were refused before in the same call.
        """
        most = self.rate_limiter.limits.max_size
        size = 0 if most is None else sum(self.counts[state] for state in QUEUED)
        if most is None or size + more <= most:
            return None
        return most, self.rate_limiter.drain.wait(size - most + more + refused, now)

    def fair_share_of(self, priority: int, first: int) -> FairShare:
        """Return the fair share of this priority; a new one begins after the place `first`."""
        share = self.fair_share.get(priority)
        if share is None:
            share = self.fair_share[priority] = FairShare(first)
        return share

    def partition(self, concurrency_key: str) -> OpenPartition:
        partition = self.partitions.get(concurrency_key)
        if partition is None:
            partition = self.partitions[concurrency_key] = OpenPartition(concurrency_key)
        return partition

    def count(self, now: int, processed: int, failed: int) -> None:
        """Count processed attempts, and the failed ones among them."""
        self.processed += processed
        self.failed += failed
        if processed or failed:
            before = self.days.get(now // DAY, (0, 0))
            self.days[now // DAY] = before[0] + processed, before[1] + failed
