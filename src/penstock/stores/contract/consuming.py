"""Consuming: lease jobs, extend leases, settle attempts, make due jobs available, wait for work.

Durations are in ms, instants in ms since the epoch by the store's clock. Leases and tokens are explained in
docs/concepts/time-and-leases.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock.core.job import Job, Lease, NewJob, Progress, Ref, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract.set_aside import SetAside

__all__ = [
    "Consuming",
    "Due",
    "Fetched",
    "HeartbeatRequest",
    "LeaseStatus",
    "Offer",
    "Settled",
    "Settlement",
    "Share",
    "Wake",
    "no_outcome",
]


# ── fetch ────────────────────────────────────────────────────────────────────────────────────────


class Share(msgspec.Struct, frozen=True):
    """The part of one queue in a fetch. A queue stands in a fetch once.

    A fetch makes two passes over its queues, in the order given: first each queue gives up to `quota` jobs,
    then the rest of the limit is filled with up to `cap` jobs in all from each queue. A cap below the quota
    wins. From a queue with a `max_running` or a rate a fetch takes at most `free` jobs, the slots that are
    free now, because other workers could start what would wait here.
    """

    queue: str
    quota: int
    cap: int
    free: int | None = None


class Fetched(msgspec.Struct, frozen=True):
    """Leased jobs, and what a worker needs to know to fetch again at the right time.

    - `jobs`: a job whose `fetched_at` lies in the future (by at most 20 ms) is leased but must not start
      before that instant, which is its place in the rate of its queue.
    - `now`: the store's clock.
    - `due`: the earliest `run_at` of the scheduled and retryable jobs of these queues, or the instant of a
      partition or a group, if that is earlier. Paused queues and instants that have passed count. None if
      there is no such instant, and always after a reclaim.
    - `opens`: when a rate or a throttle lets the next job of these queues start that it holds back now
      (available, or parked with a task that the worker knows); None if there is no such job.
    - `set_aside`, here and in `Due` and `Pruned`: records that this store object has set aside since its last
      report, by any verb.
    - `kept`: queues that have parked jobs of tasks that the worker knows, but as many running jobs as their
      limit allows.
    """

    jobs: list[Job]
    now: int
    due: int | None = None
    opens: int | None = None
    set_aside: tuple[SetAside, ...] = ()
    kept: tuple[str, ...] = ()


# ── extend ───────────────────────────────────────────────────────────────────────────────────────


class HeartbeatRequest(msgspec.Struct, frozen=True, gc=False):
    """One heartbeat: extend this lease to `by` ms from now, and store what the attempt reports.

    - `started`: True records that the function has started.
    - `progress`, `checkpoint`: replace the stored ones, unless None.
    - `lasting`: True makes this record as durable as an enqueue on this store, before it is answered. A start
      that must be on record first is recorded so.
    """

    lease: Lease
    by: int
    started: bool = False
    progress: Progress | None = None
    checkpoint: bytes | None = None
    lasting: bool = False


class LeaseStatus(enum.StrEnum):
    """The status of a lease after a heartbeat."""

    HELD = "held"
    LOST = "lost"
    CANCEL_ASKED = "cancel_asked"  # held, and the job is asked to stop
    UNKNOWN = "unknown"  # this part of the store is unreachable, while other parts answer

    __hash__ = str.__hash__


# ── settle ───────────────────────────────────────────────────────────────────────────────────────


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The end of an attempt.

    - `lease`: the lease to check. A bare Ref, without a token, applies to a running job of any holder and is
      only for dialects whose protocol has no leases.
    - `result`: stored with a job that ends.
    - `then`: jobs that follow, enqueued in the same step, after the transition, if the settlement applies. A
      closed or full queue takes them, because they were accepted with the job that they follow. A job whose
      id or unique key is taken is left out.
    """

    lease: Lease | Ref
    transition: Transition
    result: bytes | None = None
    then: tuple[NewJob, ...] = ()


class Settled(enum.StrEnum):
    """The result of one settlement."""

    APPLIED = "applied"
    STALE = "stale"  # the job exists, but not this lease: nothing was changed
    GONE = "gone"  # the job does not exist: nothing was changed
    UNKNOWN = "unknown"  # this part of the store is unreachable, while other parts answer: settle again

    __hash__ = str.__hash__


_NO_OUTCOMES = (State.RUNNING, State.GROUPED, State.WAITING)


def no_outcome(to: Transition) -> None:
    """Raise ValueError for a state that no attempt ends in."""
    if to.state in _NO_OUTCOMES:
        raise ValueError(f"no attempt ends in the state {to.state.value!r}; nothing of this call was settled")


# ── promote, wait ────────────────────────────────────────────────────────────────────────────────


class Due(msgspec.Struct, frozen=True):
    """The answer of a promotion.

    - `moved`: the number of jobs made available.
    - `next`: when the next one is due. In the past if the limit left some behind; None if there is none.
    - `now`: the store's clock.
    """

    moved: int
    next: int | None
    now: int
    set_aside: tuple[SetAside, ...] = ()


class Wake(enum.Flag):
    """Why a wait returned. No flag: the timeout."""

    NOTHING = 0
    WORK = enum.auto()
    CANCEL = enum.auto()
    SETTINGS = enum.auto()


class Offer(msgspec.Struct, frozen=True):
    """A fetch that the store may do for a waiting worker, which saves the round trip after the wake-up.

    `worker`, `token` and `lease` (ms) are those of the fetch. The store may call `take` with the leased job
    as soon as it arrives, in the waiter's event loop. `take` returns the next offer, and then the wait goes
    on, or None, and then the wait ends with WORK.
    """

    worker: str
    token: str
    lease: int
    take: Callable[[Fetched], Offer | None] | None = None


class Consuming(Protocol):
    """The verbs of a worker."""

    async def fetch(
        self,
        queues: Sequence[Share],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        charge: bool = True,
    ) -> Fetched:
        """Lease up to `limit` available jobs for `lease` ms.

        - `queues`: the queues and their shares, in order. Jobs come in the order in which they were taken:
          pass by pass, queue by queue, each queue in its own order (docs/concepts/order.md,
          docs/concepts/fair-share.md).
        - `worker`: the id of the worker. Parked jobs of a queue come first, in the order of available ones,
          if the worker has announced their task. A parked job whose partition is full becomes WAITING
          instead (docs/concepts/partitions.md).
        - `token`: new for each fetch of a worker. A repeated call with the same token returns the jobs that
          are still leased under it, in any order, and leases no more while there are any.
        - `charge`: whether the fetch counts as an attempt.

        A leased job starts afresh: `started` is False, `progress` and `reason` are None. Its errors, its
        `checkpoint` and `cancel_asked` stay.

        Expired jobs met before the limit is filled are cancelled (`lifecycle.EXPIRED`) and do not count. A
        store may stop after a few thousand of them with fewer jobs than there are; then `wait` answers WORK
        at once.

        A fetch takes nothing from a queue that is paused or throttled, never more than `max_running` allows
        over all workers, and from a queue with a rate only what may start within the next 20 ms: at most
        rate * t + burst starts in every span of time t, to the millisecond.
        """
        ...

    async def extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        """Extend leases that are still held.

        A lease is held while its token matches, even after its time has run out, until another worker
        reclaims the job. A heartbeat for a LOST lease stores nothing.

        Answer: one status per heartbeat, in order. After UNKNOWN ask again: any other status is possible.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Apply each transition if the lease token still matches, and count it in the statistics.

        - Statistics, on the UTC day of the store's clock: processed +1 if the transition charges, failed +1
          if it has an error. A job keeps its newest `job.MAX_ERRORS` errors.
        - `charge=False` takes back what the fetch charged, if it did.
        - `run_at` is now for AVAILABLE at the head or the tail, and stays the same for AVAILABLE at the job's
          own place and for PARKED at any. SCHEDULED and RETRYABLE jobs are due in `delay` ms, and have no
          place until they are promoted.
        - Outside of RUNNING no attempt is in progress: `token` and `worker` are None, `started` is False.
        - A job that was asked to stop keeps the reason of that request, unless it is COMPLETED or DEAD.
        - `hold` throttles the queue for that many ms (`limits.bounded_hold`), `hold_lane` the partition. A
          longer throttle from before stays.

        Answer: one `Settled` per settlement, in order.
        Errors: ValueError for a transition to a state that is no outcome (`no_outcome`); nothing is changed.
        """
        ...

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        """Make up to `limit` due jobs of these queues available, the earliest first.

        - Jobs of the same instant are promoted in the order of their enqueue, over all these queues; those of
          different queues as `list_jobs` says.
        - An expired job is cancelled instead, and counts for the limit but not as moved.
        - A group that is due becomes a batch, after the jobs of the same instant, and counts as one job.
          A store may stop after a few thousand members (docs/concepts/batches.md).
        - A job that joins its group counts as moved.
        - A waiting job whose partition's instant has come is admitted, before the jobs of the same instant.
        - Paused and closed queues are promoted like others.
        """
        ...

    async def reclaim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        of: Sequence[str] | None = None,
    ) -> Fetched:
        """Lease up to `limit` lost jobs to `worker` for `lease` ms, without charging an attempt.

        - Without `of`: jobs of these queues whose lease has run out, the longest over first. Leases from
          before a reboot of the machine are void and come before all others, in order of enqueue.
        - With `of`: the jobs leased to these workers, in any queue, whether run out or not, in order of
          enqueue.
        - Only the lease and the reason change: `reason` names the worker that lost the job
          (`lifecycle.LOST_BY`); `started`, `progress` and `fetched_at` are still those of the lost attempt.
        - A repeated call with the same token answers as a repeated `fetch` does.
        """
        ...

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: Offer | None = None,
        parked: Sequence[str] = (),
    ) -> Wake:
        """Sleep until there may be something to do, at most `timeout` ms.

        | flag | there is |
        |---|---|
        | WORK | an available job in one of the queues that may start now or before the timeout ends |
        | WORK | a scheduled or retryable job, a partition or a group that is due by then |
        | CANCEL | a running job, of any queue, that was asked to stop |
        | SETTINGS | a change in the settings of any queue, or in the periodic entries |

        - For an instant that is due before the timeout ends, WORK comes at once, so that the caller can
          promote, or sleep until then. A caller that knows of that instant gives a timeout that ends with it.
        - Parked jobs are WORK only in the queues of `parked`: those that the last fetch reported as `kept`.
        - CANCEL and SETTINGS report what has happened since this store object's last wait that reported it,
          and never what happened before the object's first verb. Waits at the same time all report it. With
          no queues the wait is for these two alone.
        - With an `offer` the store may lease a job to the waiter in the step that enqueues it, as a fetch
          with the token of the offer. After a wait with an offer, the next fetch must use that token, or, if
          `take` has accepted jobs in the meantime, the token of the last offer.
        """
        ...
