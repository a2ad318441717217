"""Puts jobs into a store: one or many, from threads and event loops, and says what became of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from penstock.client.backpressure import (
    aretry_while_full,
    in_loop,
    retry_while_full,
    running_loop,
    warn_in_loop,
)
from penstock.client.handle import Handle
from penstock.client.job_call import JobCall
from penstock.client.middleware import MiddlewareStack
from penstock.client.outbox import Outbox
from penstock.client.timeouts import Patience, aask, ask, refuse_in_loop
from penstock.codec import ResultCodec
from penstock.core.batcher import Batcher
from penstock.core.duration import Duration, milliseconds
from penstock.core.errors import (
    ConfigError,
    DuplicateJob,
    EnqueueError,
    EnqueueManyError,
    EnqueueUnknown,
    JobExists,
    NotReplicated,
    OutboxFull,
    PenstockError,
    QueueClosed,
    QueueFull,
    StoreError,
    StoreUnavailable,
)
from penstock.core.events import EventBus, JobEnqueued
from penstock.core.ids import check_id, check_queue, mint_many
from penstock.core.job import QUEUED, NewJob, State
from penstock.core.per_loop import PerLoop
from penstock.stores.contract import Enqueued, EnqueueStatus, QueueInfo, Store

__all__ = ["CHUNK", "Client", "Handle"]

R = TypeVar("R")

#: A larger `enqueue_many` is sent in pieces of this many jobs, each stored whole or not at all.
CHUNK = 10_000
#: How often `drained` counts (s): counting is cheap, and no store tells of a queue's last job.
_COUNT_EVERY = 0.05

_NEW, _REPLACED, _UNREPLICATED = EnqueueStatus.NEW, EnqueueStatus.REPLACED, EnqueueStatus.UNREPLICATED
_UNDONE = QUEUED | {State.RUNNING}


class Client:
    """The producing half of an app. The store is made at its first use; then it opens itself, per process.

    Concurrent `aenqueue` of one event loop share their writes; each loop has a batcher of its own.
    """

    def __init__(
        self,
        make_store: Callable[[], Store],
        middleware: MiddlewareStack,
        events: EventBus,
        outbox: int = 0,
        full_timeout: int = 30_000,
    ) -> None:
        #: Where jobs wait while the store is away; of no room unless the app wants one.
        self.outbox = Outbox(outbox, lambda: self.store, events)
        self._make_store = make_store
        #: How long (s) to wait for room in a queue that is full, where its rule is to wait.
        self._full_timeout = full_timeout / 1000
        self._made: dict[str, Store] = {}
        self._middleware = middleware
        self._events = events
        self._batchers: PerLoop[dict[str, Batcher[NewJob, Enqueued | None]]] = PerLoop()

    @property
    def store(self) -> Store:
        """The store. No lock, which a fork could leave taken: the loser of a race drops his, unopened."""
        store = self._made.get("store")
        return self._made.setdefault("store", self._make_store()) if store is None else store

    def use_store(self, store: Store) -> None:
        """Put jobs there from now on; handles that were given out keep to the store that they know."""
        self._made["store"] = store

    def swap_store(self, store: Store | None) -> Store | None:
        """Put jobs there from now on, or, with None, where they belong; the store before, if one was made."""
        before = self._made.pop("store", None)
        if store is not None:
            self._made["store"] = store
        return before

    def enqueue(self, call: JobCall[R]) -> Handle[R]:
        """Store one job; raises EnqueueError or StoreError."""
        if running_loop() is not None:
            self._warn("enqueue()", "await ….aenqueue()")
        new = self._rewritten(call.new())
        (answer,) = retry_while_full([new], self._answers([new]), self._full_timeout, self._answers)
        return self._handle(new, answer, call)

    async def aenqueue(self, call: JobCall[R]) -> Handle[R]:
        """The same; who calls while a write is in flight goes with the next one."""
        new = self._rewritten(call.new())
        answer = await self._batcher(new.queue).put(new)
        if answer is not None and answer.status is EnqueueStatus.FULL:  # the batcher goes on with the others'
            (answer,) = await aretry_while_full([new], [answer], self._full_timeout, self._put_again)
        return self._handle(new, answer, call)

    def enqueue_many(self, calls: Iterable[JobCall[R]]) -> list[Handle[R]]:
        """Store many; handles in their order. EnqueueManyError says which were stored if some were not."""
        if running_loop() is not None:
            self._warn("enqueue_many()", "await ….aenqueue_many()")
        many = _Many(calls, self._rewritten, self._handle, self._handle_of)
        left = self._full_timeout  # of the whole call, however many chunks it has
        for chunk in many.chunks():
            try:
                answers = self._answers(chunk)
                began = time.monotonic()
                many.answered(retry_while_full(chunk, answers, left, self._answers))
                left -= time.monotonic() - began
            except (EnqueueError, StoreError) as error:
                many.broke_off(error)
        return many.handles()

    def _warn(self, what: str, instead: str) -> None:
        if not self.store.url.startswith("memory:"):  # which waits for nothing
            warn_in_loop(what, instead)

    async def aenqueue_many(self, calls: Iterable[JobCall[R]]) -> list[Handle[R]]:
        """The same, without blocking the event loop."""
        many = _Many(calls, self._rewritten, self._handle, self._handle_of)
        left = self._full_timeout
        for chunk in many.chunks():
            try:
                answers = await self._aanswers(chunk)
                began = time.monotonic()
                many.answered(await aretry_while_full(chunk, answers, left, self._aanswers))
                left -= time.monotonic() - began
            except (EnqueueError, StoreError) as error:
                many.broke_off(error)
        return many.handles()

    def handle(self, id: str, queue: str, task: str, codec: ResultCodec) -> Handle[Any]:
        """The handle of a job that was enqueued here or elsewhere; the store is not asked."""
        return Handle(self.store, check_queue(queue), check_id(id), task, codec)

    def drained(self, queue: str, timeout: Duration | None) -> bool:
        """Wait until nothing is queued or running in the queue; False if that is not so in time."""
        refuse_in_loop("app.drained()", "await app.adrained()")
        patience = Patience(timeout)
        while _undone(queue, ask(patience, self.store.sync.queues)):
            if patience.over:
                return False
            time.sleep(_COUNT_EVERY)
        return True

    async def adrained(self, queue: str, timeout: Duration | None) -> bool:
        """The same, without blocking the event loop."""
        patience = Patience(timeout)
        while _undone(queue, await aask(patience, self.store.queues)):
            if patience.over:
                return False
            await asyncio.sleep(_COUNT_EVERY)
        return True

    def flush(self, timeout: Duration | None) -> bool:
        """Wait until the outbox is empty; False if it is not so in time."""
        refuse_in_loop("app.flush()", "await app.aflush()")
        return self.outbox.flush(None if timeout is None else milliseconds(timeout, what="timeout") / 1000)

    async def aflush(self, timeout: Duration | None) -> bool:
        """The same, without blocking the event loop."""
        patience = Patience(timeout)
        while not self.outbox.flush(0):
            if patience.over:
                return False
            await asyncio.sleep(_COUNT_EVERY)
        return True

    def close(self) -> None:
        """Give the outbox a moment, and let go of what the store holds; its next use opens it again."""
        self.outbox.close()
        for store in self._made.values():
            store.close()

    async def _put_again(self, jobs: list[NewJob]) -> list[Enqueued | None]:
        return [await self._batcher(job.queue).put(job) for job in jobs]

    def _answers(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued | None]:
        """What the store says to each job; None where the outbox has it for now."""
        outbox = self.outbox
        if outbox.pending:  # whoever comes later is stored later
            return outbox.keep(jobs)
        try:
            answers = self.store.sync.enqueue(jobs)
        except StoreUnavailable as error:
            if not outbox.limit:
                raise
            return outbox.keep(jobs, error)
        return outbox.keep_failed(jobs, answers) if outbox.limit else answers

    async def _aanswers(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued | None]:
        outbox = self.outbox
        if outbox.pending:
            return outbox.keep(jobs)
        try:
            answers = await self.store.enqueue(jobs)
        except StoreUnavailable as error:
            if not outbox.limit:
                raise
            return outbox.keep(jobs, error)
        return outbox.keep_failed(jobs, answers) if outbox.limit else answers

    def _batcher(self, queue: str) -> Batcher[NewJob, Enqueued | None]:
        """One for all queues, or where these lie on several servers one for each: one may be away."""
        loop = asyncio.get_running_loop()
        batchers = self._batchers.get(loop)
        if batchers is None:
            batchers = self._batchers.put(loop, {})
        key = queue if getattr(self.store, "spread", False) else ""
        batcher = batchers.get(key)
        if batcher is None:
            batcher = batchers[key] = Batcher(self._send)
        return batcher

    async def _send(self, jobs: list[NewJob]) -> Sequence[Enqueued | BaseException | None]:
        try:
            return await self._aanswers(jobs)
        except EnqueueUnknown as error:  # each caller hears of its own job only
            return [EnqueueUnknown([job.id], error.cause) for job in jobs]
        except OutboxFull:  # not all of them have room: as many as have
            return [self._kept_alone(job) for job in jobs]

    def _kept_alone(self, new: NewJob) -> OutboxFull | None:
        try:
            self.outbox.keep([new])
        except OutboxFull as error:
            return error
        return None

    def _rewritten(self, new: NewJob) -> NewJob:
        return self._middleware.rewrite(new)

    def _handle(self, new: NewJob, answer: Enqueued | None, call: JobCall[R]) -> Handle[R]:
        if answer is None:  # the outbox tells of it once it is stored
            return msgspec.structs.replace(self._handle_of(new, call), _unsent=True)
        status = answer.status
        if status is _NEW or status is _UNREPLICATED:
            if self._events.active:
                at = time.time_ns() // 1_000_000
                self._events.emit(JobEnqueued(at, new.id, new.queue, new.task, 0))
            if status is _UNREPLICATED:
                raise NotReplicated([answer.id], answer.cause)
            return self._handle_of(new, call)
        if status is EnqueueStatus.DUPLICATE and new.unique is not None and new.unique.reject:
            raise DuplicateJob(new.queue, answer.id, new.task)
        if status is EnqueueStatus.DUPLICATE or status is _REPLACED:  # its retention is its own
            return Handle(self.store, new.queue, answer.id, new.task, call.template.codec, None, True)
        raise _refusal(new, answer)

    def _handle_of(self, new: NewJob, call: JobCall[R]) -> Handle[R]:
        return Handle(self.store, new.queue, new.id, new.task, call.template.codec, new.retention)


class _Many(Generic[R]):
    """A large enqueue under way, chunk by chunk: what was answered, and what went wrong where."""

    def __init__(
        self,
        calls: Iterable[JobCall[R]],
        rewritten: Callable[[NewJob], NewJob],
        handle: Callable[[NewJob, Enqueued | None, JobCall[R]], Handle[R]],
        handle_of: Callable[[NewJob, JobCall[R]], Handle[R]],
    ) -> None:
        self._calls = _with_ids(calls)
        self._jobs = [rewritten(call.new()) for call in self._calls]
        self._handle = handle
        self._handle_of = handle_of
        self._handles: list[Handle[R] | None] = []
        self._errors: dict[int, PenstockError] = {}
        self._late: dict[int, NotReplicated] = {}  # stored, on fewer replicas than wanted
        self._broken: PenstockError | None = None

    def chunks(self) -> Iterator[list[NewJob]]:
        for start in range(0, len(self._jobs), CHUNK):
            if self._broken is None:
                yield self._jobs[start : start + CHUNK]

    def answered(self, answers: Sequence[Enqueued | None]) -> None:
        handle, handles = self._handle, self._handles
        start = len(handles)
        span = slice(start, start + len(answers))
        for new, answer, call in zip(self._jobs[span], answers, self._calls[span], strict=True):
            try:
                handles.append(handle(new, answer, call))
            except NotReplicated as late:  # it is there
                self._late[len(handles)] = late
                (id,) = late.ids  # another's, if that was replaced
                handles.append(msgspec.structs.replace(self._handle_of(new, call), id=id))
            except (EnqueueError, StoreError) as refusal:
                self._errors[len(handles)] = refusal
                handles.append(None)

    def broke_off(self, error: PenstockError) -> None:
        """The store failed: the chunk was not stored, and the rest is not tried."""
        self._broken = error
        if not any(self._handles) and not self._errors:
            raise error
        for index in range(len(self._handles), len(self._jobs)):
            self._errors[index] = error
            self._handles.append(None)

    def handles(self) -> list[Handle[R]]:
        """All of them, or the error that says which there are."""
        if self._errors:
            raise EnqueueManyError(self._handles, {**self._errors, **self._late})
        if self._late:
            causes = {late.cause for late in self._late.values()}
            ids = [id for late in self._late.values() for id in late.ids]
            raise NotReplicated(ids, "; ".join(sorted(causes)))
        return [handle for handle in self._handles if handle is not None]


def _with_ids(calls: Iterable[JobCall[R]]) -> list[JobCall[R]]:
    """All calls, before any is stored: an argument that does not fit must leave the store untouched."""
    if not isinstance(calls, Iterable):
        raise ConfigError(f"enqueue_many takes a list of task.job(...), not one: {calls!r:.100}")
    calls = list(calls)
    for call in calls:
        if not isinstance(call, JobCall):
            raise ConfigError(f"enqueue_many takes task.job(...), not {call!r:.100}")
    blank = [call for call in calls if not call.given_id]
    for call, id in zip(blank, mint_many(len(blank)), strict=True):
        call.given_id = call.given_id or id  # the same call may be in the list twice
    return calls


def _refusal(new: NewJob, answer: Enqueued) -> PenstockError:
    match answer.status:
        case EnqueueStatus.EXISTS:
            return JobExists(new.queue, new.id)
        case EnqueueStatus.CLOSED:
            return QueueClosed(new.queue)
        case EnqueueStatus.FULL:
            wait = None if answer.retry_after is None else answer.retry_after / 1000
            way_out = "; nobody waits in an event loop: use aenqueue" if answer.waits and in_loop() else ""
            return QueueFull(new.queue, wait, answer.size, way_out)
        case EnqueueStatus.UNKNOWN:
            return EnqueueUnknown([new.id], answer.cause)
        case EnqueueStatus.FAILED:
            return StoreUnavailable(f"the job {new.id} was not stored: {answer.cause}")
    return EnqueueError(f"the store answered {answer.status} for the job {new.id}")


def _undone(queue: str, queues: Sequence[QueueInfo]) -> bool:
    for info in queues:
        if info.name == queue:
            return bool(info.away) or any(info.counts.get(state, 0) for state in _UNDONE)
    return False
