"""The verbs of producers: enqueue jobs, read them, cancel them, and wait until they have ended."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import ASK_CANCELLED
from penstock.core.security import Secret
from penstock.stores.contract.request import OfRefs, SyncRequest

#: What Python raises for a job with a value that cannot be written: a wrong type, a huge number, a surrogate.
UNWRITABLE = (TypeError, ValueError, OverflowError, AttributeError)


class EnqueueStatus(enum.StrEnum):
    """The result of enqueueing one job."""

    NEW = "new"  # stored
    EXISTS = "exists"  # not stored: a job of this id exists
    DUPLICATE = "duplicate"  # not stored: another job, whose id is returned, holds the unique key
    CLOSED = "closed"  # not stored: the queue takes no new jobs
    FULL = "full"  # not stored: the queue is at its limit
    REPLACED = "replaced"  # the job with the unique key, whose id is returned, got the new arguments or time
    UNREPLICATED = "unreplicated"  # stored, but too few replicas confirmed it in time
    UNKNOWN = "unknown"  # the reply was lost: the job may be stored or not
    FAILED = "failed"  # not stored, for the reason in `cause`

    __hash__ = str.__hash__


class Enqueued(msgspec.Struct, frozen=True):
    """The answer for one enqueued job.

    - `id`: the id of the job; for DUPLICATE and REPLACED, the id of the job that holds the unique key.
    - `retry_after`: for FULL, the estimated time in ms until the queue has room, from its recent drain rate.
    - `cause`: for FAILED and UNKNOWN, the reason as text.
    - `size`: for FULL, the queue's `max_size`.
    - `waits`: for FULL, True if the queue is set to make enqueues wait for room (`OnFull.WAIT`).
    """

    status: EnqueueStatus
    id: str
    retry_after: int | None = None
    cause: str = ""
    size: int | None = None
    waits: bool = False


def unwritable(job: NewJob, error: Exception) -> Enqueued:
    """The answer for a job that cannot be written; the other jobs of its call are stored."""
    return Enqueued(EnqueueStatus.FAILED, job.id, cause=f"the job cannot be written: {error}")


class Enqueue(SyncRequest[list[Enqueued]], frozen=True):
    """Store new jobs.

    - Jobs are stored in the order given: if two jobs of one call have the same id, the second is EXISTS.
    - Checks run in this order, and the first that applies is the answer: EXISTS (a job with this id, in
      any state, also in a closed queue), CLOSED, DUPLICATE or REPLACED, FULL (the queue has `max_size`
      queued jobs, counted over all queued states).
    - Unique keys: see docs/concepts/unique-keys.md.
    - `lifecycle.first_state` gives the first state of a job. If `expires_in` and `expires_at` are both
      set, the earlier instant applies.

    Answer: one `Enqueued` per job, in the order of the jobs. A job with a value that the store cannot
    write is FAILED, and the others are stored.
    Errors: a call that is one step of the store raises StoreError, or EnqueueUnknown if the reply was
    lost. A call that needs several steps (a large batch, several servers) answers FAILED or UNKNOWN for
    each job of a failed step.
    """

    jobs: Sequence[NewJob]


class Get(OfRefs[list[Job | None]], frozen=True):
    """Read jobs as they are now.

    Answer: one job per ref, in the order of the refs; None for a job that does not exist.
    """


class CancelJobs(OfRefs[list[State | None]], frozen=True, kw_only=True):
    """Cancel queued jobs at once, and ask running jobs to stop.

    - `reason` (default `lifecycle.ASK_CANCELLED`) is stored with each job that this call cancels. A
      running job that is asked to stop ends with this reason, if it is not the default (see `settle`).
    - A request to stop is stored (`Job.cancel_asked`) until an operator retries the job. If the job is
      queued again, the next worker that fetches it settles it as cancelled. A second request changes
      nothing.
    - A queued or suspended job that remembers the step STEP_UNDO is asked to stop as well, so that a
      worker can undo its steps. Such a job becomes available at once (`waiting` if its partition has no
      room); one that waits to start keeps its position.
    - Cancelled jobs are kept for the time that `lifecycle.kept` gives.

    Answer: one state per ref: CANCELLED for a job that this call cancelled, RUNNING for a job asked to
    stop (it runs, or has STEP_UNDO), the unchanged state of a job that has ended or cannot be cancelled,
    None for a job that does not exist.
    """

    verb: ClassVar[str] = "cancel"

    reason: Annotated[str, Secret.REASON] = ASK_CANCELLED


class WaitForEnd(OfRefs[list[Job | None]], frozen=True, kw_only=True):
    """Wait, without busy polling, until all jobs have ended or are gone.

    `timeout`: the longest wait in ms of real time, even if a test controls the store's clock.
    The ref of `end_of_flow` waits for the result or the end of a flow; its answer is always None.
    Answer: as `get`, at the end of the wait, including jobs that have not ended in time.
    """

    timeout: int


class StreamEnds(OfRefs[dict[Ref, Job | None]], frozen=True, kw_only=True):
    """Stream jobs as they end.

    - `timeout`: the longest wait in ms of real time.
    - All streams and waits of an event loop share their queries to the store, for any number of jobs.
    - Close a stream that is not read to its end.

    Answer: each item maps the refs of jobs that have ended since the previous item to their jobs; None
    for a job that does not exist. The first item has the jobs that have already ended. Each ref is
    yielded once, even if it was given twice. The stream ends when all refs have been yielded, or at the
    timeout.
    """

    timeout: int
