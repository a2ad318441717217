"""All errors that Penstock raises, as a hierarchy: catch a class, or one of its subclasses.

PenstockError
├── ConfigError              an option, a name or a value is not valid
│   ├── UnknownScheme        a store URL has an unknown scheme
│   └── MissingExtra         a store or type needs a package that is not installed
├── ArgumentError            (TypeError) a call does not fit the task; nothing was stored
├── EnqueueError             the store did not take a job
│   ├── JobExists            the job's id is taken
│   ├── DuplicateJob         an identical unique job exists; has its id and queue
│   ├── QueueClosed          the queue accepts no new jobs
│   ├── QueueFull            the queue is at its limit; has retry_after and size
│   ├── EnqueueManyError     some jobs of a call were not stored; has handles and errors
│   ├── EnqueueUnknown       the reply was lost: the jobs may or may not be stored; has ids
│   ├── NotReplicated        the jobs are stored, on fewer replicas than required; has ids
│   └── OutboxFull           the store is unavailable and the outbox is full; has limit
├── StoreError               the store cannot carry out a call
│   ├── StoreUnavailable     the store does not answer; the same call may work later
│   │   └── StoreBusy        the store was locked for too long
│   ├── StoreFull            the store's disk or memory is used up
│   ├── StoreReadOnly        the store can be read but not written
│   ├── StoreReentered       a call in the middle of another call of the same thread; nothing was done
│   ├── StoreCorrupt         the URL leads to no Penstock store, or to a damaged one
│   ├── StoreTooNew          the store was written by a later Penstock
│   ├── StoreTooOld          the store was written by an earlier Penstock, and cannot be upgraded
│   └── Unsupported          the store, or a dialect's protocol, lacks this feature
├── FlowError                durable steps are used in a way that no retry cures; the job is dead
│   ├── FlowVersionMismatch  the flow began with another version; the job is parked
│   ├── FlowMismatch         the code no longer asks for what is stored; the job is parked
│   └── MemberFailed         jobs of a gather did not complete; has ids
├── StepFailed               a step failed in an earlier run, with an error whose class is not loaded
├── TooManySignals           no flow waits for the signal, and no more of them are stored
├── ResultError              a result is not available, or cannot be one
│   ├── ResultNotKept        the job's retention keeps no result
│   ├── ResultTimeout        (TimeoutError) the job has not ended yet
│   ├── JobNotFound          the job does not exist, or no longer
│   ├── JobDead              the job failed for good; has errors
│   └── ResultCancelled      the job was cancelled
└── Undecodable              a stored payload does not fit the task
    └── SignatureMismatch    the stored arguments are not the task's parameters by name or number

Steering (Exception)         raised by a task to choose the attempt's outcome
├── Retry                    run again, after a given delay or by the retry policy; this attempt counts
├── Snooze                   run again after a delay; this attempt does not count
├── RateLimited              as Snooze, for all jobs of the concurrency key or of the queue
├── Discard                  the job is dead at once
└── Cancel                   the job is cancelled

Interrupted (BaseException)  raised *into* a running attempt; `except Exception` does not swallow it
├── AttemptTimeout           the attempt's timeout or deadline has passed
├── AttemptCancelled         the job was cancelled
└── AttemptLost              the lease is lost, or the worker stops: the job runs again elsewhere

FlowSuspended (BaseException) raised by a flow that waits; its attempt ends without cost

BlockingCallWarning          (RuntimeWarning) a sync call blocks the event loop of its thread
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from penstock.core.portable import PortableError, made_again
from penstock.core.text import counted, number, short_line, short_lines

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
    "FlowError",
    "FlowMismatch",
    "FlowSuspended",
    "FlowVersionMismatch",
    "Interrupted",
    "JobDead",
    "JobExists",
    "JobNotFound",
    "MemberFailed",
    "MissingExtra",
    "NotReplicated",
    "OutboxFull",
    "PenstockError",
    "QueueClosed",
    "QueueFull",
    "RateLimited",
    "ResultCancelled",
    "ResultError",
    "ResultNotKept",
    "ResultTimeout",
    "Retry",
    "SignatureMismatch",
    "Snooze",
    "Steering",
    "StepFailed",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreReentered",
    "StoreTooNew",
    "StoreTooOld",
    "StoreUnavailable",
    "TooManySignals",
    "Undecodable",
    "UnknownScheme",
    "Unsupported",
    "did_you_mean",
]


class PenstockError(PortableError, Exception):
    """Base class of Penstock's errors.

    The message is one line of bounded length without control characters, also if it quotes such text.
    """

    def __str__(self) -> str:
        return short_line(super().__str__())


class ConfigError(PenstockError):
    """An option, a name or a value is not valid; the message says which, and what is.

    Several problems are listed together, one line each.
    """

    def __str__(self) -> str:
        return short_lines(Exception.__str__(self))


class UnknownScheme(ConfigError):
    """A store URL has an unknown scheme."""


class MissingExtra(ConfigError, ImportError):
    """A package that this feature needs is not installed; the message has the pip command."""


class ArgumentError(PenstockError, TypeError):
    """A call does not fit the task's signature, or a value cannot be stored."""


class EnqueueError(PenstockError):
    """The store did not take a job."""


class JobExists(EnqueueError):
    """The queue has a job with this id; the id is free again once that job is pruned or deleted."""

    def __init__(self, queue: str, id: str) -> None:
        super().__init__(
            f"a job with the id {id!r} exists in the queue {queue!r}; "
            "use another id, or delete the finished job first"
        )
        self.queue = queue
        self.id = id


class DuplicateJob(EnqueueError):
    """An identical unique job exists, and its rule rejects others.

    `id` and `queue` are those of the existing job: `app.handle(error.id, error.queue)`.
    """

    def __init__(self, queue: str, id: str, task: str = "") -> None:
        super().__init__(
            f"an identical job{task and f' of {task}'} is already in the queue {queue!r}: {id}; "
            "get its handle with app.handle(error.id, error.queue), or with on_conflict='existing'"
        )
        self.queue = queue
        self.id = id


class QueueClosed(EnqueueError):
    """The queue accepts no new jobs; workers still run the jobs in it."""

    def __init__(self, queue: str, meaning: str | None = None) -> None:
        super().__init__(
            f"the queue {queue!r} is closed: it takes no new jobs until it is opened again"
            if meaning is None
            else f"the queue {queue!r} is closed: {meaning}"
        )
        self.queue = queue


class QueueFull(EnqueueError):
    """The queue is at its limit; the job was not stored.

    `retry_after` is the expected wait in seconds, from the queue's recent throughput, or None if unknown.
    `size` is the queue's limit, if one was set with the queue.
    `needs` is the number of jobs that must fit together: those with which a flow starts in this queue.
    `waits`: by the queue's rule, the producer waits for room.
    """

    def __init__(
        self,
        queue: str,
        retry_after: float | None = None,
        size: int | None = None,
        way_out: str = "",
        needs: int = 1,
        waits: bool = False,
    ) -> None:
        wait = "waits" if size == 1 else "wait"
        most = "" if size is None else f": {counted(size, 'job')} {wait} in it (its max_size)"
        when = "" if retry_after is None else f"; try again in {number(retry_after)} s"
        what = f"the queue {queue!r} is full{most}"
        if needs > 1:
            what = (
                f"the queue {queue!r} has no room for the {needs} jobs with which the flow starts in it: "
                f"at most {size} may wait there (its max_size); nothing was stored"
            )
        super().__init__(f"{what}{when}{way_out}")
        self.queue = queue
        self.retry_after = retry_after
        self.size = size
        self.needs = needs
        self.waits = waits


class EnqueueUnknown(EnqueueError):
    """The store's reply was lost: the jobs in `ids` may or may not be stored."""

    def __init__(self, ids: Sequence[str], cause: str) -> None:
        super().__init__(f"{len(ids)} job(s) may or may not be stored ({cause}): {', '.join(ids[:5])}")
        self.ids = tuple(ids)
        self.cause = cause


class EnqueueManyError(EnqueueError):
    """Some jobs of a call were not stored; all others were.

    `handles` has one entry per job in the order of the call: None for a job that was not stored, or whose
    error is EnqueueUnknown. `errors` has the error of a job by its index. A job whose error is NotReplicated
    is stored. In another process the handles are their refs: `app.handle(ref.id, ref.queue)`.
    """

    def __init__(self, handles: Sequence[Any], errors: Mapping[int, PenstockError]) -> None:
        lost = [index for index, error in errors.items() if not isinstance(error, NotReplicated)]
        first = min(lost)
        super().__init__(
            f"{len(lost)} of {len(handles)} jobs were not stored; the first error, job number {first + 1}: "
            f"{errors[first]}"
        )
        self.handles = tuple(handles)
        self.errors = dict(errors)

    def __reduce__(self) -> Any:
        refs = tuple(getattr(handle, "ref", handle) for handle in self.handles)
        return made_again, (type(self), self.args, {**self.__dict__, "handles": refs})

    def __copy__(self) -> EnqueueManyError:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> EnqueueManyError:
        return self


class NotReplicated(EnqueueError):
    """The jobs in `ids` are stored and will run, but too few replicas confirmed them in time.

    If the master dies now, the jobs may be lost with it. `cause` says how many of the required replicas
    confirmed. `what`: jobs, flows (`ids` are theirs) or signals (`ids` are their names).
    """

    def __init__(self, ids: Sequence[str], cause: str, what: str = "job") -> None:
        super().__init__(
            f"{len(ids)} {what}(s) are stored, but on fewer replicas than required ({cause}): "
            f"{', '.join(ids[:5])}; do not enqueue them again, check the replicas"
        )
        self.ids = tuple(ids)
        self.cause = cause


class OutboxFull(EnqueueError):
    """The store is unavailable and the outbox has no room left; no job of this call was kept."""

    def __init__(self, limit: int, cause: str) -> None:
        super().__init__(
            f"the outbox has no room left: it keeps at most {limit} job(s) while the store is unavailable "
            f"({cause}); try again later, or set a larger App(outbox=...)"
        )
        self.limit = limit
        self.cause = cause


class StoreError(PenstockError):
    """The store cannot carry out a call."""


class StoreUnavailable(StoreError):
    """The store does not answer; the same call may work later."""


class StoreBusy(StoreUnavailable):
    """The store was locked by another writer for longer than the call waits."""


class StoreFull(StoreError):
    """The store's disk or memory is used up; nothing of the refused call was written."""


class StoreReadOnly(StoreError):
    """The store can be read but not written."""


class StoreReentered(StoreError):
    """A call of the store was made in the middle of another one, by the same thread; nothing of it was done.

    A signal handler, a `__del__`, a logging handler, a trace function or a callback of the garbage collector
    can run at such a moment. The outer call goes on undisturbed.
    """

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{url}: this thread is in the middle of another call of this store (in a signal handler, a "
            "__del__, a logging handler or a trace function?): let another thread make this call, or set a "
            "flag and make it later; App(outbox=N) keeps such jobs until then"
        )
        self.url = url


class StoreCorrupt(StoreError):
    """The URL leads to no Penstock store, or to a damaged one."""


class StoreTooNew(StoreError):
    """The store was written by a later version of Penstock."""


class StoreTooOld(StoreError):
    """The store was written by an earlier version of Penstock, and this version cannot upgrade it."""


class Unsupported(StoreError):
    """The store, or a dialect's protocol, lacks this feature."""


class ResultError(PenstockError):
    """A result is not available; or a task's function has returned what cannot be its result."""

    #: The id of the job whose function returned that: it is dead at once. Else empty.
    job: str = ""


class ResultNotKept(ResultError):
    """The job's retention keeps no result."""


class ResultTimeout(ResultError, TimeoutError):
    """The job has not ended within the caller's timeout."""


class JobNotFound(ResultError):
    """The job is not in this queue, or no longer: its retention is over, or it was deleted."""


class JobDead(ResultError):
    """The job failed for good. `errors` are the errors of its last attempts, oldest first."""

    def __init__(self, message: str, errors: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


class ResultCancelled(ResultError):
    """The job was cancelled before it could complete."""


class Undecodable(PenstockError):
    """A stored payload does not fit the task's signature, or is not what it claims to be."""


class SignatureMismatch(Undecodable):
    """The stored arguments are not the task's parameters: other names, or another number.

    Most likely another release enqueued the job. The job is parked for a worker that runs that release.
    """

    #: The id of the job with these arguments, if known.
    job: str = ""


class Steering(PortableError, Exception):
    """Base class of the exceptions that a task raises to choose the attempt's outcome."""


class Retry(Steering):
    """Run the job again; this attempt counts. Without a delay, the job's retry policy sets the wait."""

    #: The default for a subclass whose `__init__` does not call this one; so it is in the classes below.
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
    """Run the job again after a delay; this attempt does not count."""

    def __init__(self, delay: float | str | timedelta) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = delay


class RateLimited(Steering):
    """Pause all jobs of this job's concurrency key, e.g. after a server answered 429.

    The pause lasts `retry_after` and holds for all workers. This attempt does not count, and this job is the
    first of its key to run afterwards. If the job has no `concurrency_key`, or with `key=False`, its whole
    queue pauses.
    """

    def __init__(
        self,
        retry_after: float | str | timedelta,
        reason: str = "the task was told to slow down",
        *,
        key: bool = True,
    ) -> None:
        super().__init__(f"{reason}; retry after {retry_after}")
        self.retry_after = retry_after
        self.reason = reason
        self.key = key


class Discard(Steering):
    """Make the job dead at once, even if attempts are left."""

    reason: str = "discarded by the task"

    def __init__(self, reason: str = "discarded by the task") -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(Steering):
    """Cancel the job, which is not a failure."""

    reason: str = "cancelled by the task"

    def __init__(self, reason: str = "cancelled by the task") -> None:
        super().__init__(reason)
        self.reason = reason


class Interrupted(PortableError):
    """Base class of the exceptions that Penstock raises into a running attempt."""


class AttemptTimeout(Interrupted):
    """The attempt's timeout or deadline has passed."""


class AttemptCancelled(Interrupted):
    """The running job was cancelled."""


class AttemptLost(Interrupted):
    """The attempt's lease is lost, or its worker stops: the attempt's outcome is not recorded."""


class FlowSuspended(PortableError):
    """The flow of this job waits for a timer or a signal; its attempt ends here, and costs nothing.

    Let it pass. `delay` (ms): when the flow looks again at the latest.
    """

    def __init__(self, delay: int) -> None:
        super().__init__(f"the flow is suspended for at most {delay} ms")
        self.delay = delay


class FlowError(PenstockError):
    """A flow's durable steps are used in a way that no retry would cure; the job becomes dead."""


class FlowVersionMismatch(FlowError):
    """The flow began with another `version=`. The job is parked for a worker that runs that release."""


class FlowMismatch(FlowError):
    """The code no longer asks for what the flow has stored. The job is parked: see docs/durable-steps.md."""


class StepFailed(PenstockError):
    """A step has failed in an earlier run, with an error whose class is not loaded here."""


class TooManySignals(PenstockError):
    """No flow waits for this signal, and the namespace keeps as many such signals as it may."""


class MemberFailed(FlowError):
    """Jobs of a `gather` did not complete. `ids` are theirs."""

    def __init__(self, message: str, ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ids = tuple(ids)


class BlockingCallWarning(RuntimeWarning):
    """A call that waits for the store blocks its thread's event loop. Issued once per process."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'queue'?)"`, or an empty string if no known word is similar."""
    import difflib  # only for a message; a worker never needs it

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
