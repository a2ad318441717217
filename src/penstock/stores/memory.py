"""The reference store: it keeps the jobs of one process in plain data, and reads like the specification.

A `_Shelf` is the data, one lock, and one function per verb. `MemoryStore` is the door to it for event
loops, `MemoryStore.sync` the one for threads. Nothing survives the process, and nothing leaves it: a
fork of it is told so.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from penstock.batch import batch_id
from penstock.clock import Clock, SystemClock
from penstock.errors import ConfigError, StoreError
from penstock.holding import Hold, expiry_of, hold_after, outlives_its_job, replaced, until
from penstock.job import MAX_ERRORS, QUEUED, TERMINAL, Job, Lease, NewJob, Ref, State
from penstock.lane import Lane, Turn
from penstock.lifecycle import (
    ASK_CANCELLED,
    EXPIRED,
    LOST_BY,
    REPLACED,
    Place,
    Transition,
    batch_of,
    first_state,
    kept,
)
from penstock.limits import NO_LIMITS, LimitChange, OnFull
from penstock.schedule import Entry, NewEntry, Overlap
from penstock.store import (
    LANE_SHOWN,
    Beat,
    DayCount,
    Due,
    Enqueued,
    Fetched,
    Finding,
    Grip,
    GroupInfo,
    LaneInfo,
    Moved,
    Offer,
    Page,
    Parked,
    Pruned,
    QueueInfo,
    QueueStats,
    Settled,
    Settlement,
    Share,
    SyncProducing,
    Tick,
    Ticked,
    Timetable,
    Verdict,
    Wake,
    WorkerInfo,
    no_outcome,
)
from penstock.stores.gates import Gate
from penstock.stores.gathering import Gathered, Gathering
from penstock.stores.wording import storable, storable_error, storable_progress

__all__ = ["MemoryStore"]

_DAY = 86_400_000
_DAYS_KEPT = 90
_SILENT = 60_000
_VOID = -1  # the end of a lease from another boot: before that of any other


# ── the doors ────────────────────────────────────────────────────────────────────────────────────


class MemoryStore:
    """Jobs in the memory of this process. Those of one name and namespace share one shelf, and the clock of
    the first of them; one without a name has a shelf of its own."""

    def __init__(self, name: str = "", *, namespace: str = "", clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._kept = _named(name, namespace, self._clock) if name else _Shelf(self._clock)
        self._heard = _Heard(self._kept.cancels, self._kept.changes)
        self._heard_lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    @property
    def sync(self) -> SyncProducing:
        return _SyncDoor(self)

    def close(self) -> None:
        """There is nothing to let go of."""

    @property
    def shelf(self) -> _Shelf:
        """The data; refused to a fork, whose copy of it no worker would ever look at."""
        if self._kept.pid != os.getpid():
            raise StoreError(
                f"{self.url} lives in one process, and this is a fork of it: what is stored here is lost; "
                "use sqlite:///FILE to share jobs between processes"
            )
        return self._kept

    async def checkup(self) -> list[Finding]:
        return []

    # producing

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self.shelf.enqueue(jobs)

    async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return self.shelf.get(refs)

    async def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return self.shelf.cancel(refs, reason)

    async def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        shelf, bell, left = self.shelf, _LoopBell(), _Countdown(timeout)
        while (watch := shelf.watch_ends(refs, bell)) is not None:
            try:
                if not await bell.heard(left()):
                    break
            finally:
                shelf.unwatch_ends(watch)
        return shelf.get(refs)

    async def ends(self, refs: Sequence[Ref], *, timeout: int) -> AsyncGenerator[dict[Ref, Job | None], None]:
        shelf, bell, left = self.shelf, _LoopBell(), _Countdown(timeout)
        watch = shelf.watch_each(refs, bell)
        try:
            while True:
                in_time = not watch.open or bool(watch.told) or await bell.heard(left())
                if told := shelf.told(watch):
                    yield told
                elif not watch.open or not in_time:
                    return
        finally:
            shelf.unwatch_ends(watch)

    # consuming

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
        return self.shelf.fetch(queues, limit, lease, worker, token, charge)

    async def extend(self, beats: Sequence[Beat]) -> list[Grip]:
        return self.shelf.extend(beats)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return self.shelf.settle(settlements)

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        return self.shelf.promote(queues, limit)

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
        return self.shelf.reclaim(queues, limit, lease, worker, token, of)

    async def wait(self, queues: Sequence[str], *, timeout: int, offer: Offer | None = None) -> Wake:
        shelf, bell, left = self.shelf, _LoopBell(), _Countdown(timeout)
        until, before = self._clock.now() + timeout, self._heard
        shelf.watch(queues, bell)
        try:
            while True:
                wake, heard = shelf.look(queues, until, before)
                if wake or not await bell.heard(left()):
                    self._note(heard)
                    return wake
        finally:
            shelf.unwatch(queues, bell)

    def _note(self, heard: _Heard) -> None:
        """What has been told is not told again; several waits may end at once, the latest news count."""
        with self._heard_lock:
            self._heard = _Heard(*map(max, zip(self._heard, heard, strict=True)))

    # operating

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
        return self.shelf.list_jobs(queue, state, task, worker, after, limit)

    async def find(self, id: str) -> list[Job]:
        return self.shelf.find(id)

    async def queues(self) -> list[QueueInfo]:
        return self.shelf.infos()

    async def parked(self) -> list[Parked]:
        return self.shelf.parked()

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        return self.shelf.stats(days)

    async def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return self.shelf.settings(queue, paused, closed, limits)

    async def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return self.shelf.retry(refs)

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return self.shelf.reschedule(refs, delay, run_at)

    async def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        return self.shelf.delete(refs)

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        return self.shelf.purge(queue, states, limit)

    async def drop(self, queue: str) -> bool:
        return self.shelf.drop(queue)

    async def lane(self, ref: Ref) -> LaneInfo | None:
        return self.shelf.lane(ref)

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        return self.shelf.prune(limit, keep_finished, keep_dead)

    async def announce(self, worker: WorkerInfo) -> None:
        self.shelf.announce(worker)

    async def retire(self, worker: str) -> None:
        self.shelf.retire(worker)

    async def workers(self) -> list[WorkerInfo]:
        return self.shelf.seen_workers()

    async def entries(self, queues: Sequence[str] | None = None) -> Timetable:
        return self.shelf.entries(queues)

    async def put_entries(self, entries: Sequence[NewEntry]) -> list[Entry]:
        return self.shelf.put_entries(entries)

    async def pause_entries(self, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
        return self.shelf.pause_entries(refs, paused)

    async def delete_entries(self, refs: Sequence[Ref]) -> list[bool]:
        return self.shelf.delete_entries(refs)

    async def tick(self, ticks: Sequence[Tick]) -> list[Ticked]:
        return self.shelf.tick(ticks)

    async def groups(self, queue: str | None = None, *, limit: int = 1_000) -> list[GroupInfo]:
        return self.shelf.groups(queue, limit)

    async def flush_group(self, queue: str, *, task: str, key: str = "") -> str | None:
        return self.shelf.flush_group(queue, Gathered(task, key))


class _SyncDoor:
    """The producing verbs for callers without an event loop."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._store.shelf.enqueue(jobs)

    def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return self._store.shelf.get(refs)

    def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return self._store.shelf.cancel(refs, reason)

    def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        shelf, bell, left = self._store.shelf, _ThreadBell(), _Countdown(timeout)
        while (watch := shelf.watch_ends(refs, bell)) is not None:
            try:
                if not bell.heard(left()):
                    break
            finally:
                shelf.unwatch_ends(watch)
        return shelf.get(refs)

    def ends(self, refs: Sequence[Ref], *, timeout: int) -> Generator[dict[Ref, Job | None], None, None]:
        shelf, bell, left = self._store.shelf, _ThreadBell(), _Countdown(timeout)
        watch = shelf.watch_each(refs, bell)
        try:
            while True:
                in_time = not watch.open or bool(watch.told) or bell.heard(left())
                if told := shelf.told(watch):
                    yield told
                elif not watch.open or not in_time:
                    return
        finally:
            shelf.unwatch_ends(watch)

    def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return self._store.shelf.retry(refs)

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return self._store.shelf.reschedule(refs, delay, run_at)

    def queues(self) -> list[QueueInfo]:
        return self._store.shelf.infos()

    def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return self._store.shelf.settings(queue, paused, closed, limits)


# ── the data ─────────────────────────────────────────────────────────────────────────────────────

K = TypeVar("K")


class _Sorted(Generic[K]):
    """Generations in the order of a key (ties: the lower first).

    A heap. What is dropped lies on in it as a ghost until it comes up, or until ghosts are the most.
    """

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int]] = []
        self._keys: dict[int, K] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, generation: int, key: K) -> None:
        self._keys[generation] = key
        heappush(self._heap, (key, generation))

    def drop(self, generation: int) -> None:
        if self._keys.pop(generation, None) is not None and len(self._heap) > 2 * len(self._keys) + 64:
            self._heap = [(key, generation) for generation, key in self._keys.items()]
            heapify(self._heap)

    def rank(self, generation: int) -> int:
        """How many stand before it. Counts: for a look, not for a verb that is in a hurry."""
        mine = self._keys[generation], generation
        return sum((key, other) < mine for other, key in self._keys.items())

    def first(self) -> tuple[K, int] | None:
        """The least key and whose it is; None when empty."""
        heap = self._heap
        while heap and self._keys.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None


class _Row:
    """A job and what only its store knows of it."""

    __slots__ = (
        "admitted",
        "at_tail",
        "charged",
        "generation",
        "job",
        "lease_until",
        "over_at",
        "place",
        "queue",
    )

    def __init__(self, job: Job, queue: _Queue, place: int) -> None:
        self.job = job
        self.generation = job.generation
        self.queue = queue
        self.place = place  # among available jobs of its priority, the least first
        self.at_tail = True  # that place is one at the tail, for which it takes a turn where turns are taken
        self.admitted = False  # one of those of its lane that may run
        self.charged = False  # whether the fetch of the current lease counted the attempt up
        self.lease_until = 0  # by the clock of leases
        self.over_at = 0  # end of the retention of an ended job


class _Holder(NamedTuple):
    """Who has a unique key, and until when; the job itself may be kept no more."""

    generation: int
    id: str
    until: int | None


class _Lane:
    """A key of a queue, while there is anything to know about it."""

    __slots__ = ("admitted", "busy", "due", "held", "key", "number", "ready", "spent", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.admitted: dict[int, _Row] = {}
        self.ready: set[int] = set()  # of these, with a rate: those that have not started
        self.waiting: _Sorted[tuple[int, int]] = _Sorted()  # by rank and place
        self.spent = 0.0  # until when starts count against its rate
        self.held = 0  # until when nothing of it is admitted
        self.due: int | None = None  # when the first one waiting is admitted, if it waits for that alone
        self.busy = False

    def allowed_at(self, terms: Lane, now: int) -> int | None:
        """From when on one more of these terms may be admitted; None: not before another one leaves or
        starts."""
        if len(self.admitted) >= terms.most:
            return None
        return terms.allowed_at(len(self.ready), self.spent, self.held, now)


class _Turns:
    """Whose turn it is, among the jobs of one priority."""

    __slots__ = ("_order", "_tail", "ends", "now")

    def __init__(self, now: int) -> None:
        self.now = now  # the greatest place that was fetched
        self.ends: dict[str, int] = {}  # the place that a key gets next, if it is a later one
        self._order: list[tuple[int, str]] = []  # a heap of them, with some that are no more
        self._tail = 0

    @property
    def first(self) -> int:
        """The place of a key that comes anew: behind what was fetched, and behind others that came anew."""
        return max(self._tail, self.now + 1)

    def draw(self, turn: Turn) -> int:
        """A place at the tail of this key."""
        first = self.first
        place = max(first, self.ends.get(turn.key, 0))
        if place == first:
            self._tail = first + 1
        self._ends(turn.key, place + turn.step)
        return place

    def give_back(self, turn: Turn) -> None:
        if turn.key in self.ends:  # not quite: another job of the key may stand there
            self._ends(turn.key, self.ends[turn.key] - turn.step + 1)

    def fetched(self, place: int) -> None:
        self.now = max(self.now, place)
        while self._order and self._order[0][0] <= self.now:
            end, key = heappop(self._order)
            if self.ends.get(key) == end:
                del self.ends[key]

    def _ends(self, key: str, end: int) -> None:
        if end < self.first:
            del self.ends[key]
            return
        self.ends[key] = end
        heappush(self._order, (end, key))
        if len(self._order) > 2 * len(self.ends) + 64:
            self._order = [(end, key) for key, end in self.ends.items()]
            heapify(self._order)

    def rest(self) -> None:
        """Nobody has a job there: all begin alike."""
        self.now = max(self.ends.values(), default=self.now)
        self.ends.clear()
        self._order.clear()


_NO_TURN = Turn("")  # where turns are taken, jobs without one are those of one key


class _Queue:
    """The jobs of one queue, each in the order in which one of the verbs will ask for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.closed = False
        self.gate = Gate()
        self.rows: dict[str, _Row] = {}
        self.counts = dict.fromkeys(State, 0)
        self.ready: _Sorted[tuple[int, int]] = _Sorted()  # available: by priority and place
        self.oldest: _Sorted[int] = _Sorted()  # available: by run_at
        self.parked: dict[str, _Sorted[tuple[int, int]]] = {}  # by task; then as ready
        self.due: _Sorted[int] = _Sorted()  # scheduled and retryable: by run_at
        self.leases: _Sorted[int] = _Sorted()  # running: by the lease's end
        self.ended: dict[State, _Sorted[int]] = {state: _Sorted() for state in TERMINAL}  # by ended_at
        self.holders: dict[str, _Holder] = {}  # by unique key
        self.key_ends: _Sorted[int] = _Sorted()  # holders of a key with a period: by its end
        self.lanes: dict[str, _Lane] = {}
        self.lane_due: _Sorted[tuple[int, str]] = _Sorted()  # lanes, by number: when, and by key
        self.fair: int | None = None  # since a job came that has a turn: places of turns lie behind this one
        self.turns: dict[int, _Turns] = {}  # by priority
        self.entries: dict[str, Entry] = {}  # periodic ones
        self.gathering = Gathering()  # grouped, and in no batch yet
        self.enqueued = self.processed = self.failed = 0
        self.days: dict[int, tuple[int, int]] = {}  # days since the epoch: processed, failed

    def info(self, now: int) -> QueueInfo:
        counts = {state: n for state, n in self.counts.items() if n}
        oldest, gate = self.oldest.first(), self.gate
        return QueueInfo(
            self.name, counts, self.paused, self.closed, oldest and oldest[0], gate.limits, gate.held(now)
        )

    @property
    def running(self) -> int:
        return self.counts[State.RUNNING]

    def gives(self, now: int) -> bool:
        """Whether a fetch would get something that is ready."""
        return not self.paused and bool(self.ready.first()) and self.gate.room(self.running, now) != 0

    def opens(self, now: int, info: WorkerInfo | None = None) -> int | None:
        """When it gives what it keeps back now, by the time that passes; to this worker parked jobs, too."""
        if self.paused or not (self.ready.first() or _first_parked(self, info)):
            return None
        if self.gate.room(self.running, now) != 0:
            return None
        return self.gate.opens(self.running, now)

    def full(self, now: int, refused: int) -> tuple[int, int] | None:
        """If it has no room: its size, and when there may be some, behind `refused` others."""
        most = self.gate.limits.max_size
        size = 0 if most is None else sum(self.counts[state] for state in QUEUED)
        if most is None or size < most:
            return None
        return most, self.gate.drain.wait(size - most + 1 + refused, now)


class _Heard(NamedTuple):
    """How many requests to stop, and changes of settings, there had been."""

    cancels: int
    changes: int


class _Shelf:
    """All the data, and a function per verb; each is one step under the one lock."""

    def __init__(self, clock: Clock) -> None:
        self.pid = os.getpid()
        self.clock = clock
        self.lock = threading.Lock()
        self.boot = clock.boot_id()
        self.queues: dict[str, _Queue] = {}
        self.rows: dict[int, _Row] = {}  # by generation, rising
        self.listing: list[int] = []  # the generations, rising, with ghosts
        self.workers: dict[str, WorkerInfo] = {}
        self.tokens: dict[str, dict[int, _Row]] = {}  # what is leased under a token
        self.held: dict[str, dict[int, _Row]] = {}  # what is leased to a worker
        self.keys: dict[int, tuple[_Queue, str]] = {}  # the unique key that a job holds, by its generation
        self.over: _Sorted[int] = _Sorted()  # ended: by the end of their retention
        self.expiring: _Sorted[int] = _Sorted()  # queued: by expires_at
        self.generation = self.tail = self.head = 0
        self.cancels = self.changes = 0
        self.bells: set[_Bell] = set()
        self.queue_bells: dict[str, set[_Bell]] = {}
        self.end_watches: dict[tuple[str, str], set[_EndWatch]] = {}

    # ── producing ──

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        with self.lock:
            now = self.clock.now()
            refused: Counter[str] = Counter()
            return [self._enqueue(new, now, refused=refused) for new in jobs]

    def _enqueue(
        self, new: NewJob, now: int, *, follows: bool = False, refused: Counter[str] | None = None
    ) -> Enqueued:
        """`refused`: how many of the same call found their queue full."""
        queue = self._queue(new.queue)
        if new.id in queue.rows:
            return Enqueued(Verdict.EXISTS, new.id)
        if queue.closed and not follows:
            return Enqueued(Verdict.CLOSED, new.id)
        if new.unique is not None and (holder := self._holder(queue, new.unique.key, now)) is not None:
            return self._replace(queue, holder, new, now)
        refused = Counter() if refused is None else refused
        full = None if follows else queue.full(now, refused[new.queue])
        if full is not None:
            refused[new.queue] += 1
            waits = queue.gate.limits.on_full is OnFull.WAIT
            return Enqueued(Verdict.FULL, new.id, full[1], size=full[0], waits=waits)
        state, run_at = first_state(new, now)
        self.generation += 1
        expires_at = expiry_of(new, now)
        job = Job(new, state, self.generation, enqueued_at=now, run_at=run_at, expires_at=expires_at)
        row = _Row(job, queue, self._tail())
        if new.turn is not None and queue.fair is None:
            queue.fair = row.place
        queue.rows[new.id] = self.rows[row.generation] = row
        self.listing.append(row.generation)
        queue.enqueued += 1
        self._shift_key(row, None, now)
        self._put(row)
        self._batch_if_ripe(row, now)
        return Enqueued(Verdict.NEW, new.id)

    def _replace(self, queue: _Queue, holder: _Holder, new: NewJob, now: int) -> Enqueued:
        """Let a new job take the place of the holder of its key, if it is one that can be replaced."""
        row = self.rows.get(holder.generation)
        job = None if row is None else replaced(row.job, new, now)
        if row is None or job is None:
            return Enqueued(Verdict.DUPLICATE, holder.id)
        if job.state is State.GROUPED is row.job.state:  # it stays where it stands
            self.expiring.drop(row.generation)
            if job.expires_at is not None:
                self.expiring.put(row.generation, job.expires_at)
            row.job = job
            return Enqueued(Verdict.REPLACED, holder.id)
        self._take(row)
        begins = job.state in (State.AVAILABLE, State.GROUPED) and row.job.state is not job.state
        row.job = job
        if begins:
            self._put_available(row, now)
        else:
            self._put(row)
        return Enqueued(Verdict.REPLACED, holder.id)

    def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        with self.lock:
            return [None if row is None else row.job for row in map(self._row, refs)]

    def cancel(self, refs: Sequence[Ref], reason: str) -> list[State | None]:
        with self.lock:
            now = self.clock.now()
            return [self._cancel(ref, reason, now) for ref in refs]

    def _cancel(self, ref: Ref, reason: str, now: int) -> State | None:
        row = self._row(ref)
        if row is None:
            return None
        if row.job.state in QUEUED and not row.job.in_batch:
            self._end_queued(row, storable(reason), now)
        elif row.job.state is State.RUNNING and not row.job.cancel_asked:
            row.job = replace(row.job, cancel_asked=True)
            self.cancels += 1
            self._ring(self.bells)
        return row.job.state

    # ── consuming ──

    def fetch(
        self, queues: Sequence[Share], limit: int, lease: int, worker: str, token: str, charge: bool
    ) -> Fetched:
        with self.lock:
            now = self.clock.now()
            self._notice_reboot()
            jobs = self._under(token)
            if not jobs:
                until = self.clock.lease_now() + lease
                for row in self._pick(queues, limit, worker, now):
                    at = row.queue.gate.pass_(1, now)
                    self._lease(row, worker, token, until, now if at is None else at[0], charge)
                    jobs.append(row.job)
            names = [share.queue for share in queues]
            info = self.workers.get(worker)
            opens = (queue.opens(now, info) for queue in self._known(names))
            opens_at = min((instant for instant in opens if instant is not None), default=None)
            return Fetched(jobs, now, self._next_due(names), opens_at)

    def _pick(self, queues: Sequence[Share], limit: int, worker: str, now: int) -> Iterator[_Row]:
        """The rows to lease: up to each quota, then up to each cap. Whoever asks for the next one has
        leased the one before."""
        info = self.workers.get(worker)
        given = dict.fromkeys((share.queue for share in queues), 0)
        for to_cap in (False, True):
            for share in queues:
                most = share.cap if to_cap else min(share.quota, share.cap)
                if share.free is not None and self._gates(share.queue):
                    most = min(most, share.free)
                while limit > 0 and given[share.queue] < most:
                    row = self._next_ready(share.queue, info, now)
                    if row is None:
                        break
                    limit -= 1
                    given[share.queue] += 1
                    yield row

    def _gates(self, name: str) -> bool:
        return name in self.queues and self.queues[name].gate.limits.gates

    def _next_ready(self, name: str, info: WorkerInfo | None, now: int) -> _Row | None:
        queue = self.queues.get(name)
        if queue is None or queue.paused or queue.gate.room(queue.running, now) == 0:
            return None
        while (first := _first_parked(queue, info) or queue.ready.first()) is not None:
            row = self.rows[first[1]]
            if _expired(row.job, now):
                self._end_queued(row, EXPIRED, now)
            elif row.job.state is State.PARKED and not self._has_room(row):
                self._take(row)
                self._put_available(row, now, row.place)
            else:
                return row
        return None

    def _lease(self, row: _Row, worker: str, token: str, until: int, now: int, charge: bool) -> None:
        self._start(row, now)
        self._take(row, starts=True)
        row.charged = charge
        row.lease_until = until
        row.job = replace(
            row.job,
            state=State.RUNNING,
            attempt=row.job.attempt + charge,
            fetched_at=now,
            token=token,
            worker=worker,
            started=False,
            progress=None,
            reason=None,
        )
        self._shift_key(row, State.AVAILABLE, now)
        self._put(row)

    def extend(self, beats: Sequence[Beat]) -> list[Grip]:
        with self.lock:
            self._notice_reboot()
            return [self._extend(beat) for beat in beats]

    def _extend(self, beat: Beat) -> Grip:
        row = self._leased(beat.lease)
        if row is None:
            return Grip.LOST
        row.lease_until = self.clock.lease_now() + beat.by
        row.queue.leases.drop(row.generation)
        row.queue.leases.put(row.generation, row.lease_until)
        job = row.job
        row.job = replace(
            job,
            started=job.started or beat.started,
            progress=job.progress if beat.progress is None else storable_progress(beat.progress),
            checkpoint=job.checkpoint if beat.checkpoint is None else beat.checkpoint,
        )
        return Grip.CANCEL_ASKED if job.cancel_asked else Grip.HELD

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        for one in settlements:
            no_outcome(one.transition)
        with self.lock:
            now = self.clock.now()
            heads = sum(one.transition.place is Place.HEAD for one in settlements)
            self.head -= heads
            places = iter(range(self.head, self.head + heads))  # the first of them is the first out
            return [
                self._settle(one, next(places) if one.transition.place is Place.HEAD else 0, now)
                for one in settlements
            ]

    def _settle(self, one: Settlement, head: int, now: int) -> Settled:
        row = self._leased(one.lease)
        if row is None:
            there = self._row(Ref(one.lease.queue, one.lease.id)) is not None
            return Settled.STALE if there else Settled.GONE
        self._count(row.queue, one.transition, now)
        if one.transition.hold:
            row.queue.gate.hold(one.transition.hold, now)
        self._hold_lane(row, one.transition, now)
        self._take(row)
        self._apply(row, one.transition, one.result, head, now)
        self._shift_key(row, State.RUNNING, now)
        if row.job.ended and one.transition.keep <= 0:
            self._remove(row, forgotten=True)
        else:
            self._put(row)
        for new in one.then:
            self._enqueue(new, now, follows=True)
        return Settled.APPLIED

    def _apply(self, row: _Row, to: Transition, result: bytes | None, head: int, now: int) -> None:
        """The facts after this transition."""
        job, ended = row.job, to.state in TERMINAL
        if to.place is not Place.OWN:
            row.place = head if to.place is Place.HEAD else self._tail()
        row.at_tail = to.place is Place.TAIL
        run_at = job.run_at
        if to.state in (State.SCHEDULED, State.RETRYABLE):
            run_at = now + to.delay
        elif to.state is State.AVAILABLE and to.place is not Place.OWN:
            run_at = now
        row.over_at = now + to.keep
        row.job = replace(
            job,
            state=to.state,
            attempt=job.attempt - (row.charged and not to.charge),
            lost=job.lost + to.lost,
            run_at=run_at,
            ended_at=now if ended else None,
            token=None,
            worker=None,
            started=False,
            errors=job.errors if to.error is None else (*job.errors, storable_error(to.error))[-MAX_ERRORS:],
            result=result if ended else None,
            reason=to.reason and storable(to.reason),
        )

    def _count(self, queue: _Queue, to: Transition, now: int) -> None:
        processed, failed = int(to.charge), int(to.error is not None)
        queue.processed += processed
        queue.failed += failed
        if processed or failed:
            before = queue.days.get(now // _DAY, (0, 0))
            queue.days[now // _DAY] = before[0] + processed, before[1] + failed

    def promote(self, queues: Sequence[str], limit: int) -> Due:
        with self.lock:
            now, moved = self.clock.now(), 0
            while limit > 0 and (first := self._first_due(queues)) is not None and first[0] <= now:
                limit -= 1
                if first.generation is None:
                    moved += self._promote_together(first, now)
                    continue
                row = self.rows[first.generation]
                if _expired(row.job, now):
                    self._end_queued(row, EXPIRED, now)
                    continue
                moved += 1
                self._make_available(row, now)
            return Due(moved, self._next_due(queues), now)

    def reclaim(
        self,
        queues: Sequence[str],
        limit: int,
        lease: int,
        worker: str,
        token: str,
        of: Sequence[str] | None,
    ) -> Fetched:
        with self.lock:
            self._notice_reboot()
            jobs = self._under(token)
            if not jobs:
                steady = self.clock.lease_now()
                rows = self._run_out(queues, limit, steady) if of is None else self._held_by(of, limit)
                for row in rows:
                    self._take(row)
                    row.lease_until = steady + lease
                    lost_by = f"{LOST_BY}{row.job.worker}"
                    row.job = replace(row.job, worker=worker, token=token, reason=lost_by)
                    self._put(row)
                    jobs.append(row.job)
            return Fetched(jobs, self.clock.now())

    def _run_out(self, queues: Sequence[str], limit: int, steady: int) -> list[_Row]:
        leases = [queue.leases for queue in self._known(queues)]
        rows: list[_Row] = []
        while len(rows) < limit:
            first = min((f for f in (lease.first() for lease in leases) if f is not None), default=None)
            if first is None or first[0] > steady:
                break
            row = self.rows[first[1]]
            row.queue.leases.drop(row.generation)  # its new lease may be over at once: not twice in one call
            rows.append(row)
        return rows

    def _held_by(self, workers: Sequence[str], limit: int) -> list[_Row]:
        held = {g: row for worker in workers for g, row in self.held.get(worker, {}).items()}
        return [held[generation] for generation in sorted(held)[: max(0, limit)]]

    def _notice_reboot(self) -> None:
        """A lease of another run of the machine is void: its clock says nothing any more."""
        boot = self.clock.boot_id()
        if boot == self.boot:
            return
        self.boot = boot
        for held in self.held.values():
            for row in held.values():
                row.lease_until = _VOID
                row.queue.leases.drop(row.generation)
                row.queue.leases.put(row.generation, _VOID)

    # ── waiting ──

    def watch(self, queues: Iterable[str], bell: _Bell) -> None:
        """Ring when one of the queues may have work, and at every request to stop or change of settings."""
        with self.lock:
            self.bells.add(bell)
            for name in queues:
                self.queue_bells.setdefault(name, set()).add(bell)

    def unwatch(self, queues: Iterable[str], bell: _Bell) -> None:
        with self.lock:
            self.bells.discard(bell)
            for name in queues:
                _discard(self.queue_bells, name, bell)

    def look(self, queues: Sequence[str], until: int, before: _Heard) -> tuple[Wake, _Heard]:
        """What there is for a wait that ends at `until` and had heard of `before`."""
        with self.lock:
            wake = Wake.NOTHING
            now = self.clock.now()
            if any(queue.gives(now) for queue in self._known(queues)):
                wake |= Wake.WORK
            for due in (self._next_due(queues), *(queue.opens(now) for queue in self._known(queues))):
                if due is not None and (due <= now or due < until):
                    wake |= Wake.WORK
            if self.cancels > before.cancels:
                wake |= Wake.CANCEL
            if self.changes > before.changes:
                wake |= Wake.SETTINGS
            return wake, _Heard(self.cancels, self.changes)

    def watch_ends(self, refs: Sequence[Ref], bell: _Bell) -> _EndWatch | None:
        """Ring when all of these have ended or are gone; None if they have."""
        with self.lock:
            rows = map(self._row, refs)
            watch = _EndWatch(
                bell, {(r.job.queue, r.job.id) for r in rows if r is not None and not r.job.ended}
            )
            for key in watch.open:
                self.end_watches.setdefault(key, set()).add(watch)
            return watch if watch.open else None

    def unwatch_ends(self, watch: _EndWatch) -> None:
        with self.lock:
            for key in watch.open:
                _discard(self.end_watches, key, watch)

    def watch_each(self, refs: Sequence[Ref], bell: _Bell) -> _EndWatch:
        """Ring whenever one of these has ended or is gone; `told` says of which."""
        with self.lock:
            watch = _EndWatch(bell, set(), each=True)
            for ref in refs:
                row = self._row(ref)
                if row is not None and not row.job.ended:
                    watch.open.add((ref.queue, ref.id))
                else:
                    watch.told[ref] = None if row is None else row.job
            for key in watch.open:
                self.end_watches.setdefault(key, set()).add(watch)
            return watch

    def told(self, watch: _EndWatch) -> dict[Ref, Job | None]:
        """Those that have ended since this was asked last."""
        with self.lock:
            told, watch.told = watch.told, {}
            return told

    def _tell_ended(self, row: _Row, job: Job | None) -> None:
        """The job as it ended; None: it is gone."""
        if not self.end_watches:
            return
        key = (row.job.queue, row.job.id)
        for watch in self.end_watches.pop(key, ()):
            watch.open.discard(key)
            if watch.each:
                watch.told[row.job.ref] = job
            if watch.each or not watch.open:
                watch.bell.ring()

    @staticmethod
    def _ring(bells: Iterable[_Bell]) -> None:
        for bell in bells:
            bell.ring()

    # ── operating ──

    def list_jobs(
        self,
        queue: str | None,
        state: State | None,
        task: str | None,
        worker: str | None,
        after: str | None,
        limit: int,
    ) -> Page:
        limit = max(1, limit)
        with self.lock:
            start = len(self.listing) if after is None else bisect_left(self.listing, _cursor(after))
            found: list[Job] = []
            for i in range(start - 1, -1, -1):
                row = self.rows.get(self.listing[i])
                if row is None:
                    continue
                job = row.job
                if (
                    (queue is None or job.queue == queue)
                    and (state is None or job.state is state)
                    and (task is None or job.task == task)
                    and (worker is None or job.worker == worker)
                ):
                    found.append(job)
                    if len(found) > limit:
                        break
            more = len(found) > limit
            return Page(found[:limit], str(found[limit - 1].generation) if more else None)

    def find(self, id: str) -> list[Job]:
        with self.lock:
            return [self.queues[n].rows[id].job for n in sorted(self.queues) if id in self.queues[n].rows]

    def infos(self) -> list[QueueInfo]:
        with self.lock:
            now = self.clock.now()
            return [self.queues[name].info(now) for name in sorted(self.queues)]

    def parked(self) -> list[Parked]:
        with self.lock:
            return [
                Parked(name, task, len(queue.parked[task]))
                for name, queue in sorted(self.queues.items())
                for task in sorted(queue.parked)
            ]

    def stats(self, days: int) -> list[QueueStats]:
        with self.lock:
            oldest = self.clock.now() // _DAY - min(days, _DAYS_KEPT)
            return [
                QueueStats(
                    name,
                    queue.enqueued,
                    queue.processed,
                    queue.failed,
                    [
                        DayCount(_day_name(day), *queue.days[day])
                        for day in sorted(queue.days, reverse=True)
                        if day > oldest
                    ],
                )
                for name, queue in sorted(self.queues.items())
            ]

    def settings(
        self, name: str, paused: bool | None, closed: bool | None, limits: LimitChange | None
    ) -> QueueInfo:
        with self.lock:
            queue, now = self._queue(name), self.clock.now()
            before = queue.paused, queue.closed
            queue.paused = queue.paused if paused is None else paused
            queue.closed = queue.closed if closed is None else closed
            changed = limits is not None and queue.gate.change(limits, now)
            if changed or before != (queue.paused, queue.closed):
                self._tell_settings()
            return queue.info(now)

    def _tell_settings(self) -> None:
        self.changes += 1
        self._ring(self.bells)

    def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        with self.lock:
            now = self.clock.now()
            return [self._retry(ref, now) for ref in refs]

    def _retry(self, ref: Ref, now: int) -> State | None:
        row = self._row(ref)
        if row is None:
            return None
        before = row.job.state
        if row.job.batch in row.queue.rows:  # the members of a batch come back with it, and all together
            self._retry(Ref(ref.queue, row.job.batch), now)
            return before
        if before is State.RUNNING:
            return before
        self._take(row)
        row.job = replace(
            row.job,
            attempt=0,
            lost=0,
            run_at=now,
            ended_at=None,
            expires_at=None if _expired(row.job, now) else row.job.expires_at,
            cancel_asked=False,
            result=None,
            reason=None,
        )
        row.job = replace(row.job, state=State.AVAILABLE)
        self._shift_key(row, before, now)
        if row.job.is_member:
            self._make_batch(row.queue, [row], now)
        else:
            self._put_available(row, now)
            if before in TERMINAL:
                self._bring_back_members(row, now)
        return before

    def reschedule(self, refs: Sequence[Ref], delay: int, run_at: int | None) -> list[State | None]:
        with self.lock:
            now = self.clock.now()
            due = now + delay if run_at is None else run_at
            return [self._reschedule(ref, due, now) for ref in refs]

    def _reschedule(self, ref: Ref, due: int, now: int) -> State | None:
        row = self._row(ref)
        if row is None:
            return None
        before = row.job.state
        if before in (State.SCHEDULED, State.AVAILABLE, State.RETRYABLE, State.WAITING) or (
            before is State.GROUPED and not row.job.in_batch
        ):
            self._take(row)
            row.job = replace(row.job, run_at=due)
            if due <= now:
                self._put_available(row, now)
            else:
                row.job = replace(row.job, state=State.SCHEDULED)
                self._put(row)
        return before

    def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        with self.lock:
            return [self._delete(ref) for ref in refs]

    def _delete(self, ref: Ref) -> State | None:
        row = self._row(ref)
        if row is None:
            return None
        if row.job.state is not State.RUNNING and not row.job.in_batch:
            self._take(row)
            self._remove(row)
        return row.job.state

    def purge(self, name: str, states: Sequence[State], limit: int) -> int:
        with self.lock:
            queue = self.queues.get(name)
            wanted = set(states) - {State.RUNNING}
            if queue is None or not any(queue.counts[state] for state in wanted):
                return 0
            those = (row for row in queue.rows.values() if row.job.state in wanted and not row.job.in_batch)
            rows = list(islice(those, max(0, limit)))
            for row in rows:
                self._take(row)
                self._remove(row)
            return len(rows)

    def drop(self, name: str) -> bool:
        with self.lock:
            queue = self.queues.get(name)
            if queue is None:
                return True
            if queue.rows:
                return False
            del self.queues[name]
            for holder in queue.holders.values():
                del self.keys[holder.generation]
            if queue.paused or queue.closed or queue.entries or queue.gate.limits != NO_LIMITS:
                self._tell_settings()
            return True

    def prune(self, limit: int, keep_finished: int, keep_dead: int) -> Pruned:
        with self.lock:
            now = self.clock.now()
            for queue in self.queues.values():
                self._prune_ties(queue, now)
            finished = self._prune_ended(limit, keep_finished, keep_dead, now)
            expired = self._prune_expired(limit - finished, now)
            workers = self._prune_workers(limit - finished - expired, now)
            keys = self._prune_keys(limit, now)
            for queue in self.queues.values():
                for day in [day for day in queue.days if day <= now // _DAY - _DAYS_KEPT]:
                    del queue.days[day]
            return Pruned(finished, expired, workers, keys)

    def _prune_ended(self, limit: int, keep_finished: int, keep_dead: int, now: int) -> int:
        keep = {State.COMPLETED: keep_finished, State.CANCELLED: keep_finished, State.DEAD: keep_dead}
        gone = 0
        while gone < limit and (first := self.over.first()) is not None and first[0] <= now:
            gone += self._forget(first[1])
        for _, queue in sorted(self.queues.items()):
            for state, newest in keep.items():
                most, until = queue.gate.limits.kept(state is State.DEAD, newest, now)
                ended = queue.ended[state]
                while gone < limit and (first := ended.first()) is not None:
                    if len(ended) <= most and first[0] > until:
                        break
                    gone += self._forget(first[1])
        return gone

    def _forget(self, generation: int) -> int:
        row = self.rows[generation]
        self._take(row)
        self._remove(row, forgotten=True)
        return 1

    def _prune_expired(self, limit: int, now: int) -> int:
        done = 0
        while done < limit and (first := self.expiring.first()) is not None and first[0] <= now:
            self._end_queued(self.rows[first[1]], EXPIRED, now)
            done += 1
        return done

    def _prune_keys(self, limit: int, now: int) -> int:
        done = 0
        for queue in self.queues.values():
            while done < limit and (first := queue.key_ends.first()) is not None and first[0] <= now:
                self._free(first[1])
                done += 1
        return done

    def _prune_workers(self, limit: int, now: int) -> int:
        silent = sorted((w.seen_at, w.id) for w in self.workers.values() if now - w.seen_at > _SILENT)
        for _, id in silent[: max(0, limit)]:
            del self.workers[id]
        return min(len(silent), max(0, limit))

    def announce(self, worker: WorkerInfo) -> None:
        with self.lock:
            self.workers[worker.id] = replace(worker, seen_at=self.clock.now())

    def retire(self, worker: str) -> None:
        with self.lock:
            self.workers.pop(worker, None)

    def seen_workers(self) -> list[WorkerInfo]:
        with self.lock:
            now = self.clock.now()
            seen = [w for w in self.workers.values() if now - w.seen_at <= _SILENT]
            return sorted(seen, key=lambda w: (w.started_at, w.id))

    # ── periodic entries ──

    def entries(self, names: Sequence[str] | None) -> Timetable:
        with self.lock:
            queues = self._known(sorted(self.queues) if names is None else sorted(set(names)))
            found = [queue.entries[name] for queue in queues for name in sorted(queue.entries)]
            return Timetable(found, self.clock.now())

    def put_entries(self, specs: Sequence[NewEntry]) -> list[Entry]:
        with self.lock:
            return [self._put_entry(spec, self.clock.now()) for spec in specs]

    def _put_entry(self, spec: NewEntry, now: int) -> Entry:
        entries = self._queue(spec.job.queue).entries
        before = entries.get(spec.name)
        if before is None:
            entry = Entry(spec, revision=now, watermark=now)
        elif before.spec == spec:
            return before
        else:
            same = before.spec.schedule == spec.schedule
            watermark = before.watermark if same else max(before.watermark, now)
            entry = replace(before, spec=spec, revision=max(before.revision + 1, now), watermark=watermark)
        entries[spec.name] = entry
        self._tell_settings()
        return entry

    def pause_entries(self, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
        with self.lock:
            return [self._pause_entry(ref, paused, self.clock.now()) for ref in refs]

    def _pause_entry(self, ref: Ref, paused: bool, now: int) -> Entry | None:
        entry = self._entry(ref)
        if entry is None or entry.paused is paused:
            return entry
        watermark = entry.watermark if paused else max(entry.watermark, now)
        revision = max(entry.revision + 1, now)
        entry = replace(entry, paused=paused, revision=revision, watermark=watermark)
        self.queues[ref.queue].entries[ref.id] = entry
        self._tell_settings()
        return entry

    def delete_entries(self, refs: Sequence[Ref]) -> list[bool]:
        with self.lock:
            return [self._delete_entry(ref) for ref in refs]

    def _delete_entry(self, ref: Ref) -> bool:
        if self._entry(ref) is None:
            return False
        del self.queues[ref.queue].entries[ref.id]
        self._tell_settings()
        return True

    def tick(self, ticks: Sequence[Tick]) -> list[Ticked]:
        with self.lock:
            return [self._tick(one, self.clock.now()) for one in ticks]

    def _tick(self, one: Tick, now: int) -> Ticked:
        entry = self._entry(one.ref)
        if entry is None:
            return Ticked(Moved.GONE)
        if entry.paused or (entry.revision, entry.watermark) != (one.revision, one.watermark):
            return Ticked(Moved.STALE)
        if now < one.not_before:
            return Ticked(Moved.EARLY)
        last, new = entry.last, []
        for job in one.jobs:
            if (
                one.overlap is not Overlap.ALLOW
                and last is not None
                and self._unfinished(one.ref.queue, last)
            ):
                if one.overlap is Overlap.SKIP:
                    continue
                self._cancel(Ref(one.ref.queue, last), REPLACED, now)
            if self._enqueue(job, now).verdict is Verdict.NEW:
                last = job.id
                new.append(job.id)
        self.queues[one.ref.queue].entries[one.ref.id] = replace(
            entry,
            watermark=one.to,
            last=last,
            enqueued=entry.enqueued + len(new),
            skipped=entry.skipped + len(one.jobs) - len(new),
        )
        return Ticked(Moved.APPLIED, tuple(new))

    def _entry(self, ref: Ref) -> Entry | None:
        queue = self.queues.get(ref.queue)
        return None if queue is None else queue.entries.get(ref.id)

    def _unfinished(self, queue: str, id: str) -> bool:
        row = self._row(Ref(queue, id))
        return row is not None and not row.job.ended

    # ── groups and batches ──

    def groups(self, name: str | None, limit: int) -> list[GroupInfo]:
        with self.lock:
            queues = self._known(sorted(self.queues) if name is None else [name])
            found = [
                GroupInfo(queue.name, *gathered, size, oldest, due)
                for queue in queues
                for gathered, size, oldest, due in queue.gathering.groups()
            ]
            return sorted(found, key=GroupInfo.order)[: max(0, limit)]

    def flush_group(self, name: str, gathered: Gathered) -> str | None:
        with self.lock:
            queue = self.queues.get(name)
            if queue is None:
                return None
            return self._batch(queue, queue.gathering.first_of(gathered), self.clock.now())

    def _batch_if_ripe(self, row: _Row, now: int) -> None:
        """A row that has joined its group may make it full; or its terms are shorter than those before."""
        if row.job.state is not State.GROUPED:
            return
        name, gathering = _group_of(row), row.queue.gathering
        while ripe := gathering.ripe(name, now):
            self._batch(row.queue, ripe, now)

    def _batch(self, queue: _Queue, generations: Sequence[int], now: int) -> str | None:
        """The id of the batch that these members of one group become; the expired ones are cancelled."""
        members: list[_Row] = []
        for row in [self.rows[generation] for generation in generations]:
            if _expired(row.job, now):
                self._end_queued(row, EXPIRED, now)
            else:
                self._take(row)
                members.append(row)
        return self._make_batch(queue, members, now) if members else None

    def _make_batch(self, queue: _Queue, members: list[_Row], now: int) -> str:
        """Members that were taken out of where they lay."""
        spec = batch_of(self._free_id(queue, members[0]), [row.job.spec for row in members])
        for row in members:
            row.job = replace(row.job, state=State.GROUPED, batch=spec.id, expires_at=None)
            self._put(row)
        ids = tuple(row.job.id for row in members)
        self.generation += 1
        job = Job(spec, State.AVAILABLE, self.generation, enqueued_at=now, run_at=now, members=ids)
        row = _Row(job, queue, self._tail())
        queue.rows[spec.id] = self.rows[row.generation] = row
        self.listing.append(row.generation)
        self._put(row)
        return spec.id

    @staticmethod
    def _free_id(queue: _Queue, first: _Row) -> str:
        return next(id for n in count(1) if (id := batch_id(first.job.id, n)) not in queue.rows)

    def _members(self, row: _Row) -> list[_Row]:
        """The members of a batch that are still there."""
        found = (row.queue.rows.get(id) for id in row.job.members)
        return [member for member in found if member is not None and member.job.batch == row.job.id]

    def _end_members(self, row: _Row) -> None:
        """A batch has ended, and its members end with it."""
        for member in self._members(row):
            self._take(member)
            member.over_at = row.over_at
            ended = {"state": row.job.state, "ended_at": row.job.ended_at, "reason": row.job.reason}
            member.job = replace(member.job, **ended)
            self._shift_key(member, State.GROUPED, row.job.ended_at or 0)
            self._put(member)

    def _bring_back_members(self, row: _Row, now: int) -> None:
        """A batch that had ended runs again, and its members are its members again."""
        for member in self._members(row):
            self._take(member)
            before = member.job.state
            member.job = replace(member.job, state=State.GROUPED, ended_at=None, reason=None)
            self._shift_key(member, before, now)
            self._put(member)

    # ── a row and where it lies ──

    def _queue(self, name: str) -> _Queue:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = _Queue(name)
        return queue

    def _known(self, names: Iterable[str]) -> list[_Queue]:
        return [self.queues[name] for name in names if name in self.queues]

    def _row(self, ref: Ref) -> _Row | None:
        queue = self.queues.get(ref.queue)
        return None if queue is None else queue.rows.get(ref.id)

    def _leased(self, lease: Lease | Ref) -> _Row | None:
        """The running job, if this is its lease: the check that all fencing comes down to."""
        queue = self.queues.get(lease.queue)
        row = None if queue is None else queue.rows.get(lease.id)
        if row is None or row.job.state is not State.RUNNING:
            return None
        if isinstance(lease, Lease) and (row.job.token != lease.token or row.generation != lease.generation):
            return None
        return row

    def _under(self, token: str) -> list[Job]:
        return [row.job for row in self.tokens.get(token, {}).values()]

    def _first_due(self, names: Iterable[str]) -> _NextDue | None:
        """What is due first: a job, a lane, or a group."""
        found: list[_NextDue] = []
        for queue in self._known(names):
            if (job := queue.due.first()) is not None:
                found.append(_NextDue(job[0], job[1], None, "", queue.name))
            if (lane := queue.lane_due.first()) is not None:
                found.append(_NextDue(lane[0][0], None, None, lane[0][1], queue.name))
            if (group := queue.gathering.next()) is not None:
                found.append(_NextDue(group[0], None, *group[1], queue.name))
        return min(found, key=_NextDue.order, default=None)

    def _promote_together(self, due: _NextDue, now: int) -> int:
        """How many became available, of a lane or a group."""
        queue = self.queues[due.queue]
        if due.task is None:
            return self._advance(queue, queue.lanes[due.key], now)
        members = queue.gathering.first_of(Gathered(due.task, due.key))
        return int(self._batch(queue, members, now) is not None)

    def _next_due(self, names: Iterable[str]) -> int | None:
        first = self._first_due(names)
        return first and first[0]

    def _tail(self) -> int:
        self.tail += 1
        return self.tail

    def _make_available(self, row: _Row, now: int) -> None:
        self._take(row)
        self._put_available(row, now)

    def _put_available(self, row: _Row, now: int, place: int | None = None) -> None:
        """To the tail, unless there is a place; a member joins its group instead."""
        row.place, row.at_tail = self._tail() if place is None else place, True
        if row.job.is_member:
            row.job = replace(row.job, state=State.GROUPED, run_at=now)
        else:
            row.job = replace(row.job, state=State.AVAILABLE)
        self._put(row)
        self._batch_if_ripe(row, now)

    def _end_queued(self, row: _Row, reason: str, now: int) -> None:
        """A job that was not running is cancelled."""
        self._take(row)
        row.over_at = now + kept(row.job.spec, State.CANCELLED)
        row.job = replace(row.job, state=State.CANCELLED, ended_at=now, reason=reason)
        self._put(row)

    def _put(self, row: _Row) -> None:
        """Into every order that its state calls for; whoever waits for this hears of it."""
        terms = row.job.spec.lane
        if terms is None:
            self._put_alone(row)
            return
        lane = self._lane(row.queue, terms)
        self._enter(row, terms, lane)
        self._put_alone(row)
        self._advance(row.queue, lane, self.clock.now())

    def _put_alone(self, row: _Row) -> None:
        """The same without a look at those that share its lane."""
        job, queue, generation = row.job, row.queue, row.generation
        queue.counts[job.state] += 1
        match job.state:
            case State.AVAILABLE:
                if queue.fair is not None and row.at_tail:
                    row.place = self._turns(row, queue.fair).draw(job.spec.turn or _NO_TURN)
                row.at_tail = False
                queue.ready.put(generation, (-job.spec.priority, row.place))
                queue.oldest.put(generation, job.run_at)
            case State.SCHEDULED | State.RETRYABLE:
                queue.due.put(generation, job.run_at)
            case State.PARKED:
                parked = queue.parked.setdefault(job.task, _Sorted())
                parked.put(generation, (-job.spec.priority, row.place))
            case State.WAITING:
                assert job.spec.lane is not None
                order = job.spec.lane.rank(job.spec.priority), row.place
                queue.lanes[job.spec.lane.key].waiting.put(generation, order)
            case State.RUNNING:
                assert job.token is not None
                assert job.worker is not None
                queue.leases.put(generation, row.lease_until)
                self.tokens.setdefault(job.token, {})[generation] = row
                self.held.setdefault(job.worker, {})[generation] = row
                return
            case State.GROUPED:
                if job.batch is None:
                    assert job.spec.group is not None
                    queue.gathering.join(_group_of(row), generation, job.spec.group, job.run_at)
            case _:
                queue.ended[job.state].put(generation, job.ended_at or 0)
                self.over.put(generation, row.over_at)
                if job.spec.unique is not None and not outlives_its_job(job.spec.unique.states, job.state):
                    self._free(generation)
                self._tell_ended(row, job)
                if job.members:
                    self._end_members(row)
                return
        if job.expires_at is not None:
            self.expiring.put(generation, job.expires_at)
        if self.queue_bells:
            self._ring(self.queue_bells.get(queue.name, ()))

    def _take(self, row: _Row, *, starts: bool = False) -> None:
        """Out of every order that `_put` put it into."""
        job, queue, generation = row.job, row.queue, row.generation
        queue.counts[job.state] -= 1
        match job.state:
            case State.AVAILABLE:
                queue.ready.drop(generation)
                queue.oldest.drop(generation)
                if not starts and (turns := self._turn_of(row)) is not None:
                    turns.give_back(job.spec.turn or _NO_TURN)
            case State.SCHEDULED | State.RETRYABLE:
                queue.due.drop(generation)
            case State.PARKED:
                queue.parked[job.task].drop(generation)
                if not queue.parked[job.task]:
                    del queue.parked[job.task]
            case State.WAITING:
                assert job.spec.lane is not None
                queue.lanes[job.spec.lane.key].waiting.drop(generation)
            case State.RUNNING:
                assert job.token is not None
                assert job.worker is not None
                queue.leases.drop(generation)
                _pop(self.tokens, job.token, generation)
                _pop(self.held, job.worker, generation)
                if queue.gate.limits.max_running is not None and queue.ready.first():
                    self._ring(self.queue_bells.get(queue.name, ()))
            case State.GROUPED:
                if job.batch is None:
                    queue.gathering.leave(_group_of(row), generation)
            case _:
                queue.ended[job.state].drop(generation)
                self.over.drop(generation)
        if job.expires_at is not None:
            self.expiring.drop(generation)

    def _remove(self, row: _Row, *, forgotten: bool = False) -> None:
        """A row that was taken out does not come back; the members of a batch go with it. Forgotten: nobody
        has asked for that."""
        for member in self._members(row):
            self._take(member)
            self._remove(member, forgotten=forgotten)
        if not (forgotten and self._key_stays(row)):
            self._free(row.generation)
        if (terms := row.job.spec.lane) is not None and terms.key in row.queue.lanes:
            lane = row.queue.lanes[terms.key]
            self._leave(row, lane)
            self._advance(row.queue, lane, self.clock.now())
        del row.queue.rows[row.job.id]
        del self.rows[row.generation]
        if len(self.listing) > 2 * len(self.rows) + 64:
            self.listing = list(self.rows)
        self._tell_ended(row, None)

    # ── lanes: which of a key are admitted, and who comes next ──

    def _lane(self, queue: _Queue, terms: Lane) -> _Lane:
        lane = queue.lanes.get(terms.key)
        if lane is None:
            lane = queue.lanes[terms.key] = _Lane(terms.key)
        return lane

    def _has_room(self, row: _Row) -> bool:
        """Whether its lane lets this parked job start at once."""
        terms = row.job.spec.lane
        if terms is None or row.admitted:
            return True
        return self._may_enter(row, terms, self._lane(row.queue, terms))

    def _may_enter(self, row: _Row, terms: Lane, lane: _Lane) -> bool:
        first, order = lane.waiting.first(), (terms.rank(row.job.spec.priority), row.place)
        if first is not None and first[0] < order:
            return False
        now = self.clock.now()
        at = lane.allowed_at(terms, now)
        return at is not None and at <= now

    def _enter(self, row: _Row, terms: Lane, lane: _Lane) -> None:
        """What the job's new state means for its lane; one that finds no room shall wait."""
        match row.job.state:
            case State.AVAILABLE:
                if row.admitted or self._may_enter(row, terms, lane):
                    self._admit(row, terms, lane)
                else:
                    row.job = replace(row.job, state=State.WAITING)
            case State.RUNNING:
                row.admitted = True  # a parked one may not have been
                lane.admitted[row.generation] = row
            case State.SCHEDULED | State.RETRYABLE | State.PARKED if terms.ordered:
                lane.ready.discard(row.generation)
            case _:
                self._leave(row, lane)

    def _admit(self, row: _Row, terms: Lane, lane: _Lane) -> None:
        row.admitted = True
        lane.admitted[row.generation] = row
        if terms.rate is not None:
            lane.ready.add(row.generation)

    def _start(self, row: _Row, now: int) -> None:
        """It is fetched: a start by its lane's rate, and its turn has come."""
        terms = row.job.spec.lane
        if terms is not None and terms.rate is not None:
            lane = self._lane(row.queue, terms)
            lane.ready.discard(row.generation)
            lane.spent = terms.after_start(lane.spent, now)
        if row.job.state is State.AVAILABLE and (turns := self._turn_of(row)) is not None:
            turns.fetched(row.place)

    def _leave(self, row: _Row, lane: _Lane) -> None:
        row.admitted = False
        lane.admitted.pop(row.generation, None)
        lane.ready.discard(row.generation)

    def _advance(self, queue: _Queue, lane: _Lane, now: int) -> int:
        """Admit who may be; how many they were. Then note when the next one may, or forget the lane."""
        if lane.busy:
            return 0
        lane.busy, lane.due, admitted = True, None, 0
        while (first := lane.waiting.first()) is not None:
            row = self.rows[first[1]]
            terms = row.job.spec.lane
            assert terms is not None
            at = lane.allowed_at(terms, now)
            if at is None or at > now:
                lane.due = at
                break
            self._take(row)
            self._admit(row, terms, lane)
            row.job, row.at_tail = replace(row.job, state=State.AVAILABLE), True
            self._put_alone(row)
            admitted += 1
        lane.busy = False
        queue.lane_due.drop(id(lane))
        if lane.due is not None:
            queue.lane_due.put(id(lane), (lane.due, lane.key))
        self._forget_lane(queue, lane, now)
        return admitted

    @staticmethod
    def _forget_lane(queue: _Queue, lane: _Lane, now: int) -> None:
        if not lane.admitted and not lane.waiting and max(lane.spent, lane.held) <= now:
            queue.lanes.pop(lane.key, None)

    def _hold_lane(self, row: _Row, to: Transition, now: int) -> None:
        if to.hold_lane > 0 and (terms := row.job.spec.lane) is not None:
            lane = self._lane(row.queue, terms)
            lane.held = max(lane.held, now + to.hold_lane)
            if to.state is State.AVAILABLE:  # else it would keep its room
                self._leave(row, lane)

    def lane(self, ref: Ref) -> LaneInfo | None:
        with self.lock:
            row = self._row(ref)
            if row is None or row.job.ended or (terms := row.job.spec.lane) is None:
                return None
            lane = row.queue.lanes.get(terms.key)
            if lane is None:
                return LaneInfo(terms.key, [], 0)
            before = lane.waiting.rank(row.generation) if row.job.state is State.WAITING else None
            admitted = [lane.admitted[generation].job for generation in sorted(lane.admitted)[:LANE_SHOWN]]
            return LaneInfo(terms.key, admitted, len(lane.waiting), before, lane.due)

    # ── turns ──

    @staticmethod
    def _turns(row: _Row, first: int) -> _Turns:
        turns, priority = row.queue.turns, row.job.spec.priority
        if priority not in turns:
            turns[priority] = _Turns(first)
        return turns[priority]

    def _turn_of(self, row: _Row) -> _Turns | None:
        """The turns among which this available job has its place, if it has one there."""
        fair = row.queue.fair
        return None if fair is None or row.place <= fair else self._turns(row, fair)

    def _prune_ties(self, queue: _Queue, now: int) -> None:
        """What nobody has a use for: keys whose rate is as it was, the turns of a queue with no job."""
        for lane in list(queue.lanes.values()):
            self._forget_lane(queue, lane, now)
        if not queue.counts[State.AVAILABLE]:
            for turns in queue.turns.values():
                turns.rest()

    # ── unique keys ──

    def _holder(self, queue: _Queue, key: str, now: int) -> _Holder | None:
        """Who has this unique key; one whose period is over loses it here."""
        holder = queue.holders.get(key)
        if holder is not None and holder.until is not None and holder.until <= now:
            self._free(holder.generation)
            return None
        return holder

    def _shift_key(self, row: _Row, before: State | None, now: int) -> None:
        """What the step from that state to the present one does to the job's key."""
        unique = row.job.spec.unique
        if unique is None:
            return
        match hold_after(unique.states, before, row.job.state):
            case Hold.TAKEN:
                end = until(unique, row.job.enqueued_at)
                if (end is None or end > now) and self._holder(row.queue, unique.key, now) is None:
                    row.queue.holders[unique.key] = _Holder(row.generation, row.job.id, end)
                    self.keys[row.generation] = row.queue, unique.key
                    if end is not None:
                        row.queue.key_ends.put(row.generation, end)
            case Hold.FREED:
                self._free(row.generation)
            case Hold.STAYS:
                pass

    def _key_stays(self, row: _Row) -> bool:
        """Whether the key is held to the end of its period, without its job."""
        unique = row.job.spec.unique
        return (
            unique is not None
            and unique.period is not None
            and outlives_its_job(unique.states, row.job.state)
        )

    def _free(self, generation: int) -> None:
        """Whatever key this job holds."""
        if (held := self.keys.pop(generation, None)) is not None:
            queue, key = held
            del queue.holders[key]
            queue.key_ends.drop(generation)


class _NextDue(NamedTuple):
    """What a promotion looks at next: a job by its generation, a lane, or a group."""

    at: int
    generation: int | None
    task: str | None  # None: it is a job, or a lane
    key: str
    queue: str

    def order(self) -> tuple[Any, ...]:
        """Of one instant lanes go before jobs, and these before groups."""
        kind = 1 if self.generation is not None else 0 if self.task is None else 2
        return self.at, kind, self.generation or 0, self.task or "", self.key, self.queue


def _group_of(row: _Row) -> Gathered:
    group = row.job.spec.group
    assert group is not None
    return Gathered(row.job.task, group.key)


def _expired(job: Job, now: int) -> bool:
    return job.expires_at is not None and job.expires_at <= now


def _first_parked(queue: _Queue, info: WorkerInfo | None) -> tuple[tuple[int, int], int] | None:
    if not queue.parked or info is None:
        return None
    tasks: Collection[str] = queue.parked if queue.name in info.handled else info.tasks
    firsts = (queue.parked[task].first() for task in tasks if task in queue.parked)
    return min((first for first in firsts if first is not None), default=None)


def _cursor(after: str) -> int:
    if not after.isascii() or not after.isdigit():
        raise ConfigError(f"after={after!r} is not a cursor: pass on the `next` of the page before")
    return int(after)


def _day_name(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


def _pop(groups: dict[str, dict[int, _Row]], name: str, generation: int) -> None:
    group = groups[name]
    del group[generation]
    if not group:
        del groups[name]


D = TypeVar("D")
T = TypeVar("T")


def _discard(groups: dict[D, set[T]], name: D, member: T) -> None:
    group = groups.get(name)
    if group is not None:
        group.discard(member)
        if not group:
            del groups[name]


_shelves: dict[tuple[str, str], _Shelf] = {}
_shelves_lock = threading.Lock()


def _named(name: str, namespace: str, clock: Clock) -> _Shelf:
    """The shelf of this name, which lives as long as the process."""
    with _shelves_lock:
        shelf = _shelves.get((name, namespace))
        if shelf is None or shelf.pid != os.getpid():  # a fork's copy of a shelf is nobody's
            shelf = _shelves[name, namespace] = _Shelf(clock)
        return shelf


# ── bells: how a wait is woken ───────────────────────────────────────────────────────────────────


class _Bell(Protocol):
    def ring(self) -> None:
        """Wake whoever waits; from any thread, and under the shelf's lock."""
        ...


class _EndWatch:
    """A wait for the end of these jobs: of all, or of `each` of them, and then for what it was told."""

    __slots__ = ("bell", "each", "open", "told")

    def __init__(self, bell: _Bell, open: set[tuple[str, str]], *, each: bool = False) -> None:
        self.bell = bell
        self.open = open
        self.each = each
        self.told: dict[Ref, Job | None] = {}


class _Countdown:
    """The seconds that are left of a timeout in ms."""

    def __init__(self, timeout: int) -> None:
        self._ends = time.monotonic() + timeout / 1000

    def __call__(self) -> float:
        return self._ends - time.monotonic()


class _LoopBell:
    """Wakes a coroutine of the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._rung = False

    def ring(self) -> None:
        if self._rung:
            return
        self._rung = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # its loop is closed: nobody waits there any more
            pass

    async def heard(self, seconds: float) -> bool:
        """Whether it was rung since the last time, or is within that time."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        self._rung = False
        return True


class _ThreadBell:
    """Wakes a thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def heard(self, seconds: float) -> bool:
        heard = self._event.wait(max(0.0, seconds))
        self._event.clear()
        return heard
