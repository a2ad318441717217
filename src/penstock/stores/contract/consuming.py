"""The verbs of workers: lease jobs, extend leases, settle attempts, make due jobs available, wait for work.

Durations are in ms, instants in ms since the epoch by the store's clock. docs/concepts/time-and-leases.md
explains leases and tokens.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, TypeVar

import msgspec

from penstock.core.job import Job, Lease, NewJob, Progress, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.security import Secret
from penstock.stores.contract.reports import SetAside
from penstock.stores.contract.request import OfQueues, Request

A = TypeVar("A")


# ── fetch ────────────────────────────────────────────────────────────────────────────────────────


class Share(msgspec.Struct, frozen=True):
    """One queue of a fetch, and how many jobs to take from it. A fetch names each queue at most once.

    A fetch makes two passes over its queues, in the order given:

    1. take up to `quota` jobs from each queue;
    2. fill the rest of the limit, with at most `cap` jobs per queue over both passes.

    - If `cap` is lower than `quota`, `cap` applies.
    - `free`: the slots that are free now. A fetch takes at most `free` jobs from a queue with a `max_running`
      or a rate, because other workers could start the jobs that would wait here.
    """

    queue: str
    quota: int
    cap: int
    free: int | None = None


#: Most queues that one step of a fetch looks at, so that other calls are not delayed by their number.
MOST_FETCHED = 500


class Fetched(msgspec.Struct, frozen=True):
    """Leased jobs, and the instants at which the next fetch may find more.

    - `jobs`: a job whose `fetched_at` lies in the future (by at most 20 ms) is leased but must not start
      before that instant, because of the rate of its queue.
    - `now`: the store's clock.
    - `due`: the earliest `run_at` of the scheduled and retryable jobs of these queues, or the instant at
      which a partition admits a job or a batch is due, if that is earlier. Paused queues and instants that
      have passed count. None if there is no such instant, and always after a reclaim.
    - `opens_at`: the instant at which a rate or a throttle admits the next job that it blocks now in these
      queues (an available job, or a parked job whose task the worker knows). None if it blocks no job.
    - `set_aside`, here and in `Due` and `Pruned`: records that this store object has set aside since its last
      report, by any verb.
    - `kept`: queues that have parked jobs of tasks that the worker knows, but already run as many jobs as
      their limit allows.
    """

    jobs: list[Job]
    now: int
    due: int | None = None
    opens_at: int | None = None
    set_aside: tuple[SetAside, ...] = ()
    kept: tuple[str, ...] = ()

    def behind(self, before: Fetched | None) -> Fetched:
        """This answer, for the next queues behind those of a fetch that has found no job."""
        if before is None:
            return self
        return Fetched(
            self.jobs,
            self.now,
            _earlier(before.due, self.due),
            _earlier(before.opens_at, self.opens_at),
            before.set_aside + self.set_aside,
            before.kept + self.kept,
        )


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((instant for instant in (one, other) if instant is not None), default=None)


def looked_at(shares: Sequence[Share], queues: Collection[str]) -> Sequence[Share]:
    """The shares of which a fetch tells whether their queues have more; `queues`: those of its jobs.

    The store may have stopped before the others (see `Fetch`).
    """
    if len(shares) <= MOST_FETCHED or not queues:
        return shares
    last = max((n for n, share in enumerate(shares) if share.queue in queues), default=0)
    return shares[: (last // MOST_FETCHED + 1) * MOST_FETCHED]


# ── extend ───────────────────────────────────────────────────────────────────────────────────────


class HeartbeatRequest(msgspec.Struct, frozen=True, gc=False):
    """One heartbeat: extend this lease to `by` ms from now, and store the attempt's progress.

    - `started`: True records that the function has started.
    - `progress`, `checkpoint`: replace the stored ones, unless None.
    - `lasting`: True makes this write as durable as an enqueue on this store, before the store answers. Used
      if a start must be stored before the function runs.
    """

    lease: Lease
    by: int
    started: bool = False
    progress: Progress | None = None
    checkpoint: Annotated[bytes | None, Secret.CHECKPOINT] = None
    lasting: bool = False


class LeaseStatus(enum.StrEnum):
    """The status of a lease after a heartbeat."""

    HELD = "held"
    LOST = "lost"
    CANCEL_ASKED = "cancel_asked"  # held, and the job was asked to stop
    UNKNOWN = "unknown"  # this part of the store is unreachable, while other parts answer

    __hash__ = str.__hash__


# ── settle ───────────────────────────────────────────────────────────────────────────────────────


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The end of an attempt.

    - `lease`: the lease to check. A Ref has no token: it applies to a running job of any holder. It is only
      for dialects whose protocol has no leases.
    - `result`: stored if the transition ends the job.
    - `then`: jobs that follow, enqueued in the same step, after the transition, if the settlement applies. A
      closed or full queue takes them, because they were accepted with the job that they follow. A job whose
      id or unique key is taken is not enqueued.
    """

    lease: Lease | Ref
    transition: Transition
    result: Annotated[bytes | None, Secret.RESULT] = None
    then: tuple[NewJob, ...] = ()


class Settled(enum.StrEnum):
    """The result of one settlement."""

    APPLIED = "applied"
    STALE = "stale"  # the job exists, but not this lease: nothing was changed
    GONE = "gone"  # the job does not exist: nothing was changed
    UNKNOWN = "unknown"  # this part of the store is unreachable, while other parts answer: settle again later

    __hash__ = str.__hash__


_NO_OUTCOMES = (State.RUNNING, State.COLLECTING, State.WAITING)


def no_outcome(to: Transition) -> None:
    """Raise ValueError if an attempt cannot end in the state of this transition."""
    if to.state in _NO_OUTCOMES:
        raise ValueError(f"no attempt ends in the state {to.state.value!r}; nothing of this call was settled")


# ── promote, wait ────────────────────────────────────────────────────────────────────────────────


class Due(msgspec.Struct, frozen=True):
    """The answer of a promotion.

    - `moved`: the number of jobs made available.
    - `next`: when the next job is due; None if there is none. An instant in the past means that the limit was
      reached before all due jobs were promoted.
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


#: Called with an instant at which something is due, and the store's clock: `on_due(due, now)`.
OnDue = Callable[[int, int], None]


class WorkerOffer(msgspec.Struct, frozen=True):
    """A fetch that the store may do for a waiting worker, which saves the round trip after the wake-up.

    - `worker`, `token`, `lease` (ms): the arguments of that fetch.
    - `take`: the store may call it with the leased job as soon as the job arrives, in the waiter's event
      loop. If `take` returns the next offer, the wait continues; if it returns None, the wait ends with WORK.
    """

    worker: str
    token: str
    lease: int
    take: Callable[[Fetched], WorkerOffer | None] | None = None


class _OfShares(Request[A], frozen=True):
    queues: Sequence[Share]


class Fetch(_OfShares[Fetched], frozen=True, kw_only=True):
    """Lease up to `limit` available jobs for `lease` ms.

    - `queues`: the queues and their shares, in order. Jobs are returned in the order in which they were
      taken: pass by pass, queue by queue, each queue in its own order (docs/concepts/order.md,
      docs/concepts/fair-share.md).
    - `worker`: the id of the worker. If the worker has announced the task of a parked job, that job is
      taken before the available jobs of its queue; several such jobs are taken in the order of available
      ones. A parked job whose partition is full becomes WAITING instead (docs/concepts/partitions.md).
    - `token`: new for each fetch of a worker. A repeated call with the same token returns the jobs that
      are still leased under it, in any order, and leases more only if there are none. If there are,
      `opens_at` and `kept` may be missing: the next fetch gives them.
    - `charge`: whether the fetch counts as an attempt.

    A store may look at more than `MOST_FETCHED` queues in parts of that size, and stop at the first part
    that has jobs.

    In a leased job `started` is False, and `progress` and `reason` are None. Its errors, its `checkpoint`
    and `cancel_asked` stay.

    Expired jobs that the fetch finds before the limit is reached are cancelled (`lifecycle.EXPIRED`) and
    do not count. After a few thousand of them a store may return fewer jobs than it has; then the next
    `wait` answers WORK at once.

    Limits of a queue:

    - A paused or throttled queue gives no jobs.
    - At most `max_running` jobs of a queue run at the same time, over all workers.
    - From a queue with a rate, a fetch takes only jobs that may start within the next 20 ms. In any time
      span t, to the millisecond, at most rate * t + burst jobs start.
    """

    limit: int
    lease: int
    worker: str
    token: str
    charge: bool = True


class Extend(Request[list[LeaseStatus]], frozen=True):
    """Extend leases that are still held.

    A lease is held while its token matches: even after its time has run out, until another worker
    reclaims the job. A heartbeat for a LOST lease stores nothing.

    Answer: one status per heartbeat, in order. After UNKNOWN send the heartbeat again: the lease may have
    any other status.
    """

    requests: Sequence[HeartbeatRequest]


class Settle(Request[list[Settled]], frozen=True):
    """Apply each transition if the lease token still matches, and count it in the statistics.

    - Statistics, on the UTC day of the store's clock: processed +1 if the transition charges, failed +1
      if it has an error. A job keeps its newest `job.MAX_ERRORS` errors.
    - `charge=False` takes back the attempt that the fetch charged, if it charged one.
    - `run_at` becomes now if the job becomes AVAILABLE at the head or the tail of its queue. `run_at`
      stays if the job becomes AVAILABLE at its own place, or PARKED at any place. A SCHEDULED or
      RETRYABLE job is due in `delay` ms, and has no place in the queue until it is promoted.
    - The job has no attempt in progress any more: `token` and `worker` are None, `started` is False.
    - A job that was asked to stop keeps the reason of that request, unless it is COMPLETED or DEAD.
    - `throttle` throttles the queue for that many ms (`limits.bounded_throttle`), `throttle_partition`
      the partition. If the queue or partition is already throttled for longer, the longer time stays.

    Answer: one `Settled` per settlement, in order.
    Errors: ValueError for a transition to a state in which no attempt ends (`no_outcome`); then the call
    changes nothing.
    """

    settlements: Sequence[Settlement]


class Promote(OfQueues[Due], frozen=True, kw_only=True):
    """Make up to `limit` due jobs of these queues available, the earliest first.

    - Jobs with the same due time are promoted in the order of their enqueue, over all these queues. For
      jobs of different queues the exception of `search` applies.
    - An expired job is cancelled instead, and counts towards the limit but not as moved.
    - A collecting batch that is due becomes one available job, after the single jobs with the same due
      time, and counts as one job. A store may stop after a few thousand members
      (docs/concepts/batches.md).
    - A job that joins its collecting batch counts as moved.
    - A partition that may admit its first waiting job at an instant admits it before the jobs with the
      same due time are promoted.
    - Jobs of paused and closed queues are promoted, too.
    """

    limit: int


class Reclaim(OfQueues[Fetched], frozen=True, kw_only=True):
    """Lease up to `limit` lost jobs to `worker` for `lease` ms, without charging an attempt.

    - Without `of`: jobs of these queues whose lease has run out, the lease that ran out first comes
      first. Leases from before a reboot of the machine are void and come before all others, in order of
      enqueue.
    - With `of`: the jobs leased to these workers, in any queue, in order of enqueue, even if the lease
      has not run out. A lease that one of them takes during the call may be left out: it runs out.
    - Only the lease and the reason change: `reason` names the worker that lost the job
      (`lifecycle.LOST_BY`); `started`, `progress` and `fetched_at` are still those of the lost attempt.
    - A repeated call with the same token returns the same leases, as in `fetch`.
    """

    limit: int
    lease: int
    worker: str
    token: str
    of: Sequence[str] | None = None


class Wait(OfQueues[Wake], frozen=True, kw_only=True):
    """Sleep until there may be something to do, at most `timeout` ms.

    | flag | there is |
    |---|---|
    | WORK | an available job in one of the queues that may start now or before the timeout ends |
    | WORK | a scheduled or retryable job, a partition or a batch that is due before the timeout ends |
    | CANCEL | a running job, of any queue, that was asked to stop |
    | SETTINGS | a change in the settings of any queue, or in the periodic entries |

    - If something is due before the timeout ends, `wait` answers WORK at once, so that the caller can
      promote, or sleep until then. A caller that already knows that instant passes a timeout that ends
      with it.
    - With `on_due`, nothing that is due is WORK. Instead the wait reports the earliest of these instants,
      and continues: it calls `on_due` at its begin, and when something earlier becomes due.
    - Parked jobs are WORK only in the queues of `parked`: those that the last fetch reported as `kept`.
    - CANCEL and SETTINGS report events since the last wait of this store object that reported them, and
      never events before the object's first verb. Concurrent waits all report them. A wait without
      queues waits for these two flags alone.
    - With an `offer` the store may lease a job to the waiter in the step that enqueues or promotes it, as
      a fetch with the token of the offer. After a wait with an offer, the next fetch must use that token,
      or, if `take` has accepted jobs in the meantime, the token of the last offer.
    """

    timeout: int
    offer: WorkerOffer | None = None
    parked: Sequence[str] = ()
    on_due: OnDue | None = None
