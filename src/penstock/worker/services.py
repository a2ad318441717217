"""The services of a running worker, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from penstock.core.errors import StoreError
from penstock.core.health import Health
from penstock.maintenance.bulk_runner import BulkRunner
from penstock.maintenance.depth_sampler import DepthSampler
from penstock.maintenance.flow_advancer import FlowAdvancer
from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer
from penstock.maintenance.promoter import Promoter
from penstock.maintenance.pruner import Pruner
from penstock.maintenance.queue_defaults import QueueDefaultsWriter
from penstock.maintenance.reclaimer import Reclaimer
from penstock.maintenance.service import ProblemLog, Service
from penstock.stores.contract import WorkerInfo
from penstock.worker.announcer import Announcer
from penstock.worker.attempt_watch import AttemptWatch
from penstock.worker.callback_adopter import CallbackAdopter
from penstock.worker.callback_runner import CallbackRunner
from penstock.worker.checks import Check
from penstock.worker.command_reader import CommandReader
from penstock.worker.executor import Executor, Slots
from penstock.worker.fetcher import Fetcher
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.leased_jobs import LeasedJobs
from penstock.worker.listener import Listener
from penstock.worker.recycler import Recycler
from penstock.worker.reporter import Reporter
from penstock.worker.settler import Settler
from penstock.worker.setup import WorkerSetup
from penstock.worker.stats_reporter import StatsReporter
from penstock.worker.store_checkup import StoreCheckup
from penstock.worker.unknown_queues import UnknownQueues
from penstock.worker.unknown_tasks import UnknownTasks
from penstock.worker.worker_metrics import WorkerMetrics

__all__ = ["Maintenance", "Services"]

_log = logging.getLogger("penstock.worker")
#: Maximum wait (s) of a stopping worker for the store's last answers.
_LAST_ANSWERS = 5.0


class Maintenance(NamedTuple):
    """Services that maintain the store on behalf of all workers."""

    promoter: Promoter
    reclaimer: Reclaimer
    pruner: Pruner
    periodic: PeriodicEnqueuer
    flows: FlowAdvancer


@dataclasses.dataclass(slots=True)
class Services:
    """All services of one worker."""

    setup: WorkerSetup
    info: Callable[[], WorkerInfo]
    leased_jobs: LeasedJobs
    slots: Slots
    unknown_tasks: UnknownTasks
    callback_runner: CallbackRunner
    reporter: Reporter
    adopter: CallbackAdopter
    announcer: Announcer
    settler: Settler
    executor: Executor
    fetcher: Fetcher
    heartbeat: Heartbeat
    maintenance: Maintenance
    queue_defaults: QueueDefaultsWriter
    commands: CommandReader
    bulk: BulkRunner
    recycler: Recycler | None
    on_settings: Callable[[], None]
    statistics: StatsReporter
    metrics: WorkerMetrics | None = None
    #: The fetcher's task, once it has begun.
    fetching: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all services inside the block, then stop them in an order that loses no job."""
        defaults = self.queue_defaults
        await defaults.first()
        services = [*self._background(), defaults]
        self._share_problem_log(services)
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
            self.heartbeat.stop()
            self.callback_runner.close()
            self.executor.close()
            if self.metrics is not None:
                self.metrics.stop()
            try:
                await self.statistics.report_last()
            finally:
                await self._retire()

    async def _retire(self) -> None:
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
            AttemptWatch(self.executor, self.slots, self.heartbeat),
            Listener(
                store,
                self.slots,
                on_cancel=self.heartbeat.send_now,
                on_settings=self.on_settings,
                fetches=lambda: not self.fetcher.stopped,
            ),
        ]
        for every, call in setup.app.hooks.on_health:
            services.append(Check(self.announcer.announce, self._health, call, every / 1000))
        if self.recycler is not None:
            services.append(self.recycler)
        if setup.periodic:
            services.append(self.maintenance.periodic)
        return services

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
            state=self.info().state,
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
