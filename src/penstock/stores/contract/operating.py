"""Operating: list and change jobs, queues, groups and workers, prune what is over, check the store.

Durations are in ms, instants in ms since the epoch by the store's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.core.job import Job, Ref, State
from penstock.core.limits import LimitChange
from penstock.stores.contract.checkup import Finding
from penstock.stores.contract.reports import (
    GroupInfo,
    LaneInfo,
    Page,
    Parked,
    QueueInfo,
    QueueStats,
    WorkerInfo,
)
from penstock.stores.contract.set_aside import SetAside

__all__ = ["Operating", "Pruned", "SyncOperating"]


class Pruned(msgspec.Struct, frozen=True):
    """The answer of a prune: how many of each kind went.

    - `finished`: ended jobs removed.
    - `expired`: expired queued jobs cancelled.
    - `workers`: silent workers removed.
    - `keys`: unique keys whose period was over.
    """

    finished: int
    expired: int
    workers: int
    keys: int = 0
    set_aside: tuple[SetAside, ...] = ()


class Operating(Protocol):
    """The verbs of operators and of maintenance, for callers in an event loop."""

    async def checkup(self) -> list[Finding]:
        """Check whether jobs are safe here, as the store is set up.

        Changes nothing, and creates no store. A worker logs the findings that are not fine when it starts;
        `penstock doctor` shows all.
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

        - Jobs of different queues may be in the order of the store's clock, if that was set back by more than
          5 s (docs/concepts/order.md).
        - `worker`: jobs that this worker holds now.
        - `after`: the `next` of the page before. A cursor stays valid while jobs come and go.
        - `limit`: the most jobs of the page, at least 1.

        Answer: a page; its `next` is None exactly if no older job matches.
        Errors: ConfigError if `after` is no cursor.
        """
        ...

    async def find(self, id: str) -> list[Job]:
        """Find the jobs of this id in all queues, in the order of the queues' names.

        Errors: StoreUnavailable if there is none and a part of the store is unreachable.
        """
        ...

    async def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        """Make ended or queued jobs available now, as if they were new.

        - Attempts and losses count from 0; the errors stay.
        - The job goes to the tail of its queue and is due now. Result, reason, end and a request to stop are
          cleared, and so is an expiry that has passed.
        - An ended job takes its unique key again, for the rest of the key's period, unless another job holds
          it; then it runs without the key.
        - A job with a group that was in no batch becomes a batch of its own at once. The members of a
          retried batch are GROUPED again (docs/concepts/batches.md).
        - A record that cannot be read stays DEAD (docs/concepts/unreadable-records.md).

        Answer: one state per ref, as it was before; RUNNING: not changed; None: the job does not exist.
        """
        ...

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        """Give queued jobs a new time: `delay` ms from now, or the instant `run_at`.

        A job whose time lies in the future is SCHEDULED. A job whose time has come is AVAILABLE, at the tail
        of its queue, even if it was AVAILABLE before. Parked, running and ended jobs do not change, nor do
        members of a batch.

        Answer: one state per ref, as it was before; None: the job does not exist.
        """
        ...

    async def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        """Remove jobs that are not running. The members of a batch are removed with the batch.

        Answer: one state per ref, as it was before; None: the job does not exist. RUNNING, and GROUPED for a
        member of a batch, mean that the job is still there.
        """
        ...

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        """Remove up to `limit` jobs of these states from a queue, oldest first. Running jobs stay.

        Answer: how many jobs were removed.
        """
        ...

    # queues

    async def queues(self) -> list[QueueInfo]:
        """List every queue that has ever had a job or a setting, by name."""
        ...

    async def parked(self) -> list[Parked]:
        """Count the parked jobs by queue and task; exact. Tasks without parked jobs are absent.

        A verb apart from `queues`, because a store may have to count index entries for it, while `queues` is
        polled and costs the same for any number of jobs.
        """
        ...

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        """List the totals of each queue, by name, with its counts of the last `days` UTC days.

        Today is one of these days. Days without attempts are absent.
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
        - `fetch` takes no jobs from a paused queue, and `enqueue` puts none into a closed one. Other verbs
          ignore both switches.
        - Limits hold from now on. Jobs that already exceed a limit stay.

        Answer: the queue after the change.
        """
        ...

    async def drop(self, queue: str) -> bool:
        """Delete an empty queue with its settings, statistics and periodic entries.

        Answer: False if the queue still has jobs; True if it is gone or never existed.
        """
        ...

    # partitions and batches

    async def lane(self, ref: Ref) -> LaneInfo | None:
        """Read the partition of a job (docs/concepts/partitions.md).

        Answer: None if the job does not exist, has ended, or has no partition.
        """
        ...

    async def groups(self, queue: str | None = None, *, limit: int = 1_000) -> list[GroupInfo]:
        """List up to `limit` groups of this queue, or of all, that are not batches yet.

        Answer: the groups, the one that is due first comes first.
        """
        ...

    async def flush_group(self, queue: str, *, task: str, key: str = "") -> str | None:
        """Make a group a batch now.

        Answer: the id of the batch; None if the group does not exist, or all its members have expired.
        """
        ...

    # maintenance

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        """Remove what is over, in one bounded step of at most `limit` items, in this order:

        1. ended jobs past their retention, the longest over first;
        2. per queue (by name) and state (completed, cancelled, dead): ended jobs beyond the newest
           `keep_finished` (completed, cancelled) or `keep_dead`, and those that ended longer ago than the
           queue's limits allow, oldest end first; limits of the queue take precedence over the arguments;
        3. queued jobs past their expiry, the earliest first, which are cancelled and stay;
        4. workers that have been silent for more than a minute.

        Beyond the limit go daily counts of 90 or more days ago, and up to `limit` unique keys whose period is
        over. Such a key is free even before it is pruned.
        """
        ...

    async def announce(self, worker: WorkerInfo) -> None:
        """Store that this worker is alive, what it serves and which tasks it knows; `seen_at` becomes now."""
        ...

    async def retire(self, worker: str) -> None:
        """Remove a worker that is gone for good from the list of workers."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """List the workers announced within the last minute, oldest (`started_at`, then id) first."""
        ...


class SyncOperating(Protocol):
    """Verbs of operators that have a sync door, because an app, a queue and a handle offer them in sync code.

    Each verb runs in the caller's thread.
    """

    def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        """As `Operating.retry`."""
        ...

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        """As `Operating.reschedule`."""
        ...

    def queues(self) -> list[QueueInfo]:
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
