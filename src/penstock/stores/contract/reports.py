"""Values that describe jobs, queues, partitions, batches, workers and the store itself to operators.

Instants are in ms since the epoch, by the store's clock.
"""

from __future__ import annotations

import enum

import msgspec

from penstock.core.job import Job, State
from penstock.core.limits import NO_LAYERS, NO_LIMITS, LimitLayers, QueueLimits


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue: its counts, switches and limits.

    - `counts`: jobs by state, exact; states without jobs are absent.
    - `oldest_available`: the earliest `run_at` of its available jobs; None if there are none.
    - `layers`: who has set the limits.
    - `throttled_until`: when the queue's throttle ends; None if the queue is not throttled. A throttled queue
      gives no jobs.
    - `opens_at`: when the rate or the throttle lets the next job start; None: now, or at the end of a job.
    - `away`: why the store cannot report on this queue now, though it can report on others; "" if it can.
    """

    name: str
    counts: dict[State, int]
    paused: bool = False
    closed: bool = False
    oldest_available: int | None = None
    limits: QueueLimits = NO_LIMITS
    throttled_until: int | None = None
    away: str = ""
    layers: LimitLayers = NO_LAYERS
    opens_at: int | None = None


class Parked(msgspec.Struct, frozen=True):
    """The number of parked jobs of one task in one queue; they wait for a worker that knows the task."""

    queue: str
    task: str
    jobs: int


#: The largest number of admitted jobs that a `PartitionInfo` shows.
PARTITION_SHOWN = 10


class PartitionInfo(msgspec.Struct, frozen=True):
    """The partition of a job (docs/concepts/partitions.md), and the job's place in it.

    - `admitted`: the first `PARTITION_SHOWN` admitted jobs, in order of enqueue.
    - `waiting`: the number of waiting jobs.
    - `before`: the number of waiting jobs ahead of this job; None if this job is not waiting.
    - `due`: when the first waiting job is admitted, if that depends on time alone; else None.
    """

    key: str
    admitted: list[Job]
    waiting: int
    before: int | None = None
    due: int | None = None


class DayCount(msgspec.Struct, frozen=True):
    """The number of attempts settled on one UTC day (`"2026-11-20"`)."""

    day: str
    processed: int
    failed: int


class QueueStats(msgspec.Struct, frozen=True):
    """The totals of a queue since its first job, and its daily counts (at most 90 days), newest first.

    `enqueued` counts the jobs that were NEW, including those that follow a settlement (`Settlement.then`).
    """

    name: str
    enqueued: int
    processed: int
    failed: int
    days: list[DayCount]


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker process, as it announces itself.

    - `queues`, `tasks`: the queues that the worker serves and the tasks that it knows.
    - `handled`: the queues of which the worker runs the jobs of every task.
    - `full_queues`: the queues whose slots in the worker are all taken.
    - `full_tasks`: its process tasks, while all its process slots are taken.
    - `identities`: the oldest name of each renamed task, by its other names: its keys, entries and counts go
      by that one.
    - `entries`: the periodic entries of its code ("queue/name") whose jobs it enqueues; None: unknown.
    - `stalled_queues`: the queues whose jobs are waited for in every slot that they could have.
    - `state`: running, quiet or draining; "unreadable" if the record cannot be read.
    - `memory`, `cpu`: the resident bytes of the process, and the CPU seconds that it has used; 0: unknown.
    - `seen_at`: the store's clock at the worker's last announcement.
    - `clock`: the worker's own clock at that announcement; 0: unknown.
    """

    id: str
    host: str
    pid: int
    started_at: int
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    running: int = 0
    state: str = "running"
    supervisor: int | None = None
    version: str = ""
    seen_at: int = 0
    handled: tuple[str, ...] = ()
    memory: int = 0
    cpu: float = 0.0
    clock: int = 0
    full_queues: tuple[str, ...] = ()
    full_tasks: tuple[str, ...] = ()
    identities: dict[str, str] = {}
    entries: tuple[str, ...] | None = None
    stalled_queues: tuple[str, ...] = ()

    @classmethod
    def unreadable(cls, id: str, seen_at: int) -> WorkerInfo:
        """The stand-in for a worker whose record cannot be read. It is pruned a minute after `seen_at`."""
        return cls(id, "", 0, seen_at, (), (), 0, state="unreadable", seen_at=seen_at)


class BatchInfo(msgspec.Struct, frozen=True):
    """A collecting batch.

    - `size`: the number of its members.
    - `oldest`: when the first member joined.
    - `due`: when the batch becomes available even if it is not full; None: only when it is full.
    """

    queue: str
    task: str
    key: str
    size: int
    oldest: int
    due: int | None

    def order(self) -> tuple[bool, int, str, str, str]:
        """The sort key of collecting batches: in the order in which they are due."""
        return self.due is None, self.due or 0, self.task, self.key, self.queue


# ── checkup ──────────────────────────────────────────────────────────────────────────────────────

# Whether jobs are safe, as the store is set up.


class Level(enum.StrEnum):
    """The severity of a finding."""

    FINE = "fine"
    WARNING = "warning"  # jobs, or the work on them, are at risk
    ERROR = "error"  # jobs will be lost, or cannot be stored

    __hash__ = str.__hash__


class Finding(msgspec.Struct, frozen=True):
    """One result of a checkup: `what` was checked, `why` it has this level, and the `way_out`.

    `loses_jobs`: a restart or full memory loses stored jobs.
    """

    level: Level
    what: str
    why: str
    way_out: str = ""
    loses_jobs: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + (f"; {self.way_out}" if self.way_out else "")


def unreadable_settings_of(queue: str, cause: str) -> Finding:
    """The finding for a queue whose settings cannot be read."""
    why = f"they cannot be read, and count as not set ({cause})"
    return Finding(
        Level.WARNING, f"settings of the queue {queue}", why, "set them again with penstock queues set"
    )


# ── records that cannot be read ──────────────────────────────────────────────────────────────────

# As verbs report them; see docs/concepts/unreadable-records.md.


class SetAside(msgspec.Struct, frozen=True):
    """A stored record that could not be read and was set aside, so that it blocks nothing.

    | kind | consequence |
    |---|---|
    | "job" | the job is dead |
    | "periodic entry" | the entry is never due |
    | "settings" | the queue's settings count as not set |
    | "worker" | the worker (`id`) counts as absent |
    | "outbox entry" | the job that should have followed another job is not enqueued |

    `cause` says why the record cannot be read.
    """

    kind: str
    queue: str
    id: str
    cause: str

    def __str__(self) -> str:
        where = f" of the queue {self.queue}" if self.queue else ""
        return f"{self.kind} {self.id}{where}: {self.cause}"
