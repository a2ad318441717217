"""What a memory store keeps: queues, their jobs and partitions, and the holders of their unique keys."""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.job import QUEUED, TERMINAL, Job, State
from penstock.core.partition import Partition
from penstock.core.schedule import Entry
from penstock.stores.batch_buffer import BatchBuffer, BatchName
from penstock.stores.contract import WorkerInfo
from penstock.stores.memory.fair_share import FairShare
from penstock.stores.memory.sorted import Sorted
from penstock.stores.rate_limiter import RateLimiter

__all__ = ["DAY", "Holder", "MemoryQueue", "OpenPartition", "Row"]

#: A day (ms), for what is counted by the day.
DAY = 86_400_000


class Row:
    """A job and what only its store knows of it."""

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
        self.at_tail = True  # its place is at the tail; in a fair queue its tenant's next one
        self.admitted = False  # one of those of its partition that may run
        self.cancel_reason: str | None = None  # why it was asked to stop while it ran
        self.charged = False  # whether the fetch of the current lease counted the attempt up
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
        """The fair share that gave this available job its place, if one did."""
        queue = self.queue
        if queue.fair is None or self.place <= queue.fair:
            return None
        return queue.fair_share_of(self.job.spec.priority, queue.fair)

    @property
    def members(self) -> list[Row]:
        """The members of a batch that are still there."""
        found = (self.queue.rows.get(id) for id in self.job.members)
        return [member for member in found if member is not None and member.job.batch == self.job.id]

    def expired(self, now: int) -> bool:
        return self.job.expires_at is not None and self.job.expires_at <= now


class Holder(NamedTuple):
    """Who has a unique key, and until when; the job itself may be kept no more."""

    generation: int
    id: str
    until: int | None


class OpenPartition:
    """A partition of a queue, while there is anything to know about it."""

    __slots__ = ("admitted", "due", "key", "ready", "spent", "throttled_until", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.admitted: dict[int, Row] = {}
        self.ready: set[int] = set()  # of these, with a rate: those that have not started
        self.waiting: Sorted[int, tuple[int, int]] = Sorted()  # by rank and place
        self.spent = 0.0  # until when starts count against its rate
        self.throttled_until = 0  # until when nothing of it is admitted
        self.due: int | None = None  # when the first one waiting is admitted, if it waits for that alone

    def allowed_at(self, terms: Partition, now: int) -> int | None:
        """From when on one more of these terms may be admitted; None: not before another one leaves or
        starts."""
        if len(self.admitted) >= terms.most:
            return None
        return terms.allowed_at(len(self.ready), self.spent, self.throttled_until, now)


class MemoryQueue:
    """The jobs of one queue, each in the order in which one of the verbs will ask for it."""

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
            None  # set when the first job with a tenant came: places of the fair share lie behind it
        )
        self.fair_share: dict[int, FairShare] = {}  # by priority
        self.entries: dict[str, Entry] = {}  # periodic ones
        self.batch_buffer = BatchBuffer()  # collecting, and in no batch yet
        self.enqueued = self.processed = self.failed = 0
        self.days: dict[int, tuple[int, int]] = {}  # days since the epoch: processed, failed

    @property
    def running(self) -> int:
        return self.counts[State.RUNNING]

    def room(self, now: int) -> int | None:
        """How many jobs its limits let it give now; None: any number."""
        return self.rate_limiter.room(self.running, now)

    def gives(self, now: int, *, parked: bool = False) -> bool:
        """Whether a fetch would get something that is ready, or from one who knows its tasks, `parked`."""
        some = self.ready.first() or (parked and self.parked)
        return not self.paused and bool(some) and self.room(now) != 0

    def full_for(self, info: WorkerInfo | None) -> bool:
        """Whether parked jobs that this worker knows wait for the end of one that runs."""
        return (
            not self.paused and self.rate_limiter.full(self.running) and self.first_parked(info) is not None
        )

    def opens(self, now: int, info: WorkerInfo | None = None) -> int | None:
        """When it gives what it keeps back now, by the time that passes; to this worker parked jobs, too."""
        if self.paused or not (self.ready.first() or self.first_parked(info)):
            return None
        return None if self.room(now) != 0 else self.rate_limiter.opens(self.running, now)

    def first_parked(self, info: WorkerInfo | None) -> tuple[tuple[int, int], int] | None:
        """The first of the parked jobs that this worker can run; it goes before all that are ready."""
        if not self.parked or info is None:
            return None
        tasks = self.parked if self.name in info.handled else info.tasks
        firsts = (self.parked[task].first() for task in tasks if task in self.parked)
        return min((first for first in firsts if first is not None), default=None)

    def full(self, now: int, refused: int) -> tuple[int, int] | None:
        """If it has no room: its size, and when there may be some, behind `refused` others."""
        most = self.rate_limiter.limits.max_size
        size = 0 if most is None else sum(self.counts[state] for state in QUEUED)
        if most is None or size < most:
            return None
        return most, self.rate_limiter.drain.wait(size - most + 1 + refused, now)

    def fair_share_of(self, priority: int, first: int) -> FairShare:
        """Those of this priority; new ones begin behind the place `first`."""
        share = self.fair_share.get(priority)
        if share is None:
            share = self.fair_share[priority] = FairShare(first)
        return share

    def partition(self, key: str) -> OpenPartition:
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = OpenPartition(key)
        return partition

    def count(self, now: int, processed: int, failed: int) -> None:
        """So many attempts are over, and so many of them failed."""
        self.processed += processed
        self.failed += failed
        if processed or failed:
            before = self.days.get(now // DAY, (0, 0))
            self.days[now // DAY] = before[0] + processed, before[1] + failed
