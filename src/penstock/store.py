"""The seam: what a store can do, in about twenty verbs. Above it nobody knows SQL, Redis or a row.

Each verb is one atomic step, takes a batch and answers per item. No verb decides anything: `settle`
applies the `Transition` that `lifecycle.decide` made, if the lease's token still holds. Durations go
in, instants come out, and the store's own clock rules. Driver exceptions never cross: what can go
wrong is in `errors.py` under StoreError.

Order: among available jobs of a queue, higher priority first; within one priority by *place*: a new
job goes to the tail, a promoted one to the tail in the order of due times (ties: order of enqueue),
`Place.HEAD` before all others of its priority, `Place.OWN` where it stood.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.job import Job, Lease, NewJob, Progress, Ref, State
from penstock.lifecycle import Transition

__all__ = [
    "Beat",
    "Consuming",
    "DayCount",
    "Due",
    "Enqueued",
    "Fetched",
    "Grip",
    "Operating",
    "Page",
    "Producing",
    "Pruned",
    "QueueInfo",
    "QueueStats",
    "Settled",
    "Settlement",
    "Share",
    "Store",
    "SyncProducing",
    "Verdict",
    "Wake",
    "WorkerInfo",
]


# ── producing ────────────────────────────────────────────────────────────────────────────────────


class Verdict(enum.StrEnum):
    """What became of one job that was to be enqueued."""

    NEW = "new"  # stored
    EXISTS = "exists"  # its id is taken: nothing stored
    DUPLICATE = "duplicate"  # its unique key is held by another job, whose id comes back
    CLOSED = "closed"  # its queue takes no new jobs
    FULL = "full"  # its queue is at its limit
    REPLACED = "replaced"  # it took the place of the holder of its unique key

    __hash__ = str.__hash__


class Enqueued(msgspec.Struct, frozen=True):
    """The answer for one job. `id` is the stored job's: another one's for DUPLICATE."""

    verdict: Verdict
    id: str
    retry_after: int | None = None


class Producing(Protocol):
    """What a producer needs."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store the jobs, all in one step; answers in their order.

        Later items of a batch see the earlier ones (a second job of the same id EXISTS).
        """
        ...

    async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        """The jobs as they are now; None for one that is not there."""
        ...

    async def cancel(self, refs: Sequence[Ref], *, reason: str = ...) -> list[State | None]:
        """Cancel queued jobs at once; ask running ones to stop (state RUNNING comes back).

        An ended job keeps its state, which comes back; None for one that is not there.
        """
        ...

    async def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        """Wait, without busy polling, until all have ended or are gone, at most `timeout` ms; then as `get`."""
        ...


class SyncProducing(Protocol):
    """The same for callers without an event loop, each verb in the caller's own thread."""

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]: ...
    def get(self, refs: Sequence[Ref]) -> list[Job | None]: ...
    def cancel(self, refs: Sequence[Ref], *, reason: str = ...) -> list[State | None]: ...
    def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]: ...
    def retry(self, refs: Sequence[Ref]) -> list[State | None]: ...
    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]: ...
    def queues(self) -> list[QueueInfo]: ...


# ── consuming ────────────────────────────────────────────────────────────────────────────────────


class Share(msgspec.Struct, frozen=True):
    """One queue of a fetch. First each queue gives up to `quota` jobs, in the order given; then what is
    left of the limit is filled in the same order, up to `cap` jobs in all from each queue."""

    queue: str
    quota: int
    cap: int


class Fetched(msgspec.Struct, frozen=True):
    """Leased jobs, the store's now, and the instant when the next queued job of those queues is due."""

    jobs: list[Job]
    now: int
    due: int | None = None


class Beat(msgspec.Struct, frozen=True):
    """One heartbeat: hold this lease for `by` ms from now, and put down what the attempt says of itself.

    `started=True` records that the function has begun; `progress` and `checkpoint` replace what was
    there unless None.
    """

    lease: Lease
    by: int
    started: bool = False
    progress: Progress | None = None
    checkpoint: bytes | None = None


class Grip(enum.StrEnum):
    """How a lease stands after a heartbeat."""

    HELD = "held"
    LOST = "lost"
    CANCEL_ASKED = "cancel_asked"  # held, and somebody wants the job to stop

    __hash__ = str.__hash__


class Settlement(msgspec.Struct, frozen=True):
    """The end of an attempt. A bare Ref (no token) is only for dialects whose protocol has no lease.

    `then`: jobs that follow, enqueued in the same step (only if the settlement applies).
    """

    lease: Lease | Ref
    transition: Transition
    result: bytes | None = None
    then: tuple[NewJob, ...] = ()


class Settled(enum.StrEnum):
    """What became of a settlement."""

    APPLIED = "applied"
    STALE = "stale"  # the job is there, the lease is not: nothing was changed
    GONE = "gone"  # no such job (any more): nothing was changed

    __hash__ = str.__hash__


class Due(msgspec.Struct, frozen=True):
    """How many jobs a promotion moved, when the next is due, and the store's now."""

    moved: int
    next: int | None
    now: int


class Wake(enum.Flag):
    """Why a wait came back; no flag: its time was up."""

    NOTHING = 0
    WORK = enum.auto()
    CANCEL = enum.auto()
    SETTINGS = enum.auto()


class Consuming(Protocol):
    """What a worker needs."""

    async def fetch(
        self,
        queues: Sequence[Share],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        charge: bool = True,
    ) -> Fetched:
        """Lease up to `limit` available jobs for `lease` ms; their `attempt` counts up if `charge`.

        Repeating a call with the same token returns the jobs that are still leased under it, and leases
        no more while there are any. Jobs past their expiry are cancelled on the way. Paused queues give
        nothing. Parked jobs of a queue come first, if `worker` has announced their task.
        """
        ...

    async def extend(self, beats: Sequence[Beat]) -> list[Grip]:
        """Prolong leases that still hold by their token, however late (nobody has reclaimed them yet)."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Apply each transition if its lease's token still holds, and count it for the statistics.

        Per settled job: processed +1 if the transition charges, failed +1 if it carries an error.
        """
        ...

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        """Make due jobs available, earliest first, at most `limit`. Expired ones are cancelled instead."""
        ...

    async def reclaim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        of: Sequence[str] | None = None,
    ) -> Fetched:
        """Lease jobs of these queues whose lease has run out to `worker`, attempt number unchanged.

        With `of`: the jobs leased to these workers, in any queue, whether run out or not.
        """
        ...

    async def wait(self, queues: Sequence[str], *, timeout: int) -> Wake:
        """Sleep until there may be something, at most `timeout` ms.

        WORK: an available job in one of the queues, or a queued one due before the timeout's end.
        CANCEL: a running job was asked to stop since this store object's last `wait` said so.
        SETTINGS: queue settings changed since then. With no queues only the last two are waited for.
        """
        ...


# ── operating ────────────────────────────────────────────────────────────────────────────────────


class Page(msgspec.Struct, frozen=True):
    """A part of a listing; `next` goes into `after` for the following part, None at the end."""

    jobs: list[Job]
    next: str | None


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue's counts (exact; states without jobs are absent), switches, and its oldest available job."""

    name: str
    counts: dict[State, int]
    paused: bool = False
    closed: bool = False
    oldest_available: int | None = None  # when it became due, ms epoch


class DayCount(msgspec.Struct, frozen=True):
    """What was settled on one UTC day (`"2026-11-20"`)."""

    day: str
    processed: int
    failed: int


class QueueStats(msgspec.Struct, frozen=True):
    """A queue's totals since its first job, and its last days (at most 90), newest first."""

    name: str
    enqueued: int
    processed: int
    failed: int
    days: list[DayCount]


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker process as it announced itself; `seen_at` is the store's clock at its last announcement."""

    id: str
    host: str
    pid: int
    started_at: int
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    running: int = 0
    state: str = "running"  # running, quiet, draining
    supervisor: int | None = None
    version: str = ""
    seen_at: int = 0


class Pruned(msgspec.Struct, frozen=True):
    """What a prune took away."""

    finished: int
    expired: int
    workers: int


class Operating(Protocol):
    """What operators and upkeep need."""

    async def list_jobs(
        self,
        *,
        queue: str | None = None,
        state: State | None = None,
        task: str | None = None,
        worker: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page:
        """Jobs in order of enqueue, newest first. A cursor stays valid while jobs come and go."""
        ...

    async def find(self, id: str) -> list[Job]:
        """All jobs of this id, over all queues."""
        ...

    async def queues(self) -> list[QueueInfo]:
        """Every queue that has ever had a job or a setting, by name."""
        ...

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        """Totals and daily counts per queue."""
        ...

    async def settings(
        self, queue: str, *, paused: bool | None = None, closed: bool | None = None
    ) -> QueueInfo:
        """Change a queue's switches (None leaves one as it is); the queue comes to be if it was not there."""
        ...

    async def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        """Make ended or queued jobs available now, as new: attempts and losses count from 0, errors are kept.

        The state before comes back; a running job stays as it is (RUNNING), None: not there.
        """
        ...

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        """Give queued jobs (scheduled, available, retryable) a new time; the state before comes back."""
        ...

    async def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        """Remove jobs that are not running; the state before comes back (RUNNING: refused)."""
        ...

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        """Remove up to `limit` jobs of these states (never running ones); how many went."""
        ...

    async def drop(self, queue: str) -> bool:
        """Forget an empty queue, its settings and statistics; False if it still holds jobs."""
        ...

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        """One bounded step of removing what is over: ended jobs past their retention or beyond the newest
        `keep_…` of a queue, expired queued jobs (cancelled), silent workers, old daily counts."""
        ...

    async def announce(self, worker: WorkerInfo) -> None:
        """Say that this worker lives, what it serves and which tasks it knows."""
        ...

    async def retire(self, worker: str) -> None:
        """The worker is gone for good: take it off the list."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """Who announced itself within the last minute, oldest first."""
        ...


class Store(Producing, Consuming, Operating, Protocol):
    """All of it, and its life. A store opens itself at its first verb, per process (forks are noticed)."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...

    @property
    def sync(self) -> SyncProducing:
        """The door for callers without an event loop."""
        ...

    def close(self) -> None:
        """Let go of files, threads and connections; safe to call twice."""
        ...
