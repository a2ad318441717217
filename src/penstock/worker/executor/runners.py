"""Runs each started attempt: in a thread, or in a runner task on the event loop.

A runner is an asyncio task that runs one attempt after the other. A new task for each attempt would cost 3 us
more per job and one more iteration of the event loop; a context for each job costs 0.4 us.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.app.attempt import Attempt, running
from penstock.worker.executor.async_attempts import run_async, run_in_middleware
from penstock.worker.executor.attempt_start import Starter
from penstock.worker.executor.process_attempts import ProcessAttempts
from penstock.worker.executor.slots import Slots
from penstock.worker.executor.thread_attempts import ThreadAttempts
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.plan import Plan
from penstock.worker.pools import EncodedResult

__all__ = ["Runners"]

#: A runner whose jobs never await yields to the event loop after this long (s).
_YIELD_AFTER = 0.005


class Runners:
    """Runs attempts that have a slot. `ended` is called with the end of each attempt of a runner task."""

    def __init__(
        self,
        slots: Slots,
        starter: Starter,
        threads: ThreadAttempts,
        processes: ProcessAttempts,
        ended: Callable[[LeasedJob, BaseException | None, bytes | None], None],
    ) -> None:
        self._slots = slots
        self._starter = starter
        self._threads = threads
        self._processes = processes
        self._ended = ended
        self._ready: deque[LeasedJob] = deque()  # started, waiting for a runner
        self._runners: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._yielded_at = 0.0
        self._yield_pending = False
        self._closed = False

    def launch(self, leased: LeasedJob) -> None:
        """Run this attempt."""
        if leased.plan.in_thread:
            self._threads.submit(leased)
            return
        if leased.plan.in_process:
            self._processes.submit(leased)
            return
        self._ready.append(leased)
        if self._idle:
            self._idle.pop().set_result(None)
        elif len(self._runners) < self._slots.concurrency:
            self._add_runner()

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
                    self._ended(leased, leased.interrupt(), None)
                    continue
                leased.runner = this_task
                await self._attempt(leased)
                leased.runner = None
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
            attempt = self._starter.begin(leased)
            running.set(attempt)
            if plan.run_in == "async":
                value = await run_async(leased)
            elif plan.around:
                value = await run_in_middleware(leased, partial(self._run_off_loop, leased, attempt))
            else:
                value = await self._run_off_loop(leased, attempt)
            if attempt.flow is not None:  # middleware may have swallowed what ends the attempt
                attempt.flow.finish()
            result = None if plan.encode is None else _encoded(plan, value)
        except BaseException as error:  # noqa: BLE001  # boundary: any error of user code is its outcome
            self._ended(leased, await _undone(leased, error), None)
        else:
            self._ended(leased, None, result)

    async def _run_off_loop(self, leased: LeasedJob, attempt: Attempt) -> Any:
        if leased.plan.run_in == "process":
            return await self._processes.run(leased)
        return await self._threads.run(leased, attempt)


async def _undone(leased: LeasedJob, error: BaseException) -> BaseException:
    """Let a flow undo its steps if it has failed for good; returns the error with which the attempt ends."""
    flow = None if leased.attempt is None else leased.attempt.flow
    if flow is None:
        return error
    found: BaseException
    if leased.plan.run_in == "async":
        found = await flow.failed(error)
    else:  # its thread has undone what there was
        found = flow.settled(error)
    return found


def _encoded(plan: Plan, value: Any) -> bytes | None:
    if plan.run_in == "process" and isinstance(value, EncodedResult):
        return value.result
    assert plan.encode is not None
    return plan.encode(value)


async def _absorb_cancellation(task: asyncio.Task[Any]) -> None:
    """Keep a cancellation meant for the attempt that has just ended from hitting the next one."""
    try:
        await asyncio.sleep(0)  # before 3.13 `uncancel` leaves a cancellation pending: it is raised here
    except asyncio.CancelledError:
        pass
    while task.cancelling():
        task.uncancel()
