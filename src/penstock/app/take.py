"""Takes one job without a worker: leases it while a block runs, and settles it at the end of the block."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

from penstock.app.deciding import Loss, decided, settle_reclaimed
from penstock.app.outcome import outcome_of, timed_out
from penstock.app.outcome_events import log_set_aside
from penstock.app.taken import INTERRUPTED_BECAUSE, BlockMiddleware, BlockWatch, Taken
from penstock.app.task import Task
from penstock.client.flows.values import InputUnreadable, with_inputs
from penstock.client.middleware import AroundAttempt
from penstock.client.options import Options
from penstock.core import clock
from penstock.core.errors import (
    AttemptCancelled,
    AttemptLost,
    AttemptTimeout,
    Interrupted,
    Steering,
    StoreUnavailable,
    Undecodable,
)
from penstock.core.ids import mint, mint_token
from penstock.core.job import DEAD_KEPT, AttemptError, Job
from penstock.core.lifecycle import CANNOT_BE_READ, RUNNING_CANCELLED, Transition, starts_on_record, too_late
from penstock.core.outcomes import Cancelled, Outcome, QueuePosition, Released, Returned, Unknown
from penstock.stores.contract import Fetched, SetAside, Settled, Settlement, Share, Store
from penstock.stores.encrypted import unreadable_check

_log = logging.getLogger("penstock.take")

T = TypeVar("T")
Some = TypeVar("Some", covariant=True)

#: Maximum length of one wait for work (ms), so that expired leases of other holders are found in between.
_MAX_WAIT = 5_000
_AT_ONCE = 100


class Take(AbstractAsyncContextManager[Some]):
    """`async with app.take("mail") as job:`; docs/enqueueing.md has the outcomes of leaving the block."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, Task[..., Any]],
        queue: str,
        lease: int,
        wait: int | None,
        keep_dead: int = DEAD_KEPT,
        on_settled: Callable[[Job, Transition], None] = lambda *_: None,
        around: Callable[[str, str], tuple[AroundAttempt, ...]] = lambda *_: (),
        emit_set_aside: Callable[[Sequence[SetAside]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._emit_set_aside = emit_set_aside
        self._tasks = tasks
        self._middleware = around
        self._on_settled = on_settled
        self._queue = queue
        self._lease = lease
        self._wait = wait
        self._keep_dead = keep_dead
        self._worker = mint()
        self._clock = (0, 0.0)  # the store's time at the fetch, and `clock.lease_seconds()` then
        self._taken: Taken | None = None
        self._watch: BlockWatch | None = None
        self._around: BlockMiddleware | None = None
        self._entered = False

    async def __aenter__(self) -> Some:
        if self._entered:
            raise RuntimeError("a take runs one block at a time: call app.take() again for another job")
        self._entered = True
        try:
            await self._enter()
        except BaseException:  # boundary: any error means that the block is not entered
            self._entered = False
            raise
        # None is possible only with a `wait`, as the overloads of App.take state
        return cast(Some, self._taken)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            return await self._leave(error)
        finally:
            self._taken = self._watch = self._around = None
            self._entered = False

    async def _enter(self) -> None:
        ends = float("inf") if self._wait is None else time.monotonic() + self._wait / 1000
        while (job := await self._next(ends)) is not None:
            task = self._tasks.get(job.task)
            taken = Taken(job, self._store, self._lease, self._limit_of(job), task)
            await self._record_start(taken)
            if late := self._too_late(job):  # the store was slow
                await self._apply(job, late)
                continue
            self._taken, self._watch = taken, BlockWatch(taken, self._lease / 3000)
            # a block that is never left must not hold its job for ever
            weakref.finalize(self, self._watch.abandon).atexit = False
            around = self._middleware(job.queue, job.task if task is None else task.name)
            self._around = (
                BlockMiddleware(around, taken, partial(getattr, taken, "value")) if around else None
            )
            if self._around is None or await self._run_to_block(self._around):
                return
            self._taken = self._watch = self._around = None

    async def _run_to_block(self, around: BlockMiddleware) -> bool:
        """Run the middleware up to the block. False: it did not call the block, and its outcome is stored."""
        error: BaseException | None = None
        try:
            if await around.begin():
                return True
            if self._watch is not None and self._watch.cancelled:
                raise asyncio.CancelledError  # the middleware swallowed the cancellation
            self._replace_result(around.value)
        except BaseException as raised:  # noqa: BLE001  # boundary: the outcome of middleware, which is user code
            error = raised
        self._around = None  # it has ended
        if not await self._leave(error) and error is not None:
            raise error
        return False

    async def _leave(self, error: BaseException | None) -> bool:
        """Store the outcome. True: the block's error needs no raise."""
        if self._taken is None or self._watch is None:
            return False
        given, error = error, self._watch.meaning(error)
        if self._around is not None:
            error = await self._middleware_ended(self._around, self._watch, error)
        self._watch.stop()
        answer = await _uncancelled(self._settle(self._taken, self._outcome(self._taken.job, error)))
        if answer is not Settled.APPLIED and not isinstance(error, Interrupted):
            _log.warning("job %s (%s): late outcome ignored", self._taken.id, self._taken.task)
            if error is None:
                raise AttemptLost(INTERRUPTED_BECAUSE[AttemptLost].format(self._taken.id))
        if error is None or isinstance(error, Steering):
            return True
        if error is not given:
            raise error
        return False

    async def _middleware_ended(
        self, around: BlockMiddleware, watch: BlockWatch, error: BaseException | None
    ) -> BaseException | None:
        """Continue the middleware after the block; returns the error with which the attempt has ended."""
        end: BaseException | None = None
        try:
            self._replace_result(await around.end(error))
        except BaseException as raised:  # noqa: BLE001  # boundary: the outcome of middleware, which is user code
            end = watch.meaning(raised)
        if watch.stands(error):
            return error  # regardless of the middleware
        if end is None and watch.cancelled:
            return asyncio.CancelledError()  # the middleware swallowed the cancellation
        return end

    def _replace_result(self, value: Any) -> None:
        """Take the middleware's return value as the job's result."""
        if self._taken is not None and value is not self._taken.value:
            self._taken.returns(value)

    # ── finding a job ────────────────────────────────────────────────────────────────────────────

    async def _next(self, ends: float) -> Job | None:
        """Wait for the next job. Promotes and reclaims too, because no worker may be running."""
        while True:
            promoted = await self._store.promote([self._queue], limit=_AT_ONCE)
            self._set_aside(promoted.set_aside)
            fetched = await self._fetch()
            self._set_aside(fetched.set_aside)
            for job in fetched.jobs:
                why = unreadable_check(self._store)(job)
                if why is not None:
                    _log.warning(
                        "job %s: its contents cannot be read here (%s); the job is parked", job.id, why
                    )
                    await self._apply(job, Unknown(CANNOT_BE_READ + why))
                elif job.cancel_asked:
                    await self._apply(job, Cancelled())
                else:
                    await self._wait_for_start(job, fetched.now)
                    late = self._too_late(job)
                    if late is None and (ready := await self._with_inputs(job)) is not None:
                        return ready
                    if late is not None:
                        await self._apply(job, late)
            if fetched.jobs or await self._reclaimed():
                continue
            left = ends - time.monotonic()
            if left <= 0:
                return None
            instants = [instant for instant in (fetched.due, fetched.opens_at) if instant is not None]
            until_due = max(1, min(instants) - fetched.now) if instants else _MAX_WAIT
            await self._store.wait([self._queue], timeout=int(min(left * 1000 + 1, _MAX_WAIT, until_due)))

    def _set_aside(self, found: Sequence[SetAside]) -> None:
        if found:
            log_set_aside(found)
            self._emit_set_aside(found)

    async def _with_inputs(self, job: Job) -> Job | None:
        """The job with the results that it takes, if it is a node of a flow; None: they are gone."""
        if job.spec.flow is None:
            return job
        try:
            return await with_inputs(self._store, job)
        except InputUnreadable as error:
            await self._apply(job, Unknown(CANNOT_BE_READ + str(error)))
            return None
        except Undecodable as error:
            await self._apply(job, outcome_of(job, self._now(), error))
            return None

    def _too_late(self, job: Job) -> Outcome | None:
        # this process was suspended: the lease may be lost
        if clock.lease_seconds() - self._clock[1] > self._lease / 1000:
            return Released(QueuePosition.OWN)
        return too_late(job, self._now())

    async def _wait_for_start(self, job: Job, now: int) -> None:
        """Wait for the start time of a job whose queue has a rate limit: some milliseconds."""
        if job.fetched_at is None or job.fetched_at <= now:
            return
        begins = time.monotonic() + (job.fetched_at - now) / 1000
        try:
            await asyncio.sleep(begins - time.monotonic() + 0.001)  # a timer may be early by its resolution
        except asyncio.CancelledError:
            await _uncancelled(self._apply(job, Released(QueuePosition.OWN)))
            raise

    async def _fetch(self) -> Fetched:
        """Lease one job. If the caller is cancelled meanwhile, the job is released at once."""
        self._clock = (0, clock.lease_seconds())
        fetching = asyncio.ensure_future(
            self._store.fetch(
                [Share(self._queue, 1, 1)],
                limit=1,
                lease=self._lease,
                worker=self._worker,
                token=mint_token(),
            )
        )
        try:
            fetched = await asyncio.shield(fetching)
        except asyncio.CancelledError:
            await asyncio.wait({fetching})
            if not fetching.cancelled() and fetching.exception() is None:
                for job in fetching.result().jobs:
                    await self._apply(job, Released(QueuePosition.OWN))
            raise
        self._clock = (fetched.now, self._clock[1])
        return fetched

    async def _reclaimed(self) -> bool:
        found = await self._store.reclaim(
            [self._queue], limit=_AT_ONCE, lease=self._lease, worker=self._worker, token=mint_token()
        )
        self._set_aside(found.set_aside)
        cause = "its holder did not extend the lease"
        loss = Loss("LeaseLost", cause, keep_dead=self._keep_dead, on_decided=self._on_settled)
        await settle_reclaimed(self._store, found, loss)
        return bool(found.jobs)

    async def _record_start(self, taken: Taken) -> None:
        """Store the start of a last attempt, or of an at-most-once one, before it begins."""
        if not starts_on_record(taken.job):
            return
        try:
            await taken.record_start()
        except BaseException:  # boundary: after any error the job has not begun, and is released
            await _uncancelled(self._settle(taken, Released(QueuePosition.OWN)))
            raise

    # ── leaving the block ────────────────────────────────────────────────────────────────────────

    def _outcome(self, job: Job, error: BaseException | None) -> Outcome | None:
        """The outcome of the block; None: nothing to store, because the lease is lost."""
        match error:
            case None:
                return Returned()
            case AttemptLost():
                return None
            case AttemptCancelled():
                return Cancelled(RUNNING_CANCELLED)
            case AttemptTimeout():
                fact = AttemptError.bounded(job.attempt, self._now(), "Timeout", str(error))
                return timed_out(job, fact, self._options_of(job))
            case Exception():
                return outcome_of(job, self._now(), error, self._options_of(job))
        return Released()  # the process or task is ending: no attempt is charged

    def _options_of(self, job: Job) -> Options:
        task = self._tasks.get(job.task)
        return Options() if task is None else task.options

    async def _settle(self, taken: Taken, outcome: Outcome | None) -> Settled:
        """Store the outcome, retrying for the time of a lease."""
        give_up, pause = clock.lease_seconds() + self._lease / 1000, 0.05
        while outcome is not None:
            try:
                if taken.has_progress:
                    await taken.send_heartbeat()
                return await self._apply(taken.job, outcome, taken.result)
            except StoreUnavailable:
                if clock.lease_seconds() + pause > give_up:
                    raise
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
        return Settled.STALE

    async def _apply(self, job: Job, outcome: Outcome, result: bytes | None = None) -> Settled:
        move = decided(job, outcome, self._now(), self._keep_dead, store=self._store)
        (answer,) = await self._store.settle([Settlement(job.lease, move, result)])
        if answer is Settled.UNKNOWN:
            raise StoreUnavailable(f"job {job.id}: the part of the store that holds its queue is unreachable")
        if answer is Settled.APPLIED:
            self._on_settled(job, move)
        return answer

    def _now(self) -> int:
        """The store's time: its value at the fetch plus the time since."""
        now, at = self._clock
        return now + int((clock.lease_seconds() - at) * 1000)

    def _limit_of(self, job: Job) -> float | None:
        """The seconds after which the attempt times out; None: never."""
        spans = [] if job.spec.timeout is None else [job.spec.timeout]
        if job.spec.deadline is not None:
            spans.append(max(0, job.spec.deadline - self._now()))
        return min(spans) / 1000 if spans else None


async def _uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Finish `work` even if the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
