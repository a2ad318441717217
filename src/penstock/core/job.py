"""Jobs, as frozen values.

All instants are ms since the epoch, all durations are ms (see `clock.py`). A `NewJob` is a producer's request
and never changes; a `Job` is that request with its current state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Never

import msgspec

from penstock.core.errors import Undecodable
from penstock.core.formats import instant, iso, json_or_base64, seconds, shown_text
from penstock.core.relations import BatchTerms, FlowMember, Partition, Tenant
from penstock.core.retry import RetryPolicy
from penstock.core.security import Secret
from penstock.core.text import storable
from penstock.core.unique import UniqueKey

DEFAULT_TIMEOUT = 30 * 60_000
MAX_ATTEMPTS = 25
#: Maximum of `max_attempts`.
MOST_ATTEMPTS = 2**31 - 1
PRIORITIES = range(-100, 101)
#: Default retention of completed jobs (ms).
FINISHED_KEPT = 10 * 60_000
#: Default retention of dead jobs (ms).
DEAD_KEPT = 90 * 86_400_000
#: A job keeps only its last errors, each of bounded size, so that a job that fails for ever does not grow.
MAX_ERRORS = 5
MAX_MESSAGE = 1_000
MAX_KIND = 200
MAX_TRACEBACK = 8_000
#: The task of a job whose record cannot be read. No task can have this name: it has a space.
UNREADABLE_TASK = "(unreadable record)"


class State(enum.StrEnum):
    """The state of a job; `docs/lifecycle.md` has the diagram of transitions."""

    SCHEDULED = "scheduled"  # due later
    AVAILABLE = "available"  # ready to start
    RUNNING = "running"  # leased to a worker
    RETRYABLE = "retryable"  # failed, due again later
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DEAD = "dead"  # failed for good
    PARKED = "parked"  # no worker here knows its task
    WAITING = "waiting"  # until its partition has room
    COLLECTING = "collecting"  # collected with others, for a batch
    SUSPENDED = "suspended"  # a flow that waits for a timer or a signal

    __hash__ = str.__hash__


class Unkept(enum.StrEnum):
    """The state of an acknowledged job that is no longer in the store, as returned by `Handle.status`."""

    ENDED = "ended"  # completed; its retention kept nothing

    __hash__ = str.__hash__


TERMINAL = frozenset({State.COMPLETED, State.CANCELLED, State.DEAD})
#: States of jobs that have not started, or wait for another attempt.
QUEUED = frozenset(
    {State.SCHEDULED, State.AVAILABLE, State.RETRYABLE, State.PARKED, State.WAITING, State.COLLECTING}
)


class Ref(msgspec.Struct, frozen=True, gc=False):
    """The address of a job: an id is unique in its queue."""

    queue: str
    id: str


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A lease of a job: only the holder of its token may change the running job.

    `generation` is the store's number for this use of the id, so that a job that was deleted and enqueued
    again under the same id is not confused with the old one.
    """

    queue: str
    id: str
    token: str
    generation: int = 0

    @property
    def ref(self) -> Ref:
        return Ref(self.queue, self.id)


class AttemptError(msgspec.Struct, frozen=True, array_like=True):
    """The error of a failed attempt. `kind` is the exception's class, or `Timeout`, `LeaseLost`, `Crash` …

    `worker`, `fetched_at`: the worker that had leased the job, and since when; "" and None if unknown. Stores
    write it as it is; add new fields only at the end.
    """

    attempt: int
    at: int
    kind: str
    message: Annotated[str, Secret.ERROR]
    traceback: Annotated[str, Secret.ERROR] = ""
    worker: str = ""
    fetched_at: int | None = None

    @classmethod
    def bounded(cls, attempt: int, at: int, kind: str, message: str, traceback: str = "") -> AttemptError:
        """Make an error of bounded size: the start of a long message, the end of a long traceback."""
        kind, message, traceback = storable(kind[:MAX_KIND]), storable(message), storable(traceback)
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE - 1] + "…"
        if len(traceback) > MAX_TRACEBACK:
            traceback = "…" + traceback[1 - MAX_TRACEBACK :]
        return cls(attempt, at, kind, message, traceback)

    @property
    def in_a_line(self) -> str:
        """The class and the first line of the message, as people see them."""
        return f"{self.kind}: {shown_text(self.message)}".partition("\n")[0]

    @property
    def ran(self) -> float | None:
        """Seconds from the lease to the failure."""
        return seconds(self.fetched_at, self.at)

    def to_dict(self, *, traceback: bool = False) -> dict[str, Any]:
        """The error as a dict for JSON, with its traceback if wanted."""
        shown = {
            "attempt": self.attempt,
            "at": instant(self.at),
            "kind": self.kind,
            "message": shown_text(self.message),
            "worker": self.worker or None,
            "fetched_at": iso(self.fetched_at),
            "ran": self.ran,
        }
        return {**shown, "traceback": shown_text(self.traceback)} if traceback else shown


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """The progress that a running attempt has reported."""

    done: int | float  # a whole number stays an int in every store and process
    of: int | float | None = None
    note: Annotated[str, Secret.NOTE] = ""

    def to_dict(self) -> dict[str, Any]:
        """The progress as a dict for JSON."""
        return {"done": self.done, "of": self.of, "note": shown_text(self.note)}


class NewJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A producer's request for a job. Stores write it as it is; add new fields only at the end.

    `delay` and `expires_in` count from the store's clock at the enqueue; `run_at` and `expires_at` are
    instants. `payload` is JSON as docs/payloads.md describes, or any bytes for raw jobs. `keep_dead` is the
    retention (ms) if the job becomes dead; None: the worker's default. `fetch_starts`: a fetch starts the
    attempt, because the consumer cannot report a start: a lost lease always costs the attempt, and the job
    goes to the tail of its queue at once. `flow`: the job is a node of this flow (docs/concepts/flows.md).
    """

    id: str
    task: str
    payload: Annotated[bytes, Secret.PAYLOAD] = b"{}"
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
    partition: Partition | None = None
    tenant: Tenant | None = None
    batch_terms: BatchTerms | None = None
    keep_dead: int | None = None
    fetch_starts: bool = False
    flow: FlowMember | None = None

    @property
    def ref(self) -> Ref:
        return Ref(self.queue, self.id)

    @property
    def unreadable(self) -> bool:
        """Whether this stands for a record that cannot be read; see `stand_in`."""
        return self.task == UNREADABLE_TASK


class Job(msgspec.Struct, frozen=True, gc=False):
    """A stored job, as it was at one instant.

    - `attempt`: number of charged attempts; while the job runs, the number of the current one, from 1.
    - `lost`: number of lost leases.
    - `run_at`: when the job is or was due; for a collecting job, when it joined its batch.
    - `started`: whether the store knows that the current attempt's function has started.
    - `batch`: id of the batch that the job is or was a member of.
    - `members`: for a batch, the ids of its members in order of joining.

    A job cannot be part of a reference cycle, so it is not tracked by the garbage collector.
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
    result: Annotated[bytes | None, Secret.RESULT] = None
    progress: Progress | None = None
    checkpoint: Annotated[bytes | None, Secret.CHECKPOINT] = None
    reason: Annotated[str | None, Secret.REASON] = None
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
        """The lease of this job; only for jobs returned by a fetch or reclaim.

        Raises ValueError otherwise.
        """
        if self.token is None:
            raise ValueError(f"job {self.id} is not leased")
        return Lease(self.spec.queue, self.spec.id, self.token, self.generation)

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_member(self) -> bool:
        """Whether this job is collected for a batch; False for the batch itself."""
        return self.spec.batch_terms is not None and not self.members

    @property
    def in_batch(self) -> bool:
        """Whether the job is in a batch that has not ended, and ends with it."""
        return self.batch is not None and self.state is State.COLLECTING

    def to_dict(self, *, payload: bool = False, tracebacks: bool = False) -> dict[str, Any]:
        """The job as a dict for JSON: instants in ISO 8601, durations in seconds. See docs/job.md.

        `payload` adds the arguments, `tracebacks` those of the errors. Both may have data that a caller of
        your API should not see.
        """
        spec, last = self.spec, self.errors[-1] if self.errors else None
        result, result_base64 = _json_value(self.result)
        facts = {
            "id": spec.id,
            "queue": spec.queue,
            "task": spec.task,
            "state": self.state.value,
            "priority": spec.priority,
            "attempt": self.attempt,
            "max_attempts": spec.max_attempts,
            "lost": self.lost,
            "delivery": "at-most-once" if spec.at_most_once else "at-least-once",
            "enqueued_at": instant(self.enqueued_at),
            "due_at": instant(self.run_at),
            "fetched_at": iso(self.fetched_at),
            "ended_at": iso(self.ended_at),
            "expires_at": iso(self.expires_at),
            "deadline": iso(spec.deadline),
            "waited": seconds(self.run_at, self.fetched_at),
            "ran": seconds(self.fetched_at, self.ended_at),
            "timeout": seconds(0, spec.timeout),
            "retention": seconds(0, spec.retention),
            "keep_dead": seconds(0, spec.keep_dead),
            "worker": self.worker,
            "cancel_asked": self.cancel_asked,
            "progress": None if self.progress is None else self.progress.to_dict(),
            "result": result,
            "result_base64": result_base64,
            "reason": self.reason and shown_text(self.reason),
            "error": None if last is None else last.in_a_line,
            "errors": [error.to_dict(traceback=tracebacks) for error in self.errors],
            "headers": dict(spec.headers or {}),
            "concurrency_key": None if spec.partition is None else spec.partition.key,
            "tenant": None if spec.tenant is None else spec.tenant.key,
            "batch_key": None if spec.batch_terms is None else spec.batch_terms.key,
            "batch": self.batch,
            "members": list(self.members),
            "flow": None if spec.flow is None else {"id": spec.flow.id, "queue": spec.flow.queue},
        }
        if payload:
            facts["payload"], facts["payload_base64"] = _json_value(spec.payload)
        return facts


class _PeerWord:
    """An attribute of the jobs of other systems: its AttributeError says what it is called here.

    `Job` has no `__getattr__`, because that slows down each read of an attribute, and a worker reads many.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, job: Job | None, kind: type[Job]) -> Never:
        from penstock.core.peer_words import no_attribute  # only for this message

        raise no_attribute(kind if job is None else job, "Job", self._name)


for _word in (
    "created_at",
    "date_done",
    "error",
    "exc_info",
    "func_name",
    "get_status",
    "is_finished",
    "job_try",
    "meta",
    "status",
    "success",
    "traceback",
):
    setattr(Job, _word, _PeerWord(_word))


class RawJob(msgspec.Struct, frozen=True):
    """A job as a raw handler gets it, with the bytes of its payload as they were enqueued."""

    id: str
    queue: str
    task: str
    payload: bytes
    attempt: int
    headers: Mapping[str, str]

    def json(self) -> Any:
        """The payload, decoded as JSON. Raises Undecodable, which makes the job dead at once."""
        return read_json(self.payload, self.id)


def read_json(payload: bytes, id: str) -> Any:
    """Decode a payload as JSON. Raises Undecodable."""
    try:
        return msgspec.json.decode(payload)
    except Exception as error:  # boundary: any error means that it is not JSON
        raise Undecodable(f"the payload of job {id} is not JSON: {error}") from error


def _json_value(data: bytes | None) -> tuple[Any, str | None]:
    """The value of JSON bytes; other bytes as base64, in the second place."""
    raw, base64 = json_or_base64(data)
    return (None if raw is None else msgspec.json.decode(raw)), base64


def stand_in(ref: Ref, raw: bytes) -> NewJob:
    """The job that is stored and shown in place of an unreadable record, with `raw` as its payload."""
    return NewJob(ref.id, UNREADABLE_TASK, raw, ref.queue, timeout=None, max_attempts=1)
