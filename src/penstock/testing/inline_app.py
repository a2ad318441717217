"""Runs an app's jobs inside a test: with a memory store, the real worker, and a manual clock."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from penstock.app.app import App
from penstock.app.task import Task
from penstock.client.timeouts import refuse_in_loop
from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigError
from penstock.core.formats import Duration, format_ms, instant_ms, milliseconds
from penstock.core.job import AttemptError, State
from penstock.core.portable import PortableError
from penstock.inspector.bulk_acts import BulkActs, BulkState
from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer
from penstock.stores.contract import QueueInfo, Store
from penstock.stores.worker_commands import BULK_ACTS
from penstock.testing.assertions import Box, EnqueuedJob, assert_enqueued, assert_not_enqueued, enqueued
from penstock.testing.recorder import Recorder, recording
from penstock.worker.worker import Worker

T = TypeVar("T")

_STARTABLE = (State.AVAILABLE, State.RUNNING)
_WAITING = (State.SCHEDULED, State.RETRYABLE, State.WAITING)
#: Limit of clock steps per run, so that a job which retries or snoozes without end does not hang a test.
_MAX_STEPS = 10_000
_MOST_JOBS = 1_000_000
#: Errors that a task raises on purpose; they do not fail the test.
_CHOSEN = ("Retry", "Discard")
#: Poll interval for ends without a settlement, i.e. expiry and cancellation of queued jobs (s).
_LOOK = 0.05


class AttemptFailed(PortableError, AssertionError):
    """An attempt failed while a test ran its jobs; the message includes the traceback.

    `errors` lists all failures: (job id, task, error).
    """

    def __init__(self, message: str, errors: list[tuple[str, str, AttemptError]]) -> None:
        super().__init__(message)
        self.errors = errors


class StillRunning(AssertionError):
    """The jobs did not end within `patience`, or within the limit of clock steps; the message names them."""


class Ran(msgspec.Struct, frozen=True):
    """The result of a run: attempts by how they ended, and the errors of the failed ones."""

    completed: int = 0
    failed: int = 0  # failed attempts, followed by a retry or not
    dead: int = 0
    cancelled: int = 0
    snoozed: int = 0
    parked: int = 0  # the app does not have their task
    errors: list[tuple[str, str, AttemptError]] = []

    @property
    def attempts(self) -> int:
        """The number of attempts."""
        return self.completed + self.failed + self.cancelled + self.snoozed


class Inline(Box):
    """An app on a memory store, inside a `with` block. Made by `inline(app)`.

    Jobs run only on request. `run` runs the due jobs. `advance` moves the clock and runs each job at its due
    instant. `run_all` moves the clock until no job is left. Each method has an async version with the prefix
    `a`, for tests with an event loop.
    """

    def __init__(
        self, app: App, clock: ManualClock, *, raises: bool, concurrency: int, patience: int
    ) -> None:
        self.app = app
        self.clock = clock
        self.recorder = Recorder()
        self._store = recording(self.recorder, clock)
        self._raises = raises
        self._concurrency = concurrency
        self._patience = patience
        self._before: Store | None = None
        self._entered = False

    # ── the block ────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Inline:
        self.app.import_tasks()
        for queue, limits in (self.app.queue_defaults or {}).items():
            self._store.sync.settings(queue, limits=limits)
        self._before = self.app.swap_store(self._store)
        self._entered = True
        self.enter(self.app)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Restore the app's own store. Leaving the block calls this."""
        if self._entered:
            self.app.swap_store(self._before)
            self.leave(self.app)
            self._before, self._entered = None, False

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def run(self) -> Ran:
        """Run every due job, and the jobs that these enqueue, until no job is due."""
        return self._blocking(self.arun(), "run")

    async def arun(self) -> Ran:
        """Async version of `run`."""
        return await self._run_until(self.clock.now())

    def advance(self, duration: Duration) -> Ran:
        """Move the clock by this duration. Delayed jobs, retries and periodic jobs run when they are due."""
        return self._blocking(self.aadvance(duration), "advance")

    async def aadvance(self, duration: Duration) -> Ran:
        """Async version of `advance`."""
        return await self._run_until(self.clock.now() + milliseconds(duration))

    def run_all(self) -> Ran:
        """Move the clock until no job is left that could run, including delays, retries and snoozes."""
        return self._blocking(self.arun_all(), "run_all")

    async def arun_all(self) -> Ran:
        """Async version of `run_all`."""
        return await self._run_until(None)

    @property
    def now(self) -> datetime:
        """The current time of the block's clock."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.clock.now())

    # ── assertions ───────────────────────────────────────────────────────────────────────────────

    def enqueued(self, task: Task[..., Any] | str | None = None) -> list[EnqueuedJob]:
        """The jobs enqueued since the block began or since `clear`, in order: all, or those of one task."""
        return enqueued(self.app, task)

    def assert_enqueued(self, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> EnqueuedJob:
        """`penstock.testing.assert_enqueued` for this app."""
        return assert_enqueued(self.app, task, *args, **kwargs)

    def assert_not_enqueued(self, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> None:
        """`penstock.testing.assert_not_enqueued` for this app."""
        assert_not_enqueued(self.app, task, *args, **kwargs)

    def clear(self) -> None:
        """Empty the list of enqueued jobs; the jobs stay in the store."""
        self.recorder.enqueued.clear()

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _blocking(self, work: Coroutine[Any, Any, T], verb: str) -> T:
        try:
            refuse_in_loop(f"box.{verb}()", f"await box.a{verb}()")
        except ConfigError:
            work.close()
            raise
        return asyncio.run(work)

    async def _run_until(self, until: int | None) -> Ran:
        """Run the due jobs, move the clock to the next due instant, and repeat up to `until`."""
        self.recorder.begin()
        self.recorder.running += 1
        try:
            await self._pass_time(until)
        finally:
            self.recorder.running -= 1
        self.app.events.close()  # deliver all events before this returns
        return self._outcome()

    async def _pass_time(self, until: int | None) -> None:
        periodic = self._periodic(await self._queues())
        lets_recur = until is not None and until > self.clock.now()
        async with _InlineWorker(self.app, self._concurrency, self.clock) as worker:
            for _ in range(_MAX_STEPS):
                await self._bulk_acts()
                recurs = self.clock.now() + await periodic.tick() * 1_000 if lets_recur else math.inf
                due = await self._store.promote(await self._queues(), limit=_MOST_JOBS)
                infos = await self._store.queues()
                if names := _busy(infos):
                    await self._until_idle(names, worker, await worker.serving(names))
                    continue
                instants = [due.next, *(info.opens_at for info in infos if _is_startable(info))]
                soonest = min(recurs, *(instant for instant in instants if instant is not None), math.inf)
                if soonest > (math.inf if until is None else until) or soonest == math.inf:
                    break
                self.clock.advance(max(0, math.ceil(soonest) - self.clock.now()))
            else:
                raise StillRunning(f"{_MAX_STEPS} steps of time were not enough for {await self._left()}")
        if until is not None:
            self.clock.advance(max(0, until - self.clock.now()))

    async def _bulk_acts(self) -> None:
        """Run the bulk acts that were started, to their ends."""
        if await self._store.document_versions([BULK_ACTS]) == [0]:
            return
        acts, give_up = BulkActs(self._store), time.monotonic() + self._patience / 1000
        while True:
            act, free_in = await acts.next_free()
            if act is None and free_in is None:
                return
            if act is not None:
                while (stepped := await acts.step(act.id, "inline")) is not None:
                    if stepped.state is not BulkState.RUNNING:
                        break
            elif time.monotonic() > give_up:  # another process of the test holds it
                raise StillRunning(f"after {format_ms(self._patience)} of real time a bulk act has not ended")
            else:  # the worker runs it
                await asyncio.sleep(_LOOK)

    def _periodic(self, stored: list[str]) -> PeriodicEnqueuer:
        """The service that enqueues the jobs of periodic entries, as in a worker."""
        return PeriodicEnqueuer(
            self._store,
            list(dict.fromkeys([*self.app.queues(), *stored])),
            self.app.periodic_entries,
            rewrite=self.app.middleware.rewrite,
            on_enqueued=self.recorder.remember,
            look=math.inf,
        )

    async def _until_idle(self, names: list[str], worker: _InlineWorker, run: asyncio.Future[None]) -> None:
        """Wait until the worker runs no job and has no job to start."""
        give_up = time.monotonic() + self._patience / 1000
        settled = self.recorder.settled
        while not run.done() and (worker.calls_back or set(names) & set(_busy(await self._store.queues()))):
            if time.monotonic() > give_up:
                raise StillRunning(
                    f"after {format_ms(self._patience)} of real time there are still {await self._left()}; "
                    "inline(app, patience=…) waits longer"
                )
            settled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await settled.wait()

    async def _queues(self) -> list[str]:
        return [info.name for info in await self._store.queues()]

    async def _left(self) -> str:
        jobs = [
            job
            for state in (*_STARTABLE, *_WAITING)
            for job in (await self._store.list_jobs(state=state, limit=5)).jobs
        ]
        return ", ".join(f"{job.task} {job.id} ({job.state.value}, attempt {job.attempt})" for job in jobs)

    def _outcome(self) -> Ran:
        ends, errors = self.recorder.ends, self.recorder.errors
        surprises = [error for error in errors if error[2].kind not in _CHOSEN]
        if surprises and self._raises:
            raise AttemptFailed(_describe(surprises), surprises)
        return Ran(
            completed=ends[State.COMPLETED],
            failed=len(errors),
            dead=ends[State.DEAD],
            cancelled=ends[State.CANCELLED],
            snoozed=ends[State.SCHEDULED],
            parked=ends[State.PARKED],
            errors=errors,
        )


class _InlineWorker:
    """The worker of one run. It starts on demand and stops at the end of the run."""

    def __init__(self, app: App, concurrency: int, clock: ManualClock) -> None:
        self._app = app
        self._concurrency = concurrency
        self._clock = clock
        self._names: set[str] = set()
        self._worker: Worker | None = None
        self._run: asyncio.Future[None] | None = None

    async def serving(self, names: list[str]) -> asyncio.Future[None]:
        """Start a worker for these queues, unless the present one serves them. Returns its run."""
        if self._run is None or not self._names.issuperset(names):
            await self._end()
            self._names.update(names, self._app.queues())
            self._worker = Worker(
                self._app,
                sorted(self._names),
                concurrency=self._concurrency,
                periodic=False,
                store_clock=self._clock,
            )
            self._run = asyncio.ensure_future(self._worker.run())
        return self._run

    @property
    def calls_back(self) -> bool:
        """Whether callbacks are running; they may enqueue more jobs."""
        return self._worker is not None and self._worker.calls_back

    async def _end(self, *, now: bool = False) -> None:
        if self._worker is not None and self._run is not None:
            self._worker.stop(now=now)
            run, self._run = self._run, None
            await run

    async def __aenter__(self) -> _InlineWorker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(now=error is not None)


def inline(
    app: App,
    *,
    clock: ManualClock | datetime | None = None,
    raises: bool = True,
    concurrency: int = 1,
    patience: Duration = "60s",
) -> Inline:
    """Run an app's jobs in memory, on request, inside `with inline(app) as box:`.

    - `clock`: the time at which the block begins (default: now). The clock stands still until `advance`.
    - `raises`: a failed attempt raises AttemptFailed at the end of the run (default). With False, failures
      lead to retries and dead jobs as in production.
    - `concurrency`: number of slots. 1 (default) runs the jobs one after another, in order.
    - `patience`: limit of real time for one run (default 60s); then StillRunning names the unfinished jobs.
    """
    if isinstance(clock, datetime):
        clock = ManualClock(instant_ms(clock, what="clock"))
    if clock is None:
        clock = ManualClock(time.time_ns() // 1_000_000)
    return Inline(
        app, clock, raises=raises, concurrency=concurrency, patience=milliseconds(patience, what="patience")
    )


def run_all(app: App, *, concurrency: int = 20) -> None:
    """Run the jobs of an app's own store with a worker that ends when no job is left.

    A job that is due in more than a second is not run. Inside `inline(app)` this is `box.run_all()`, which
    also runs those jobs.
    """
    refuse_in_loop("run_all(app)", "await arun_all(app)")
    asyncio.run(arun_all(app, concurrency=concurrency))


async def arun_all(app: App, *, concurrency: int = 20) -> None:
    """Async version of `run_all`."""
    box = Box.of(app)
    if isinstance(box, Inline):
        await box.arun_all()
        return
    app.import_tasks()
    names = list(dict.fromkeys([*app.queues(), *(info.name for info in await app.store.queues())]))
    if names:
        await Worker(app, names, concurrency=concurrency, burst=True).run()


def _busy(infos: Iterable[QueueInfo]) -> list[str]:
    """The queues with a job that runs or could start now."""
    return [
        info.name
        for info in infos
        if info.counts.get(State.RUNNING, 0) or (_is_startable(info) and info.opens_at is None)
    ]


def _is_startable(info: QueueInfo) -> bool:
    return not info.paused and info.counts.get(State.AVAILABLE, 0) > 0


def _describe(errors: list[tuple[str, str, AttemptError]]) -> str:
    id, task, error = errors[0]
    many = "an attempt" if len(errors) == 1 else f"{len(errors)} attempts"
    first = "" if len(errors) == 1 else "; the first"
    return (
        f"{many} failed{first}: {task} (job {id}, attempt {error.attempt}): {error.kind}: {error.message}\n"
        f"{error.traceback}"
        "with inline(app, raises=False) failures lead to retries and dead jobs instead"
    )
