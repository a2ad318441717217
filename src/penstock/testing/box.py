"""Runs an app's jobs in the test itself: a store in memory, the real worker, and a clock that obeys."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from penstock.app.app import App
from penstock.app.task import Task
from penstock.client.timeouts import refuse_in_loop
from penstock.core.clock import ManualClock
from penstock.core.duration import Duration, format_ms, instant_ms, milliseconds
from penstock.core.errors import ConfigError
from penstock.core.ids import mint_token
from penstock.core.job import AttemptError, State
from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer
from penstock.stores.contract import QueueInfo, Share, Store
from penstock.testing.asking import Box, EnqueuedJob, assert_enqueued, assert_not_enqueued, enqueued
from penstock.testing.recorder import Recorder, recording
from penstock.worker.worker import Worker

__all__ = ["AttemptFailed", "Inline", "Ran", "StillRunning", "arun_all", "inline", "run_all"]

T = TypeVar("T")

_STARTABLE = (State.AVAILABLE, State.RUNNING)
_WAITING = (State.SCHEDULED, State.RETRYABLE, State.WAITING)
#: A job that snoozes or retries itself for ever must not keep a test busy for ever.
_MOST_STEPS = 10_000
_MOST_JOBS = 1_000_000
#: What a task raises on purpose is no surprise.
_CHOSEN = ("Retry", "Discard")
#: The recorder says when something ended; expiry and cancellation of queued jobs nobody settles (s).
_LOOK = 0.05


class AttemptFailed(AssertionError):
    """An attempt failed while a test ran its jobs; the message has its traceback.

    `errors` are all of them: (job id, task, error).
    """

    def __init__(self, message: str, errors: list[tuple[str, str, AttemptError]]) -> None:
        super().__init__(message)
        self.errors = errors


class StillRunning(AssertionError):
    """The jobs did not end in the real time that a test has for them; the message names them."""


class Ran(msgspec.Struct, frozen=True):
    """What came of a run: attempts by how they ended, and the errors of those that failed."""

    completed: int = 0
    failed: int = 0  # those that run again, and those that are dead
    dead: int = 0
    cancelled: int = 0
    snoozed: int = 0
    parked: int = 0  # nobody here knows their task
    errors: list[tuple[str, str, AttemptError]] = []

    @property
    def attempts(self) -> int:
        """How many attempts there were."""
        return self.completed + self.failed + self.cancelled + self.snoozed


class Inline(Box):
    """An app on a store in memory, inside a `with` block; made by `inline(app)`.

    Nothing runs by itself: `run` runs what is due, `advance` lets time pass and runs what becomes due on
    the way, each at its own instant, `run_all` lets it pass until nothing is left. Each has an async twin
    with an `a` before its name, for tests that have an event loop.
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
        self._before = self.app.swap_store(self._store)
        self._entered = True
        self.enter(self.app)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the app its own store back; leaving the block does it."""
        if self._entered:
            self.app.swap_store(self._before)
            self.leave(self.app)
            self._before, self._entered = None, False

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def run(self) -> Ran:
        """Run every job that is due, and what these enqueue, until nothing is due any more."""
        return self._blocking(self.arun(), "run")

    async def arun(self) -> Ran:
        """The same inside an event loop."""
        return await self._play(self.clock.now())

    def advance(self, duration: Duration) -> Ran:
        """Let this much time pass: delayed jobs and retries run when their time comes, in its order."""
        return self._blocking(self.aadvance(duration), "advance")

    async def aadvance(self, duration: Duration) -> Ran:
        """The same inside an event loop."""
        return await self._play(self.clock.now() + milliseconds(duration))

    def run_all(self) -> Ran:
        """Let time pass until no job is left that could run: delays, retries, snoozes and all."""
        return self._blocking(self.arun_all(), "run_all")

    async def arun_all(self) -> Ran:
        """The same inside an event loop."""
        return await self._play(None)

    @property
    def now(self) -> datetime:
        """The time in this block."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.clock.now())

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    def enqueued(self, task: Task[..., Any] | str | None = None) -> list[EnqueuedJob]:
        """The jobs that were enqueued since the block began or `clear`, of all tasks or of one, in order."""
        return enqueued(self.app, task)

    def assert_enqueued(self, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> EnqueuedJob:
        """As `penstock.testing.assert_enqueued`, of this app."""
        return assert_enqueued(self.app, task, *args, **kwargs)

    def assert_not_enqueued(self, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> None:
        """As `penstock.testing.assert_not_enqueued`, of this app."""
        assert_not_enqueued(self.app, task, *args, **kwargs)

    def clear(self) -> None:
        """Forget what was enqueued so far; the jobs stay."""
        self.recorder.enqueued.clear()

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _blocking(self, work: Coroutine[Any, Any, T], verb: str) -> T:
        try:
            refuse_in_loop(f"box.{verb}()", f"await box.a{verb}()")
        except ConfigError:
            work.close()
            raise
        return asyncio.run(work)

    async def _play(self, until: int | None) -> Ran:
        """Run what is due, move the clock to the next due instant, and so on until `until`."""
        self.recorder.begin()
        self.recorder.running += 1
        try:
            await self._pass_time(until)
        finally:
            self.recorder.running -= 1
        self.app.events.close()  # listeners have heard of everything when this returns
        return self._outcome()

    async def _pass_time(self, until: int | None) -> None:
        periodic = self._periodic(await self._queues())
        lets_recur = until is not None and until > self.clock.now()
        async with _Hand(self.app, self._concurrency) as hand:
            for _ in range(_MOST_STEPS):
                recurs = self.clock.now() + await periodic.tick() * 1_000 if lets_recur else math.inf
                due = await self._store.promote(await self._queues(), limit=_MOST_JOBS)
                if names := await self._busy_queues():
                    await self._quiet(names, hand, await hand.serving(names))
                    continue
                instants = [due.next, await self._opens(await self._queues())]
                soonest = min(recurs, *(instant for instant in instants if instant is not None), math.inf)
                if soonest > (math.inf if until is None else until) or soonest == math.inf:
                    break
                self.clock.advance(max(0, math.ceil(soonest) - self.clock.now()))
            else:
                raise StillRunning(f"{_MOST_STEPS} steps of time were not enough for {await self._left()}")
        if until is not None:
            self.clock.advance(max(0, until - self.clock.now()))

    def _periodic(self, stored: list[str]) -> PeriodicEnqueuer:
        """Enqueues the jobs of periodic entries, as a worker does."""
        return PeriodicEnqueuer(
            self._store,
            list(dict.fromkeys([*self.app.queues(), *stored])),
            self.app.periodic_entries,
            rewrite=self.app.middleware.rewrite,
            on_enqueued=self.recorder.remember,
            look=math.inf,
        )

    async def _quiet(self, names: list[str], hand: _Hand, worker: asyncio.Future[None]) -> None:
        """Until the worker has nothing left that it could start, nor anything that runs."""
        give_up = time.monotonic() + self._patience / 1000
        settled = self.recorder.settled
        while not worker.done() and (hand.calls_back or set(names) & set(await self._busy_queues())):
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

    async def _busy_queues(self) -> list[str]:
        """Those with a job that runs, or could start now."""
        return [
            info.name
            for info in await self._store.queues()
            if info.counts.get(State.RUNNING, 0)
            or (_is_startable(info) and await self._opens([info.name]) is None)
        ]

    async def _opens(self, names: list[str]) -> int | None:
        """When the first of these queues lets go what a rate or a hold keeps back now."""
        look = [Share(name, quota=0, cap=0) for name in names]
        return (await self._store.fetch(look, limit=0, lease=0, worker="inline", token=mint_token())).opens

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


class _Hand:
    """The worker of one run: there when it is needed, and gone when the run is over."""

    def __init__(self, app: App, concurrency: int) -> None:
        self._app = app
        self._concurrency = concurrency
        self._names: set[str] = set()
        self._worker: Worker | None = None
        self._run: asyncio.Future[None] | None = None

    async def serving(self, names: list[str]) -> asyncio.Future[None]:
        """The run of a worker that serves these queues: the one that is there, if it does."""
        if self._run is None or not self._names.issuperset(names):
            await self._end()
            self._names.update(names, self._app.queues())
            self._worker = Worker(
                self._app, sorted(self._names), concurrency=self._concurrency, periodic=False
            )
            self._run = asyncio.ensure_future(self._worker.run())
        return self._run

    @property
    def calls_back(self) -> bool:
        """Whether callbacks are being called: they may enqueue more."""
        return self._worker is not None and self._worker.calls_back

    async def _end(self, *, now: bool = False) -> None:
        if self._worker is not None and self._run is not None:
            self._worker.stop(now=now)
            run, self._run = self._run, None
            await run

    async def __aenter__(self) -> _Hand:
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
    """`with inline(app) as box:` inside, the app's jobs are in memory and run when the test says so.

    `clock`: the time at which the block begins, by default now; it stands still until `advance`. `raises`:
    a failed attempt raises AttemptFailed when the run is over; without it failures take their course, with
    retries and dead jobs. `concurrency`: 1 runs the jobs one after another, in their order. `patience`: real
    time for one run, after which StillRunning says what hangs.
    """
    if isinstance(clock, datetime):
        clock = ManualClock(instant_ms(clock, what="clock"))
    if clock is None:
        clock = ManualClock(time.time_ns() // 1_000_000)
    return Inline(
        app, clock, raises=raises, concurrency=concurrency, patience=milliseconds(patience, what="patience")
    )


def run_all(app: App, *, concurrency: int = 20) -> None:
    """Run an app's jobs here and now, where they are: a worker that ends when nothing is left.

    What is due in more than a second stays. Inside `inline(app)` it is `box.run_all()`, and nothing does.
    """
    refuse_in_loop("run_all(app)", "await arun_all(app)")
    asyncio.run(arun_all(app, concurrency=concurrency))


async def arun_all(app: App, *, concurrency: int = 20) -> None:
    """The same inside an event loop."""
    box = Box.of(app)
    if isinstance(box, Inline):
        await box.arun_all()
        return
    names = list(dict.fromkeys([*app.queues(), *(info.name for info in await app.store.queues())]))
    if names:
        await Worker(app, names, concurrency=concurrency, burst=True).run()


def _is_startable(info: QueueInfo) -> bool:
    return not info.paused and info.counts.get(State.AVAILABLE, 0) > 0


def _describe(errors: list[tuple[str, str, AttemptError]]) -> str:
    id, task, error = errors[0]
    many = "an attempt" if len(errors) == 1 else f"{len(errors)} attempts"
    first = "" if len(errors) == 1 else "; the first"
    return (
        f"{many} failed{first}: {task} (job {id}, attempt {error.attempt}): {error.kind}: {error.message}\n"
        f"{error.traceback}"
        "inline(app, raises=False) lets failures take their course: retries and dead jobs"
    )
