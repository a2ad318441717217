"""The worker: fetches jobs, runs them and settles their outcomes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.app.app import App
from penstock.app.loading import enable_own_loggers
from penstock.config import Config
from penstock.core.clock import Clock
from penstock.core.events import WorkerLost, WorkerStarted, WorkerStopped
from penstock.core.formats import format_ms
from penstock.core.installation import __version__
from penstock.core.portable import in_process
from penstock.stores.connect import shown_store
from penstock.stores.contract import Fetched, WorkerInfo
from penstock.worker.callbacks import call_hook, call_last_hooks
from penstock.worker.liveness import LivenessLock, sweep
from penstock.worker.pools.child_group import resident
from penstock.worker.pools.host import refuse_while_importing
from penstock.worker.process_identity import reset_stray
from penstock.worker.queues import Queue
from penstock.worker.services import Services
from penstock.worker.setup import Supervision, worker_setup
from penstock.worker.start_checks import warn_of_unshared

_log = logging.getLogger("penstock.worker")


@in_process("make the worker there")
class Worker:
    """Runs the jobs of some queues in this process, on the running event loop.

    `await worker.run()` returns when the worker has drained: after `stop()`, or with `burst=True` when
    nothing is available, running, or due within a second. `concurrency` is the number of slots. Queues
    are served by weight, or in strict order with `strict=True`; without `queues`, all queues of the app's
    tasks are served. Missing options come from the environment and penstock.toml, unless a `config` is given.
    `periodic=False`: do not enqueue periodic jobs; a burst never does.
    """

    def __init__(
        self,
        app: App,
        queues: Sequence[Queue | str] | None = None,
        *,
        concurrency: int | None = None,
        burst: bool = False,
        strict: bool | None = None,
        config: Config | None = None,
        id: str | None = None,
        periodic: bool = True,
        supervision: Supervision = Supervision(),  # noqa: B008 (frozen)
        store_clock: Clock | None = None,
    ) -> None:
        self._setup = worker_setup(
            app,
            queues,
            concurrency=concurrency,
            burst=burst,
            strict=strict,
            config=config,
            id=id,
            periodic=periodic,
            supervision=supervision,
            store_clock=store_clock,
        )
        self._app = app
        self.id = self._setup.id
        self._state = "running"
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        #: Whether too many threads are stuck, so that a new process should replace this one.
        self.wants_replacement = False
        self._has_run = False
        self._services: Services | None = None
        self._adopted: list[tuple[str, str]] = []
        self._started_at = int(time.time() * 1000)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Serve until stopped. If the caller is cancelled, running jobs are released to other workers."""
        refuse_while_importing()
        if self._has_run:
            raise RuntimeError("this Worker has been run before: make another one for each run")
        self._has_run = True
        reset_stray()
        _log.info("worker %s: the store is %s", self.id, shown_store(self._app.store))
        sweep()
        lock = LivenessLock(self.id)
        supervision = self._setup.supervision
        if supervision.table is not None:
            supervision.table.announce(self.id)
        try:
            for hook in self._app.hooks.on_startup:
                await call_hook(hook, self._app)
            enable_own_loggers()
            self._services = services = Services(
                self._setup,
                self,
                on_empty=self._ends_burst,
                on_slot_lost=self._slot_lost,
                adopted=self._adopted,
            )
            if self._state == "quiet":
                self.quiet()
            if await services.announcer.announce_first(self._stop):
                await warn_of_unshared(self._app.store, self.info(), self._app.periodic_entries)
                await services.adopter.tick()
                async with services.running():
                    names, slots = ", ".join(self._setup.queue_names), self._setup.concurrency
                    _log.info("worker %s serves %s with %d slots", self.id, names, slots)
                    self._emit(WorkerStarted)
                    if supervision.ask is not None:
                        supervision.ask("serves")
                    await self._stop.wait()
                    await self._drain(services)
            else:
                await self._drain(services)
        finally:
            try:
                await call_last_hooks(self._app.hooks.on_shutdown, self._app)
            finally:
                self._emit(WorkerStopped)
                lock.release()

    def stop(self, *, now: bool = False) -> None:
        """Drain and end: start no more jobs, give running attempts the drain time, then release them.

        With `now`, or at a second call, the drain time ends at once.
        """
        if now or self._stop.is_set():
            self._now.set()
            _log.info("worker %s stops at once", self.id)
        self._state = "draining"
        self._stop.set()
        if self._services is not None:
            self._services.announcer.wake()

    def quiet(self) -> None:
        """Stop fetching. Running jobs continue, and the worker stays until `stop`."""
        self._state = "quiet"
        if self._services is not None:
            self._services.stop_fetching()
            self._services.announcer.wake()
            _log.info(
                "worker %s has stopped fetching; %d job(s) still run", self.id, self._services.slots.running
            )

    async def _drain(self, services: Services) -> None:
        slots, drain = services.slots, self._setup.config.drain_timeout
        running, waiting = slots.running, slots.buffered
        if services.fetching is not None:  # it had begun
            _log.info(
                "worker %s drains: %d job(s) may run for up to %s; %d that had not started are released",
                self.id,
                running,
                format_ms(drain),
                waiting,
            )
        services.stop_fetching()
        await services.last_fetch()
        await self._wait_until_idle(services, drain / 1000)
        if released := slots.running:
            _log.warning(
                "worker %s: %d job(s) did not end within the drain time and are released", self.id, released
            )
            services.executor.release_running()
        if not await services.last_outcomes(drain / 1000):
            left = len(services.leased_jobs)
            _log.error("worker %s: %d outcome(s) could not be stored; these jobs run again", self.id, left)
        await services.last_callbacks()
        if services.fetching is not None:
            ended = max(0, running - released)
            _log.info("worker %s has stopped: %d job(s) ended, %d released", self.id, ended, released)

    async def _wait_until_idle(self, services: Services, seconds: float) -> None:
        """Wait until nothing runs, the time is over, or the worker is to stop at once."""
        settled = asyncio.ensure_future(self._drain_to_idle(services))
        stop_now = asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait({settled, stop_now}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (settled, stop_now):
                one.cancel()

    async def _drain_to_idle(self, services: Services) -> None:
        await call_last_hooks(self._app.hooks.on_drain, self._app)
        await services.executor.idle()

    def _ends_burst(self, fetched: Fetched) -> bool:
        """End a burst that has nothing left to do, after a fetch without jobs. True if it ends."""
        services = self._services
        if not self._setup.burst or services is None or services.leased_jobs or self.calls_back:
            return False
        for instant in (fetched.due, fetched.opens_at):
            if instant is not None and instant - fetched.now <= 1_000:
                return False
        self.stop()
        return True

    def _slot_lost(self) -> None:
        """Stop the worker if too many slots were given up.

        Under a supervisor the worker is replaced when half of its slots are lost. Without one it continues
        with the remaining slots and stops when the last is lost: without a slot it could run nothing.
        """
        assert self._services is not None
        concurrency, lost = self._setup.concurrency, self._services.slots.lost
        tolerated = concurrency - 1 if self._setup.supervision.pid is None else (concurrency - 1) // 2
        if lost > tolerated and not self.wants_replacement:
            _log.error(
                "worker %s: %d of %d slots are stuck; draining to be replaced", self.id, lost, concurrency
            )
            self.wants_replacement = True
            self.stop()

    # ── state ────────────────────────────────────────────────────────────────────────────────────

    @property
    def calls_back(self) -> bool:
        """Whether callbacks of ended jobs are still being called: they may enqueue more jobs."""
        return self._services is not None and not self._services.callback_runner.idle

    @property
    def has_listeners(self) -> bool:
        """Whether the app has listeners or callbacks that need to know how jobs end."""
        return self._app.callbacks.active or self._app.events.active

    def info(self) -> WorkerInfo:
        """The facts that this worker announces to the store."""
        running = 0 if self._services is None else self._services.slots.running
        tasks, handled = tuple(self._app.tasks), tuple(self._app.handlers)
        if self._services is not None:
            unknown = self._services.unknown_tasks
            tasks = tuple(task for task in tasks if task not in unknown.closed_tasks)
            handled = tuple(queue for queue in handled if queue not in unknown.closed_queues)
        full_queues, full_tasks = self._full()
        return WorkerInfo(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            queues=tuple(self._setup.queue_names),
            tasks=tasks,
            concurrency=self._setup.concurrency,
            running=running,
            state=self._state,
            supervisor=self._setup.supervision.pid,
            version=__version__,
            handled=handled,
            memory=resident(os.getpid()),
            cpu=round(time.process_time(), 2),
            clock=time.time_ns() // 1_000_000,
            full_queues=full_queues,
            full_tasks=full_tasks,
            identities=self._app.identities,
            entries=self._entries(),
            stalled_queues=self._stalled_queues(),
        )

    def _entries(self) -> tuple[str, ...]:
        """The periodic entries of the code whose jobs this worker enqueues, as "queue/name"."""
        served = self._setup.queue_names if self._setup.periodic else ()
        return tuple(f"{ref.queue}/{ref.id}" for ref in self._app.periodic_entries if ref.queue in served)

    def _full(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The queues without a free slot of their own here, and the tasks without a free process slot."""
        services = self._services
        if services is None:
            return (), ()
        held, slots = services.leased_jobs.per_queue, services.slots
        queues = (q.name for q in self._setup.queues if q.slots is not None and held[q.name] >= q.slots)
        if slots.process_busy < slots.process_slots:
            return tuple(queues), ()
        return tuple(queues), tuple(n for n, task in self._app.tasks.items() if task.run_in == "process")

    def _stalled_queues(self) -> tuple[str, ...]:
        """The queues whose jobs all slots that they could have here wait for."""
        return () if self._services is None else tuple(sorted(self._services.executor.stalled.queues))

    def report_lost_worker(
        self, worker: str, cause: str, jobs: int, dead: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Report to listeners that another worker is proven dead, and held so many jobs. Take over the
        callbacks of those jobs (queue, id) that died with it."""
        if self._app.events.active:
            self._app.events.emit(WorkerLost(int(time.time() * 1000), worker, cause, jobs))
        self._adopted += dead
        if self._services is not None:
            self._services.adopter.wake()

    def _emit(self, kind: Callable[[int, str], Any]) -> None:
        if self._app.events.active:
            self._app.events.emit(kind(int(time.time() * 1000), self.id))
