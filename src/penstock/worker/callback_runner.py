"""Calls `on_success`, `on_failure` and `on_dead`, once the store has put the outcome down.

It has its own few places and a queue of its own: no slot is held, no settlement waits. When too many
wait, new ones are left out, and the log says how many.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from msgspec.structs import replace

from penstock.app.app import App
from penstock.core.job import MAX_ERRORS, AttemptError, Job, State
from penstock.core.lifecycle import Transition
from penstock.core.text import text_of
from penstock.worker.callback_executor import CallbackExecutor

__all__ = ["CallbackRunner"]

_log = logging.getLogger("penstock.worker")
#: So many jobs are cared for at once; it is also the most threads that callbacks get.
_AT_ONCE = 8
#: So many may wait, as events may; then only failures are still taken, up to twice as many.
_MOST = 10_000
#: Arguments and results of those that wait take no more memory than this (bytes), whatever their number.
_MOST_BYTES = 64 * 1024 * 1024
#: Those left out are told of when so many have been, and at the end.
_SAY_EVERY = 1_000

_Calls = Sequence[tuple[str, Callable[..., object]]]


class CallbackRunner:
    """What is called for one job is called in order: `on_failure` before `on_dead`, and the task's own
    before the queue's before the app's. Jobs do not wait for each other."""

    def __init__(self, app: App, executor: CallbackExecutor | None = None) -> None:
        self._app = app
        self._executor = executor or CallbackExecutor(_AT_ONCE)
        self._waiting: deque[tuple[Job, Transition, bytes | None, _Calls]] = deque()
        self._bytes = 0
        self._runners: set[asyncio.Task[None]] = set()
        #: Outcomes whose callbacks were left out, because too many waited.
        self.dropped = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to call, and nothing being called."""
        return not self._runners

    def take(self, job: Job, move: Transition, result: bytes | None = None) -> None:
        """The store has applied this. To be called on the loop; calls nothing itself."""
        calls = self._calls_for(job, move)
        if not calls:
            return
        if self._is_full(move) or self._bytes + _size(job, result) > _MOST_BYTES:
            self._drop()
            return
        self._bytes += _size(job, result)
        self._waiting.append((job, move, result, calls))
        if len(self._runners) < _AT_ONCE:
            self._add_runner()

    async def drained(self, timeout: float) -> None:
        """Wait until all is called, for so long (s) at most; the rest is left out."""
        if self._runners:
            await asyncio.wait(set(self._runners), timeout=timeout)

    def close(self) -> None:
        """Stop what is still being called."""
        left = len(self._waiting) + len(self._runners)
        self._waiting.clear()
        for runner in self._runners:
            runner.cancel()
        if left:
            _log.error("the worker ends: callbacks of %d job(s) were not called to the end", left)
        if self.dropped:
            _log.error("callbacks of %d job(s) were left out: too many waited", self.dropped)
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
        return len(self._waiting) >= (_MOST if move.error is None else 2 * _MOST)

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped % _SAY_EVERY == 1:
            _log.error(
                "the callbacks of %d jobs wait: those of more are left out (%d so far)",
                len(self._waiting),
                self.dropped,
            )

    def _add_runner(self) -> None:
        # in an empty context: what the attempt had set there is none of theirs
        loop, context = asyncio.get_running_loop(), Context()
        runner = loop.create_task(self._run(), name="penstock-callbacks", context=context)
        self._runners.add(runner)
        runner.add_done_callback(self._gone)

    def _gone(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if self._waiting:  # a callback has cancelled it
            self._add_runner()

    async def _run(self) -> None:
        while self._waiting:
            job, move, result, calls = self._waiting.popleft()
            self._bytes -= _size(job, result)
            now = _as_it_is(job, move, result)
            try:
                said = self._decoded(job, result) if move.state is State.COMPLETED else move.error
            except (Exception, SystemExit) as error:  # noqa: BLE001  # boundary: a type of the user's makes its value here
                why = text_of(error, type(error).__name__)
                _log.error("job %s: on_success of %s is not called: %s", job.id, job.task, why)
                continue
            for name, call in calls:
                await self._executor.call(call, now, said, about=f"job {job.id}: {name} of {job.task}")
            await asyncio.sleep(0)  # callbacks that never wait must not keep the loop from the jobs

    def _decoded(self, job: Job, result: bytes | None) -> Any:
        """As `handle.result()` would give it; None for a task that says that it returns nothing."""
        if result is None:
            return None
        handler, task = self._app.handlers.get(job.queue), self._app.tasks.get(job.task)
        known = handler or task
        return None if known is None else known.result.decode(result)


def _size(job: Job, result: bytes | None) -> int:
    return len(job.spec.payload) + len(result or b"")


def _as_it_is(job: Job, move: Transition, result: bytes | None) -> Job:
    """The job after this transition; its instants are those of its lease."""
    errors: tuple[AttemptError, ...] = job.errors
    if move.error is not None:
        errors = (*errors, move.error)[-MAX_ERRORS:]
    return replace(job, state=move.state, errors=errors, reason=move.reason, result=result, token=None)
