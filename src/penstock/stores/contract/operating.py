"""The verbs of operators: list and change jobs, queues, batches and workers, prune, check the store.

Durations are in ms, instants in ms since the epoch by the store's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.errors import ConfigError
from penstock.core.job import TERMINAL, Job, NewJob, Ref, State
from penstock.core.limits import LimitChange
from penstock.stores.contract.checkup import Finding
from penstock.stores.contract.producing import Enqueued
from penstock.stores.contract.reports import (
    BatchInfo,
    Page,
    Parked,
    PartitionInfo,
    QueueInfo,
    QueueStats,
    WorkerInfo,
)
from penstock.stores.contract.set_aside import SetAside

__all__ = [
    "MOST_LISTED",
    "Operating",
    "Pruned",
    "Replacement",
    "SyncOperating",
    "check_replacements",
    "page_size",
]

#: The largest number of jobs in one page of `list_next`.
MOST_LISTED = 1_000


class Replacement(msgspec.Struct, frozen=True):
    """A job to remove, and the job of the same queue that is enqueued in its place."""

    old: Ref
    new: NewJob


class Pruned(msgspec.Struct, frozen=True):
    """The answer of a prune, as counts.

    - `finished`: ended jobs removed.
    - `expired`: expired queued jobs cancelled.
    - `workers`: workers removed because they had stopped announcing themselves.
    - `keys`: unique keys freed because their period was over.
    """

    finished: int
    expired: int
    workers: int
    unique_keys: int = 0
    set_aside: tuple[SetAside, ...] = ()


_WITH_ORDER = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.SUSPENDED, *sorted(TERMINAL))


def page_size(state: State, limit: int) -> int:
    """The size of a page of `list_next`; raises ConfigError for a state that has no order of its own."""
    if state not in _WITH_ORDER:
        known = ", ".join(one.value for one in _WITH_ORDER)
        raise ConfigError(f"state={state.value!r} has no order of its own: give one of {known}")
    return min(max(1, limit), MOST_LISTED)


def check_replacements(replacements: Sequence[Replacement]) -> Sequence[Replacement]:
    """Return the replacements if each is of one queue. Raises ConfigError."""
    for one in replacements:
        if one.old.queue != one.new.queue:
            raise ConfigError(f"a job of {one.new.queue!r} cannot replace one of {one.old.queue!r}")
    return replacements


class Operating(Protocol):
    """The verbs of operators and of maintenance, for callers in an event loop."""

    async def checkup(self) -> list[Finding]:
        """Check the store's configuration and health: whether jobs are safe in it.

        A checkup changes nothing, and creates no store. A worker logs the findings that are not FINE when it
        starts; `penstock doctor` shows all.
        """
        ...

    # jobs

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
        """List jobs that match all filters, in order of enqueue, newest first.

        - Exception: if the store's clock was set back by more than 5 s, jobs of different queues may be in
          the order of that clock (docs/concepts/order.md).
        - `worker`: jobs that this worker holds now.
        - `after`: the `next` of the previous page. A cursor stays valid when jobs are added or removed.
        - `limit`: the largest number of jobs in the page, at least 1.

        Answer: a page; its `next` is None exactly if no older job matches.
        Errors: ConfigError if `after` is not a cursor.
        """
        ...

    async def list_next(
        self, queue: str, *, state: State = State.AVAILABLE, after: str | None = None, limit: int = 50
    ) -> Page:
        """List the jobs of a queue in one state, in the order in which they leave that state.

        | state | order |
        |---|---|
        | AVAILABLE | as a fetch takes them: by priority, then position (docs/concepts/order.md) |
        | SCHEDULED, RETRYABLE, SUSPENDED | earliest `run_at` first |
        | COMPLETED, CANCELLED, DEAD | earliest `ended_at` first |

        - Equal times: in order of enqueue. Nothing is leased. Expired jobs that no verb has cancelled yet
          are listed.
        - `after`: the `next` of the previous page of this queue and state. Jobs that do not move are listed
          exactly once, also if others are added, moved or removed between the pages.
        - `limit`: the largest number of jobs in the page, from 1 to `MOST_LISTED`. A store may return fewer,
          even none: only `next` is None tells the end.

        Errors: ConfigError for any other state, or if `after` is not a cursor of this verb.
        """
        ...

    async def find(self, id: str) -> list[Job]:
        """Find the jobs with this id in all queues, in the order of the queues' names.

        Errors: StoreUnavailable if no job is found and a part of the store is unreachable.
        """
        ...

    async def retry(
        self, refs: Sequence[Ref], *, attempts: int | None = None, expires_in: int | UnsetType | None = UNSET
    ) -> list[State | None]:
        """Make ended or queued jobs available now, as if they were new.

        - Attempts and losses count from 0 again; the errors stay. With `attempts`, the job has at most this
          many attempts left (1 or more), of its `max_attempts`.
        - The job goes to the tail of its queue and is due now. Its result, reason, `ended_at` and request to
          stop are cleared. An expiry that has passed is cleared, too; `expires_in` replaces the expiry: ms
          from now, or None for none.
        - An ended job takes its unique key again, for the rest of the key's period. If another job holds the
          key, the retried job runs without it.
        - A job with a batch key that is in no finished or running batch becomes a batch of one at once. The
          members of a retried batch are COLLECTING again (docs/concepts/batches.md).
        - Batches that one call starts in several queues have no order among the queues (`list_jobs`).
        - A record that cannot be read stays DEAD (docs/concepts/unreadable-records.md).

        Answer: one state per ref, from before the call. RUNNING: the job was not changed. None: the job does
        not exist.
        """
        ...

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        """Give queued jobs a new time: `delay` ms from now, or the instant `run_at`.

        A job with a time in the future becomes SCHEDULED. Any other job becomes AVAILABLE, at the tail of its
        queue, even if it was AVAILABLE before. Parked, running and ended jobs and the members of a batch do
        not change.

        Answer: one state per ref, from before the call; None: the job does not exist.
        """
        ...

    async def delete(
        self, refs: Sequence[Ref], *, running: bool = False, keep_keys: bool = False
    ) -> list[State | None]:
        """Remove jobs that are not running. The members of a batch are removed with the batch.

        - `running`: remove running jobs, too, in the same step. Each counts as one processed attempt. Its
          lease is lost: `settle` answers GONE and `extend` answers LOST.
        - A removed job frees its unique key, even for the rest of the key's period. With `keep_keys`, a key
          with a period that the job holds stays held to the end of the period.

        Answer: one state per ref, from before the call; None: the job did not exist. COLLECTING for a member
        of a batch, and RUNNING without `running`, mean that the job was not removed.
        """
        ...

    async def replace_jobs(self, replacements: Sequence[Replacement]) -> list[Enqueued]:
        """Enqueue jobs, each in the place of another job of its queue, which is removed in the same step.

        - The new job is checked as by `enqueue`. If its status is not NEW, the other job stays.
        - The other job is removed in any state, as by `delete` with `running` and `keep_keys`, if it exists.

        Answer: one `Enqueued` per replacement, in order.
        Errors: as `enqueue`; ConfigError if the two jobs of a replacement are of different queues.
        """
        ...

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        """Remove up to `limit` jobs in these states from a queue, oldest first. Running jobs stay.

        Answer: the number of removed jobs.
        """
        ...

    # queues

    async def queues(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """List every queue that has ever had a job or a setting, by name.

        - `names`: only these queues, without those that do not exist. The cost does not grow with the number
          of other queues.
        """
        ...

    async def parked(self) -> list[Parked]:
        """Count the parked jobs by queue and task; exact. Tasks without parked jobs are absent.

        Not part of `queues`, because a store may have to count index entries for it. `queues` is polled, and
        costs the same for any number of jobs.
        """
        ...

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        """List the totals of each queue, by name, with its counts of the last `days` UTC days.

        Today counts as one of these days. Days without attempts are absent.
        """
        ...

    async def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        """Change the switches and limits of a queue. A missing queue is created.

        - None leaves a switch as it is.
        - `fetch` takes no jobs from a paused queue, and `enqueue` adds no jobs to a closed queue. Other verbs
          ignore both switches.
        - Limits apply from now on. Jobs that already exceed a limit stay.
        - `limits` are an operator's, or with `by_code` those of the app's code. The operator's value of a
          limit is in effect, else the code's, else none. Both are kept: `reset` forgets the operator's, and a
          change by code replaces all of the code's. Neither changes what the other has set.

        Answer: the queue after the change.
        """
        ...

    async def drop(self, queue: str) -> bool:
        """Delete an empty queue with its settings, statistics and periodic entries.

        Answer: False if the queue still has jobs, or the store keeps flows with it; True if it was deleted
        or never existed.
        """
        ...

    # partitions and batches

    async def partition(self, ref: Ref) -> PartitionInfo | None:
        """Read the partition of a job (docs/concepts/partitions.md).

        Answer: None if the job does not exist, has ended, or has no partition.
        """
        ...

    async def batches(self, queue: str | None = None, *, limit: int = 1_000) -> list[BatchInfo]:
        """List up to `limit` collecting batches of this queue, or of all queues if None.

        Answer: the collecting batches, in the order in which they are due.
        """
        ...

    async def flush_batch(self, queue: str, *, task: str, key: str = "") -> str | None:
        """Make a collecting batch available now, before it is due.

        Answer: the id of the batch's job; None if the batch does not exist, or all its members have expired.
        """
        ...

    # maintenance

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        """Remove old data, in one bounded step of at most `limit` items, in this order:

        1. remove ended jobs past their retention, the earliest end of retention first;
        2. per queue (by name) and state (completed, cancelled, dead): remove ended jobs beyond the newest
           `keep_finished` (completed, cancelled) or `keep_dead`, and jobs that ended longer ago than the
           queue's limits allow, oldest end first; limits of the queue take precedence over the arguments;
        3. cancel queued jobs past their expiry, the earliest expiry first; they stay as cancelled jobs;
        4. remove workers that have not announced themselves for more than a minute.

        Not counted towards the limit: daily counts that are 90 or more days old, and up to `limit` unique
        keys whose period is over. Such a key is free even before it is pruned.
        """
        ...

    async def announce(self, worker: WorkerInfo) -> None:
        """Store that this worker is alive, with its queues and tasks; `seen_at` becomes now."""
        ...

    async def retire(self, worker: str) -> None:
        """Remove a worker that has stopped from the list of workers."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """List the workers announced within the last minute, oldest (`started_at`, then id) first."""
        ...


class SyncOperating(Protocol):
    """The sync form of the verbs that an app, a queue and a handle offer in sync code.

    Each verb runs in the caller's thread.
    """

    def retry(
        self, refs: Sequence[Ref], *, attempts: int | None = None, expires_in: int | UnsetType | None = UNSET
    ) -> list[State | None]:
        """As `Operating.retry`."""
        ...

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        """As `Operating.reschedule`."""
        ...

    def delete(
        self, refs: Sequence[Ref], *, running: bool = False, keep_keys: bool = False
    ) -> list[State | None]:
        """As `Operating.delete`."""
        ...

    def find(self, id: str) -> list[Job]:
        """As `Operating.find`."""
        ...

    def queues(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """As `Operating.queues`."""
        ...

    def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        """As `Operating.settings`."""
        ...
