"""The services of a worker: made, connected, started, and stopped in an order that loses no job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from penstock.core.errors import StoreError
from penstock.core.events import Health
from penstock.core.job import Job
from penstock.core.lifecycle import Transition
from penstock.maintenance.housekeeping import (
    BulkRunner,
    DepthSampler,
    FlowAdvancer,
    Pruner,
    QueueDefaultsWriter,
)
from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer
from penstock.maintenance.promoter import Promoter
from penstock.maintenance.reclaimer import Reclaimer, ReclaimerSetup
from penstock.maintenance.service import ProblemLog, Service
from penstock.stores.contract import Capability, Fetched, Wake
from penstock.stores.own_store import OwnStore
from penstock.worker.announcer import Announcer, Check
from penstock.worker.callbacks import CallbackRunner
from penstock.worker.event_loop import LoopMonitor
from penstock.worker.executor import AttemptWatch, Executor, Slots
from penstock.worker.executor.settler import Settler
from penstock.worker.fetcher import Fetcher, Listener
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.leased_jobs import LeasedJobs
from penstock.worker.liveness import proven_dead, remove_dead
from penstock.worker.remote_control import Controlled, Recycler, RemoteControl, stack_report
from penstock.worker.reporter import CallbackAdopter, Reporter
from penstock.worker.setup import WorkerSetup
from penstock.worker.start_checks import StoreCheckup, UnknownQueues
from penstock.worker.unknown_tasks import UnknownTasks
from penstock.worker.worker_metrics import WorkerMetrics
from penstock.worker.worker_stats import AttemptRecorder, StatsReporter

_log = logging.getLogger("penstock.worker")
#: Maximum wait (s) of a stopping worker for the store's last answers.
_LAST_ANSWERS = 5.0


class Services:
    """All services of one worker. Make them on the running event loop; `running` starts and stops them.

    `worker` obeys the commands of operators, and says what it announces. `on_empty` is called after a fetch
    without jobs and returns whether the worker stops, `on_slot_lost` when a slot was given up. `adopted`:
    jobs (queue, id) that died with another worker, to be reported here.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        worker: Controlled,
        *,
        on_empty: Callable[[Fetched], bool],
        on_slot_lost: Callable[[], None],
        adopted: list[tuple[str, str]],
    ) -> None:
        app, store = setup.app, setup.app.store
        self.setup = setup
        self._worker = worker
        #: The fetcher's task, once it has begun.
        self.fetching: asyncio.Task[None] | None = None
        self.metrics = _metrics(setup)
        self._recorder = AttemptRecorder(self.metrics, app.identities)
        self.leased_jobs = LeasedJobs(setup.supervision.table)
        self.slots = Slots(setup.concurrency, setup.config.process_slots, self.leased_jobs)
        self.callback_runner = CallbackRunner(app)
        self.reporter = Reporter(app, setup.id, self.callback_runner)
        self.adopter = CallbackAdopter(app, self.reporter, adopted)
        self.announcer = Announcer(setup, worker.info)
        self.unknown_tasks = UnknownTasks(
            app.events, on_closed=self.announcer.wake, parks=store.can(Capability.PARKING)
        )
        self._make_pipeline(on_empty, on_slot_lost)
        self.commands = RemoteControl(setup, worker, self._stacks)
        self.bulk = BulkRunner(store, setup.id)
        self.queue_defaults = QueueDefaultsWriter(store, app.queue_defaults)
        self.statistics = StatsReporter(store, self._recorder)

    def _make_pipeline(self, on_empty: Callable[[Fetched], bool], on_slot_lost: Callable[[], None]) -> None:
        """Make what jobs pass through, from their fetch to their settlement."""
        setup = self.setup
        self.settler = Settler(setup, self.slots, self._recorder, self.callback_runner)
        self.executor = executor = Executor(
            setup,
            self.slots,
            self.unknown_tasks,
            self.settler,
            on_slot_lost=on_slot_lost,
            on_stalled=self.announcer.wake,
        )
        self.unknown_tasks.close_at_start(*executor.admission.plans.refused())
        self.maintenance = _maintenance(setup, self.announcer, self.reporter, self._recorder)
        executor.admission.on_flow_job = self.maintenance.flows.noticed
        self.loop_monitor = LoopMonitor(
            setup.config.block_report / 1000, setup.supervision.table, on_blocked=self.reporter.blocked
        )
        self.heartbeat = Heartbeat(
            setup,
            self.leased_jobs,
            self.loop_monitor,
            on_lease_status=executor.on_lease_status,
            on_failed=self.maintenance.reclaimer.suspend_reclaim,
        )
        self.fetcher = Fetcher(
            setup,
            executor.admission,
            self.settler,
            on_due=self.maintenance.promoter.expect,
            on_empty=on_empty,
            on_changes=self._on_changes,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all services inside the block, then stop them in an order that loses no job."""
        defaults = self.queue_defaults
        await defaults.first()
        services = [*self._background(), defaults]
        self._share_problem_log(services)
        self.loop_monitor.start()
        self.heartbeat.start()
        if self.metrics is not None:
            self.metrics.start()
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
            self.loop_monitor.stop()
            self.heartbeat.stop()
            self.callback_runner.close()
            self.executor.close()
            if self.metrics is not None:
                self.metrics.stop()
            try:
                if self.setup.app.store.can(Capability.MEASURE):
                    await self.statistics.report_last()
            finally:
                await self._retire()

    async def _retire(self) -> None:
        if not self.setup.app.store.can(Capability.WORKERS):
            return
        try:
            await self.setup.app.store.retire(self.setup.id)
        except StoreError as error:  # its announcement expires
            _log.warning(
                "worker %s could not remove itself from the list of workers: %s", self.setup.id, error
            )

    def stop_fetching(self) -> None:
        """Fetch and start no more jobs."""
        self.fetcher.stop()
        self.executor.stop_starting()
        self.slots.started.set()  # the listener watches the store from now on

    async def last_fetch(self) -> None:
        """Wait for the fetch in flight: jobs that it still brings are released at once."""
        if self.fetching is not None:
            await asyncio.wait({self.fetching}, timeout=_LAST_ANSWERS)

    async def last_outcomes(self, seconds: float = 0.0) -> bool:
        """Wait for the answers to all outcomes, for `seconds` or five, if that is more. True if all came."""
        return await self.settler.drained(timeout=max(_LAST_ANSWERS, seconds))

    async def last_callbacks(self) -> None:
        """Wait until all callbacks of ended jobs were called, for at most five seconds."""
        await self.callback_runner.drained(timeout=_LAST_ANSWERS)

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _on_changes(self, changes: Wake) -> None:
        """Act at once on what the store reports: cancelled jobs, and settings."""
        if Wake.CANCEL in changes:
            self.heartbeat.send_now()  # its answers name the jobs
        if Wake.SETTINGS in changes:  # these are periodic entries, commands and bulk acts, too
            self.maintenance.periodic.wake()
            self.commands.wake()
            self.bulk.wake()

    def _stacks(self) -> str:
        """The report of what this process does."""
        return stack_report(self.leased_jobs, self.executor.thread_of)

    def _recycler(self) -> Recycler | None:
        """The service that replaces this process; None without a limit, or without a supervisor."""
        config, ask = self.setup.config, self.setup.supervision.ask
        has_limit = config.max_jobs_per_worker or config.max_memory_per_worker
        if ask is None or self.setup.keeps_jobs_in_memory or not has_limit:
            return None
        return Recycler(self.setup, self.leased_jobs, replace=lambda: ask("restart"))

    def _background(self) -> list[Service]:
        """All services except the fetcher, which stops first, and the heartbeat, which is a thread."""
        setup, store = self.setup, self.setup.app.store
        services: list[Service] = [
            self.announcer,
            self.adopter,
            self.maintenance.reclaimer,
            self.maintenance.promoter,
            self.maintenance.pruner,
            self.maintenance.flows,
            self.executor.admission.flow_inputs,
            self.commands,
            self.bulk,
            self.statistics,
            DepthSampler(store),
            StoreCheckup(store),
            UnknownQueues(store, setup.id, setup.queue_names, setup.app.queues()),
            AttemptWatch(self.executor, self.slots, self.heartbeat, self.loop_monitor),
            Listener(store, self.slots, self.fetcher, on_changes=self._on_changes),
        ]
        for every, call in setup.app.hooks.on_health:
            services.append(Check(self.announcer.announce, self._health, call, every / 1000))
        if (recycler := self._recycler()) is not None:
            services.append(recycler)
        if setup.periodic:
            services.append(self.maintenance.periodic)
        return [service for service in services if service.needs is None or store.can(service.needs)]

    def _share_problem_log(self, services: list[Service]) -> None:
        """Let all services share one problem log, so that an outage of the store is logged once."""
        problem_log = ProblemLog(_log)
        for service in (self.fetcher, *services):
            service.problem_log, service.on_set_aside = problem_log, self.reporter.set_aside
        self.settler.problem_log = self.heartbeat.problem_log = problem_log

    async def _release_all(self) -> None:
        _log.info(
            "worker %s was cancelled: %d running job(s) are released", self.setup.id, self.slots.running
        )
        self.stop_fetching()
        self.executor.release_running()
        await self.last_fetch()
        await self.last_outcomes()
        await self.last_callbacks()

    def _health(self, store_error: str | None) -> Health:
        """This worker's health. `store_error`: why the store is unreachable; None if it answers."""
        now = time.monotonic()
        return Health(
            at=int(time.time() * 1000),
            worker=self.setup.id,
            state=self._worker.info().state,
            store_reachable=store_error is None,
            store_error=store_error,
            concurrency=self.setup.concurrency,
            lost_slots=self.slots.lost,
            running=self.slots.running,
            buffered=self.slots.buffered,
            unsent=self.settler.unsent + self.settler.deferred,
            since_fetch=now - self.fetcher.last_success,
            since_heartbeat=now - self.heartbeat.last_answered,
            parked=self.unknown_tasks.count,
        )


def _metrics(setup: WorkerSetup) -> WorkerMetrics | None:
    """What counts for the supervisor's metrics; None if nothing is counted."""
    page, store = setup.supervision.metrics, setup.app.store
    if page is None:
        return None
    metrics = WorkerMetrics(page)
    if isinstance(store, OwnStore):
        store.observe(metrics.called)
    return metrics


class Maintenance(NamedTuple):
    """Services that maintain the store on behalf of all workers."""

    promoter: Promoter
    reclaimer: Reclaimer
    pruner: Pruner
    periodic: PeriodicEnqueuer
    flows: FlowAdvancer


def _maintenance(
    setup: WorkerSetup, announcer: Announcer, reporter: Reporter, recorder: AttemptRecorder
) -> Maintenance:
    def decided(job: Job, move: Transition) -> None:
        recorder.reclaimed(job, move)
        reporter.decided(job, move)

    app, config, store, names = setup.app, setup.config, setup.app.store, setup.queue_names
    return Maintenance(
        Promoter(store, names),
        Reclaimer(
            store,
            ReclaimerSetup(
                worker=setup.id,
                queues=tuple(names),
                lease=config.lease,
                heartbeat=config.heartbeat / 1000,
                every=config.reclaim_every / 1000,
                keep_dead=config.keep_dead,
                proven_dead=proven_dead,
                remove_dead=remove_dead,
                write=announcer.announce,
                on_lost=reporter.lost_worker,
                on_decided=decided,
            ),
        ),
        Pruner(
            store,
            every=config.prune_every / 1000,
            keep_finished=config.keep_finished_count,
            keep_dead=config.keep_dead_count,
        ),
        PeriodicEnqueuer(
            store,
            names,
            app.periodic_entries,
            rewrite=app.middleware.rewrite,
            on_enqueued=reporter.periodic_enqueued,
        ),
        FlowAdvancer(store),
    )
