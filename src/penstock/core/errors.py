"""Every error that Penstock raises, so that a caller can catch as widely or as narrowly as it wants.

PenstockError
├── ConfigError              what was asked of us makes no sense: an option, a name, a value
│   ├── UnknownScheme        a URL whose store nobody knows
│   └── MissingExtra         a store or type that needs a package which is not installed
├── ArgumentError            (TypeError) a call that does not fit the task; nothing was stored
├── EnqueueError             a job that the store did not take
│   ├── JobExists            its id is taken
│   ├── DuplicateJob         a unique job that is the same is there; has its id
│   ├── QueueClosed          its queue takes no new jobs
│   ├── QueueFull            its queue is at its limit; has retry_after and size
│   ├── EnqueueManyError     some of many were not stored; has handles and errors
│   ├── EnqueueUnknown       the reply was lost: the jobs may be stored or not; has ids
│   ├── NotReplicated        the jobs are stored, on fewer replicas than wanted; has ids
│   └── OutboxFull           the store is away, and the outbox has no room left; has limit
├── StoreError               the store cannot do what was asked
│   ├── StoreUnavailable     it may come back: try again
│   │   └── StoreBusy        somebody else holds it for too long
│   ├── StoreFull            no room: the disk or memory of the store is used up
│   ├── StoreReadOnly        it can be read but not written
│   ├── StoreCorrupt         what is there is not a store, or is damaged
│   ├── StoreTooNew          written by a later Penstock
│   └── Unsupported          a dialect's protocol has no such thing
├── ResultError              a result that cannot be had
│   ├── ResultNotKept        the job's retention says that none is kept
│   ├── ResultTimeout        (TimeoutError) the job has not ended yet
│   ├── JobNotFound          no such job, or no longer
│   ├── JobDead              the job failed for good; has errors
│   └── JobCancelled         the job was cancelled
└── Undecodable              a stored payload that does not fit the task
    └── SignatureMismatch    its arguments have other names, or are more or fewer, than the task takes here

Steering (Exception)         raised by a task to choose its own outcome
├── Retry                    try again, perhaps at a time of its own
├── Snooze                   later, and this attempt does not count
├── RateLimited              the same for all of its key, or queue
├── Discard                  failed for good, at once
└── Cancel                   no longer wanted

Interrupted (BaseException)  raised *into* a running attempt; `except Exception` does not swallow it
├── AttemptTimeout           its timeout or deadline has passed
├── AttemptCancelled         somebody cancelled the job
└── AttemptLost              the lease is gone, or the worker stops: the job goes on elsewhere

BlockingCallWarning          (RuntimeWarning) a sync call blocks the event loop of its thread
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from penstock.core.text import number, short_line, short_lines

__all__ = [
    "ArgumentError",
    "AttemptCancelled",
    "AttemptLost",
    "AttemptTimeout",
    "BlockingCallWarning",
    "Cancel",
    "ConfigError",
    "Discard",
    "DuplicateJob",
    "EnqueueError",
    "EnqueueManyError",
    "EnqueueUnknown",
    "Interrupted",
    "JobCancelled",
    "JobDead",
    "JobExists",
    "JobNotFound",
    "MissingExtra",
    "NotReplicated",
    "OutboxFull",
    "PenstockError",
    "QueueClosed",
    "QueueFull",
    "RateLimited",
    "ResultError",
    "ResultNotKept",
    "ResultTimeout",
    "Retry",
    "SignatureMismatch",
    "Snooze",
    "Steering",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreTooNew",
    "StoreUnavailable",
    "Undecodable",
    "UnknownScheme",
    "Unsupported",
    "did_you_mean",
]


class PenstockError(Exception):
    """The root of all that Penstock raises of its own. Its message is one line of bounded length, without
    control characters, whatever it quotes."""

    def __str__(self) -> str:
        return short_line(super().__str__())


class ConfigError(PenstockError):
    """An option, a name or a value that makes no sense; the message says which, and what would.

    Of several such problems each has a line of the message.
    """

    def __str__(self) -> str:
        return short_lines(Exception.__str__(self))


class UnknownScheme(ConfigError):
    """A store URL whose scheme nobody knows."""


class MissingExtra(ConfigError):
    """A package that this feature needs is not installed; the message has the pip command."""


class ArgumentError(PenstockError, TypeError):
    """A call that does not fit the task's signature, or a value that cannot be stored."""


class EnqueueError(PenstockError):
    """A job that the store did not take."""


class JobExists(EnqueueError):
    """A job of this id is in this queue already; the id is free again when that job is pruned or deleted."""

    def __init__(self, queue: str, id: str) -> None:
        super().__init__(
            f"a job with the id {id!r} exists in the queue {queue!r}; "
            "use another id, or delete the finished job first"
        )
        self.queue = queue
        self.id = id


class DuplicateJob(EnqueueError):
    """A unique job that is the same has the key, and the rule says to reject others.

    `id` and `queue` are that job's: `app.handle(error.id, error.queue)`.
    """

    def __init__(self, queue: str, id: str, task: str = "") -> None:
        super().__init__(
            f"a job {task or 'of these bytes'} that is the same is in the queue {queue!r} already: {id}; "
            "look at it with app.handle(error.id, error.queue), or let on_conflict='existing' give its handle"
        )
        self.queue = queue
        self.id = id


class QueueClosed(EnqueueError):
    """The queue takes no new jobs; workers drain what is in it."""

    def __init__(self, queue: str, meaning: str | None = None) -> None:
        super().__init__(
            f"the queue {queue!r} is closed: it takes no new jobs until it is opened again"
            if meaning is None
            else f"the queue {queue!r} is closed: {meaning}"
        )
        self.queue = queue


class QueueFull(EnqueueError):
    """The queue is at its limit; the job was not stored.

    `retry_after` is in seconds, as fast as the queue drains of late, or None where nobody knows; `size` is
    its limit, if it has been set with the queue.
    """

    def __init__(
        self, queue: str, retry_after: float | None = None, size: int | None = None, way_out: str = ""
    ) -> None:
        most = "" if size is None else f": {size:,} jobs wait in it, which is its max_size"
        when = "" if retry_after is None else f"; try again in {number(retry_after)} s"
        super().__init__(f"the queue {queue!r} is full{most}{when}{way_out}")
        self.queue = queue
        self.retry_after = retry_after
        self.size = size


class EnqueueUnknown(EnqueueError):
    """The store's reply was lost: the jobs in `ids` may or may not be stored."""

    def __init__(self, ids: Sequence[str], cause: str) -> None:
        super().__init__(
            f"nobody knows whether {len(ids)} job(s) were stored ({cause}): {', '.join(ids[:5])}"
        )
        self.ids = tuple(ids)
        self.cause = cause


class EnqueueManyError(EnqueueError):
    """Some of many jobs were not stored; all others were.

    `handles` has one entry per job in the order of the call, None for one that was not stored (or, by an
    EnqueueUnknown, perhaps was); `errors` says by index why not. A stored one may be there as NotReplicated.
    """

    def __init__(self, handles: Sequence[Any], errors: Mapping[int, PenstockError]) -> None:
        lost = [index for index, error in errors.items() if not isinstance(error, NotReplicated)]
        first = min(lost)
        super().__init__(
            f"{len(lost)} of {len(handles)} jobs were not stored; the first of them, number {first + 1}: "
            f"{errors[first]}"
        )
        self.handles = tuple(handles)
        self.errors = dict(errors)


class NotReplicated(EnqueueError):
    """The jobs in `ids` are stored and will run, but too few replicas have said in time that they have them.

    If the master dies now they may be lost with it. `cause` says how many have, of how many.
    """

    def __init__(self, ids: Sequence[str], cause: str) -> None:
        super().__init__(
            f"{len(ids)} job(s) are stored, but not on as many replicas as wanted ({cause}): "
            f"{', '.join(ids[:5])}; do not enqueue them again, see to the replicas"
        )
        self.ids = tuple(ids)
        self.cause = cause


class OutboxFull(EnqueueError):
    """The store is away, and the outbox holds as many jobs as it may: nothing of this call was kept."""

    def __init__(self, limit: int, cause: str) -> None:
        super().__init__(
            f"the outbox has no room for this: {limit} job(s) at most wait in it until the store is back "
            f"({cause}); try again later, or make it larger: App(outbox=...)"
        )
        self.limit = limit
        self.cause = cause


class StoreError(PenstockError):
    """The store cannot do what was asked."""


class StoreUnavailable(StoreError):
    """The store does not answer now; the same call may work later."""


class StoreBusy(StoreUnavailable):
    """Somebody else holds the store for longer than we wait."""


class StoreFull(StoreError):
    """The store has no room left; nothing of the refused call was written."""


class StoreReadOnly(StoreError):
    """The store can be read but not written."""


class StoreCorrupt(StoreError):
    """What is there is not a Penstock store, or is damaged."""


class StoreTooNew(StoreError):
    """The store was written by a later version of Penstock."""


class Unsupported(StoreError):
    """A dialect's protocol has no such thing."""


class ResultError(PenstockError):
    """A result that cannot be had."""


class ResultNotKept(ResultError):
    """The job keeps no result, by its retention."""


class ResultTimeout(ResultError, TimeoutError):
    """The job has not ended within the time that the caller was ready to wait."""


class JobNotFound(ResultError):
    """No such job in this queue, or no longer: its retention is over, or it was deleted."""


class JobDead(ResultError):
    """The job failed for good. `errors` are its last attempts' errors, oldest first."""

    def __init__(self, message: str, errors: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


class JobCancelled(ResultError):
    """The job was cancelled before it could complete."""


class Undecodable(PenstockError):
    """A stored payload that does not fit the task's signature, or is not what it claims to be."""


class SignatureMismatch(Undecodable):
    """Stored arguments have other names than the task's parameters here, or there are more or fewer of them.

    They are of another release, most likely: the job is parked for a worker that runs it.
    """

    #: The id of the job that carries them, where it is known.
    job: str = ""


class Steering(Exception):
    """The root of what a task raises to choose its own outcome."""


class Retry(Steering):
    """Try again; this attempt counts. Without a delay the job's own retry policy says when."""

    #: For subclasses whose own `__init__` does not call this one's, here and below.
    delay: float | str | timedelta | None = None

    def __init__(
        self,
        reason: str = "the task asked for another attempt",
        *,
        delay: float | str | timedelta | None = None,
    ) -> None:
        super().__init__(reason)
        self.delay = delay


class Snooze(Steering):
    """Run again after the delay; this attempt does not count."""

    def __init__(self, delay: float | str | timedelta) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = delay


class RateLimited(Steering):
    """What the task needs (a server that answered 429) is used too fast: the jobs of this one's key, which
    stands first among them, wait so long, for all workers. This attempt does not count.

    Where the job has no `concurrency_key`, and with `key=False`, all of its queue waits.
    """

    def __init__(
        self,
        retry_after: float | str | timedelta,
        reason: str = "the task was told to slow down",
        *,
        key: bool = True,
    ) -> None:
        super().__init__(f"{reason}; to wait for {retry_after}")
        self.retry_after = retry_after
        self.reason = reason
        self.key = key


class Discard(Steering):
    """Failed for good: the job is dead at once, whatever attempts are left."""

    reason: str = "discarded by the task"

    def __init__(self, reason: str = "discarded by the task") -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(Steering):
    """No longer wanted: the job is cancelled, which is not a failure."""

    reason: str = "cancelled by the task"

    def __init__(self, reason: str = "cancelled by the task") -> None:
        super().__init__(reason)
        self.reason = reason


class Interrupted(BaseException):
    """The root of what Penstock raises into a running attempt."""


class AttemptTimeout(Interrupted):
    """The attempt's timeout or deadline has passed."""


class AttemptCancelled(Interrupted):
    """Somebody cancelled the running job."""


class AttemptLost(Interrupted):
    """The attempt's lease is gone, or its worker stops: nothing that it still does will count."""


class BlockingCallWarning(RuntimeWarning):
    """A call that waits for the store blocks the event loop of its thread. Said once per process."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`" (did you mean 'queue'?)"`, or nothing when no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
