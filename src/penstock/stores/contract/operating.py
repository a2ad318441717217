"""The verbs of operators: remove or replace jobs, change queues, batches and workers, prune, check the store.

Durations are in ms, instants in ms since the epoch by the store's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.job import NewJob, Ref, State
from penstock.core.limits import LimitChange
from penstock.stores.contract.producing import Enqueued
from penstock.stores.contract.reports import (
    BatchInfo,
    Finding,
    Parked,
    PartitionInfo,
    QueueInfo,
    QueueStats,
    SetAside,
    WorkerInfo,
)
from penstock.stores.contract.request import OfQueue, OfRef, OfRefs, Request, SyncRequest


class Replacement(msgspec.Struct, frozen=True):
    """A job to remove, and the job of the same queue that is enqueued in its place."""

    old: Ref
    new: NewJob


class Pruned(msgspec.Struct, frozen=True):
    """The answer of a prune, as counts.

    - `finished`: ended jobs removed.
    - `expired`: expired queued jobs cancelled.
    - `workers`: workers removed because they had stopped announcing themselves.
    - `unique_keys`: unique keys freed because their period was over.
    - `next`: the call has seen only some of the queues, and `after=next` continues behind them; None: these
      were all.
    """

    finished: int
    expired: int
    workers: int
    unique_keys: int = 0
    set_aside: tuple[SetAside, ...] = ()
    next: str | None = None


#: Most queues that one step of maintenance looks at, so that its time does not grow with their number.
MOST_PRUNED = 500


class Checkup(Request[list[Finding]], frozen=True):
    """Check the store's configuration and health: whether jobs are safe in it.

    A checkup changes nothing, and creates no store. A worker logs the findings that are not FINE when it
    starts; `penstock doctor` shows all.
    """


class Delete(OfRefs[list[State | None]], frozen=True, kw_only=True):
    """Remove jobs that are not running. The members of a batch are removed with the batch.

    - `running`: remove running jobs, too, in the same step. Each counts as one processed attempt. Its
      lease is lost: `settle` answers GONE and `extend` answers LOST.
    - A removed job frees its unique key, even for the rest of the key's period. With `keep_keys`, a key
      with a period that the job holds stays held to the end of the period.

    Answer: one state per ref, from before the call; None: the job did not exist. COLLECTING for a member
    of a batch, and RUNNING without `running`, mean that the job was not removed.
    """

    running: bool = False
    keep_keys: bool = False


class ReplaceJobs(Request[list[Enqueued]], frozen=True):
    """Enqueue jobs, each in the place of another job of its queue, which is removed in the same step.

    - The new job is checked as by `enqueue`. If its status is not NEW, the other job stays.
    - The other job is removed in any state, as by `delete` with `running` and `keep_keys`, if it exists.

    Answer: one `Enqueued` per replacement, in order.
    Errors: as `enqueue`; ConfigError if the two jobs of a replacement are of different queues.
    """

    replacements: Sequence[Replacement]

    def checked(self) -> Self:
        for one in self.replacements:
            if one.old.queue != one.new.queue:
                raise ConfigError(f"a job of {one.new.queue!r} cannot replace one of {one.old.queue!r}")
        return self


class Purge(Request[int], frozen=True):
    """Remove up to `limit` jobs in these states from a queue, oldest first. Running jobs stay.

    Answer: the number of removed jobs.
    """

    queue: str
    states: Sequence[State]
    limit: int = 10_000


class Queues(SyncRequest[list[QueueInfo]], frozen=True):
    """List every queue that has ever had a job or a setting, by name.

    - `names`: only these queues, without those that do not exist. The cost does not grow with the number
      of other queues.
    """

    names: Sequence[str] | None = None


class CountParked(Request[list[Parked]], frozen=True):
    """Count the parked jobs by queue and task; exact. Tasks without parked jobs are absent.

    Not part of `queues`, because a store may have to count index entries for it. `queues` is polled, and
    costs the same for any number of jobs.
    """

    verb: ClassVar[str] = "parked"


class Stats(Request[list[QueueStats]], frozen=True, kw_only=True):
    """List the totals of each queue, by name, with its counts of the last `days` UTC days.

    Today counts as one of these days. Days without attempts are absent.
    """

    days: int = 7


class Settings(OfQueue[QueueInfo], frozen=True, kw_only=True):
    """Change the switches and limits of a queue. A missing queue is created.

    - None leaves a switch as it is.
    - `fetch` takes no jobs from a paused queue, and `enqueue` adds no jobs to a closed queue. Other verbs
      ignore both switches.
    - A pause takes effect with this call: no later fetch takes a job. Running jobs end as usual, jobs that
      were leased ahead of a free slot start, and workers wait. The call that resumes the queue wakes them.
    - Limits apply from now on. Jobs that already exceed a limit stay.
    - `limits` are an operator's, or with `by_code` those of the app's code. The operator's value of a
      limit is in effect, else the code's, else none. Both are kept: `reset` forgets the operator's, and a
      change by code replaces all of the code's. Neither changes what the other has set.

    Answer: the queue after the change.
    """

    paused: bool | None = None
    closed: bool | None = None
    limits: LimitChange | None = None


class Drop(Request[bool], frozen=True):
    """Delete an empty queue with its settings, statistics and periodic entries.

    Answer: False if the queue still has jobs, or the store keeps flows with it; True if it was deleted
    or never existed.
    """

    queue: str


class ReadPartition(OfRef[PartitionInfo | None], frozen=True):
    """Read the partition of a job (docs/concepts/partitions.md).

    Answer: None if the job does not exist, has ended, or has no partition.
    """

    verb: ClassVar[str] = "partition"


class Batches(Request[list[BatchInfo]], frozen=True):
    """List up to `limit` collecting batches of this queue, or of all queues if None.

    Answer: the collecting batches, in the order in which they are due.
    """

    queue: str | None = None
    limit: int = 1_000


class FlushBatch(OfQueue[str | None], frozen=True, kw_only=True):
    """Make a collecting batch available now, before it is due.

    Answer: the id of the batch's job; None if the batch does not exist, or all its members have expired.
    """

    task: str
    key: str = ""


class Prune(Request[Pruned], frozen=True, kw_only=True):
    """Remove old data, in one bounded step of at most `limit` items and `MOST_PRUNED` queues, in order:

    1. remove ended jobs past their retention, the earliest end of retention first;
    2. per queue (by name) and state (completed, cancelled, dead): remove ended jobs beyond the newest
       `keep_finished` (completed, cancelled) or `keep_dead`, and jobs that ended longer ago than the
       queue's limits allow, oldest end first; limits of the queue take precedence over the arguments;
    3. cancel queued jobs past their expiry, the earliest expiry first; they stay as cancelled jobs;
    4. remove workers that have not announced themselves for more than a minute.

    The queues are the first behind `after`, by name; `next` of the answer is the last of them if others
    follow. A store may take all at once.

    Not counted towards the limit: daily counts that are 90 or more days old, and up to `limit` unique
    keys whose period is over. Such a key is free even before it is pruned.
    """

    limit: int = 1_000
    keep_finished: int = 100_000
    keep_dead: int = 100_000
    after: str = ""


class Announce(Request[None], frozen=True):
    """Store that this worker is alive, with its queues and tasks; `seen_at` becomes now."""

    worker: WorkerInfo


class Retire(Request[None], frozen=True):
    """Remove a worker that has stopped from the list of workers."""

    worker: str


class Workers(SyncRequest[list[WorkerInfo]], frozen=True):
    """List the workers announced within the last minute, oldest (`started_at`, then id) first."""
