"""Runs each started attempt: in a thread, in a child process, or in a runner task on the event loop.

A runner is an asyncio task that runs attempts, one after the other as long as none of them awaits. A new task
for each attempt would cost 3 us more per job and one more iteration of the event loop; a context for each job
costs 0.4 us. Attempts that await, or fail, are the last of their task: libraries keep sessions and the like
by `asyncio.current_task()`, which must not go on into the next job.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from types import FrameType
from typing import Any

from penstock.app.attempt import Attempt, running
from penstock.app.outcome import checked, result_of
from penstock.client.middleware import wrap
from penstock.worker.executor.attempt import Attempts
from penstock.worker.executor.process_attempts import ProcessAttempts
from penstock.worker.executor.thread_attempts import ThreadAttempts
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.pools import EncodedResult
from penstock.worker.process_identity import end_fork, stray

#: A runner whose jobs never await yields to the event loop after this long (s).
_YIELD_AFTER = 0.005


class Runners:
    """Runs attempts that have a slot."""

    def __init__(self, attempts: Attempts, threads: ThreadAttempts, processes: ProcessAttempts) -> None:
        self.attempts = attempts
        self.threads = threads
        self.processes = processes
        self._slots = attempts.slots
        self._ready: deque[LeasedJob] = deque()  # started, waiting for a runner
        self._runners: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._yielded_at = 0.0
        self._yield_pending = False
        self._closed = False

    def launch(self, leased: LeasedJob) -> None:
        """Run this attempt."""
        if leased.plan.in_thread:
            self.threads.submit(leased)
            return
        if leased.plan.in_process:
            self.processes.submit(leased)
            return
        self._ready.append(leased)
        if self._idle:
            self._idle.pop().set_result(None)
        elif len(self._runners) < self._slots.concurrency:
            self._add_runner()

    def launch_on_record(self, leased: LeasedJob) -> None:
        """Store the start of this attempt, then run it."""
        leased.runner = asyncio.create_task(self._record_and_launch(leased))
        leased.runner.add_done_callback(partial(self._on_recorded, leased))

    def _on_recorded(self, leased: LeasedJob, recording: asyncio.Task[None]) -> None:
        if recording.cancelled():  # before its first step: nothing of it has run
            self.attempts.end_unrecorded(leased)

    async def _record_and_launch(self, leased: LeasedJob) -> None:
        if not await self.attempts.record_start(leased):
            return
        try:
            self.launch(leased)
        except Exception as error:  # noqa: BLE001  # boundary: an attempt that cannot be launched ends
            self.attempts.end(leased, error)
        self.attempts.start_next()  # its slot may be free again

    def close(self) -> None:
        """End all runner tasks."""
        self._closed = True
        for runner in self._runners:
            runner.cancel()

    # ── runner tasks ─────────────────────────────────────────────────────────────────────────────

    def _add_runner(self) -> None:
        runner = asyncio.get_running_loop().create_task(self._run_attempts(), name="penstock-runner")
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)

    async def _run_attempts(self) -> None:
        this_task = asyncio.current_task()
        assert this_task is not None
        loop = asyncio.get_running_loop()
        ready, slots = self._ready, self._slots
        while True:
            while ready:
                leased = ready.popleft()
                if leased.over:  # released before a runner took it
                    continue
                if leased.interrupt is not None:
                    self.attempts.end_and_start_next(leased, leased.interrupt())
                    continue
                leased.runner = this_task
                await self._attempt(leased)
                leased.runner = None
                if leased.awaited:
                    self._succeed(this_task)
                    return
                if this_task.cancelling():
                    await _absorb_cancellation(this_task)
                if slots.last_end - self._yielded_at > _YIELD_AFTER:
                    self._note_yield(loop)
                    await asyncio.sleep(0)
            if self._closed:  # its attempt swallowed the runner's cancellation
                return
            wake_up = loop.create_future()
            self._idle.append(wake_up)
            await wake_up

    def _succeed(self, runner: asyncio.Task[None]) -> None:
        """Let this runner end, and another one take what is ready."""
        self._runners.discard(runner)
        if self._ready and not self._closed:
            self._add_runner()

    def _note_yield(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note when the event loop has run its other callbacks; until then each runner yields after one job.

        If each of twenty runners used its 5 ms, the fetcher could not fetch for 100 ms.
        """
        if not self._yield_pending:
            self._yield_pending = True
            loop.call_soon(self._on_yield)

    def _on_yield(self) -> None:
        self._yield_pending, self._yielded_at = False, time.monotonic()

    # ── one attempt ──────────────────────────────────────────────────────────────────────────────

    async def _attempt(self, leased: LeasedJob) -> None:
        plan = leased.plan
        try:
            attempt = self.attempts.begin(leased)
            running.set(attempt)
            if plan.run_in == "async":
                value = await run_async(leased)
            elif plan.around:
                value = await run_in_middleware(leased, partial(self._run_off_loop, leased, attempt))
            else:
                value = await self._run_off_loop(leased, attempt)
            if attempt.flow is not None:  # middleware may have swallowed what ends the attempt
                await leased.steps_ended()
                attempt.flow.finish()
            result = None if value is None and plan.encode is None else _encoded(leased, value)
        except BaseException as error:  # noqa: BLE001  # boundary: any error of user code is its outcome
            leased.awaited = True  # a session that it has begun, say, must not be the next job's
            error = await _undone(leased, error)
            await leased.steps_ended()
            self.attempts.end_and_start_next(leased, error)
        else:
            self.attempts.end_and_start_next(leased, None, result)

    async def _run_off_loop(self, leased: LeasedJob, attempt: Attempt) -> Any:
        if leased.plan.run_in == "process":
            return await self.processes.run(leased)
        return await self.threads.run(leased, attempt)


async def _undone(leased: LeasedJob, error: BaseException) -> BaseException:
    """Let a flow undo its steps if it has failed for good; returns the error with which the attempt ends."""
    flow = None if leased.attempt is None else leased.attempt.flow
    if flow is None:
        return error
    task = asyncio.current_task()
    if task is not None and task.cancelling() and leased.interrupt is None:
        await _absorb_cancellation(task)  # the function has cancelled itself; its undo functions run on
    ending: BaseException
    if leased.plan.run_in == "async":
        ending = await flow.failed(error)
    else:  # its thread has undone what there was
        ending = flow.error_to_end_with(error)
    return ending


def _encoded(leased: LeasedJob, value: Any) -> bytes | None:
    if type(value) is EncodedResult:  # of a child process, which has checked it
        return value.result
    return result_of(value, leased.plan.encode, leased.job)


async def _absorb_cancellation(task: asyncio.Task[Any]) -> None:
    """Keep a cancellation meant for the attempt that has just ended from hitting the next one."""
    try:
        await asyncio.sleep(0)  # before 3.13 `uncancel` leaves a cancellation pending: it is raised here
    except asyncio.CancelledError:
        pass
    while task.cancelling():
        task.uncancel()


# ── async functions, each job in a context of its own ────────────────────────────────────────────


async def run_async(leased: LeasedJob) -> Any:
    """Run the job's async function inside its middleware and return its result."""
    plan = leased.plan
    args, kwargs = plan.decode(leased.job)
    if plan.around:

        async def call() -> Any:
            return checked(await plan.function(*args, **kwargs), leased.job)

        return await run_in_middleware(leased, call)
    context = copy_context()  # context variables that a job sets are not visible to the next one
    coroutine = context.run(plan.function, *args, **kwargs)
    try:
        awaited = context.run(coroutine.send, None)
    except StopIteration as end:  # it never awaited: this saves the generator below (0.4 us)
        if stray.here:
            end_fork()
        return end.value
    except BaseException:  # boundary: only ends a fork, else raises again
        if stray.here:
            end_fork()
        raise
    leased.awaited = True
    return await _continue_in_context(context, coroutine, awaited)


def run_in_middleware(leased: LeasedJob, call: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
    """Await `call` with its task's middleware around it, and return the result of the outermost one."""
    leased.awaited = True
    context = copy_context()
    return _in_context(context, context.run(_awaited, wrap(leased.plan.around, leased.job, call)))


async def _awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def _in_context(context: Context, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await the coroutine with each of its steps inside the context."""
    try:
        awaited = context.run(coroutine.send, None)
    except StopIteration as end:
        return end.value
    return await _continue_in_context(context, coroutine, awaited)


def coroutine_of(frame: FrameType) -> object:
    """The coroutine of the attempt whose steps this frame runs; None for any other frame."""
    return frame.f_locals.get("coroutine") if frame.f_code is _continue_in_context.__code__ else None


@types.coroutine
def _continue_in_context(
    context: Context, coroutine: Coroutine[Any, Any, Any], awaited: Any
) -> Generator[Any, Any, Any]:
    """Run all steps after the first, whose awaitable is `awaited`."""
    while True:
        if stray.here:
            end_fork("a task that forks must not await in the child: the event loop is its parent's")
        try:
            value = yield awaited
            step: Callable[..., Any] = coroutine.send
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001  # boundary: a cancellation, or an error of the awaited
            value, step = error, coroutine.throw
        try:
            awaited = context.run(step, value)
        except StopIteration as end:
            if stray.here:
                end_fork()
            return end.value
        except BaseException:  # boundary: only ends a fork, else raises again
            if stray.here:
                end_fork()
            raise
