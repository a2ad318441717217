"""Takes jobs and runs them: the services around one pipeline, fetch → run → settle."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from penstock.app.app import App
from penstock.app.outcome_events import log_set_aside, tell, tell_set_aside
from penstock.config import Config, load
from penstock.core.batcher import Batcher
from penstock.core.duration import format_ms
from penstock.core.errors import AttemptCancelled, AttemptLost, ConfigError, StoreError, StoreUnavailable
from penstock.core.events import JobEnqueued, LoopBlocked, WorkerLost, WorkerStarted, WorkerStopped
from penstock.core.health import Health
from penstock.core.ids import mint
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer
from penstock.maintenance.promoter import Promoter
from penstock.maintenance.pruner import Pruner
from penstock.maintenance.reclaimer import Reclaimer
from penstock.maintenance.service import Complaint, Service, pause_after
from penstock.stores.contract import Beat, Fetched, Grip, Level, SetAside, Store, Wake, WorkerInfo
from penstock.worker.callback_runner import Aftercare
from penstock.worker.checks import Check
from penstock.worker.executor import Executor, Slots
from penstock.worker.fetcher import Fetcher
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.leased_jobs import Hold, Holdings
from penstock.worker.locks import LifeLock, bury, proven_dead, sweep
from penstock.worker.pools.script import refuse_while_importing
from penstock.worker.queues import Queue, as_queues, is_count
from penstock.worker.settler import Settler
from penstock.worker.shared_lease_table import LeaseTable
from penstock.worker.unknown_queues import UnknownQueues
from penstock.worker.unknown_tasks import Strangers

__all__ = ["Worker"]

_log = logging.getLogger("penstock.worker")
#: How long a worker that ends waits for the store's last answers (s).
_LAST_WORDS = 5.0


class Worker:
    """Runs the jobs of some queues in this process, on the running event loop.

    `await worker.run()` returns when the worker has drained: after `stop()`, or with `burst=True` when
    nothing is available, running, or due within a second. `concurrency` is the number of slots. Queues
    are served by weight, or in strict order; without `queues`, all queues of the app's tasks. What is not
    said here is as the environment and penstock.toml have it, unless a `config` is given. `periodic=False`:
    leave the enqueueing of periodic jobs to others, as a burst does.
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
        table: LeaseTable | None = None,
        id: str | None = None,
        supervisor: int | None = None,
        periodic: bool = True,
    ) -> None:
        if not isinstance(app, App):
            raise ConfigError(f"Worker({app!r:.60}) takes the app itself, imported from its module")
        self._app = app
        self._periodic = periodic and not burst
        self._config = config or load().config
        self._queues = as_queues(queues if queues is not None else app.queues())
        if not self._queues:
            raise ConfigError("this worker has no queues: register a task first, or name the queues")
        self._concurrency = self._config.concurrency if concurrency is None else concurrency
        if not is_count(self._concurrency):
            raise ConfigError(f"concurrency={self._concurrency!r} must be a whole number, 1 or more")
        self._burst = burst
        self._strict = self._config.strict if strict is None else strict
        self.id = id or mint()
        self._supervisor = supervisor
        self._state = "running"
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._table = table
        self._holdings = Holdings(table)
        #: So many threads hang that a new process should take this one's place.
        self.wants_replacement = False
        self._begun = False
        self._parts: _Parts | None = None
        self._inherited: Sequence[tuple[str, str]] = ()
        self._started_at = int(time.time() * 1000)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Serve until stopped. If the caller is cancelled, what runs is released and goes on elsewhere."""
        refuse_while_importing()
        if self._begun:
            raise RuntimeError("this worker has run, or runs: a Worker serves once, make another one")
        self._begun = True
        sweep()
        lock = LifeLock(self.id)
        if self._table is not None:
            self._table.announce(self.id)
        try:
            for hook in self._app.hooks.on_startup:
                await _call_hook(hook, self._app)
            self._parts = parts = _Parts(self)
            if self._state == "quiet":
                self.quiet()
            if await parts.announced():
                await parts.inherit(self._inherited)
                async with parts.running():
                    _log.info("worker %s serves %s with %d slots", self.id, self._names(), self._concurrency)
                    self._emit(WorkerStarted)
                    await self._stop.wait()
                    await self._drain(parts)
            else:
                await self._drain(parts)
        finally:
            try:
                await _call_last_hooks(self._app.hooks.on_shutdown, self._app)
            finally:
                self._emit(WorkerStopped)
                lock.release()

    def stop(self, *, now: bool = False) -> None:
        """Drain and end: start nothing more, give running attempts the drain time, then release them.

        With `now` (or a second call) the drain time is over at once.
        """
        if now or self._stop.is_set():
            self._now.set()
            _log.info("worker %s is told to stop at once", self.id)
        self._state = "draining"
        self._stop.set()
        if self._parts is not None:
            self._parts.announcer.poke()

    def quiet(self) -> None:
        """Fetch nothing more, but stay: what runs goes on, `stop` comes later."""
        self._state = "quiet"
        if self._parts is not None:
            self._parts.fetcher.stop()
            self._parts.executor.stop_starting()
            self._parts.announcer.poke()
            _log.info("worker %s fetches nothing more; %d job(s) run on", self.id, self._parts.slots.running)

    async def _drain(self, parts: _Parts) -> None:
        running, waiting = parts.slots.running, parts.slots.buffered
        if parts.fetching is not None:  # it had begun
            _log.info(
                "worker %s drains: %d job(s) run on, for %s at most; %d that had not begun go back",
                self.id,
                running,
                format_ms(self._config.drain_timeout),
                waiting,
            )
        parts.fetcher.stop()
        parts.executor.stop_starting()
        await parts.last_fetch()
        settled = asyncio.ensure_future(self._last_ones(parts))
        hurried = asyncio.ensure_future(self._now.wait())
        drain = self._config.drain_timeout / 1000
        try:
            await asyncio.wait({settled, hurried}, timeout=drain, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (settled, hurried):
                one.cancel()
        if released := parts.slots.running:
            _log.warning("worker %s: %d job(s) did not end in time and are released", self.id, released)
            parts.executor.release_running()
        if not await parts.settler.drained(timeout=max(_LAST_WORDS, drain)):
            _log.error(
                "worker %s: %d outcome(s) could not be stored; these jobs run again",
                self.id,
                len(self._holdings),
            )
        await parts.aftercare.drained(timeout=_LAST_WORDS)
        if parts.fetching is not None:
            ended = max(0, running - released)
            _log.info("worker %s has stopped: %d job(s) ended, %d released", self.id, ended, released)

    async def _last_ones(self, parts: _Parts) -> None:
        await _call_last_hooks(self._app.hooks.on_drain, self._app)
        await parts.executor.idle()

    # ── what the parts ask ───────────────────────────────────────────────────────────────────────

    def _empty(self, fetched: Fetched) -> bool:
        """A fetch found nothing. In a burst, that may be the end; True: it is."""
        if not self._burst or self._holdings or self.calls_back:
            return False
        for instant in (fetched.due, fetched.opens):
            if instant is not None and instant - fetched.now <= 1_000:
                return False
        self.stop()
        return True

    @property
    def calls_back(self) -> bool:
        """Whether callbacks of ended jobs are being called: they may enqueue more."""
        return self._parts is not None and not self._parts.aftercare.idle

    @property
    def tells(self) -> bool:
        """Whether anybody here wants to know how jobs end: listeners, or callbacks."""
        return self._app.callbacks.active or self._app.events.active

    def info(self) -> WorkerInfo:
        """This worker, as it announces itself."""
        running = 0 if self._parts is None else self._parts.slots.running
        tasks, handled = tuple(self._app.tasks), tuple(self._app.handlers)
        if self._parts is not None and self._parts.strangers.closed_tasks:
            strangers = self._parts.strangers
            tasks = tuple(task for task in tasks if task not in strangers.closed_tasks)
            handled = tuple(queue for queue in handled if queue not in strangers.closed_queues)
        return WorkerInfo(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            queues=tuple(q.name for q in self._queues),
            tasks=tasks,
            concurrency=self._concurrency,
            running=running,
            state=self._state,
            supervisor=self._supervisor,
            version=_version(),
            handled=handled,
        )

    def tell_lost(self, worker: str, cause: str, jobs: int) -> None:
        """Another worker is proven dead: let listeners hear of it."""
        if self._app.events.active:
            self._app.events.emit(WorkerLost(int(time.time() * 1000), worker, cause, jobs))

    def inherit(self, dead: Sequence[tuple[str, str]]) -> None:
        """These jobs (queue, id) died with the worker before this one: their callbacks are ours to call."""
        self._inherited = dead

    def _enqueued(self, job: NewJob) -> None:
        """A job of a periodic entry is stored."""
        if self._app.events.active:
            self._app.events.emit(JobEnqueued(int(time.time() * 1000), job.id, job.queue, job.task, 0))

    def _names(self) -> str:
        return ", ".join(q.name for q in self._queues)

    def _emit(self, kind: Callable[[int, str], Any]) -> None:
        if self._app.events.active:
            self._app.events.emit(kind(int(time.time() * 1000), self.id))


class _Parts:
    """The services of a running worker, wired to one another."""

    def __init__(self, worker: Worker) -> None:
        app, config = worker._app, worker._config
        store: Store = app.store
        holdings = worker._holdings
        names = [q.name for q in worker._queues]
        self._worker = worker
        self._store = store
        self._names = names
        self.slots = slots = Slots(worker._concurrency, config.process_slots, holdings)
        self.strangers = Strangers(app.events)
        self.beats: Batcher[Beat, Grip] = Batcher(self._extended)
        self.aftercare = Aftercare(app)
        self.settler = Settler(
            store,
            app,
            holdings,
            busy=slots.is_backed_up,
            on_answer=slots.freed.set,
            on_applied=self.aftercare.take,
            keep_dead=config.keep_dead,
            lease=config.lease,
        )
        self.executor = Executor(
            app,
            config,
            holdings,
            slots,
            self.strangers,
            settle=self.settler.settle,
            record_start=self.beats.put,
            on_slot_lost=self.slot_lost,
            supervised=worker._supervisor is not None,
            queue_slots={q.name: q.slots for q in worker._queues if q.slots is not None},
        )
        self.promoter = Promoter(store, names)
        self.reclaimer = Reclaimer(
            store,
            names,
            worker.id,
            lease=config.lease,
            heartbeat=config.heartbeat / 1000,
            proven_dead=proven_dead,
            bury=bury,
            write=lambda: store.announce(worker.info()),
            on_lost=worker.tell_lost,
            on_judged=self._judged,
            every=config.reclaim_every / 1000,
            keep_dead=config.keep_dead,
        )
        self.fetcher = Fetcher(
            store,
            self.executor.admission,
            slots,
            self.settler,
            holdings,
            worker._queues,
            worker=worker.id,
            lease=config.lease,
            look_ahead=config.look_ahead / 1000,
            safety_poll=0.05 if worker._burst else config.safety_poll / 1000,
            strict=worker._strict,
            on_due=self.promoter.expect,
            on_empty=worker._empty,
            on_cancel=lambda: self.heartbeat.beat_now(),
            on_settings=lambda: self.periodic.poke(),
        )
        self.periodic = PeriodicEnqueuer(
            store,
            names,
            app.periodic_entries,
            rewrite=app.middleware.rewrite,
            on_enqueued=worker._enqueued,
        )
        self.pruner = Pruner(
            store,
            every=config.prune_every / 1000,
            keep_finished=config.keep_finished_count,
            keep_dead=config.keep_dead_count,
        )
        self.heartbeat = Heartbeat(
            store,
            holdings,
            lease=config.lease,
            every=config.heartbeat / 1000,
            block_report=config.block_report / 1000,
            on_grip=self._gripped,
            on_blocked=self._blocked,
            on_failed=self.reclaimer.doubt,
            table=worker._table,
        )
        self.announcer = _Announcer(store, worker.info, config.announce / 1000)
        self.strangers.on_closed = self.announcer.poke
        self.fetching: asyncio.Task[None] | None = None

    async def _extended(self, beats: list[Beat]) -> Sequence[Grip | BaseException]:
        """As the store answers; who asks for one lease whose part of the store is away gets the error."""
        away = StoreUnavailable("the part of the store that has its queue is away")
        return [away if grip is Grip.UNKNOWN else grip for grip in await self._store.extend(beats)]

    async def announced(self) -> bool:
        """Whether the store knows of this worker, however long that takes; False: it was stopped before."""
        announcing = asyncio.ensure_future(self._announce())
        stopped = asyncio.ensure_future(self._worker._stop.wait())
        try:
            await asyncio.wait({announcing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if announcing.done():
                announcing.result()
            return announcing.done()
        finally:
            for one in (announcing, stopped):
                one.cancel()
            await asyncio.gather(announcing, stopped, return_exceptions=True)

    async def _announce(self) -> None:
        complaint, failures = Complaint(_log), 0
        while True:
            try:
                return await self._store.announce(self._worker.info())
            except StoreUnavailable as error:
                if self._worker._burst:  # whoever started it waits for its end, and wants to hear of this
                    raise
                complaint.about("the worker waits for its store", error)
                await asyncio.sleep(pause_after(failures))
                failures += 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All services run inside; at the end they are stopped in the order that loses nothing."""
        services: list[Service] = [
            self.announcer,
            self.reclaimer,
            self.promoter,
            self.pruner,
            _Checkup(self._store),
            UnknownQueues(self._store, self._worker.id, self._names, self._worker._app.queues()),
            _Watch(self.executor, self.slots, self.heartbeat),
            _Listener(self._store, self.slots, self.heartbeat, self.periodic.poke),
            *self._checks(),
        ]
        if self._worker._periodic:
            services.append(self.periodic)
        one_voice = Complaint(_log)
        for service in (self.fetcher, *services):
            service.complaint, service.on_set_aside = one_voice, self._set_aside
        self.settler.complaint = self.heartbeat.complaint = one_voice
        self.heartbeat.start()
        try:
            async with asyncio.TaskGroup() as group:
                self.fetching = group.create_task(self.fetcher.run(), name="penstock-fetcher")
                for service in services:
                    group.create_task(service.run(), name=f"penstock-{service.name}")
                try:
                    yield
                except asyncio.CancelledError:
                    await asyncio.shield(self._release_all())
                    raise
                finally:
                    self.fetcher.stop()
                    for service in services:
                        service.stop()
        finally:
            self.heartbeat.stop()
            self.aftercare.close()
            self.executor.close()
            try:
                await self._store.retire(self._worker.id)
            except StoreError as error:  # it falls off the list by itself
                _log.warning("worker %s could not sign off: %s", self._worker.id, error)

    async def inherit(self, dead: Sequence[tuple[str, str]]) -> None:
        """Tell of the jobs that died with the worker before this one, and call what is to be called."""
        if not dead or not self._worker.tells:
            return
        try:
            jobs = await self._store.get([Ref(*one) for one in dead])
        except StoreError as error:
            _log.error("nobody is told of %d dead job(s), and no callback is called: %s", len(dead), error)
            return
        for job in jobs:
            if job is not None and job.state is State.DEAD and job.errors:
                before = msgspec.structs.replace(job, errors=job.errors[:-1])
                self._judged(before, Transition(job.state, error=job.errors[-1], reason=job.reason))

    async def last_fetch(self) -> None:
        """Wait for the fetch under way: what it still brings goes back at once."""
        if self.fetching is not None:
            await asyncio.wait({self.fetching}, timeout=_LAST_WORDS)

    async def _release_all(self) -> None:
        _log.info("worker %s is cancelled: %d job(s) are released", self._worker.id, self.slots.running)
        self.fetcher.stop()
        self.executor.stop_starting()
        self.executor.release_running()
        await self.last_fetch()
        await self.settler.drained(timeout=_LAST_WORDS)
        await self.aftercare.drained(timeout=_LAST_WORDS)

    # ── news ─────────────────────────────────────────────────────────────────────────────────────

    def slot_lost(self) -> None:
        """A slot was given up; when half are, a new process is better than this one. Who has no supervisor
        goes on with what is left, and ends with the last one: waiting for ever would look like work."""
        worker, lost = self._worker, self.slots.lost
        bearable = worker._concurrency - 1 if worker._supervisor is None else (worker._concurrency - 1) // 2
        if lost > bearable and not worker.wants_replacement:
            _log.error(
                "worker %s: %d of its %d slots hang; it drains to be replaced",
                worker.id,
                lost,
                worker._concurrency,
            )
            worker.wants_replacement = True
            worker.stop()

    def _gripped(self, hold: Hold, grip: Grip) -> None:
        """A heartbeat says that a lease is lost, or that its job is to stop."""
        if grip is Grip.LOST:
            if not hold.over:
                _log.warning("job %s: its lease is lost; what it still does will not count", hold.job.id)
            self.executor.interrupt(hold, AttemptLost)
        else:
            self.executor.interrupt(hold, AttemptCancelled)

    def _judged(self, job: Job, move: Transition) -> None:
        """A job of a dead worker: nobody but us can tell of it, and call what is to be called."""
        if move.state is State.DEAD:
            _log.error("job %s (%s, attempt %d) is dead: %s", job.id, job.task, job.attempt, move.reason)
        if self._worker._app.callbacks.active:
            self.aftercare.take(job, move)
        tell(self._worker._app.events, job, move)

    def _set_aside(self, found: Sequence[SetAside]) -> None:
        """The store has met records that cannot be read."""
        log_set_aside(found)
        tell_set_aside(self._worker._app.events, found)

    def _checks(self) -> list[Check]:
        hooks = self._worker._app.hooks.on_health
        return [
            Check(lambda: self._store.announce(self._worker.info()), self._health, tell, every / 1000)
            for every, tell in hooks
        ]

    def _health(self, trouble: str | None) -> Health:
        worker, now = self._worker, time.monotonic()
        return Health(
            at=int(time.time() * 1000),
            worker=worker.id,
            state=worker._state,
            store_reachable=trouble is None,
            store_error=trouble,
            concurrency=worker._concurrency,
            lost_slots=self.slots.lost,
            running=self.slots.running,
            buffered=self.slots.buffered,
            unsent=self.settler.unsent + self.settler.put_off,
            since_fetch=now - self.fetcher.last_success,
            since_heartbeat=now - self.heartbeat.last_beat,
            parked=self.strangers.met,
        )

    def _blocked(self, seconds: float, stack: str) -> None:
        if self._worker._app.events.active:
            event = LoopBlocked(int(time.time() * 1000), self._worker.id, seconds, stack)
            self._worker._app.events.emit(event)


class _Checkup(Service):
    """Logs once what is not safe about the store's settings, when the store first answers."""

    name = "checkup"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    async def tick(self) -> float:
        try:
            findings = await self._store.checkup()
        except StoreUnavailable:
            raise  # later
        except StoreError as error:  # it may still do all that matters here
            _log.warning("%s does not let us look how safe jobs are there: %s", self._store.url, error)
            findings = []
        for finding in findings:
            if finding.level is not Level.FINE:
                level = logging.ERROR if finding.level is Level.ERROR else logging.WARNING
                _log.log(level, "%s: %s", self._store.url, finding)
        self.stop()
        return 0.0


class _Announcer(Service):
    """Says every few seconds that this worker lives, and at once when it begins to drain."""

    name = "announcer"

    def __init__(self, store: Store, info: Callable[[], WorkerInfo], every: float) -> None:
        super().__init__()
        self._store = store
        self._info = info
        self._every = every

    async def tick(self) -> float:
        await self._store.announce(self._info())
        return self._every


class _Watch(Service):
    """Looks at the attempts that run: timeouts, grace periods, look-ahead that found no slot."""

    name = "watch"

    def __init__(self, executor: Executor, slots: Slots, heartbeat: Heartbeat) -> None:
        super().__init__()
        self._executor = executor
        self._slots = slots
        self._heartbeat = heartbeat
        self._progress_at = 0.0

    async def tick(self) -> float:
        executor, slots = self._executor, self._slots
        if not slots.running and not executor.admission.waiting:
            slots.started.clear()
            await slots.started.wait()
        now = time.monotonic()
        if now - self._progress_at > 0.25 and executor.has_progress():
            self._progress_at = now
            self._heartbeat.beat_now()
        if executor.admission.waiting:
            self._heartbeat.tick()
        return executor.watch()

    def stop(self) -> None:
        super().stop()
        self._slots.started.set()


class _Listener(Service):
    """Hears of cancellations of what runs here: while attempts last, five cheap looks a second. And, as a
    store tells its news once, of settings that have changed."""

    name = "listener"

    def __init__(
        self, store: Store, slots: Slots, heartbeat: Heartbeat, on_settings: Callable[[], None]
    ) -> None:
        super().__init__()
        self._store = store
        self._slots = slots
        self._heartbeat = heartbeat
        self._on_settings = on_settings

    async def tick(self) -> float:
        if not self._slots.running:
            self._slots.started.clear()
            await self._slots.started.wait()
            return 0.1
        news = await self._store.wait((), timeout=0)
        if Wake.CANCEL in news:
            self._heartbeat.beat_now()
        if Wake.SETTINGS in news:
            self._on_settings()
        return 0.2


async def _call_hook(hook: Callable[..., Any], app: App) -> None:
    made = hook(app) if inspect.signature(hook).parameters else hook()
    if inspect.isawaitable(made):
        await made


async def _call_last_hooks(hooks: Sequence[Callable[..., Any]], app: App) -> None:
    """Those of the end: one that fails keeps neither the others nor the worker's own end from coming."""
    for hook in hooks:
        try:
            await _call_hook(hook, app)
        except Exception:  # noqa: BLE001  # boundary: user code
            _log.exception("the hook %r failed", hook)


def _version() -> str:
    from importlib.metadata import version

    return version("penstock")
