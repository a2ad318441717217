"""The queue and pool for an event loop: workers are tasks, waiting is done by futures, without locks."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from penstock.core.errors import ConfigError, QueueClosed
from penstock.pool.rules import (
    CancelToken,
    Rules,
    SharedMethods,
    Steps,
    Stopped,
    checked,
    checked_listener,
    deadline_of,
    refuse_lazy,
)

_log = logging.getLogger("penstock.pool")

J = TypeVar("J")
R = TypeVar("R")

#: Keeps tasks alive: an event loop refers to its tasks only weakly.
_alive_tasks: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, R], *, name: str | None = None) -> asyncio.Task[R]:
    """Run the coroutine as a task that is kept alive and whose error is logged.

    Sets no limit; use it if no queue is needed.
    """
    task = asyncio.create_task(work, name=name)
    _alive_tasks.add(task)
    task.add_done_callback(_log_spawned)
    return task


def _log_spawned(task: asyncio.Task[Any]) -> None:
    _alive_tasks.discard(task)
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error("the spawned task %s failed: %r", task.get_name(), error, exc_info=error)


class _TaskWait:
    """The sleep of one task inside one method."""

    def __init__(self) -> None:
        self._woken: asyncio.Future[None] | None = None

    async def sleep(self, longest: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        timer = None if longest is None else loop.call_later(longest, self.wake)
        try:
            await self._woken
        finally:
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


async def _run_steps(steps: Steps[R], waiter: _TaskWait) -> R:
    try:
        while True:
            await waiter.sleep(next(steps))
    except StopIteration as end:
        answer: R = end.value
        return answer
    finally:
        steps.close()  # a cancelled caller leaves the waiting line


class JobQueue(SharedMethods[J], Generic[J]):
    """A bounded queue for the tasks of one event loop; `async for job in queue` is a worker.

    `capacity` is the number of jobs that may wait. With 0, a job is accepted only if a task waits in `get`.
    Call all methods in the loop's own thread; only `queue.token.cancel()` may be called from any thread.
    """

    def __init__(self, capacity: int, *, name: str = "jobs", token: CancelToken | None = None) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard = nullcontext()
        self._rules = self._make_rules(checked("capacity", capacity, least=0), name, token)
        self._rules.token._when_cancelled(self._wake_all)

    def _make_rules(self, capacity: int, name: str, token: CancelToken | None) -> Rules[J]:
        return Rules(capacity, name=name, parent=token)

    async def put(self, job: J, timeout: float | None = None) -> None:
        """Add the job, waiting for room if there is none; waiting callers are served in order.

        Raises QueueFull if there is no room within `timeout` seconds, and QueueClosed after `close` or
        `cancel`, also in callers that wait. A `put` that raised or was cancelled has added nothing.
        """
        self._check_caller()
        waiter = _TaskWait()
        await _run_steps(self._rules.put(job, waiter, timeout), waiter)

    async def get(self) -> J:
        """Take the next job, waiting for it. Raises QueueClosed if none will come.

        A cancelled `get` has taken no job.
        """
        self._check_caller()
        waiter = _TaskWait()
        return await _run_steps(self._rules.get(waiter), waiter)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> J:
        try:
            return await self.get()
        except QueueClosed:
            raise StopAsyncIteration from None

    def cancel(self) -> list[J]:
        """Close the queue and hand out no more jobs. Removes and returns the waiting jobs, in order."""
        return self._cancel()

    def _wake_all(self) -> None:
        """Wake all waiters after the token was cancelled, from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if loop is _running_loop():
            self._rules.wake_all()
            return
        try:
            loop.call_soon_threadsafe(self._rules.wake_all)
        except RuntimeError:  # the loop was closed in the meantime: no task sleeps there
            pass

    def _check_caller(self) -> None:
        loop = _running_loop()
        if loop is None:
            raise RuntimeError(
                f"{type(self).__name__} {self._rules.name!r} was used outside of its event loop; from a "
                "thread use asyncio.run_coroutine_threadsafe(pool.put(job), loop), or ThreadPool"
            )
        if self._loop is None or (self._loop.is_closed() and not self._rules.alive):
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                f"{type(self).__name__} {self._rules.name!r} belongs to another event loop; make one for each"
            )

    def _check_caller_or_idle(self) -> None:
        if self._loop is not None and self._loop is not _running_loop() and self._loop.is_running():
            raise RuntimeError(
                f"{type(self).__name__} {self._rules.name!r} was used outside of its event loop; from a "
                "thread use loop.call_soon_threadsafe(pool.close), or pool.token.cancel()"
            )


class Pool(JobQueue[J]):
    """A bounded queue with `workers` tasks that call `handler` with one job after the other.

    A worker is started when a job arrives and no worker is free. A failed job is counted and passed to
    `on_error`, or logged; its worker continues. How jobs are spread over workers is not defined.

    `async with Pool(...)` drains at the end of the block. If the block fails, it cancels, including running
    jobs.
    """

    def __init__(
        self,
        handler: Callable[[J], Awaitable[object]],
        *,
        workers: int,
        capacity: int,
        name: str = "pool",
        token: CancelToken | None = None,
        on_error: Callable[[J, BaseException], object] | None = None,
    ) -> None:
        if not callable(handler):
            raise ConfigError(f"handler={handler!r} cannot be called: give an async function of one job")
        checked_listener(on_error)
        self._workers = checked("workers", workers, least=1)
        self._handler = handler
        self._on_error = on_error
        self._workers_started = 0  # workers started so far, for their names
        super().__init__(capacity, name=name, token=token)

    def _make_rules(self, capacity: int, name: str, token: CancelToken | None) -> Rules[J]:
        return Rules(
            capacity, name=name, parent=token, workers=self._workers, start_worker=self._start_worker
        )

    @property
    def running(self) -> int:
        """Number of jobs that a worker has, or that a free one is about to take."""
        return self._rules.running

    @property
    def done(self) -> int:
        """Number of jobs whose handler returned."""
        return self._rules.done

    @property
    def failed(self) -> int:
        """Number of jobs whose handler raised, or was cancelled."""
        return self._rules.failed

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until all workers have ended after `close` or `cancel`. False after `timeout` seconds.

        Waiting stops nothing: after False, the workers continue.
        """
        self._refuse_own_jobs()
        waiter = _TaskWait()
        return await _run_steps(self._rules.wait(waiter, timeout), waiter)

    async def join(self) -> None:
        """Wait without a limit."""
        await self.wait()

    def cancel(self, *, running: bool = False) -> list[J]:
        """Close the pool and start no more jobs.

        Removes and returns the jobs that have not started, in order. Running jobs end by themselves, or are
        cancelled with `running=True` (except the one that calls this). Does not wait.
        """
        dropped = self._cancel()
        if running:
            here = _running_loop() and asyncio.current_task()
            for worker in list(self._rules.running_jobs):
                if isinstance(worker, asyncio.Task) and worker is not here:
                    worker.cancel()
        return dropped

    async def stop(self, *, drain: bool = True, timeout: float | None = None) -> Stopped[J]:
        """Close (or with `drain=False` cancel), wait, and at the timeout cancel jobs that have not started.

        Jobs that still run then continue, and are listed in the answer; `cancel(running=True)` would end
        them.
        """
        deadline_of(timeout)  # checked before anything is closed
        self._refuse_own_jobs()
        dropped: list[J] = []
        if drain:
            self.close()
        else:
            dropped = self.cancel()
        if not await self.wait(timeout):
            dropped += self.cancel()
        return self._rules.report(dropped)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            dropped = self.cancel(running=True)
            if dropped:
                _log.warning("pool %s dropped %d job(s): %r", self._rules.name, len(dropped), error)
        await self.join()

    def _refuse_own_jobs(self) -> None:
        self._check_caller()
        if asyncio.current_task() in self._rules.running_jobs:
            raise RuntimeError(f"a job of the pool {self._rules.name!r} would wait for its own end")

    # --- workers

    def _start_worker(self) -> None:
        if self._rules.alive >= self._workers:
            return
        self._workers_started += 1
        # an empty context: a worker outlives the caller that put the first job
        task = asyncio.get_running_loop().create_task(
            self._work(),
            name=f"penstock-{self._rules.name}-{self._workers_started}",
            context=contextvars.Context(),
        )
        self._rules.alive += 1
        _alive_tasks.add(task)
        task.add_done_callback(self._on_worker_end)

    def _on_worker_end(self, task: asyncio.Task[None]) -> None:
        # not in a `finally` of the worker: a task cancelled before its first step runs none
        _alive_tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):  # any other exception ends the loop, which reports it
            _log.error("pool %s: a worker failed", self._rules.name, exc_info=error)
        self._rules.worker_ended()

    async def _work(self) -> None:
        worker, waiter = asyncio.current_task(), _TaskWait()
        assert worker is not None
        while True:
            try:
                job = await _run_steps(self._rules.begin(worker, waiter), waiter)
            except QueueClosed:
                return
            # no await before the handler's first line: a job that `cancel` has not dropped has started
            await self._run(job, worker)
            del job  # not kept alive by an idle worker
            # a handler that never awaits must not block the loop until the queue is empty
            await asyncio.sleep(0)

    async def _run(self, job: J, worker: asyncio.Task[Any]) -> None:
        failure: BaseException | None = None
        try:
            refuse_lazy(await self._call(job))
        except asyncio.CancelledError as error:
            failure = error
            if worker.cancelling():  # the worker was cancelled, not something that the job awaited
                raise
        except (KeyboardInterrupt, SystemExit) as error:
            failure = error
            raise
        except BaseException as error:  # noqa: BLE001  # boundary: a failing job must not end its worker
            failure = error
        finally:
            self._rules.end(worker, failed=failure is not None)
            if failure is not None:
                asked = isinstance(failure, asyncio.CancelledError) and worker.cancelling() > 0
                self._report_failure(job, failure, asked)
                failure = None  # its traceback keeps this frame alive, and so the job

    def _call(self, job: J) -> Awaitable[object]:
        called = self._handler(job)
        if not inspect.isawaitable(called):
            raise TypeError(
                f"the handler of the pool {self._rules.name!r} returned a {type(called).__name__}, which "
                "cannot be awaited: give an async function, or use ThreadPool"
            )
        return called

    def _report_failure(self, job: J, error: BaseException, asked: bool) -> None:
        """Report that a job has failed; `asked`: because its task was to be cancelled, which is no fault."""
        if self._on_error is None and asked:
            _log.info("pool %s: a running job was cancelled", self._rules.name)
            return
        if self._on_error is None:
            _log.error("pool %s: a job failed: %r", self._rules.name, error, exc_info=error)
            return
        try:
            self._on_error(job, error)
        except Exception:  # noqa: BLE001  # boundary: a failing listener must not end a worker
            _log.exception("pool %s: on_error failed", self._rules.name)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
