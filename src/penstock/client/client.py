"""Enqueues jobs, one or many, from threads and event loops, and reports the answer for each."""

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
from penstock.client.job_checks import with_inherited_headers
from penstock.client.middleware import MiddlewareStack
from penstock.client.outbox import Outbox
from penstock.client.timeouts import WaitLimit, acall_through_outage, call_through_outage, refuse_in_loop
from penstock.codec import ResultCodec
from penstock.core import errors
from penstock.core.events import EventBus, JobEnqueued
from penstock.core.formats import Duration, milliseconds
from penstock.core.ids import check_id, check_queue, mint_many
from penstock.core.job import QUEUED, Job, NewJob, State
from penstock.core.loops import Batcher, PerLoop
from penstock.stores.contract import Enqueued, EnqueueStatus, JobFilter, QueueInfo, Store

R = TypeVar("R")

#: A larger `enqueue_many` is sent in chunks of this many jobs; each chunk is stored completely or not at all.
CHUNK = 10_000
#: Interval at which `drained` counts (s): counting is cheap, and stores send no notification for an empty
#: queue.
_COUNT_EVERY = 0.05

_NEW, _REPLACED, _UNREPLICATED = EnqueueStatus.NEW, EnqueueStatus.REPLACED, EnqueueStatus.UNREPLICATED
_UNFINISHED = QUEUED | {State.RUNNING, State.SUSPENDED}


class Client:
    """The producing half of an app. The store is created at its first use and opened once per process.

    Concurrent `aenqueue` calls of one event loop share their writes; each loop has its own batcher.
    """

    def __init__(
        self,
        make_store: Callable[[], Store],
        middleware: MiddlewareStack,
        events: EventBus,
        outbox: int = 0,
        full_timeout: int = 30_000,
    ) -> None:
        #: Where jobs wait while the store is unreachable; without room unless the app sets a limit.
        self.outbox = Outbox(outbox, lambda: self.store, events)
        self._make_store = make_store
        #: Maximum wait (s) for room in a full queue whose rule is to wait.
        self.full_timeout = full_timeout / 1000
        self._made: dict[str, Store] = {}
        self._middleware = middleware
        self._events = events
        self._batchers: PerLoop[dict[str, Batcher[NewJob, Enqueued | None]]] = PerLoop()

    @property
    def store(self) -> Store:
        """The store.

        Created without a lock, because a fork could copy a locked one. If two threads create a store at the
        same time, one of the two is dropped unopened.
        """
        store = self._made.get("store")
        return self._made.setdefault("store", self._make_store()) if store is None else store

    @property
    def made_store(self) -> Store | None:
        """The store if it was created already."""
        return self._made.get("store")

    def use_store(self, store: Store) -> None:
        """Enqueue into this store from now on. Existing handles keep their store."""
        self._made["store"] = store

    def swap_store(self, store: Store | None) -> Store | None:
        """Enqueue into this store from now on; None: into the app's own.

        Returns the previous store, if any.
        """
        before = self._made.pop("store", None)
        if store is not None:
            self._made["store"] = store
        return before

    def enqueue(self, call: JobCall[R]) -> Handle[R]:
        """Store one job. Raises EnqueueError or StoreError."""
        if running_loop() is not None:
            self._warn("enqueue()", "await ….aenqueue()")
        new = self.job_of(call)
        (answer,) = self._answers([new])
        if answer is not None and answer.status is EnqueueStatus.FULL:
            (answer,) = retry_while_full([new], [answer], self.full_timeout, self._answers)
        return self._handle(new, answer, call)

    async def aenqueue(self, call: JobCall[R]) -> Handle[R]:
        """Store one job without blocking; calls made while a write is in flight share the next write."""
        new = self.job_of(call)
        answer = await self._batcher(new.queue).put(new)
        # the batcher continues with other jobs
        if answer is not None and answer.status is EnqueueStatus.FULL:
            (answer,) = await aretry_while_full([new], [answer], self.full_timeout, self._put_again)
        return self._handle(new, answer, call)

    def enqueue_many(self, calls: Iterable[JobCall[R]]) -> list[Handle[R]]:
        """Store many jobs and return their handles in order.

        Raises EnqueueManyError if some were not stored; the error lists which.
        """
        if running_loop() is not None:
            self._warn("enqueue_many()", "await ….aenqueue_many()")
        bulk = _BulkEnqueue(calls, self.job_of, self._handle, self._handle_of)
        left = self.full_timeout  # for the whole call, over all chunks
        for chunk in bulk.chunks():
            try:
                answers = self._answers(chunk)
                began = time.monotonic()
                bulk.add_answers(retry_while_full(chunk, answers, left, self._answers))
                left -= time.monotonic() - began
            except (errors.EnqueueError, errors.StoreError) as error:
                bulk.fail_rest(error)
        return bulk.handles()

    def _warn(self, what: str, instead: str) -> None:
        if not self.store.url.startswith("memory:"):  # memory never blocks
            warn_in_loop(what, instead)

    async def aenqueue_many(self, calls: Iterable[JobCall[R]]) -> list[Handle[R]]:
        """Like `enqueue_many`, without blocking the event loop."""
        bulk = _BulkEnqueue(calls, self.job_of, self._handle, self._handle_of)
        left = self.full_timeout
        for chunk in bulk.chunks():
            try:
                answers = await self._aanswers(chunk)
                began = time.monotonic()
                bulk.add_answers(await aretry_while_full(chunk, answers, left, self._aanswers))
                left -= time.monotonic() - began
            except (errors.EnqueueError, errors.StoreError) as error:
                bulk.fail_rest(error)
        return bulk.handles()

    def handle(self, id: str, queue: str, task: str, codec: ResultCodec) -> Handle[Any]:
        """A handle for a job by its id, without asking the store."""
        return Handle(self.store, check_queue(queue), check_id(id), task, codec)

    def find(self, id: str) -> Job:
        """Find the job with this id in all queues. Raises JobNotFound, or ConfigError for several."""
        if running_loop() is not None:
            self._warn("app.handle(id), which searches all queues,", "await app.ahandle(id)")
        return _only_job(id, self.store.sync.search(JobFilter(id=_sought_id(id))).jobs)

    async def afind(self, id: str) -> Job:
        """Like `find`, without blocking the event loop."""
        return _only_job(id, await self.store.find(_sought_id(id)))

    def drained(self, queue: str, timeout: Duration | None) -> bool:
        """Wait until the queue has no queued and no running job.

        False if that takes longer than `timeout`.
        """
        refuse_in_loop("app.drained()", "await app.adrained()")
        wait_limit = WaitLimit(timeout)
        while _has_unfinished(queue, call_through_outage(wait_limit, self.store.sync.queues)):
            if wait_limit.over:
                return False
            time.sleep(_COUNT_EVERY)
        return True

    async def adrained(self, queue: str, timeout: Duration | None) -> bool:
        """Like `drained`, without blocking the event loop."""
        wait_limit = WaitLimit(timeout)
        while _has_unfinished(queue, await acall_through_outage(wait_limit, self.store.queues)):
            if wait_limit.over:
                return False
            await asyncio.sleep(_COUNT_EVERY)
        return True

    def flush(self, timeout: Duration | None) -> bool:
        """Wait until the outbox is empty. False if that takes longer than `timeout`."""
        refuse_in_loop("app.flush()", "await app.aflush()")
        return self.outbox.flush(None if timeout is None else milliseconds(timeout, what="timeout") / 1000)

    async def aflush(self, timeout: Duration | None) -> bool:
        """Like `flush`, without blocking the event loop."""
        wait_limit = WaitLimit(timeout)
        while not self.outbox.flush(0):
            if wait_limit.over:
                return False
            await asyncio.sleep(_COUNT_EVERY)
        return True

    def close(self) -> None:
        """Flush the outbox for a moment and close the store; its next use opens it again."""
        self.outbox.close()
        for store in self._made.values():
            store.close()

    async def _put_again(self, jobs: list[NewJob]) -> list[Enqueued | None]:
        return [await self._batcher(job.queue).put(job) for job in jobs]

    def _answers(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued | None]:
        """The store's answer for each job; None for a job that the outbox keeps."""
        outbox = self.outbox
        if outbox.pending:  # keep the order: jobs in the outbox are older
            return outbox.keep(jobs)
        store = self.store  # an error here is none of a call: without a store there is no handle
        try:
            answers = store.sync.enqueue(jobs)
        except (errors.StoreUnavailable, errors.StoreReentered) as error:
            if not outbox.limit:
                raise
            return outbox.keep(jobs, error)
        return outbox.keep_failed(jobs, answers) if outbox.limit else answers

    async def _aanswers(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued | None]:
        outbox = self.outbox
        if outbox.pending:
            return outbox.keep(jobs)
        store = self.store  # an error here is none of a call: without a store there is no handle
        try:
            answers = await store.enqueue(jobs)
        except (errors.StoreUnavailable, errors.StoreReentered) as error:
            if not outbox.limit:
                raise
            return outbox.keep(jobs, error)
        return outbox.keep_failed(jobs, answers) if outbox.limit else answers

    def _batcher(self, queue: str) -> Batcher[NewJob, Enqueued | None]:
        """One batcher for all queues; if queues are on several servers, one per queue."""
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
        except errors.EnqueueUnknown as error:  # each caller gets an error for its own job only
            return [errors.EnqueueUnknown([job.id], error.cause) for job in jobs]
        except errors.OutboxFull:  # not all have room: keep as many as fit
            return [self._kept_alone(job) for job in jobs]

    def _kept_alone(self, new: NewJob) -> errors.OutboxFull | None:
        try:
            self.outbox.keep([new])
        except errors.OutboxFull as error:
            return error
        return None

    def job_of(self, call: JobCall[Any]) -> NewJob:
        """The job of a call, as it is stored. Raises ConfigError for a call of another app."""
        call.template.refuse_unless(call.template.client is self)
        return self.rewritten(call.new())

    def rewritten(self, new: NewJob) -> NewJob:
        """The job with the headers of the running job, and as the app's enqueue middleware makes it."""
        return self._middleware.rewrite(with_inherited_headers(new))

    def _handle(self, new: NewJob, answer: Enqueued | None, call: JobCall[R]) -> Handle[R]:
        if answer is None:  # the outbox reports the job when it is stored
            return msgspec.structs.replace(self._handle_of(new, call), _unsent=True)
        status = answer.status
        if status is _NEW or status is _UNREPLICATED:
            self.emit_enqueued([new])
            if status is _UNREPLICATED:
                raise errors.NotReplicated([answer.id], answer.cause)
            return self._handle_of(new, call)
        if status is EnqueueStatus.DUPLICATE and new.unique is not None and new.unique.reject:
            raise errors.DuplicateJob(new.queue, answer.id, new.task)
        if status is EnqueueStatus.DUPLICATE or status is _REPLACED:  # the existing job has its own retention
            return Handle(self.store, new.queue, answer.id, new.task, call.template.codec, None, True)
        raise _refusal(new, answer)

    def emit_enqueued(self, jobs: Sequence[NewJob]) -> None:
        """Tell listeners of jobs that the store has taken."""
        if self._events.active:
            at = time.time_ns() // 1_000_000
            for new in jobs:
                self._events.emit(JobEnqueued(at, new.id, new.queue, new.task, 0))

    def _handle_of(self, new: NewJob, call: JobCall[R]) -> Handle[R]:
        return Handle(self.store, new.queue, new.id, new.task, call.template.codec, new.retention)


class _BulkEnqueue(Generic[R]):
    """One `enqueue_many` call in progress: its chunks, and the answer or error for each job."""

    def __init__(
        self,
        calls: Iterable[JobCall[R]],
        job_of: Callable[[JobCall[Any]], NewJob],
        handle: Callable[[NewJob, Enqueued | None, JobCall[R]], Handle[R]],
        handle_of: Callable[[NewJob, JobCall[R]], Handle[R]],
    ) -> None:
        self._calls = _with_ids(calls)
        self._jobs = [job_of(call) for call in self._calls]
        self._handle = handle
        self._handle_of = handle_of
        self._handles: list[Handle[R] | None] = []
        self._errors: dict[int, errors.PenstockError] = {}
        self._late: dict[int, errors.NotReplicated] = {}  # stored, on fewer replicas than wanted
        self._broken: errors.PenstockError | None = None

    def chunks(self) -> Iterator[list[NewJob]]:
        for start in range(0, len(self._jobs), CHUNK):
            if self._broken is None:
                yield self._jobs[start : start + CHUNK]

    def add_answers(self, answers: Sequence[Enqueued | None]) -> None:
        handle, handles = self._handle, self._handles
        start = len(handles)
        span = slice(start, start + len(answers))
        for new, answer, call in zip(self._jobs[span], answers, self._calls[span], strict=True):
            try:
                handles.append(handle(new, answer, call))
            except errors.NotReplicated as late:  # the job is stored
                self._late[len(handles)] = late
                (id,) = late.ids  # the id of the existing job, if that was replaced
                handles.append(msgspec.structs.replace(self._handle_of(new, call), id=id))
            except (errors.EnqueueError, errors.StoreError) as refusal:
                self._errors[len(handles)] = refusal
                handles.append(None)

    def fail_rest(self, error: errors.PenstockError) -> None:
        """Record that the store failed: this chunk was not stored, and the remaining ones are not sent."""
        self._broken = error
        if not any(self._handles) and not self._errors:
            raise error
        for index in range(len(self._handles), len(self._jobs)):
            self._errors[index] = error
            self._handles.append(None)

    def handles(self) -> list[Handle[R]]:
        """All handles. Raises the error that lists which jobs were stored, if some were not."""
        if self._errors:
            raise errors.EnqueueManyError(self._handles, {**self._errors, **self._late})
        if self._late:
            causes = {late.cause for late in self._late.values()}
            ids = [id for late in self._late.values() for id in late.ids]
            raise errors.NotReplicated(ids, "; ".join(sorted(causes)))
        return [handle for handle in self._handles if handle is not None]


def _with_ids(calls: Iterable[JobCall[R]]) -> list[JobCall[R]]:
    """All calls with their ids, checked before any is stored."""
    if not isinstance(calls, Iterable):
        raise errors.ConfigError(f"enqueue_many takes a list of task.job(...), not one: {calls!r:.100}")
    calls = list(calls)
    for call in calls:
        if not isinstance(call, JobCall):
            raise errors.ConfigError(f"enqueue_many takes task.job(...), not {call!r:.100}")
    blank = [call for call in calls if not call.given_id]
    for call, id in zip(blank, mint_many(len(blank)), strict=True):
        call.given_id = call.given_id or id  # a call may be in the list twice
    return calls


def _sought_id(id: str) -> str:
    """The id to search for. Raises JobNotFound for a text that no job can have as its id.

    Such a text comes from outside, as a part of a request's path, and its answer is 404 as for any other.
    """
    try:
        return check_id(id)
    except errors.ConfigError as error:
        if not isinstance(id, str):
            raise
        raise errors.JobNotFound(f"no job has this id: {error}") from None


def _only_job(id: str, found: list[Job]) -> Job:
    if not found:
        raise errors.JobNotFound(
            f"job {id} is in no queue: it has ended and was not kept, is not stored yet, or never was"
        )
    if len(found) > 1:
        queues = ", ".join(sorted(repr(job.queue) for job in found))
        raise errors.ConfigError(
            f"several queues have a job {id}: name one of {queues}, as in app.handle(id, queue)"
        )
    return found[0]


def _refusal(new: NewJob, answer: Enqueued) -> errors.PenstockError:
    match answer.status:
        case EnqueueStatus.EXISTS:
            return errors.JobExists(new.queue, new.id)
        case EnqueueStatus.CLOSED:
            return errors.QueueClosed(new.queue)
        case EnqueueStatus.FULL:
            wait = None if answer.retry_after is None else answer.retry_after / 1000
            way_out = (
                "; enqueue() does not wait in an event loop: use aenqueue"
                if answer.waits and in_loop()
                else ""
            )
            return errors.QueueFull(new.queue, wait, answer.size, way_out)
        case EnqueueStatus.UNKNOWN:
            return errors.EnqueueUnknown([new.id], answer.cause)
        case EnqueueStatus.FAILED:
            return errors.StoreUnavailable(f"the job {new.id} was not stored: {answer.cause}")
    return errors.EnqueueError(f"the store answered {answer.status} for the job {new.id}")


def _has_unfinished(queue: str, queues: Sequence[QueueInfo]) -> bool:
    for info in queues:
        if info.name == queue:
            return bool(info.away) or any(info.counts.get(state, 0) for state in _UNFINISHED)
    return False
