"""The seam: what a store can do, in about twenty verbs. Above it nobody knows SQL, Redis or a row.

Each verb is one atomic step, takes a batch and answers per item. No verb decides anything: `settle`
applies the `Transition` that `lifecycle.decide` made, if the lease's token still holds. Durations go
in, instants come out, and the store's own clock rules. Driver exceptions never cross: what can go
wrong is in `errors.py` under StoreError.

Order: among available jobs of a queue, higher priority first; within one priority by *place*: a new
job goes to the tail, a promoted one to the tail in the order of due times (ties: order of enqueue),
`Place.HEAD` before all others of its priority (several of one settle call keep their order there),
`Place.OWN` where it stood.

Generation: a number of the store's own, higher for each job it takes, in a queue never given twice. It is
the order of enqueue, and with its token it tells a lease from that of an earlier job of the same id.

Lanes: of the jobs of one lane in a queue at most so many are *admitted* as their terms allow (`Lane.most`):
available or running, in an ordered lane also due later or parked once it was fetched. Where a verb would
make another one available it is WAITING instead, unless it stands before all that wait there and there is
room; and whatever ends, removes, or puts off an admitted job admits the next in the same step. Among waiting
jobs of a lane: higher priority first, within one by place; ordered ones by place alone. An admitted job
stands in its queue at its place, as if it had never waited. An available one that comes to wait no more
than an instant's passing (`Lane.rate`, `Transition.hold_lane`) is admitted by `promote`, and that instant is
due like a job's: it stands before the jobs of the same instant, and counts as one for the limit. A start by
a lane's rate is a fetch. One that has expired is admitted like others; who fetches it cancels it.

Turns: from the first job with a turn on a queue is fair. A job that would stand at the tail stands at the
tail of its key instead, those without a turn being one key, and each priority takes turns of its own: see
`lane.Turn`. What stood there before comes first. A job that leaves before it is fetched gives its turn back.
Groups: a job with a `group` that becomes due, by whatever verb, is not made available but GROUPED: it joins
the group of its task, queue and key, as its last member, with `run_at` now. A group becomes a batch
(`lifecycle.batch_of`) as `Group` says: in the step that brings the member which makes it full, else by
`promote`. Members that have expired by then are cancelled; the others are the batch's `members`, with no
expiry any more, in the order in which they have joined. They stay GROUPED while the batch has not ended, and
end, and go, with it and as it does: as long kept, with the same state, reason and `ended_at`, in the same
step. The batch's alone are attempts, errors, result and statistics. Single members of a batch that has not
ended cannot be cancelled, rescheduled or deleted, by no verb; to retry one member is to retry the batch.

Time: a job is due from the instant `run_at` on, expired from `expires_at` on, over from the end of its
retention on; a lease has run out from the end of its time on. Jobs go by the wall clock, leases by the
clock of leases, so that a wall clock that is set changes no lease.

What cannot be done to one item changes nothing and says so in that item's answer: a batch never fails
for one of its items. An answer stands at the place of its question, also for one asked twice.

Unreadable records: a stored job that cannot be decoded, encoded or moved concerns itself alone. The verb
that meets it, whatever it was asked for, *sets it aside*: the job is dead (`lifecycle.set_aside`), counted as
one processed and one failed unless it had ended, and holds no unique key, no place in its lane and none in
its group. What is stored in its place is `job.stand_in`, with the raw bytes as payload, so that from then on
every verb reads it; `retry` and `reschedule` leave it DEAD. Members of a batch that is set aside end with it,
are no members any more, and can be retried one by one. The verb goes on with the others. Verbs that change
nothing (`get`, `list_jobs`, …) show the stand-in, in the state that the store's indexes know. What a job can
do without (progress, error history, reason) counts as not there instead.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Protocol

import msgspec

from penstock.core.job import Job, Lease, NewJob, Progress, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import NO_LIMITS, LimitChange, QueueLimits
from penstock.core.schedule import Entry, NewEntry, Overlap

__all__ = [
    "LANE_SHOWN",
    "Beat",
    "Consuming",
    "DayCount",
    "Due",
    "Enqueued",
    "Fetched",
    "Finding",
    "Grip",
    "GroupInfo",
    "LaneInfo",
    "Level",
    "Moved",
    "Offer",
    "Operating",
    "Page",
    "Producing",
    "Pruned",
    "QueueInfo",
    "QueueStats",
    "SetAside",
    "Settled",
    "Settlement",
    "Share",
    "Store",
    "SyncProducing",
    "Tick",
    "Ticked",
    "Timetable",
    "Verdict",
    "Wake",
    "WorkerInfo",
    "no_outcome",
    "unreadable_settings_of",
]


# ── producing ────────────────────────────────────────────────────────────────────────────────────


class Verdict(enum.StrEnum):
    """What became of one job that was to be enqueued."""

    NEW = "new"  # stored
    EXISTS = "exists"  # its id is taken: nothing stored
    DUPLICATE = "duplicate"  # its unique key is held by another job, whose id comes back
    CLOSED = "closed"  # its queue takes no new jobs
    FULL = "full"  # its queue is at its limit
    REPLACED = "replaced"  # the holder of its unique key, whose id comes back, was given what it asked for
    UNREPLICATED = "unreplicated"  # stored, but fewer replicas than asked for have confirmed it in time
    UNKNOWN = "unknown"  # stored or not: the reply was lost
    FAILED = "failed"  # not stored: `cause` says why

    __hash__ = str.__hash__


class Enqueued(msgspec.Struct, frozen=True):
    """The answer for one job. `id` is the stored job's: another one's for DUPLICATE. `cause` is in words.

    For FULL `retry_after` says in how many ms there may be room, as fast as the queue drains of late; `size`
    is its limit, and `waits` whether its rule is to wait for room."""

    verdict: Verdict
    id: str
    retry_after: int | None = None
    cause: str = ""
    size: int | None = None
    waits: bool = False


class Producing(Protocol):
    """What a producer needs."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store the jobs, all in one step; answers in their order.

        Later items of a batch see the earlier ones (a second job of the same id EXISTS). What is asked
        first answers: EXISTS (in whatever state, also if the queue is closed: a repeated enqueue is told
        so), then CLOSED, then DUPLICATE, then FULL: as many jobs wait to start in the queue, in whatever
        queued state, as its `max_size` allows.

        A unique key is held in its queue by one job at most, while that is in a phase (`holding.phase`) that
        its `states` name, until `period` ms after its enqueue. On its way into these phases a job takes its
        key, unless somebody else holds it: then it goes on without, and takes none within them. Who gives a
        key up frees nothing of a successor's. A job that is CANCELLED, DEAD or deleted (`delete`, `purge`)
        holds no key; a completed one with WHILE_FINISHED holds it until it is pruned or, with a period, to
        its end, whether the job is kept or not. A new job whose key is held is a DUPLICATE, or, if it says
        `replace` and the holder is queued, REPLACED: nothing is stored, and `holding.replaced` says what
        becomes of the holder. One that stays AVAILABLE keeps its place; one that becomes so goes to the tail.

        Of `expires_in` and `expires_at` the earlier one counts. `lifecycle.first_state` says where a job
        begins.

        A store that needs several steps for a large batch, or for one over several servers, says of each job
        of a step that went wrong FAILED or UNKNOWN; where all of them were one step, it raises the error
        (`EnqueueUnknown` if the reply was lost).
        """
        ...

    async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        """The jobs as they are now; None for one that is not there."""
        ...

    async def cancel(self, refs: Sequence[Ref], *, reason: str = ...) -> list[State | None]:
        """Cancel queued jobs at once (state CANCELLED comes back); ask running ones to stop (RUNNING).

        An ended job keeps its state, which comes back; None for one that is not there. `reason`
        (`lifecycle.ASK_CANCELLED`) is that of the jobs cancelled here; they are kept as `lifecycle.kept`
        says. A running job keeps the first one that is not the default, see `settle`. Who was asked stays
        asked (`cancel_asked`) until an operator's retry, also through a queued state: whoever fetches it
        next settles it as cancelled. Asking twice is asking once.
        """
        ...

    async def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        """Wait, without busy polling, until all have ended or are gone, at most `timeout` ms; then as `get`.

        A timeout is real time, also where a test steers the store's clock.
        """
        ...

    def ends(self, refs: Sequence[Ref], *, timeout: int) -> AsyncGenerator[dict[Ref, Job | None], None]:
        """The same, told bit by bit: whenever some have ended, these as they are; None for one that is gone.

        What has ended already comes at once. Each ref comes once, however often it was asked for; it is over
        when all have come or the time is up. However many wait in an event loop, for however many jobs, the
        store is asked for all of them together. Close what is not read to its end.
        """
        ...


class SyncProducing(Protocol):
    """The same for callers without an event loop, each verb in the caller's own thread."""

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]: ...
    def get(self, refs: Sequence[Ref]) -> list[Job | None]: ...
    def cancel(self, refs: Sequence[Ref], *, reason: str = ...) -> list[State | None]: ...
    def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]: ...
    def ends(self, refs: Sequence[Ref], *, timeout: int) -> Generator[dict[Ref, Job | None], None, None]: ...
    def retry(self, refs: Sequence[Ref]) -> list[State | None]: ...
    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]: ...
    def queues(self) -> list[QueueInfo]: ...
    def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo: ...


# ── consuming ────────────────────────────────────────────────────────────────────────────────────


class Share(msgspec.Struct, frozen=True):
    """One queue of a fetch. First each queue gives up to `quota` jobs, in the order given; then what is
    left of the limit is filled in the same order, up to `cap` jobs in all from each queue.

    A cap below the quota wins. A queue stands in a fetch once. Of a queue with a `max_running` or a rate it
    is no more than `free`, the slots that are free now: what others may start must not wait here."""

    queue: str
    quota: int
    cap: int
    free: int | None = None


class SetAside(msgspec.Struct, frozen=True):
    """Something stored that could not be read, and was set aside: it stands in nobody's way any more.

    `kind`: "job" (it is dead now), "periodic entry" (never due), "settings" (of a queue: as if not set),
    "worker" (`id`, as if not there), "outbox entry" (the job that should follow another one).
    """

    kind: str
    queue: str
    id: str
    cause: str

    def __str__(self) -> str:
        where = f" of the queue {self.queue}" if self.queue else ""
        return f"{self.kind} {self.id}{where}: {self.cause}"


class Fetched(msgspec.Struct, frozen=True):
    """Leased jobs, the store's now, and the instant when the next queued job of those queues is due.

    `set_aside`, here and in `Due` and `Pruned`: what this store object has set aside since it last said so,
    by whatever verb.

    `due` is the least `run_at` of their scheduled and retryable jobs, or the instant of a lane or a group,
    paused queues and instants that have passed included (promotion is not paused); None without any, and
    always after a reclaim. `opens` is when a rate or a hold lets the next job of those queues go that it
    keeps back now: ready, or parked and of a task that the worker knows; None without any. `kept`: queues
    that have parked jobs of a task that the worker knows, and as many running as their limit allows.

    A job whose `fetched_at` is still to come, by no more than 20 ms, is leased but must not begin before that
    instant, which is its place in the queue's rate."""

    jobs: list[Job]
    now: int
    due: int | None = None
    opens: int | None = None
    set_aside: tuple[SetAside, ...] = ()
    kept: tuple[str, ...] = ()


def no_outcome(to: Transition) -> None:
    """Raise ValueError for a state that no attempt ends in."""
    if to.state in _NO_OUTCOMES:
        raise ValueError(f"no attempt ends in the state {to.state.value!r}; nothing of this call was settled")


_NO_OUTCOMES = (State.RUNNING, State.GROUPED, State.WAITING)


class Beat(msgspec.Struct, frozen=True, gc=False):
    """One heartbeat: hold this lease until `by` ms from now, and put down what the attempt says of itself.

    `started=True` records that the function has begun; `progress` and `checkpoint` replace what was
    there unless None. `lasting=True`: what this records survives a power cut once it is answered, as an
    enqueue does on this store. A start that must be on record first is recorded so.
    """

    lease: Lease
    by: int
    started: bool = False
    progress: Progress | None = None
    checkpoint: bytes | None = None
    lasting: bool = False


class Grip(enum.StrEnum):
    """How a lease stands after a heartbeat."""

    HELD = "held"
    LOST = "lost"
    CANCEL_ASKED = "cancel_asked"  # held, and somebody wants the job to stop
    UNKNOWN = "unknown"  # its part of the store is away, while others answer

    __hash__ = str.__hash__


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The end of an attempt. A bare Ref (no token) is only for dialects whose protocol has no lease.

    It applies to a running job, whoever holds it.

    `result` is stored with a job that ends. `then`: jobs that follow, enqueued in the same step, after the
    transition (only if the settlement applies). They were accepted with the job that they follow, so a
    closed or full queue takes them; one whose id or unique key is taken is left out, for it is there already.
    """

    lease: Lease | Ref
    transition: Transition
    result: bytes | None = None
    then: tuple[NewJob, ...] = ()


class Settled(enum.StrEnum):
    """What became of a settlement."""

    APPLIED = "applied"
    STALE = "stale"  # the job is there, the lease is not: nothing was changed
    GONE = "gone"  # no such job (any more): nothing was changed
    UNKNOWN = "unknown"  # its part of the store is away, while others answer: settle it again

    __hash__ = str.__hash__


class Due(msgspec.Struct, frozen=True):
    """How many jobs a promotion made available, when the next is due (in the past if the limit left some
    behind; None if nothing waits), and the store's now."""

    moved: int
    next: int | None
    now: int
    set_aside: tuple[SetAside, ...] = ()


class Wake(enum.Flag):
    """Why a wait came back; no flag: its time was up."""

    NOTHING = 0
    WORK = enum.auto()
    CANCEL = enum.auto()
    SETTINGS = enum.auto()


class Offer(msgspec.Struct, frozen=True):
    """What a waiter would fetch at once: it spares the way there and back between waking and fetching.

    `take` may be called with such a job as soon as it is here, in the loop of the waiter. It says what the
    waiter offers next, and then the wait goes on; or None, and then it ends with WORK.
    """

    worker: str
    token: str
    lease: int
    take: Callable[[Fetched], Offer | None] | None = None


class Consuming(Protocol):
    """What a worker needs."""

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
        """Lease up to `limit` available jobs for `lease` ms; their `attempt` counts up if `charge`.

        The jobs come in the order in which they were taken: pass by pass, queue by queue, each queue in its
        own order. A leased job begins anew: `started` is False, `progress` and `reason` are None; its errors,
        `checkpoint` and `cancel_asked` stay.

        Repeating a call with the same token (each is one worker's own) returns the jobs that are still leased
        under it, as they are, in any order, and leases no more while there are any.

        A parked job whose lane has no room becomes WAITING instead.

        Jobs past their expiry that it meets, before its limit is filled, are cancelled (`lifecycle.EXPIRED`,
        kept as `lifecycle.kept` says) and count for nothing; a store may stop after a few thousand of them
        with fewer jobs than there are, and then `wait` says WORK at once. Paused queues give nothing. Parked
        jobs of a queue come first, in the order of available ones, if `worker` has announced their task.

        A queue that is held gives nothing; one with a `max_running` never so much that more of its jobs would
        be leased at once, over all workers; one with a rate as many as may start within the next 20 ms: in
        every span of time t at most rate * t + burst, to the millisecond, each with its instant.
        """
        ...

    async def extend(self, beats: Sequence[Beat]) -> list[Grip]:
        """Prolong leases that still hold by their token, however late (nobody has reclaimed them yet).

        A beat whose lease is LOST puts nothing down. UNKNOWN: ask again, it may be any of the others.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Apply each transition if its lease's token still holds, and count it for the statistics.

        Per settled job: processed +1 if the transition charges, failed +1 if it carries an error, on the UTC
        day of the store's now. Of the errors the newest `job.MAX_ERRORS` stay.

        `charge=False` takes back what the fetch charged: nothing if it did not. AVAILABLE at the head or the
        tail: `run_at` is now; at its own place `run_at` too stays what it was, and for PARKED at any place;
        SCHEDULED and RETRYABLE are due `delay` ms from now, in no place until they are promoted. Outside of
        RUNNING no attempt goes on: `token` and `worker` are None, `started` is False. The reason of a job
        that was asked to stop is that of the request, whatever the transition says, unless it is COMPLETED
        or DEAD. With a `hold` the queue gives nothing for so long (`limits.bounded_hold`), or for longer if
        it was held before. A call with a transition to RUNNING, which is no outcome, raises ValueError and
        changes nothing.
        """
        ...

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        """Make due jobs available, earliest first over all these queues (ties: order of enqueue), at most
        `limit`. Expired ones are cancelled instead, and count for the limit too, but are not `moved`. So are
        groups that are due made batches, after jobs of the same instant: each counts as one job, whatever
        its size, and a store may stop after a few thousand members. Who joins its group counts as moved.

        Paused and closed queues are promoted like others.
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
        """Lease jobs of these queues whose lease has run out to `worker`, attempt number unchanged.

        With `of`: the jobs leased to these workers, in any queue, run out or not, in order of enqueue.
        Without: those that ran out first come first; a lease of another boot of the machine is void and comes
        before all others, in order of enqueue. Only the lease changes, and `reason` names who lost it
        (`lifecycle.LOST_BY` and that worker's id); `started`, `progress`, `fetched_at` are still those of the
        attempt that is to be judged. Repeating a call with its token is as with `fetch`.
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
        """Sleep until there may be something, at most `timeout` ms.

        WORK: an available job in one of the queues that is not paused, and that its limits let go now or
        before the timeout's end, or a scheduled or retryable one, a lane or a group in any of them that is
        due now or before that. It comes back at once, so that the caller can fetch, promote, or sleep until
        that instant instead; who knows of that instant asks for a timeout that ends with it. Parked jobs are
        work only in the queues named by `parked`: those that the caller's last fetch has said to be `kept`.
        CANCEL: a running job, of any queue, was asked to stop since this store object's last `wait` said so.
        SETTINGS: the settings of any queue changed since then. With no queues only these two are waited for.
        What happened before a store object's first verb is not told. Several waits at once are all told.

        With an `offer` a store may lease a job to the waiter in the very step that enqueues it, as a fetch
        with that token would have. Who makes an offer fetches with its token next, however the wait came out:
        the token of the last one, where jobs of others were taken meanwhile.
        """
        ...


# ── operating ────────────────────────────────────────────────────────────────────────────────────


class Page(msgspec.Struct, frozen=True):
    """A part of a listing; `next` goes into `after` for the following part, None at the end."""

    jobs: list[Job]
    next: str | None


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue's counts (exact; states without jobs are absent), switches, and its oldest available job.

    `oldest_available` is the least `run_at` of its available jobs. `held_until`: the queue gives nothing
    before that instant, for an upstream wants it slower; None: it is not held."""

    name: str
    counts: dict[State, int]
    paused: bool = False
    closed: bool = False
    oldest_available: int | None = None  # when it became due, ms epoch
    limits: QueueLimits = NO_LIMITS
    held_until: int | None = None
    away: str = ""  # why nobody can say anything of it now, though others can be asked


class Parked(msgspec.Struct, frozen=True):
    """How many jobs of one task are parked in one queue, for want of a worker that knows it."""

    queue: str
    task: str
    jobs: int


#: How many of a lane's admitted jobs are named.
LANE_SHOWN = 10


class LaneInfo(msgspec.Struct, frozen=True):
    """How it stands in a job's lane, and with the job there.

    `admitted`: those that may run (the first LANE_SHOWN, in order of enqueue), `waiting` how many wait,
    `before` how many of these stand before the job (None: it does not wait). `due`: the instant at which the
    first of them is admitted, if it waits for time to pass alone.
    """

    key: str
    admitted: list[Job]
    waiting: int
    before: int | None = None
    due: int | None = None


class DayCount(msgspec.Struct, frozen=True):
    """What was settled on one UTC day (`"2026-11-20"`)."""

    day: str
    processed: int
    failed: int


class QueueStats(msgspec.Struct, frozen=True):
    """A queue's totals since its first job, and its last days (at most 90), newest first.

    `enqueued` counts the jobs that were NEW, also by a settlement's `then`."""

    name: str
    enqueued: int
    processed: int
    failed: int
    days: list[DayCount]


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker process as it announced itself; `seen_at` is the store's clock at its last announcement."""

    id: str
    host: str
    pid: int
    started_at: int
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    running: int = 0
    state: str = "running"  # running, quiet, draining; "unreadable": its record cannot be read
    supervisor: int | None = None
    version: str = ""
    seen_at: int = 0
    handled: tuple[str, ...] = ()  # queues of which it runs every job, whatever its task

    @classmethod
    def unreadable(cls, id: str, seen_at: int) -> WorkerInfo:
        """What is shown of a worker whose record cannot be read; it goes as a silent worker does."""
        return cls(id, "", 0, seen_at, (), (), 0, state="unreadable", seen_at=seen_at)


class GroupInfo(msgspec.Struct, frozen=True):
    """A group that is not a batch yet: how many are in it, since when the first one is, and when it is due
    (None: not before it is full)."""

    queue: str
    task: str
    key: str
    size: int
    oldest: int
    due: int | None

    def order(self) -> tuple[bool, int, str, str, str]:
        """The one that is due first goes first."""
        return self.due is None, self.due or 0, self.task, self.key, self.queue


class Pruned(msgspec.Struct, frozen=True):
    """What a prune took away."""

    finished: int
    expired: int
    workers: int
    keys: int = 0  # unique keys whose period was over
    set_aside: tuple[SetAside, ...] = ()


class Level(enum.StrEnum):
    """How bad a finding is."""

    FINE = "fine"
    WARNING = "warning"  # jobs, or the work on them, are at risk
    ERROR = "error"  # jobs will be lost, or cannot be stored

    __hash__ = str.__hash__


class Finding(msgspec.Struct, frozen=True):
    """One thing that a store's checkup has looked at: what it was, why it is judged so, the way out."""

    level: Level
    what: str
    why: str
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + (f"; {self.way_out}" if self.way_out else "")


def unreadable_settings_of(queue: str, cause: str) -> Finding:
    """What a checkup says of a queue whose settings cannot be read."""
    why = f"they cannot be read, and count as not set ({cause})"
    return Finding(
        Level.WARNING, f"settings of the queue {queue}", why, "set them anew with penstock queues set"
    )


class Timetable(msgspec.Struct, frozen=True):
    """Periodic entries by queue and name, and the store's now."""

    entries: list[Entry]
    now: int


class Tick(msgspec.Struct, frozen=True):
    """One step of a periodic entry: its watermark goes `to` this instant, and these jobs are enqueued.

    It applies to the entry as it was read: of this `revision` and `watermark`, and not before `not_before` by
    the store's clock. `jobs` lie in the entry's queue, in the order of their instants.
    """

    ref: Ref
    revision: int
    watermark: int
    to: int
    not_before: int
    overlap: Overlap = Overlap.ALLOW
    jobs: tuple[NewJob, ...] = ()


class Moved(enum.StrEnum):
    """What became of a tick."""

    APPLIED = "applied"
    STALE = "stale"  # the entry was changed, paused, or ticked by somebody else: nothing was done
    EARLY = "early"  # by the store's clock it is not time yet: nothing was done
    GONE = "gone"  # there is no such entry
    UNKNOWN = "unknown"  # its part of the store is away, while others answer

    __hash__ = str.__hash__


class Ticked(msgspec.Struct, frozen=True):
    """The answer for one tick: the ids of the jobs that are new. The others were skipped."""

    moved: Moved
    enqueued: tuple[str, ...] = ()


class Operating(Protocol):
    """What operators and upkeep need."""

    async def checkup(self) -> list[Finding]:
        """Look whether jobs are safe here as the store is set up; a worker logs what is not fine when it
        starts, `penstock doctor` shows all. Changes nothing, and brings no store into being."""
        ...

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
        """Jobs in order of enqueue, newest first. A cursor stays valid while jobs come and go.

        `worker`: those it holds now. `next` is None exactly if nothing older fits the question; a text that
        is no cursor raises ConfigError.
        """
        ...

    async def find(self, id: str) -> list[Job]:
        """All jobs of this id, over all queues, by the queue's name."""
        ...

    async def queues(self) -> list[QueueInfo]:
        """Every queue that has ever had a job or a setting, by name."""
        ...

    async def parked(self) -> list[Parked]:
        """How many jobs are parked, by queue and task; exact, and only where there are any."""
        ...

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        """Totals, and the counts of those of the last `days` UTC days (today included) that have any, per
        queue, by name."""
        ...

    async def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        """Change a queue's switches (None leaves one as it is) and limits. The queue comes to be if it was
        not there.

        A paused queue gives no jobs to `fetch`, a closed one takes none from `enqueue`; all other verbs do
        not mind. Limits hold from now on: what is too much already stays.
        """
        ...

    async def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        """Make ended or queued jobs available now, as new: attempts and losses count from 0, errors are kept.

        The state before comes back; a running job stays as it is (RUNNING), None: not there. The job goes to
        the tail, due now; it has no result, reason or end any more, nobody has asked it to stop, and if its
        expiry has passed it has none any more. An ended job takes its unique key again, as `enqueue` says,
        for what is left of the key's period, if nobody else holds it; else it runs without. A job with a
        group that was not part of a batch is at once a batch of its own, of one; a batch's members are
        GROUPED again with it.
        """
        ...

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        """Give queued jobs (not parked ones) a new time; their state before comes back.

        A time to come makes them SCHEDULED; a time that has come makes them AVAILABLE, at the tail, also if
        they were. Others stay as they are, and their state comes back.
        """
        ...

    async def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        """Remove jobs that are not running; the state before comes back (RUNNING: refused). A batch's members
        go with it, here and wherever one is removed."""
        ...

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        """Remove up to `limit` jobs of these states, oldest first (never running ones); how many went."""
        ...

    async def drop(self, queue: str) -> bool:
        """Forget an empty queue, its settings, statistics and periodic entries; False if it still holds jobs.

        True also for a queue that nobody knows: there is nothing of it either.
        """
        ...

    async def lane(self, ref: Ref) -> LaneInfo | None:
        """How it stands in the lane of this job; None if the job is not there, has ended, or has no lane."""
        ...

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        """One bounded step of removing what is over: ended jobs past their retention or beyond the newest
        `keep_…` of a queue, expired queued jobs (cancelled), silent workers, old daily counts.

        In this order, all together at most `limit` (daily counts aside): ended jobs past their retention, the
        longest over first; per queue, by name, and state (completed, cancelled, dead) those that ended before
        its newest `keep_finished` (completed, cancelled) or `keep_dead`, and those that ended longer ago than
        its limits say, oldest end first; a queue's own limits go before what is given here; expired jobs, the
        earliest expiry first, which stay as cancelled ones; workers silent for more than a minute. Counts of
        days that are 90 days past or more go, and, beyond all these, at most `limit` unique keys whose period
        is over; they are free before that.
        """
        ...

    async def announce(self, worker: WorkerInfo) -> None:
        """Say that this worker lives, what it serves and which tasks it knows; `seen_at` becomes now."""
        ...

    async def retire(self, worker: str) -> None:
        """The worker is gone for good: take it off the list."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """Who announced itself within the last minute, oldest (`started_at`, then id) first."""
        ...

    async def entries(self, queues: Sequence[str] | None = None) -> Timetable:
        """The periodic entries of these queues, or of all."""
        ...

    async def put_entries(self, entries: Sequence[NewEntry]) -> list[Entry]:
        """Store these periodic entries in the place of those of the same name in the same queue, which comes
        to be if it was not there; as they are then. One that is the same already stays as it is.

        A new entry has its watermark now: nothing before its making is made up for. One of another schedule
        than before has it now, too, unless it was in the future; else it keeps it. A paused one stays paused.
        That entries have changed is told as a change of settings, by this verb and the next two.
        """
        ...

    async def pause_entries(self, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
        """Pause periodic entries or let them go on; as they are then, None for one that is not there.

        One that goes on has its watermark now, unless it was in the future: what it has slept through is not
        made up for.
        """
        ...

    async def delete_entries(self, refs: Sequence[Ref]) -> list[bool]:
        """Forget periodic entries; False for one that was not there. Their jobs stay."""
        ...

    async def groups(self, queue: str | None = None, *, limit: int = 1_000) -> list[GroupInfo]:
        """The groups of this queue, or of all, that are not batches yet: those that are due first."""
        ...

    async def flush_group(self, queue: str, *, task: str, key: str = "") -> str | None:
        """Make a group a batch now, whose id comes back; None if it is not there, or all have expired."""
        ...

    async def tick(self, ticks: Sequence[Tick]) -> list[Ticked]:
        """Move each entry's watermark on and enqueue its jobs, in one step; only if it still stands where it
        was when the tick was reckoned, so that of any number of callers one is heard.

        A job is skipped if its id or its unique key is taken, or its queue is closed or full; and with
        `Overlap.SKIP` if the entry's last job has not ended. With `Overlap.REPLACE` that one is cancelled
        first, as by `cancel` (`lifecycle.REPLACED`). A job that is NEW is the entry's last one from then on;
        one that is REPLACED was skipped.
        """
        ...


class Store(Producing, Consuming, Operating, Protocol):
    """All of it, and its life. A store opens itself at its first verb, per process (forks are noticed)."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...

    @property
    def sync(self) -> SyncProducing:
        """The door for callers without an event loop."""
        ...

    def close(self) -> None:
        """Let go of files, threads and connections; safe to call twice."""
        ...
