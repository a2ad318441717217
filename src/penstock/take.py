"""Takes one job without a worker: leased while a block runs, settled when it is left."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar, cast

from penstock.attempt import Attempt
from penstock.codec import ANY_RESULT
from penstock.errors import (
    AttemptCancelled,
    AttemptLost,
    AttemptTimeout,
    ConfigError,
    Interrupted,
    Steering,
    StoreError,
    StoreUnavailable,
)
from penstock.ids import mint, mint_token
from penstock.job import DEAD_KEPT, AttemptError, Job, Progress, read_json
from penstock.lifecycle import Cancelled, Outcome, Place, Released, Returned, Unknown, decide
from penstock.options import Options
from penstock.outcome import outcome_of, timed_out
from penstock.store import Beat, Fetched, Grip, Settled, Settlement, Share, Store
from penstock.task import Task
from penstock.upkeep.reclaimer import judge
from penstock.vault import why_closed

__all__ = ["Take", "Taken"]

_log = logging.getLogger("penstock.take")

T = TypeVar("T")
Some = TypeVar("Some", covariant=True)

#: A wait for work is cut into pieces of this (ms), so that leases that others lost are found meanwhile.
_LOOK = 5_000
_AT_ONCE = 100


class Taken(Attempt):
    """A job in hand: the facts of its attempt, its arguments, its lease."""

    __slots__ = ("_by", "_progress", "_store", "_task", "result")

    def __init__(
        self, job: Job, store: Store, by: int, ends: float | None, task: Task[..., Any] | None
    ) -> None:
        super().__init__(job, self._keep_progress, ends)
        self._store = store
        self._by = by
        self._task = task
        self._progress: Progress | None = None
        self.result: bytes | None = None

    @property
    def payload(self) -> bytes:
        """The bytes as they were enqueued."""
        return self.job.spec.payload

    def json(self) -> Any:
        """The payload, read as JSON; raises Undecodable."""
        return read_json(self.payload, self.id)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, typed as the task says. Raises Undecodable, or ConfigError."""
        return self._call()[0]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments, likewise."""
        return self._call()[1]

    def returns(self, value: Any) -> None:
        """Make this the job's result, for `handle.result()`; kept for as long as the job's retention says."""
        codec = ANY_RESULT if self._task is None else self._task.result
        self.result = codec.encode(value) if self.job.spec.retention else None

    async def extend(self) -> None:
        """Prolong the lease now, whatever the heartbeat does; raises AttemptLost if it is gone."""
        if await self.beat() is Grip.LOST:
            raise AttemptLost(_SAID[AttemptLost].format(self.id))

    async def beat(self) -> Grip:
        """One heartbeat: prolong the lease, record the start, pass the progress on."""
        progress, self._progress = self._progress, None
        beat = Beat(self.job.lease, self._by, started=True, progress=progress)
        (grip,) = await self._store.extend([beat])
        if grip is Grip.CANCEL_ASKED:
            self._cancelled = True
        return grip

    def _keep_progress(self, _: Job, progress: Progress) -> None:
        self._progress = progress

    def _call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._task is None:
            raise ConfigError(f"this app has no task {self.task!r}: read .payload or .json() instead")
        return self._task.args.decode(self.payload)


class Take(AbstractAsyncContextManager[Some]):
    """`async with app.take("mail") as job:`; docs/enqueueing.md says what leaving the block means."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, Task[..., Any]],
        queue: str,
        lease: int,
        wait: int | None,
        keep_dead: int = DEAD_KEPT,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._queue = queue
        self._lease = lease
        self._wait = wait
        self._keep_dead = keep_dead
        self._worker = mint()
        self._clock = (0, 0.0)  # the store's now, and our monotonic clock when it said so
        self._taken: Taken | None = None
        self._guard: _Guard | None = None

    async def __aenter__(self) -> Some:
        job = await self._next()
        if job is not None:
            task = self._tasks.get(job.task)
            self._taken = Taken(job, self._store, self._lease, self._end_of(job), task)
            await self._record_start(self._taken)
            self._guard = _Guard(self._taken, self._lease / 3000)
        # None comes out only where a `wait` went in, which is what the overloads of App.take say
        return cast(Some, self._taken)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._taken is None or self._guard is None:
            return False
        interrupt = self._guard.stop(error)
        if interrupt is not None:
            error = interrupt
        answer = await _to_the_end(self._settle(self._taken, self._outcome(self._taken.job, error)))
        if interrupt is not None:
            raise interrupt
        if answer is not Settled.APPLIED:
            _log.warning("job %s (%s): its late outcome changed nothing", self._taken.id, self._taken.task)
            if error is None:
                raise AttemptLost(_SAID[AttemptLost].format(self._taken.id))
        return isinstance(error, Steering)

    # ── finding a job ────────────────────────────────────────────────────────────────────────────

    async def _next(self) -> Job | None:
        """The next job. Nobody else may be there to promote and reclaim, so that is done here too."""
        ends = float("inf") if self._wait is None else time.monotonic() + self._wait / 1000
        while True:
            await self._store.promote([self._queue], limit=_AT_ONCE)
            fetched = await self._fetch()
            for job in fetched.jobs:
                why = why_closed(self._store)(job)
                if why is not None:
                    _log.warning(
                        "job %s: what it carries cannot be read here (%s); it is parked", job.id, why
                    )
                    await self._apply(job, Unknown(f"cannot be read here: {why}"))
                elif not job.cancel_asked:
                    await self._its_time(job, fetched.now)
                    return job
                else:
                    await self._apply(job, Cancelled())
            if fetched.jobs or await self._reclaimed():
                continue
            left = ends - time.monotonic()
            if left <= 0:
                return None
            instants = [instant for instant in (fetched.due, fetched.opens) if instant is not None]
            until_due = max(1, min(instants) - fetched.now) if instants else _LOOK
            await self._store.wait([self._queue], timeout=int(min(left * 1000 + 1, _LOOK, until_due)))

    async def _its_time(self, job: Job, now: int) -> None:
        """A job of a queue with a rate may have to wait for its instant, some milliseconds."""
        if job.fetched_at is None or job.fetched_at <= now:
            return
        begins = time.monotonic() + (job.fetched_at - now) / 1000
        try:
            await asyncio.sleep(begins - time.monotonic() + 0.001)  # a timer may be early by its resolution
        except asyncio.CancelledError:
            await _to_the_end(self._apply(job, Released(Place.OWN)))
            raise

    async def _fetch(self) -> Fetched:
        """Lease one job; who is cancelled meanwhile gives it back rather than let its lease run out."""
        self._clock = (0, time.monotonic())
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
                    await self._apply(job, Released(Place.OWN))
            raise
        self._clock = (fetched.now, self._clock[1])
        return fetched

    async def _reclaimed(self) -> bool:
        found = await self._store.reclaim(
            [self._queue], limit=_AT_ONCE, lease=self._lease, worker=self._worker, token=mint_token()
        )
        cause = "its holder did not renew the lease"
        await judge(self._store, found, "LeaseLost", cause, keep_dead=self._keep_dead)
        return bool(found.jobs)

    async def _record_start(self, taken: Taken) -> None:
        """Before a last attempt, and an at-most-once one, the store must know that it begins."""
        spec = taken.job.spec
        if not spec.at_most_once and taken.attempt < spec.max_attempts:
            return
        try:
            await taken.extend()
        except BaseException:  # boundary: whatever it was, the job has not begun, and says so
            await _to_the_end(self._settle(taken, Released(Place.OWN)))
            raise

    # ── leaving the block ────────────────────────────────────────────────────────────────────────

    def _outcome(self, job: Job, error: BaseException | None) -> Outcome | None:
        """How the block ended; None: there is nothing to say, for the lease is gone."""
        match error:
            case None:
                return Returned()
            case AttemptLost():
                return None
            case AttemptCancelled():
                return Cancelled("cancelled while running")
            case AttemptTimeout():
                fact = AttemptError.bounded(job.attempt, self._now(), "Timeout", str(error))
                return timed_out(job, fact, self._options_of(job))
            case Exception():
                return outcome_of(job, self._now(), error, self._options_of(job))
        return Released()  # this process or asyncio task is to end: the job is not to blame

    def _options_of(self, job: Job) -> Options:
        task = self._tasks.get(job.task)
        return Options() if task is None else task.options

    async def _settle(self, taken: Taken, outcome: Outcome | None) -> Settled:
        """Put the outcome into the store, trying for as long as the lease surely holds."""
        give_up, pause = time.monotonic() + self._lease / 1000, 0.05
        while outcome is not None:
            try:
                return await self._apply(taken.job, outcome, taken.result)
            except StoreUnavailable:
                if time.monotonic() + pause > give_up:
                    raise
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
        return Settled.STALE

    async def _apply(self, job: Job, outcome: Outcome, result: bytes | None = None) -> Settled:
        move = decide(job, outcome, self._now(), random.random(), keep_dead=self._keep_dead)  # noqa: S311 (jitter, no secret)
        (answer,) = await self._store.settle([Settlement(job.lease, move, result)])
        return answer

    def _now(self) -> int:
        """The store's clock, reckoned from what it said at the fetch."""
        now, at = self._clock
        return now + int((time.monotonic() - at) * 1000)

    def _end_of(self, job: Job) -> float | None:
        """The monotonic instant at which the block's time is over."""
        spans = [] if job.spec.timeout is None else [job.spec.timeout]
        if job.spec.deadline is not None:
            spans.append(max(0, job.spec.deadline - self._now()))
        return time.monotonic() + min(spans) / 1000 if spans else None


class _Guard:
    """Watches over a block: its heartbeat, its time, and whether it should go on at all.

    A block that must stop is cancelled, and the cancellation is turned into the reason when it arrives.
    """

    def __init__(self, taken: Taken, every: float) -> None:
        self._taken = taken
        self._every = every
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        self._cancelled_before = owner.cancelling()
        self._why: type[Interrupted] | None = None
        self._beating = asyncio.create_task(self._beat(), name="penstock-take")
        left = taken.remaining()
        self._alarm = (
            None
            if left is None
            else asyncio.get_running_loop().call_later(left, self._interrupt, AttemptTimeout)
        )

    def stop(self, error: BaseException | None) -> Interrupted | None:
        """End the watch. If this error is our own cancellation, what it means."""
        self._beating.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._why is None or self._owner.uncancel() > self._cancelled_before:
            return None
        return self._why(_SAID[self._why].format(self._taken.id)) if _is_cancel(error) else None

    async def _beat(self) -> None:
        while self._why is None:
            try:
                grip = await self._taken.beat()
            except StoreError as error:  # the lease is ours until somebody reclaims it
                _log.warning("the heartbeat of job %s found no store: %s", self._taken.id, error)
                grip = Grip.HELD
            if grip is not Grip.HELD:
                self._interrupt(AttemptLost if grip is Grip.LOST else AttemptCancelled)
            await asyncio.sleep(self._every)

    def _interrupt(self, why: type[Interrupted]) -> None:
        if self._why is None:
            self._why = why
            self._owner.cancel()


_SAID: dict[type[Interrupted], str] = {
    AttemptLost: "the lease of job {} is gone: nothing that this block does still counts",
    AttemptCancelled: "job {} was cancelled while it ran",
    AttemptTimeout: "the time of this attempt of job {} is over",
}


def _is_cancel(error: BaseException | None) -> bool:
    return isinstance(error, asyncio.CancelledError)


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Finish this, also when we are cancelled meanwhile; the cancellation goes on afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
