"""Producing: enqueue jobs, read them, cancel them, and wait until they have ended."""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Protocol

import msgspec

from penstock.core.job import Job, NewJob, Ref, State

__all__ = ["EnqueueStatus", "Enqueued", "Producing", "SyncProducing"]


class EnqueueStatus(enum.StrEnum):
    """The result of enqueueing one job."""

    NEW = "new"  # stored
    EXISTS = "exists"  # not stored: a job of this id exists
    DUPLICATE = "duplicate"  # not stored: another job holds the unique key, and its id comes back
    CLOSED = "closed"  # not stored: the queue takes no new jobs
    FULL = "full"  # not stored: the queue is at its limit
    REPLACED = "replaced"  # the holder of the unique key, whose id comes back, got the new arguments or time
    UNREPLICATED = "unreplicated"  # stored, but too few replicas have confirmed it in time
    UNKNOWN = "unknown"  # stored or not: the reply was lost
    FAILED = "failed"  # not stored, for the reason in `cause`

    __hash__ = str.__hash__


class Enqueued(msgspec.Struct, frozen=True):
    """The answer for one enqueued job.

    - `id`: the id of the stored job; for DUPLICATE and REPLACED, that of the holder of the unique key.
    - `retry_after`: for FULL, the estimated time in ms until the queue has room, from its recent drain rate.
    - `cause`: for FAILED and UNKNOWN, the reason as text.
    - `size`: for FULL, the limit of the queue.
    - `waits`: for FULL, whether the queue's rule is to wait for room (`OnFull.WAIT`).
    """

    status: EnqueueStatus
    id: str
    retry_after: int | None = None
    cause: str = ""
    size: int | None = None
    waits: bool = False


class Producing(Protocol):
    """The verbs of a producer, for callers in an event loop."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store jobs, all in one step.

        - Each job sees the jobs before it in the batch: the second one of an id is EXISTS.
        - The checks run in this order, and the first that fails is the answer: EXISTS (in any state, also if
          the queue is closed), CLOSED, DUPLICATE or REPLACED, FULL (the queue has `max_size` queued jobs, in
          any queued state).
        - Unique keys: see docs/concepts/unique-keys.md.
        - `lifecycle.first_state` gives the first state of a job. Of `expires_in` and `expires_at` the
          earlier one counts.

        Answer: one `Enqueued` per job, in the order of the jobs.
        Errors: a store that needs one step for the call raises StoreError, or EnqueueUnknown if the reply was
        lost. A store that needs several steps (a large batch, several servers) answers FAILED or UNKNOWN for
        each job of a failed step.
        """
        ...

    async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        """Read jobs as they are now.

        Answer: one job per ref, in the order of the refs; None for a job that does not exist.
        """
        ...

    async def cancel(self, refs: Sequence[Ref], *, reason: str = ...) -> list[State | None]:
        """Cancel queued jobs at once, and ask running jobs to stop.

        - `reason` (default `lifecycle.ASK_CANCELLED`) is stored with each job that is cancelled here. A
          running job keeps the first reason that is not the default, and ends with it (see `settle`).
        - A request to stop stays (`Job.cancel_asked`) until an operator retries the job, also while the job
          is queued again: the next worker that fetches it settles it as cancelled. A second request changes
          nothing.
        - Cancelled jobs stay in the store as long as `lifecycle.kept` says.

        Answer: one state per ref: CANCELLED for a job cancelled here, RUNNING for a job asked to stop, the
        state of a job that has ended or cannot be cancelled, None for a job that does not exist.
        """
        ...

    async def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        """Wait, without busy polling, until all jobs have ended or are gone.

        `timeout`: the longest wait in ms of real time, also where a test controls the store's clock.
        Answer: as `get`, at the end of the wait. Jobs that have not ended in time are among them.
        """
        ...

    def ends(self, refs: Sequence[Ref], *, timeout: int) -> AsyncGenerator[dict[Ref, Job | None], None]:
        """Stream jobs as they end.

        - `timeout`: the longest wait in ms of real time.
        - All streams and waits of an event loop ask the store together, for any number of jobs.
        - Close a stream that is not read to its end.

        Answer: each item has the jobs that have ended since the item before; None for a job that is gone.
        Jobs that have already ended come first. Each ref comes once, even if it was given twice. The stream
        ends when all refs have come, or at the timeout.
        """
        ...


class SyncProducing(Protocol):
    """The verbs of a producer, for callers without an event loop; each runs in the caller's thread."""

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """As `Producing.enqueue`."""
        ...

    def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        """As `Producing.get`."""
        ...

    def cancel(self, refs: Sequence[Ref], *, reason: str = ...) -> list[State | None]:
        """As `Producing.cancel`."""
        ...

    def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        """As `Producing.ended`."""
        ...

    def ends(self, refs: Sequence[Ref], *, timeout: int) -> Generator[dict[Ref, Job | None], None, None]:
        """As `Producing.ends`."""
        ...
