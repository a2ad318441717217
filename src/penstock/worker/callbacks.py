"""Calls what an app has registered: callbacks after the store has applied an outcome, and hooks.

Callbacks of jobs (`on_success`, `on_failure`, `on_dead`) have a queue of their own: they occupy no slot and
delay no settlement. When the queue is full, further callbacks are dropped and counted in the log.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from msgspec.structs import replace

from penstock.app.app import App
from penstock.core import lazy
from penstock.core.errors import AttemptTimeout, ConfigError
from penstock.core.job import MAX_ERRORS, AttemptError, Job, State
from penstock.core.lifecycle import Transition
from penstock.core.text import text_of
from penstock.worker.pools import CallThreadPool

_log = logging.getLogger("penstock.worker")
#: Maximum number of jobs whose callbacks run at the same time, and of callback threads.
_MAX_RUNNING = 8
#: Maximum number of waiting jobs. Beyond it, only failed jobs are accepted, up to twice this number.
_MAX_WAITING = 10_000
#: Maximum size of the arguments and results of waiting jobs (bytes).
_MAX_BYTES = 64 * 1024 * 1024
#: A log line is written for every this many dropped jobs, and one at the end.
_LOG_EVERY = 1_000

_Calls = Sequence[tuple[str, Callable[..., object]]]


class CallbackRunner:
    """Runs the callbacks of settled jobs.

    The callbacks of one job run in order: `on_failure` before `on_dead`, and the task's before the queue's
    before the app's. Callbacks of different jobs run concurrently.
    """

    def __init__(self, app: App, executor: CallbackExecutor | None = None) -> None:
        self._app = app
        self._executor = executor or CallbackExecutor(_MAX_RUNNING)
        self._waiting: deque[tuple[Job, Transition, bytes | None, _Calls]] = deque()
        self._bytes = 0
        self._runners: set[asyncio.Task[None]] = set()
        #: Number of outcomes whose callbacks were dropped because the queue was full.
        self.dropped = 0

    @property
    def idle(self) -> bool:
        """Whether no callback waits or runs."""
        return not self._runners

    def take(self, job: Job, move: Transition, result: bytes | None = None) -> None:
        """Queue the callbacks of an outcome that the store has applied. Call it on the event loop."""
        calls = self._calls_for(job, move)
        if not calls:
            return
        if self._is_full(move) or self._bytes + _size(job, result) > _MAX_BYTES:
            self._drop()
            return
        self._bytes += _size(job, result)
        self._waiting.append((job, move, result, calls))
        if len(self._runners) < _MAX_RUNNING:
            self._add_runner()

    async def drained(self, timeout: float) -> None:
        """Wait until all callbacks were called, for at most `timeout` seconds."""
        if self._runners:
            await asyncio.wait(set(self._runners), timeout=timeout)

    def close(self) -> None:
        """Stop callbacks that still run, and drop those that wait."""
        left = len(self._waiting) + len(self._runners)
        self._waiting.clear()
        for runner in self._runners:
            runner.cancel()
        if left:
            _log.error("worker stopped: callbacks of %d job(s) did not finish", left)
        if self.dropped:
            _log.error("callbacks of %d job(s) were dropped: the callback queue was full", self.dropped)
        self._executor.close()

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _calls_for(self, job: Job, move: Transition) -> _Calls:
        task = self._app.tasks.get(job.task)
        chosen = self._app.callbacks.of(job.queue, job.task if task is None else task.name)
        if move.state is State.COMPLETED:
            return [("on_success", call) for call in chosen.on_success]
        calls: list[tuple[str, Callable[..., object]]] = []
        if move.error is not None:
            calls += [("on_failure", call) for call in chosen.on_failure]
            if move.state is State.DEAD:
                calls += [("on_dead", call) for call in chosen.on_dead]
        return calls

    def _is_full(self, move: Transition) -> bool:
        return len(self._waiting) >= (_MAX_WAITING if move.error is None else 2 * _MAX_WAITING)

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped % _LOG_EVERY == 1:
            _log.error(
                "callback queue full (%d jobs wait): callbacks of further jobs are dropped (%d so far)",
                len(self._waiting),
                self.dropped,
            )

    def _add_runner(self) -> None:
        # in an empty context: callbacks do not see the attempt's context variables
        loop, context = asyncio.get_running_loop(), Context()
        runner = loop.create_task(self._run(), name="penstock-callbacks", context=context)
        self._runners.add(runner)
        runner.add_done_callback(self._on_runner_done)

    def _on_runner_done(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if self._waiting:  # a callback cancelled this runner
            self._add_runner()

    async def _run(self) -> None:
        while self._waiting:
            job, move, result, calls = self._waiting.popleft()
            self._bytes -= _size(job, result)
            now = _job_after(job, move, result)
            try:
                value = self._decoded(job, result) if move.state is State.COMPLETED else move.error
            except (Exception, SystemExit) as error:  # noqa: BLE001  # boundary: decoding may call the user's types
                why = text_of(error, type(error).__name__)
                _log.error("job %s: on_success of %s is not called: %s", job.id, job.task, why)
                continue
            for name, call in calls:
                await self._executor.call(call, now, value, about=f"job {job.id}: {name} of {job.task}")
            await asyncio.sleep(0)  # callbacks that never await must not block the event loop

    def _decoded(self, job: Job, result: bytes | None) -> Any:
        """The decoded result, as `handle.result()` returns it; None if the task keeps no result."""
        if result is None:
            return None
        handler, task = self._app.handlers.get(job.queue), self._app.tasks.get(job.task)
        known = handler or task
        return None if known is None else known.result.decode(result)


def _size(job: Job, result: bytes | None) -> int:
    return len(job.spec.payload) + len(result or b"")


def _job_after(job: Job, move: Transition, result: bytes | None) -> Job:
    """The job after this transition. Its timestamps are those of its lease."""
    errors: tuple[AttemptError, ...] = job.errors
    if move.error is not None:
        errors = (*errors, move.error)[-MAX_ERRORS:]
    return replace(job, state=move.state, errors=errors, reason=move.reason, result=result, token=None)


# ── one call: an `async def` on the event loop, a `def` in a thread pool for callbacks ───────────


class CallbackExecutor:
    """Calls callbacks and logs their exceptions; `call` never raises them.

    A callback has `limit` seconds. After that a coroutine is cancelled; in a thread an exception is raised,
    and `call` waits until the thread is free.
    """

    def __init__(self, threads: int, *, limit: float = 30.0) -> None:
        self._threads = threads
        self._limit = limit
        self._pool: CallThreadPool | None = None

    async def call(self, function: Callable[..., object], *args: Any, about: str) -> None:
        """Call `function(*args)`. Errors are logged with the prefix `about`."""
        limit = asyncio.timeout(None)
        try:
            returned: Any = None
            is_async = lazy.returned_by(function) == lazy.ASYNC
            if not is_async:
                returned = await self._in_thread(functools.partial(function, *args), about)
            async with limit:
                limit.reschedule(asyncio.get_running_loop().time() + self._limit)
                if is_async:
                    returned = function(*args)
                if inspect.isawaitable(returned):
                    returned = await returned
            if not isinstance(returned, asyncio.Future) and (why := lazy.refused(returned)) is not None:
                raise TypeError(why)
        except BaseException as error:  # boundary: a callback must not end the worker
            this_task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and this_task is not None and this_task.cancelling():
                raise
            if limit.expired():
                _log.error("%s: callback %r took longer than %g s", about, function, self._limit)
            else:
                _log.error("%s: callback %r failed", about, function, exc_info=error)

    async def _in_thread(self, call: Callable[[], object], about: str) -> object:
        if self._pool is None:
            self._pool = CallThreadPool(self._threads, lambda _: None, name="penstock-callback")
            self._pool.start()
        ticket = object()
        future = self._pool.run(ticket, call)
        done, _ = await asyncio.wait({future}, timeout=self._limit)
        if not done:
            _log.error("%s: callback still running after %g s", about, self._limit)
            self._pool.interrupt(ticket, AttemptTimeout)
            await asyncio.wait({future})  # the next callback needs this thread
        return future.result()

    def close(self) -> None:
        """Close the thread pool. A thread that still runs a callback ends with the process."""
        if self._pool is not None:
            self._pool.close(0.1)


# ── hooks: on_startup, on_drain, on_shutdown ─────────────────────────────────────────────────────


async def call_hook(hook: Callable[..., Any], app: App) -> None:
    """Call one hook, with the app if it takes an argument."""
    returned = hook(app) if inspect.signature(hook).parameters else hook()
    if inspect.isawaitable(returned):
        returned = await returned
    if not isinstance(returned, asyncio.Future) and (why := lazy.refused(returned)) is not None:
        raise ConfigError(f"the hook {hook!r}: {why}")


async def call_last_hooks(hooks: Sequence[Callable[..., Any]], app: App) -> None:
    """Call the hooks of a worker's end. A hook that fails is logged, and the next one is called."""
    for hook in hooks:
        try:
            await call_hook(hook, app)
        except Exception:  # noqa: BLE001  # boundary: user code
            _log.exception("the hook %r failed", hook)
