"""Runs attempts: each in the executor that its task asks for, each watched by one clock for all.

A leased job waits in `_buffer` until it has a slot, then becomes an asyncio task (async), a call in
the thread pool, or a request to a child process; however it ends, `_ended` says so to the settler.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from typing import Any

from penstock.app.app import App
from penstock.app.attempt import Attempt, running
from penstock.app.outcome import unjudged
from penstock.client.middleware import wrap
from penstock.client.options import Options
from penstock.config import Config
from penstock.core import clock
from penstock.core.errors import AttemptCancelled, AttemptLost, AttemptTimeout, Interrupted, StoreError
from penstock.core.events import LateResultRefused
from penstock.core.job import DEAD_KEPT, AttemptError, Job
from penstock.core.lifecycle import (
    ASK_CANCELLED,
    CANNOT_BE_READ,
    Place,
    Transition,
    decide,
    starts_on_record,
    too_late,
)
from penstock.core.outcomes import Cancelled, LeaseLost, Outcome, Raised, Released, Returned, Unknown
from penstock.stores.contract import Beat, Grip
from penstock.stores.encrypted import why_closed
from penstock.worker.executor.attempt_start import NotBegun, Starter, ThreadCall
from penstock.worker.executor.process_backlog import Aside
from penstock.worker.leased_jobs import Hold, Holdings
from penstock.worker.outcomes import out_of_time, raised
from penstock.worker.plan import Plan, Plans
from penstock.worker.pools import (
    ChildBroken,
    ChildDied,
    ChildFailed,
    Done,
    NoChild,
    ProcessPool,
    ThreadPool,
)
from penstock.worker.unknown_tasks import Strangers

__all__ = ["Executor"]

_log = logging.getLogger("penstock.worker")
_RETURNED = Returned()
#: A runner whose jobs never wait gives the event loop its turn after this long (s).
_TURN = 0.005
#: Calls that may lie ready for each thread while calls are as short as this (s): a turn of the loop for
#: every twenty cost 5 of 18 us per job. Where nothing has ended for so long (s), they come back.
_STACK, _SHORT, _STUCK = 6, 0.0002, 0.02
#: What is raised into an attempt has so long to take effect, besides its grace (s): see GIVES_UP_AFTER.
_STUBBORN = 1.0

#: Where ends go: the hold, what follows from its outcome, and its encoded result.
Settle = Callable[[Hold, Transition, bytes | None], None]

_NO_PLAN = Plan("?", lambda: None, "async", lambda _: ((), {}), None, (), Options(), ("", ""))


class Executor:
    """Starts what it is given, as slots allow, and reports each end exactly once."""

    def __init__(
        self,
        app: App,
        holdings: Holdings,
        *,
        concurrency: int,
        process_slots: int,
        settle: Settle,
        record_start: Callable[[Beat], Awaitable[Grip]],
        lease: int,
        slot_wait: float,
        thread_grace: float,
        config: Config | None = None,
        keep_dead: int = DEAD_KEPT,
        queue_slots: Mapping[str, int] | None = None,
        max_jobs_per_child: int = 0,
        max_memory_per_child: int = 0,
    ) -> None:
        self._app = app
        self._plans = Plans(app)
        self._holdings = holdings
        self._starter = Starter(app.events, holdings, lease / 1000)
        self._concurrency = concurrency
        self._settle = settle
        self._record_start = record_start
        self._lease = lease
        self._slot_wait = slot_wait
        self._thread_grace = thread_grace
        self._config = config
        self._keep_dead = keep_dead
        self._buffer: deque[Hold] = deque()
        self._later: set[Hold] = set()  # they begin in a few ms, and have their slots already
        self._running: set[Hold] = set()
        self._stopping = self._closed = False
        self._threads: ThreadPool | None = None
        self._processes: ProcessPool | None = None
        self._process_slots = process_slots
        self._process_busy = 0
        #: Set whenever a slot has become free.
        self.freed = asyncio.Event()
        #: Attempts started so far, and the seconds that ended ones took: the fetcher's measure.
        self.starts = 0
        self.busy_seconds = 0.0
        self.ends = 0
        #: Process tasks that wait for a process slot.
        self.aside = Aside()
        self._aside = self.aside.holds
        self._queue_slots = queue_slots or {}
        self._max_jobs, self._max_memory = max_jobs_per_child, max_memory_per_child
        #: Jobs of tasks that are unknown here.
        self.strangers = Strangers(app.events)
        self._why_closed = why_closed(app.store)
        #: Slots given up because their thread hangs.
        self.lost_slots = 0
        self.on_slot_lost: Callable[[], None] = lambda: None
        self._ready: deque[Hold] = deque()  # started, on their way to a runner
        self._runners: set[asyncio.Task[None]] = set()
        self._resting: list[asyncio.Future[None]] = []
        self._ended_at = self._turned_at = 0.0
        self._stack = 0  # calls that may lie ready for threads that are busy yet
        self._elsewhere = 0  # attempts with a slot that are no plain calls in threads
        self._turning = False
        #: Set whenever an attempt has started; who waits for it clears it.
        self.started_some = asyncio.Event()

    # ── room ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def free(self) -> int:
        """Slots without an attempt."""
        return max(0, self._room() - len(self._later))

    @property
    def buffered(self) -> int:
        """Jobs without a slot."""
        return len(self._buffer) + max(0, -self._room())

    @property
    def running(self) -> int:
        return len(self._running) - max(0, -self._room())

    def _room(self) -> int:
        """Free slots; less than none where calls lie ready for their thread."""
        return self._concurrency - self.lost_slots - len(self._running)

    def _process_room(self) -> int:
        """Free process slots; none while the system has no room for a child."""
        short = self._processes is not None and self._processes.short
        return 0 if short else self._process_slots - self._process_busy

    @property
    def waiting(self) -> bool:
        """Whether leased jobs wait for a slot."""
        return self.buffered > 0 or len(self.aside) > 0

    def caps(self) -> dict[str, int]:
        """How many jobs to fetch at most from queues with process tasks at their head."""
        return self.aside.caps(self._process_room(), time.monotonic())

    def nothing_behind(self, queues: Iterable[str]) -> None:
        """A fetch from these queues brought nothing: no need to hold what stands aside there."""
        if self.aside:
            self._put_back(self.aside.nothing_behind(queues, time.monotonic()))

    # ── in ───────────────────────────────────────────────────────────────────────────────────────

    def accept(self, jobs: Sequence[Job], fetched: float, now: int) -> None:
        """Take leased jobs on. `fetched`: `clock.lease_seconds()` before the fetch was sent."""
        holds: list[Hold] = []
        for job in jobs:
            plan = self._plans.of(job)
            hold = Hold(job, plan or _NO_PLAN, fetched, now)
            if job.fetched_at is not None and job.fetched_at > now:
                # reckoned from now on, when the store's clock says at least that
                hold.starts = time.monotonic() + (job.fetched_at - now) / 1000
            holds.append(hold)
        self._holdings.add(holds, fetched + self._lease / 1000)
        arrived = time.monotonic()
        for hold in holds:
            hold.arrived = arrived
            if hold.plan is _NO_PLAN:
                self._refuse(hold, Unknown())
                self.strangers.tell(hold.job)
            elif (hold.job.spec.payload[2:3] == b"$" or hold.job.members) and self._is_closed(hold):
                pass
            elif hold.job.cancel_asked:
                self._refuse(hold, Cancelled("cancelled while running"))
            elif self._stopping:
                self._refuse(hold, Released())
            elif hold.starts:
                self._later.add(hold)
                self._await_start(hold)
            else:
                self._buffer.append(hold)
                if self._aside and hold.plan.run_in != "process":
                    self.aside.passed(hold.job.spec.queue)

    def _is_closed(self, hold: Hold) -> bool:
        """Whether what it carries cannot be read here: then somebody else shall have it."""
        why = self._why_closed(hold.job)
        if why is None:
            return False
        self._refuse(hold, Unknown(CANNOT_BE_READ + why))
        self.strangers.tell_closed(hold.job, why)
        return True

    def _await_start(self, hold: Hold) -> None:
        """Timers may be early by their resolution; a start must not."""
        left = hold.starts - time.monotonic()
        if left > 0:
            asyncio.get_running_loop().call_later(max(0.001, left), self._await_start, hold)
        elif hold in self._later:
            self._later.discard(hold)
            hold.arrived = time.monotonic()
            self._buffer.appendleft(hold)
            self.start_ready()

    def start_ready(self) -> None:
        """Start leased jobs while there are slots."""
        buffer = self._buffer
        if self._aside:
            self._start_aside()
        if buffer and clock.lease_seconds() - buffer[0].fetched > self._lease / 1000:
            self._give_back_overdue()
        if not buffer:
            return
        room, stack = self._room() - len(self._later), self._stack
        while buffer and (room > 0 or (room > -stack and self._may_stack(buffer[0]))):
            hold = buffer.popleft()
            if hold.plan.run_in == "process" and self._process_room() <= 0:
                if not self.aside.put(hold, time.monotonic()):
                    self._refuse(hold, Released(Place.OWN))
                continue
            if self._start(hold):
                room -= 1

    def _start_aside(self) -> None:
        """Start process tasks that stood aside, while there are process slots. They came first."""
        aside, room = self.aside, self._room() - len(self._later)
        while aside and room > 0 and self._process_room() > 0:
            hold = aside.take(self._holdings.per_queue, self._queue_slots)
            if hold is None:
                return
            if clock.lease_seconds() - hold.fetched > self._lease / 1000:
                self._refuse(hold, Released(Place.OWN))
            elif self._start(hold):
                room -= 1

    def _put_back(self, holds: Sequence[Hold]) -> None:
        for hold in holds:
            self._refuse(hold, Released(Place.OWN))
        if holds:
            self.freed.set()  # another look is due soon

    def _give_back_overdue(self) -> None:
        """We stood still for longer than a lease: others may have these, and have run them, by now."""
        overdue = clock.lease_seconds() - self._lease / 1000
        while self._buffer and self._buffer[0].fetched < overdue:
            self._refuse(self._buffer.popleft(), Released(Place.OWN))

    def _start(self, hold: Hold) -> bool:
        job = hold.job
        if hold.interrupt is not None:  # a heartbeat brought news of it while it waited here
            self._never_mind(hold)
            return False
        if job.expires_at is not None or job.spec.deadline is not None:
            late = too_late(job, hold.store_now())
            if late is not None:
                self._refuse(hold, late)
                return False
        self._running.add(hold)
        if hold.plan.run_in == "process":
            hold.counted = True
            self._process_busy += 1
        self.starts += 1
        self.started_some.set()
        on_record = starts_on_record(job)
        if on_record or not hold.plan.in_thread:
            hold.elsewhere = True
            self._elsewhere += 1
        if on_record:
            hold.handle = asyncio.create_task(self._start_on_record(hold))
        else:
            self._launch(hold)
        return True

    def _may_stack(self, hold: Hold) -> bool:
        """Whether it would lie behind other calls: else it would find an idle thread, and be one too many."""
        plain = hold.plan.in_thread and not starts_on_record(hold.job)
        return plain and not self._elsewhere and not self.lost_slots

    def _never_mind(self, hold: Hold) -> None:
        """It was cancelled, or lost to another worker, before it could start."""
        if hold.interrupt is AttemptCancelled:
            self._refuse(hold, Cancelled(ASK_CANCELLED))
        else:
            hold.over = True
            self._holdings.ended(hold)
            self._holdings.remove(hold)

    async def _start_on_record(self, hold: Hold) -> None:
        """A last attempt, and any at-most-once one: its start is in the store before it begins."""
        try:
            grip = await self._record_start(Beat(hold.job.lease, self._lease, started=True, lasting=True))
        except (asyncio.CancelledError, StoreError) as error:
            if not hold.over:
                self._leave(hold)
                cancelled = hold.interrupt is AttemptCancelled
                self._report(hold, Cancelled(ASK_CANCELLED) if cancelled else Released(), None)
            if isinstance(error, StoreError):
                _log.warning("job %s: its start could not be recorded, it goes back: %s", hold.job.id, error)
            return
        hold.handle = None
        if grip is Grip.LOST:
            self._leave(hold)
            self._lost(hold)
        elif grip is Grip.CANCEL_ASKED:
            self._leave(hold)
            self._report(hold, Cancelled(ASK_CANCELLED), None)
        elif late := too_late(hold.job, hold.store_now()):  # the store took its time
            self._leave(hold)
            self._report(hold, late, None)
        else:
            self._launch(hold)
        self.start_ready()

    def _launch(self, hold: Hold) -> None:
        plan = hold.plan
        if plan.in_thread:
            # without middleware it needs neither an asyncio task nor a future
            self.threads.submit(hold, ThreadCall(self._starter, hold))
            return
        self._ready.append(hold)
        if self._resting:
            self._resting.pop().set_result(None)
        elif len(self._runners) < self._concurrency:
            self._add_runner()

    # ── the attempt ──────────────────────────────────────────────────────────────────────────────
    #
    # A runner is an asyncio task that serves one attempt after the other. A task for each would cost
    # 3 µs more per job, and one turn of the event loop; a job of its own context costs 0.4 µs.

    def _add_runner(self) -> None:
        runner = asyncio.get_running_loop().create_task(self._run_attempts(), name="penstock-runner")
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)

    async def _run_attempts(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        loop = asyncio.get_running_loop()
        ready = self._ready
        while True:
            while ready:
                hold = ready.popleft()
                if hold.over:  # given back before it came to its turn
                    continue
                if hold.interrupt is not None:
                    self._ended(hold, hold.interrupt())
                    continue
                hold.handle = me
                await self._attempt(hold)
                hold.handle = None
                if me.cancelling():
                    await _absorb_cancellation(me)
                if self._ended_at - self._turned_at > _TURN:
                    self._await_turn(loop)
                    await asyncio.sleep(0)
            if self._closed:  # its attempt took the cancellation that was meant for the runner
                return
            rest = loop.create_future()
            self._resting.append(rest)
            await rest

    def _await_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note when all others have had their turn. Until then each runner yields after one job: if each took
        its 5 ms, twenty of them would keep the fetcher from sending for the next jobs for 100 ms."""
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turned)

    def _turned(self) -> None:
        self._turning, self._turned_at = False, time.monotonic()

    async def _attempt(self, hold: Hold) -> None:
        plan = hold.plan
        try:
            attempt = self._starter.begin(hold)
            running.set(attempt)
            if plan.run_in == "async":
                value = await self._run_async(hold, plan)
            else:
                value = await self._run_elsewhere(hold, plan, attempt)
            result = None if plan.encode is None else self._encoded(plan, value)
        except BaseException as error:  # noqa: BLE001  # boundary: whatever user code raises is its outcome
            self._ended(hold, error)
        else:
            self._ended(hold, None, result)

    async def _run_async(self, hold: Hold, plan: Plan) -> Any:
        args, kwargs = plan.decode(hold.job)
        context = copy_context()  # what a job sets there, the next one does not see
        if not plan.around:
            coroutine = context.run(plan.function, *args, **kwargs)
            try:
                awaited = context.run(coroutine.send, None)
            except StopIteration as end:  # it never waited, and most of the rest was in vain: 0.4 us
                return end.value
            return await _rest_in_context(context, coroutine, awaited)
        call = wrap(plan.around, hold.job, lambda: plan.function(*args, **kwargs))
        return await _in_context(context, context.run(_awaited, call))

    async def _run_elsewhere(self, hold: Hold, plan: Plan, attempt: Attempt) -> Any:
        async def call() -> Any:
            if plan.run_in == "process":
                return await self._run_in_process(hold, plan)
            # in a copy: what middleware has set there is there
            return await self.threads.run(hold, ThreadCall(self._starter, hold, attempt), copy_context())

        if not plan.around:
            return await call()
        context = copy_context()
        return await _in_context(context, context.run(_awaited, wrap(plan.around, hold.job, call)))

    async def _run_in_process(self, hold: Hold, plan: Plan) -> Any:
        limit = None if hold.ends is None else hold.ends - hold.started
        hold.ends = None  # the wait for a child to start is not the job's fault

        def begins() -> None:
            self._starter.clock(hold)

        return await self.processes.run(
            hold,
            hold.job,
            plan.reference,
            now=hold.store_now(),
            seconds=limit,
            on_start=begins,
            on_progress=lambda progress: hold.report(hold.job, progress),
        )

    @staticmethod
    def _encoded(plan: Plan, value: Any) -> bytes | None:
        if plan.run_in == "process" and isinstance(value, ProcessPool.Encoded):
            return value.result
        assert plan.encode is not None
        return plan.encode(value)

    def _threads_done(self, batch: list[Done]) -> None:
        spent, ends = self.busy_seconds, self.ends
        for hold, value, error in batch:
            if error is None and hold.plan.encode is not None:
                self._end(hold, None, value)
            else:
                self._end(hold, error)
        short = self.busy_seconds - spent < _SHORT * (self.ends - ends)
        self._stack = _STACK * self._concurrency if short else 0
        self.start_ready()

    def _unstack(self) -> None:
        """What lies ready for threads, and has not begun, is as if it had only been fetched."""
        if self._threads is None:
            return
        self._stack = 0
        holds = self._threads.take_back()
        for hold in holds:
            self._slot_free(hold)
        self.starts -= len(holds)
        self._buffer.extendleft(reversed(holds))
        if not self._stopping:
            self.start_ready()  # those that have a slot

    # ── out ──────────────────────────────────────────────────────────────────────────────────────

    def _ended(self, hold: Hold, error: BaseException | None, result: bytes | None = None) -> None:
        self._end(hold, error, result)
        if self._buffer or self._aside:
            self.start_ready()

    def _end(self, hold: Hold, error: BaseException | None, result: bytes | None = None) -> None:
        """Free the slot and report the outcome; what starts in its place is up to the caller."""
        if hold.over:
            return  # its slot was given up before; the settlement went out then
        self._leave(hold)
        if error is None and hold.interrupt is not None:
            error = hold.interrupt()  # what comes back after that is too late
        if hold.interrupt is AttemptLost:
            self._lost(hold)
        elif error is None:
            self._settle(hold, decide(hold.job, _RETURNED, hold.now), result)
        else:
            outcome = self._outcome_of(hold, error)
            self._report(hold, outcome, None)
            if isinstance(outcome, Unknown):
                self.strangers.tell_misfit(hold.job, outcome.why or "")

    def _outcome_of(self, hold: Hold, error: BaseException) -> Outcome:
        """What its end means. Whatever is wrong with the error, its attempt has ended, and must not stay."""
        try:
            if isinstance(error, NotBegun):
                return Released(Place.OWN)
            if isinstance(error, ChildFailed):
                return error.outcome
            if isinstance(error, ChildDied):
                return self._child_died(hold, error)
            return raised(hold, hold.store_now(), error)
        except BaseException as wrong:  # noqa: BLE001  # boundary: as above
            return unjudged(hold.job, hold.store_now(), error, wrong)

    def _leave(self, hold: Hold) -> None:
        """The slot is free again."""
        hold.over = True
        hold.attempt = None  # they know each other: as a cycle each job would wait for the garbage collector
        self._slot_free(hold)
        self._holdings.ended(hold)
        self.ends += 1
        if hold.started:
            self._ended_at = now = time.monotonic()
            hold.took = hold.took or now - hold.started
            self.busy_seconds += hold.took
        self.freed.set()

    def _slot_free(self, hold: Hold) -> None:
        self._running.discard(hold)
        if hold.elsewhere:
            hold.elsewhere = False
            self._elsewhere -= 1
        if hold.counted:
            hold.counted = False
            self._process_busy -= 1

    def _child_died(self, hold: Hold, error: ChildDied) -> Outcome:
        if hold.interrupt is AttemptTimeout:
            return out_of_time(hold, hold.store_now())
        if hold.interrupt is AttemptCancelled:
            return Cancelled("cancelled while running")
        if isinstance(error, NoChild):
            return Released(Place.OWN)
        kind = type(error).__name__
        fact = AttemptError.bounded(hold.job.attempt, hold.store_now(), kind, error.cause)
        return Raised(fact) if isinstance(error, ChildBroken) else LeaseLost(fact)

    def _report(self, hold: Hold, outcome: Outcome, result: bytes | None) -> None:
        now, luck = hold.store_now(), random.random()  # noqa: S311 (jitter, no secret)
        move = decide(hold.job, outcome, now, luck, keep_dead=self._keep_dead)
        self._settle(hold, move, result)

    def _refuse(self, hold: Hold, outcome: Outcome) -> None:
        """It was never started here."""
        hold.over = True
        self._holdings.ended(hold)
        self._report(hold, outcome, None)

    def _lost(self, hold: Hold) -> None:
        """Another has the lease: nothing that we could say would count."""
        self._holdings.remove(hold)
        if hold.started and self._app.events.active:
            spec = hold.job.spec
            self._app.events.emit(
                LateResultRefused(hold.store_now(), spec.id, spec.queue, spec.task, hold.job.attempt)
            )

    # ── watching over what runs ──────────────────────────────────────────────────────────────────

    def watch(self) -> float:
        """Interrupt what is over its time, give back what waits too long; seconds until the next look."""
        now = time.monotonic()
        for hold in list(self._running):
            if hold.interrupt is not None:
                self._press(hold, now)
            elif hold.ends is not None and now >= hold.ends and hold.started:
                self.interrupt(hold, AttemptTimeout)
        if self._room() < 0 and now - self._ended_at > _STUCK:
            self._unstack()
        self._give_back(now)
        if self.aside:
            self._put_back(self.aside.overdue(now))
        return 0.02 if self.waiting else 0.05

    def has_progress(self) -> bool:
        """Whether an attempt has said something of itself that is not in the store yet."""
        return any(hold.progress is not hold.told for hold in self._running)

    def interrupt(self, hold: Hold, why: type[Interrupted]) -> None:
        """Make a running attempt stop: AttemptTimeout, AttemptCancelled or AttemptLost."""
        if hold.over or hold.interrupt is not None:
            return
        if why is AttemptTimeout and self._has_come_back(hold):
            return
        hold.interrupt, hold.interrupted_at = why, time.monotonic()
        if hold.attempt is not None:
            hold.attempt.ask_to_stop()
        if hold.started and hold.plan.run_in == "process" and self.processes.kill(hold):
            return
        if hold.started and self._in_thread(hold):
            self._press(hold, hold.interrupted_at)
        elif hold.handle is not None:  # async code: its function, middleware, or the record of its start
            hold.handle.cancel()

    def _has_come_back(self, hold: Hold) -> bool:
        """Its function has ended in time, and only this loop has not got to it yet."""
        if hold.plan.around or hold.plan.run_in == "async":
            return False
        pool = self.threads if hold.plan.run_in == "thread" else self.processes
        return pool.started_at(hold) is None

    def _in_thread(self, hold: Hold) -> bool:
        return hold.plan.run_in == "thread" and self.threads.started_at(hold) is not None

    def _press(self, hold: Hold, now: float) -> None:
        """An attempt that was asked to stop and has not: press harder, in the end give its slot up."""
        waited, grace = now - hold.interrupted_at, self._thread_grace
        in_thread = self._in_thread(hold)
        if in_thread and grace <= waited < grace + _STUBBORN:
            self.threads.interrupt(hold, hold.interrupt or AttemptLost)
        elif hold.plan.run_in == "process" and not hold.plan.around:
            return  # it is killed; its end is on the way
        elif waited >= 3 * grace + 2 * _STUBBORN:
            self._give_up(hold, in_thread)
        elif waited >= 3 * grace + _STUBBORN and hold.handle is not None and not in_thread:
            hold.handle.cancel()  # it swallowed the first one

    def _give_up(self, hold: Hold, in_thread: bool) -> None:
        if in_thread and not self.threads.abandon(hold):
            return  # it has just ended after all
        _log.error(
            "job %s (%s, attempt %d) does not react to its %s: its %s is given up",
            hold.job.id,
            hold.plan.name,
            hold.job.attempt,
            "timeout" if hold.interrupt is AttemptTimeout else "cancellation",
            "thread" if in_thread else "slot",
        )
        self.lost_slots += 1
        self._ended(hold, hold.interrupt() if hold.interrupt else AttemptLost())
        if in_thread and hold.handle is not None:
            hold.handle.cancel()
        self.on_slot_lost()

    def _give_back(self, now: float) -> None:
        """Look-ahead ends after `slot_wait`: another worker may be idle."""
        buffer = self._buffer
        if not buffer or now - buffer[0].arrived < self._slot_wait:
            return
        keep: deque[Hold] = deque()
        for hold in buffer:
            if now - hold.arrived < self._slot_wait:
                keep.append(hold)
            else:
                self._refuse(hold, Released(Place.OWN))
        self._buffer = keep

    # ── ending ───────────────────────────────────────────────────────────────────────────────────

    def stop_starting(self) -> None:
        """Drain: what has not started goes back at once."""
        self._stopping = True
        self._unstack()
        self._buffer.extendleft(self._later)
        self._later.clear()
        self._buffer.extendleft(reversed(self.aside.take_all()))
        while self._buffer:
            self._refuse(self._buffer.popleft(), Released())

    async def idle(self) -> None:
        """Wait until nothing runs."""
        while self._running:
            self.freed.clear()
            await self.freed.wait()

    def release_running(self) -> None:
        """The drain time is over: give back what still runs, and stop it; its result will not count."""
        for hold in list(self._running):
            fact = AttemptError.bounded(
                hold.job.attempt, hold.store_now(), "WorkerStopped", "its worker stopped before it ended"
            )
            started = bool(hold.started)
            outcome: Outcome = LeaseLost(fact, started=started) if hold.job.spec.at_most_once else Released()
            self._report(hold, outcome, None)
            self.interrupt(hold, AttemptLost)
            if self._in_thread(hold):  # it has had its grace, and its job may start elsewhere any moment
                self.threads.interrupt(hold, AttemptLost)
            self._leave(hold)

    def close(self) -> None:
        """Let go of runners, threads and children; call it when nothing runs any more."""
        self._closed = True
        for runner in self._runners:
            runner.cancel()
        if self._threads is not None:
            self._threads.close(0.5)
        if self._processes is not None:
            self._processes.close()

    # ── parts ────────────────────────────────────────────────────────────────────────────────────

    @property
    def threads(self) -> ThreadPool:
        if self._threads is None:
            self._threads = ThreadPool(self._concurrency, self._threads_done)
            self._threads.start()
        return self._threads

    @property
    def processes(self) -> ProcessPool:
        if self._processes is None:
            self._processes = ProcessPool(
                self._process_slots,
                self._app.spec,
                config=self._config,
                max_jobs_per_child=self._max_jobs,
                max_memory_per_child=self._max_memory,
            )
        return self._processes


async def _absorb_cancellation(task: asyncio.Task[Any]) -> None:
    """A cancellation that was meant for the attempt that has just ended must not hit the next one."""
    try:
        await asyncio.sleep(0)  # before 3.13 `uncancel` leaves a pending one pending: let it come out here
    except asyncio.CancelledError:
        pass
    while task.cancelling():
        task.uncancel()


async def _awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def _in_context(context: Context, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await the coroutine with each of its steps inside the context."""
    try:
        awaited = context.run(coroutine.send, None)
    except StopIteration as end:
        return end.value
    return await _rest_in_context(context, coroutine, awaited)


@types.coroutine
def _rest_in_context(
    context: Context, coroutine: Coroutine[Any, Any, Any], awaited: Any
) -> Generator[Any, Any, Any]:
    """All steps but the first, which awaits this."""
    while True:
        try:
            value = yield awaited
            step: Callable[..., Any] = coroutine.send
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001  # boundary: a cancellation, or what the awaited raised
            value, step = error, coroutine.throw
        try:
            awaited = context.run(step, value)
        except StopIteration as end:
            return end.value
