"""Reports to the log, to listeners and to callbacks what happened apart from the worker's own attempts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from penstock.app.app import App
from penstock.app.outcome_events import emit_outcome, emit_set_aside, log_set_aside
from penstock.core.errors import StoreError
from penstock.core.events import Event, JobEnqueued, LoopBlocked, WorkerLost
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.maintenance.service import Service
from penstock.stores.contract import SetAside
from penstock.worker.callbacks import CallbackRunner

_log = logging.getLogger("penstock.worker")


class Reporter:
    """Reports for one worker. Events are made only if there are listeners."""

    def __init__(self, app: App, worker: str, callback_runner: CallbackRunner) -> None:
        self._app = app
        self._worker = worker
        self._callback_runner = callback_runner

    def decided(self, job: Job, move: Transition) -> None:
        """Report the outcome of a dead worker's job that was decided here, and call its callbacks."""
        if move.state is State.DEAD:
            _log.error("job %s (%s, attempt %d) is dead: %s", job.id, job.task, job.attempt, move.reason)
        if self._app.callbacks.active:
            self._callback_runner.take(job, move)
        emit_outcome(self._app.events, job, move)

    def set_aside(self, found: Sequence[SetAside]) -> None:
        """Report records that the store cannot read and has set aside."""
        log_set_aside(found)
        emit_set_aside(self._app.events, found)

    def periodic_enqueued(self, job: NewJob) -> None:
        """Report that a job of a periodic entry was stored."""
        self._emit(lambda now: JobEnqueued(now, job.id, job.queue, job.task, 0))

    def blocked(self, seconds: float, stack: str) -> None:
        """Report that the event loop has been blocked for `seconds`, at this stack."""
        self._emit(lambda now: LoopBlocked(now, self._worker, seconds, stack))

    def lost_worker(self, worker: str, cause: str, jobs: int) -> None:
        """Report that another worker is proven dead and how many jobs it held."""
        self._emit(lambda now: WorkerLost(now, worker, cause, jobs))

    def _emit(self, made: Callable[[int], Event]) -> None:
        if self._app.events.active:
            self._app.events.emit(made(int(time.time() * 1000)))


# ── what happened to another worker of the same supervisor ───────────────────────────────────────

_SELDOM = 3600.0


class CallbackAdopter(Service):
    """Reports jobs that died with a worker that can report nothing any more, and calls their callbacks.

    `dead`: these jobs (queue, id); others may be added.
    """

    name = "callback adopter"

    def __init__(self, app: App, reporter: Reporter, dead: list[tuple[str, str]]) -> None:
        super().__init__()
        self._app = app
        self._reporter = reporter
        self._dead = dead

    async def tick(self) -> float:
        dead = self._dead[:]
        del self._dead[:]
        if dead and (self._app.callbacks.active or self._app.events.active):
            await self._report(dead)
        return _SELDOM  # woken by the next death

    async def _report(self, dead: Sequence[tuple[str, str]]) -> None:
        try:
            jobs = await self._app.store.get([Ref(*one) for one in dead])
        except StoreError as error:
            _log.error("%d dead job(s) are not reported to listeners and callbacks: %s", len(dead), error)
            return
        for job in jobs:
            if job is not None and job.state is State.DEAD and job.errors:
                before = msgspec.structs.replace(job, errors=job.errors[:-1])
                move = Transition(job.state, error=job.errors[-1], reason=job.reason)
                self._reporter.decided(before, move)
