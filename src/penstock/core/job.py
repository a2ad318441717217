"""What a job is: frozen facts that every floor above passes on.

All instants are ms since the epoch, all durations ms (see `clock.py`). A `NewJob` is what a
producer asked for and never changes; a `Job` is that and what has become of it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.batch import Group
from penstock.core.errors import Undecodable
from penstock.core.partition import Lane, Turn
from penstock.core.retry import RetryPolicy
from penstock.core.text import storable
from penstock.core.unique import UniqueKey

__all__ = [
    "DEAD_KEPT",
    "DEFAULT_TIMEOUT",
    "FINISHED_KEPT",
    "MAX_ATTEMPTS",
    "MAX_ERRORS",
    "MAX_MESSAGE",
    "MAX_TRACEBACK",
    "MOST_ATTEMPTS",
    "PRIORITIES",
    "QUEUED",
    "TERMINAL",
    "UNREADABLE_TASK",
    "AttemptError",
    "Job",
    "Lease",
    "NewJob",
    "Progress",
    "RawJob",
    "Ref",
    "State",
    "Unkept",
    "read_json",
    "stand_in",
]

DEFAULT_TIMEOUT = 30 * 60_000
MAX_ATTEMPTS = 25
#: The most that `max_attempts` may be.
MOST_ATTEMPTS = 2**31 - 1
PRIORITIES = range(-100, 101)
#: How long a completed job is kept unless its task says otherwise (ms).
FINISHED_KEPT = 10 * 60_000
#: How long a dead job is kept (ms).
DEAD_KEPT = 90 * 86_400_000
#: A job carries its last errors only, each of bounded size: a job that fails for ever does not grow.
MAX_ERRORS = 5
MAX_MESSAGE = 1_000
MAX_KIND = 200
MAX_TRACEBACK = 8_000
#: The task of a job whose record cannot be read. No task can have this name: it has a space.
UNREADABLE_TASK = "(unreadable record)"


class State(enum.StrEnum):
    """Where a job stands; `docs/lifecycle.md` draws the way from one to the next."""

    SCHEDULED = "scheduled"  # due later
    AVAILABLE = "available"  # ready to start
    RUNNING = "running"  # leased to a worker
    RETRYABLE = "retryable"  # failed, due again later
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DEAD = "dead"  # failed for good
    PARKED = "parked"  # no worker here knows its task
    WAITING = "waiting"  # for its turn in its lane
    GROUPED = "grouped"  # collected with others, for a batch

    __hash__ = str.__hash__


class Unkept(enum.StrEnum):
    """What is known of an acknowledged job that is not in the store any more; `Handle.status` says it."""

    ENDED = "ended"  # it has completed, and nothing of it was kept

    __hash__ = str.__hash__


TERMINAL = frozenset({State.COMPLETED, State.CANCELLED, State.DEAD})
#: Waiting to start, one way or another.
QUEUED = frozenset(
    {State.SCHEDULED, State.AVAILABLE, State.RETRYABLE, State.PARKED, State.WAITING, State.GROUPED}
)


class Ref(msgspec.Struct, frozen=True, gc=False):
    """The address of a job: an id is unique in its queue."""

    queue: str
    id: str


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A job on loan. Whoever shows the token may change the running job, nobody else.

    `generation` is the store's own number for this life of the id, so that an id that was deleted and
    enqueued again is not confused with its ghost.
    """

    queue: str
    id: str
    token: str
    generation: int = 0

    @property
    def ref(self) -> Ref:
        return Ref(self.queue, self.id)


class AttemptError(msgspec.Struct, frozen=True, array_like=True):
    """Why an attempt failed. `kind` is the exception's class, or `Timeout`, `LeaseLost`, `Crash` …"""

    attempt: int
    at: int
    kind: str
    message: str
    traceback: str = ""

    @classmethod
    def bounded(cls, attempt: int, at: int, kind: str, message: str, traceback: str = "") -> AttemptError:
        """One that can be kept: the head of a long message, the tail of a long traceback."""
        kind, message, traceback = storable(kind[:MAX_KIND]), storable(message), storable(traceback)
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE - 1] + "…"
        if len(traceback) > MAX_TRACEBACK:
            traceback = "…" + traceback[1 - MAX_TRACEBACK :]
        return cls(attempt, at, kind, message, traceback)


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far a running attempt says that it is."""

    done: float
    of: float | None = None
    note: str = ""


class NewJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a producer asks a store to keep. Stores write it as it is; add fields only at the end.

    `delay` counts from the store's clock at the enqueue, `run_at` is an instant; likewise `expires_in`
    and `expires_at`. `payload` is JSON as docs/payloads.md says, or any bytes for raw jobs. `keep_dead` (ms)
    is how long the job stays if it ends dead; None: as long as its worker says.
    """

    id: str
    task: str
    payload: bytes = b"{}"
    queue: str = "default"
    priority: int = 0
    delay: int = 0
    run_at: int | None = None
    expires_in: int | None = None
    expires_at: int | None = None
    timeout: int | None = DEFAULT_TIMEOUT
    deadline: int | None = None
    max_attempts: int = MAX_ATTEMPTS
    retry: RetryPolicy | None = None
    unique: UniqueKey | None = None
    retention: int = 0
    at_most_once: bool = False
    headers: dict[str, str] | None = None
    lane: Lane | None = None
    turn: Turn | None = None
    group: Group | None = None
    keep_dead: int | None = None

    @property
    def ref(self) -> Ref:
        return Ref(self.queue, self.id)

    @property
    def unreadable(self) -> bool:
        """Whether this stands for a record that cannot be read; see `stand_in`."""
        return self.task == UNREADABLE_TASK


class Job(msgspec.Struct, frozen=True, gc=False):
    """A stored job, as it was at one instant.

    `attempt` counts the charged attempts; while the job runs it is the number of the current one,
    from 1. `lost` counts the leases that ended without a word. `run_at` is when the job is or was
    due; of a grouped job, when it joined its group. `started` is whether the store knows that the current
    attempt's function has begun. `batch` is the id of the batch that the job is, or was, a member of; a batch
    has the ids of its `members`, in the order in which they joined.

    Like the other values of the seam it can be in no cycle, so the garbage collector need not look at it.
    """

    spec: NewJob
    state: State
    generation: int = 0
    attempt: int = 0
    lost: int = 0
    enqueued_at: int = 0
    run_at: int = 0
    fetched_at: int | None = None
    ended_at: int | None = None
    expires_at: int | None = None
    token: str | None = None
    worker: str | None = None
    started: bool = False
    cancel_asked: bool = False
    errors: tuple[AttemptError, ...] = ()
    result: bytes | None = None
    progress: Progress | None = None
    checkpoint: bytes | None = None
    reason: str | None = None
    batch: str | None = None
    members: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def queue(self) -> str:
        return self.spec.queue

    @property
    def task(self) -> str:
        return self.spec.task

    @property
    def ref(self) -> Ref:
        return Ref(self.spec.queue, self.spec.id)

    @property
    def lease(self) -> Lease:
        """The loan that this job is out on; only for jobs that a fetch or reclaim returned."""
        if self.token is None:
            raise ValueError(f"job {self.id} is not leased")
        return Lease(self.spec.queue, self.spec.id, self.token, self.generation)

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_member(self) -> bool:
        """Whether it is one of those that are collected; a batch is none of them, and has their group."""
        return self.spec.group is not None and not self.members

    @property
    def in_batch(self) -> bool:
        """Whether it is part of a batch that has not ended, and shares its fate."""
        return self.batch is not None and self.state is State.GROUPED


class RawJob(msgspec.Struct, frozen=True):
    """A job as a raw handler sees it: the bytes as they came, whoever sent them."""

    id: str
    queue: str
    task: str
    payload: bytes
    attempt: int
    headers: Mapping[str, str]

    def json(self) -> Any:
        """The payload, read as JSON; raises Undecodable, with which the job is dead at once."""
        return read_json(self.payload, self.id)


def read_json(payload: bytes, id: str) -> Any:
    """A payload that should be JSON; raises Undecodable."""
    try:
        return msgspec.json.decode(payload)
    except Exception as error:  # boundary: every way of not being JSON
        raise Undecodable(f"the payload of job {id} is not JSON: {error}") from error


def stand_in(ref: Ref, raw: bytes) -> NewJob:
    """The job that is stored and shown in place of a record that cannot be read: `raw` is its payload."""
    return NewJob(ref.id, UNREADABLE_TASK, raw, ref.queue, timeout=None, max_attempts=1)
