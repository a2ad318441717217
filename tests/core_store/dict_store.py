"""The thinnest store: the core of the contract over a dict, for one process. A new store starts from here.

It keeps what the core promises of plain jobs: ids, leases with tokens, delays, priorities and places, expiry,
retention, pause and close. Options that it has no place for (unique keys, partitions, batches, flows, limits)
are refused before anything is stored: they are capabilities that it does not declare.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import astuple, replace

from penstock.core.changes import expiry_of
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import Unsupported
from penstock.core.job import MAX_ERRORS, TERMINAL, Job, Lease, NewJob, Ref, State
from penstock.core.lifecycle import EXPIRED, LOST_BY, Transition, first_state, kept
from penstock.core.limits import LimitChange
from penstock.core.outcomes import QueuePosition
from penstock.stores.contract import (
    Capability,
    Checkup,
    Due,
    Enqueue,
    Enqueued,
    EnqueueStatus,
    Extend,
    Fetch,
    Fetched,
    HeartbeatRequest,
    LeaseStatus,
    Promote,
    Prune,
    Pruned,
    QueueInfo,
    Queues,
    Reclaim,
    Request,
    Settings,
    Settle,
    Settled,
    Settlement,
    Share,
    Store,
    StreamEnds,
    SyncRequest,
    SyncStore,
    Wait,
    Wake,
    check_supported,
    no_outcome,
    unsupported,
)
from penstock.stores.own_store import OwnStore, OwnSyncStore

__all__ = ["DictStore"]

A = TypeVar("A")

_LATER = (State.SCHEDULED, State.RETRYABLE, State.SUSPENDED)


class _Row:
    """A job with its place in the queue and the end of its lease or retention."""

    def __init__(self, job: Job, place: int) -> None:
        self.job = job
        self.place = place
        self.until = 0
        self.charged = False


class _Jobs:
    """The jobs, and a method for each request of the core, with its arguments."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._rows: dict[Ref, _Row] = {}
        self._paused: dict[str, bool] = {}
        self._closed: dict[str, bool] = {}
        self._tails, self._heads = itertools.count(1), itertools.count(-1, -1)
        self._generations = itertools.count(1)

    # ── producing ──

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return [self._enqueue(job, follows=False) for job in jobs]

    def _enqueue(self, spec: NewJob, *, follows: bool) -> Enqueued:
        if spec.ref in self._rows:
            return Enqueued(EnqueueStatus.EXISTS, spec.id)
        if self._closed.get(spec.queue) and not follows:
            return Enqueued(EnqueueStatus.CLOSED, spec.id)
        now = self.clock.now()
        state, due = first_state(spec, now)
        job = Job(
            spec,
            state,
            generation=next(self._generations),
            enqueued_at=now,
            run_at=due,
            expires_at=expiry_of(spec, now),
        )
        self._rows[spec.ref] = _Row(job, next(self._tails))
        self._paused.setdefault(spec.queue, False)
        return Enqueued(EnqueueStatus.NEW, spec.id)

    # ── consuming ──

    def fetch(
        self, queues: Sequence[Share], limit: int, lease: int, worker: str, token: str, charge: bool
    ) -> Fetched:
        now, names = self.clock.now(), [share.queue for share in queues]
        found = [row for row in self._rows.values() if row.job.token == token]  # a repeated fetch
        if not found:
            for share in queues:
                self._take(found, share, share.quota, limit, now)
            for share in queues:
                self._take(found, share, share.cap, limit, now)
            for row in found:
                self._lease(row, worker, token, now + lease, charge)
        return Fetched([row.job for row in found], now, self._next_due(names))

    def _take(self, found: list[_Row], share: Share, most: int, limit: int, now: int) -> None:
        has = sum(row.job.queue == share.queue for row in found)
        room = max(0, min(limit - len(found), min(most, share.cap) - has))
        found += list(itertools.islice(self._ready(share.queue, now, found), room))

    def _ready(self, queue: str, now: int, but: Sequence[_Row]) -> Iterator[_Row]:
        if self._paused.get(queue):
            return
        rows = [
            row for row in self._rows.values() if (row.job.queue, row.job.state) == (queue, State.AVAILABLE)
        ]
        for row in sorted(rows, key=lambda row: (-row.job.spec.priority, row.place)):
            if row.job.expires_at is not None and row.job.expires_at <= now:
                self._expire(row)
            elif row not in but:
                yield row

    def _lease(self, row: _Row, worker: str, token: str, until: int, charge: bool) -> None:
        row.until, row.charged = until, charge
        row.job = replace(
            row.job,
            state=State.RUNNING,
            attempt=row.job.attempt + charge,
            fetched_at=self.clock.now(),
            token=token,
            worker=worker,
            started=row.job.spec.fetch_starts,
            progress=None,
            reason=None,
        )

    def extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        return [self._extend(one) for one in requests]

    def _extend(self, one: HeartbeatRequest) -> LeaseStatus:
        row = self._held(one.lease)
        if row is None:
            return LeaseStatus.LOST
        row.until = self.clock.now() + one.by
        job = row.job
        row.job = replace(
            job,
            started=job.started or one.started,
            progress=job.progress if one.progress is None else one.progress,
            checkpoint=job.checkpoint if one.checkpoint is None else one.checkpoint,
        )
        return LeaseStatus.CANCEL_ASKED if job.cancel_asked else LeaseStatus.HELD

    def _held(self, lease: Lease | Ref) -> _Row | None:
        """The running job of this lease: the fencing check of all requests."""
        row = self._rows.get(Ref(lease.queue, lease.id))
        if row is None or row.job.state is not State.RUNNING:
            return None
        if isinstance(lease, Lease) and (lease.token, lease.generation) != (
            row.job.token,
            row.job.generation,
        ):
            return None
        return row

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        for one in settlements:
            no_outcome(one.transition)
        return [self._settle(one) for one in settlements]

    def _settle(self, one: Settlement) -> Settled:
        row, to = self._held(one.lease), one.transition
        if row is None:
            there = Ref(one.lease.queue, one.lease.id) in self._rows
            return Settled.STALE if there else Settled.GONE
        self._move(row, to, one.result)
        for new in one.then:
            self._enqueue(new, follows=True)
        return Settled.APPLIED

    def _move(self, row: _Row, to: Transition, result: bytes | None) -> None:
        now, job = self.clock.now(), row.job
        if to.place is not QueuePosition.OWN:
            row.place = next(self._heads if to.place is QueuePosition.HEAD else self._tails)
        run_at = job.run_at
        if to.state in _LATER:
            run_at = now + to.delay
        elif to.state is State.AVAILABLE and to.place is not QueuePosition.OWN:
            run_at = now
        errors = job.errors if to.error is None else (*job.errors, to.error)[-MAX_ERRORS:]
        row.job = replace(
            job,
            state=to.state,
            attempt=job.attempt - (row.charged and not to.charge),
            lost=job.lost + to.lost,
            run_at=run_at,
            ended_at=now if to.state in TERMINAL else None,
            token=None,
            worker=None,
            started=False,
            errors=errors,
            result=result if to.state in TERMINAL else None,
            reason=to.reason,
        )
        row.until = now + to.keep
        if to.state in TERMINAL and to.keep <= 0:
            del self._rows[job.ref]

    def _expire(self, row: _Row) -> None:
        keep = kept(row.job.spec, State.CANCELLED)
        row.charged = False
        self._move(row, Transition(State.CANCELLED, keep=keep, reason=EXPIRED), None)

    def promote(self, queues: Sequence[str], limit: int) -> Due:
        now, moved = self.clock.now(), 0
        later = [row for row in self._rows.values() if row.job.state in _LATER and row.job.queue in queues]
        for row in sorted(later, key=lambda row: (row.job.run_at, row.job.generation))[:limit]:
            if row.job.run_at > now:
                break
            if row.job.expires_at is not None and row.job.expires_at <= now:
                self._expire(row)
                continue
            row.job, row.place = replace(row.job, state=State.AVAILABLE), next(self._tails)
            moved += 1
        return Due(moved, self._next_due(queues), now)

    def _next_due(self, queues: Sequence[str]) -> int | None:
        due = [
            row.job.run_at
            for row in self._rows.values()
            if row.job.state in _LATER and row.job.queue in queues
        ]
        return min(due, default=None)

    def reclaim(
        self,
        queues: Sequence[str],
        limit: int,
        lease: int,
        worker: str,
        token: str,
        of: Sequence[str] | None,
    ) -> Fetched:
        now = self.clock.now()
        running = [row for row in self._rows.values() if row.job.state is State.RUNNING]
        again = [row for row in running if row.job.token == token]
        if of is not None:
            lost = [row for row in running if row.job.worker in of]
        else:
            lost = [row for row in running if row.job.queue in queues and row.until <= now]
            lost.sort(key=lambda row: row.until)
        for row in again or lost[:limit]:
            if row.job.token != token:
                reason = f"{LOST_BY}{row.job.worker}"
                row.job = replace(row.job, token=token, worker=worker, reason=reason)
                row.until = now + lease
        return Fetched([row.job for row in again or lost[:limit]], now)

    def look(self, queues: Sequence[str]) -> tuple[bool, int | None, int]:
        """Whether a job of these queues may start now, when the next is due, and the clock."""
        now = self.clock.now()
        ready = any(next(self._ready(name, now, ()), None) is not None for name in queues)
        return ready, self._next_due(queues), now

    # ── operating ──

    def queues(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        known = sorted(self._paused) if names is None else [name for name in names if name in self._paused]
        return [self._info(name) for name in known]

    def _info(self, name: str) -> QueueInfo:
        jobs = [row.job for row in self._rows.values() if row.job.queue == name]
        ready = [job.run_at for job in jobs if job.state is State.AVAILABLE]
        return QueueInfo(
            name,
            dict(Counter(job.state for job in jobs)),
            paused=self._paused[name],
            closed=self._closed.get(name, False),
            oldest_available=min(ready, default=None),
        )

    def settings(
        self, queue: str, paused: bool | None, closed: bool | None, limits: LimitChange | None
    ) -> QueueInfo:
        self._paused[queue] = self._paused.get(queue, False) if paused is None else paused
        self._closed[queue] = self._closed.get(queue, False) if closed is None else closed
        return self._info(queue)

    def prune(self, limit: int, keep_finished: int, keep_dead: int, after: str) -> Pruned:
        now = self.clock.now()
        over = [row for row in self._rows.values() if row.job.ended and row.until <= now][:limit]
        for row in over:
            del self._rows[row.job.ref]
        waiting = [row for row in self._rows.values() if row.job.state in (State.AVAILABLE, *_LATER)]
        expired = [row for row in waiting if row.job.expires_at is not None and row.job.expires_at <= now]
        for row in expired[:limit]:
            self._expire(row)
        return Pruned(len(over), len(expired[:limit]), 0)


class DictStore(OwnStore):
    """A store over a dict."""

    capabilities = frozenset(
        {
            Capability.CORE,
            Capability.PRIORITIES,
            Capability.EXPIRY,
            Capability.RETENTION,
            Capability.CHECKPOINTS,
        }
    )

    def __init__(self, clock: Clock | None = None) -> None:
        self._jobs = _Jobs(clock or SystemClock())
        self._lock = threading.RLock()
        self._waiters: set[Callable[[], object]] = set()
        self._sync = _SyncDictStore(self)

    @property
    def url(self) -> str:
        return "dict://"

    @property
    def sync(self) -> SyncStore:
        return self._sync

    def in_namespace(self, namespace: str) -> Store:
        raise Unsupported(f"{self.url} has one namespace")

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def stream(self, request: StreamEnds) -> AsyncGenerator[dict[Ref, Job | None], None]:
        raise unsupported(self.url, StreamEnds)
        yield {}

    async def _answer(self, request: Request[A]) -> A:
        check_supported(request, self.url, self.capabilities)
        if isinstance(request, Wait):
            woken: Any = await self._wait(request)
            return woken  # type: ignore[no-any-return]
        return self.answer(request)

    def answer(self, request: Request[A]) -> A:
        """Do what a request says, in one atomic step."""
        with self._lock:
            answer: A = _HANDLERS[type(request)](self._jobs, *astuple(request))
        for wake in list(self._waiters):
            wake()
        return answer

    async def _wait(self, request: Wait) -> Wake:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        ends = loop.time() + request.timeout / 1000

        def wake() -> None:
            loop.call_soon_threadsafe(event.set)

        self._waiters.add(wake)
        try:
            while (left := ends - loop.time()) > 0:
                event.clear()
                with self._lock:
                    ready, due, now = self._jobs.look(request.queues)
                soon = due is not None and due <= now + left * 1000
                if ready or (soon and request.on_due is None):
                    return Wake.WORK
                if soon and due is not None and request.on_due is not None:
                    request.on_due(due, now)
                try:
                    async with asyncio.timeout(left):
                        await event.wait()
                except TimeoutError:
                    break
            return Wake.NOTHING
        finally:
            self._waiters.discard(wake)


class _SyncDictStore(OwnSyncStore):
    def __init__(self, store: DictStore) -> None:
        self._store = store

    def _answer(self, request: SyncRequest[A]) -> A:
        check_supported(request, self._store.url, self._store.capabilities)
        return self._store.answer(request)

    def stream(self, request: StreamEnds) -> Generator[dict[Ref, Job | None], None, None]:
        raise unsupported(self._store.url, StreamEnds)
        yield {}


_HANDLERS: Mapping[type[Request[Any]], Callable[..., Any]] = {
    Enqueue: _Jobs.enqueue,
    Fetch: _Jobs.fetch,
    Extend: _Jobs.extend,
    Settle: _Jobs.settle,
    Promote: _Jobs.promote,
    Reclaim: _Jobs.reclaim,
    Queues: _Jobs.queues,
    Settings: _Jobs.settings,
    Prune: _Jobs.prune,
    Checkup: lambda jobs: [],
}
