"""Creates and connects the services of a worker."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.core.job import Job
from penstock.core.lifecycle import Transition
from penstock.maintenance.bulk_runner import BulkRunner
from penstock.maintenance.flow_advancer import FlowAdvancer
from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer
from penstock.maintenance.promoter import Promoter
from penstock.maintenance.pruner import Pruner
from penstock.maintenance.queue_defaults import QueueDefaultsWriter
from penstock.maintenance.reclaimer import Reclaimer
from penstock.stores.contract import Fetched, WorkerInfo
from penstock.stores.facade import StoreFacade
from penstock.worker.announcer import Announcer
from penstock.worker.attempt_recorder import AttemptRecorder
from penstock.worker.callback_adopter import CallbackAdopter
from penstock.worker.callback_runner import CallbackRunner
from penstock.worker.command_reader import CommandReader
from penstock.worker.executor import Executor, Slots
from penstock.worker.fetcher import Fetcher
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.leased_jobs import LeasedJobs
from penstock.worker.locks import proven_dead, remove_dead
from penstock.worker.pools.limits import resident
from penstock.worker.recycler import Recycler
from penstock.worker.remote_control import Controlled, RemoteControl
from penstock.worker.reporter import Reporter
from penstock.worker.services import Maintenance, Services
from penstock.worker.settler import Settler
from penstock.worker.setup import WorkerSetup
from penstock.worker.stack_report import stack_report
from penstock.worker.stats_reporter import StatsReporter
from penstock.worker.unknown_tasks import UnknownTasks
from penstock.worker.worker_metrics import WorkerMetrics

__all__ = ["wire"]


def wire(
    setup: WorkerSetup,
    worker: Controlled,
    *,
    info: Callable[[], WorkerInfo],
    on_empty: Callable[[Fetched], bool],
    on_slot_lost: Callable[[], None],
    adopted: list[tuple[str, str]],
) -> Services:
    """Create the services of one worker on the running event loop, without starting them.

    `worker` obeys the commands of operators, `info` returns what it announces. `on_empty` is called after a
    fetch without jobs and returns whether the worker stops, `on_slot_lost` when a slot was given up.
    `adopted`: jobs (queue, id) that died with another worker, to be reported here.
    """
    app, config, store = setup.app, setup.config, setup.app.store
    metrics = None if setup.metrics is None else WorkerMetrics(setup.metrics)
    if metrics is not None and isinstance(store, StoreFacade):
        store.observe(metrics.called)
    recorder = AttemptRecorder(metrics)
    leased_jobs = LeasedJobs(setup.table)
    slots = Slots(setup.concurrency, config.process_slots, leased_jobs)
    callback_runner = CallbackRunner(app)
    reporter = Reporter(app, setup.id, callback_runner)
    announcer = Announcer(
        store,
        info,
        config.announce / 1000,
        waits=not setup.burst,
        on_announced=_nothing if setup.table is None else setup.table.record_store_answer,
    )
    unknown_tasks = UnknownTasks(app.events, on_closed=announcer.wake)
    settler = Settler(
        store,
        app,
        leased_jobs,
        busy=slots.is_backed_up,
        on_answer=slots.freed.set,
        on_applied=callback_runner.take,
        keep_dead=config.keep_dead,
        lease=config.lease,
        recorder=recorder,
    )
    executor = Executor(
        app,
        config,
        leased_jobs,
        slots,
        unknown_tasks,
        settle=settler.settle,
        on_slot_lost=on_slot_lost,
        on_lease_lost=_nothing if metrics is None else metrics.lease_lost,
        supervised=setup.supervisor is not None,
        queue_slots={queue.name: queue.slots for queue in setup.queues if queue.slots is not None},
    )
    maintenance = _maintenance(setup, announcer, reporter, recorder)
    executor.admission.on_flow_job = maintenance.flows.noticed
    heartbeat = _heartbeat(setup, leased_jobs, executor, maintenance, reporter)
    commands = _commands(setup, worker, leased_jobs, executor)
    bulk = BulkRunner(store, setup.id)

    def on_settings() -> None:
        maintenance.periodic.wake()
        commands.wake()
        bulk.wake()

    fetcher = _fetcher(
        setup, executor, slots, settler, leased_jobs, maintenance, heartbeat, on_empty, on_settings
    )
    return Services(
        setup=setup,
        info=info,
        leased_jobs=leased_jobs,
        slots=slots,
        unknown_tasks=unknown_tasks,
        callback_runner=callback_runner,
        reporter=reporter,
        adopter=CallbackAdopter(reporter, adopted),
        announcer=announcer,
        settler=settler,
        executor=executor,
        fetcher=fetcher,
        heartbeat=heartbeat,
        maintenance=maintenance,
        commands=commands,
        bulk=bulk,
        on_settings=on_settings,
        recycler=_recycler(setup, leased_jobs),
        queue_defaults=QueueDefaultsWriter(store, app.queue_defaults),
        statistics=StatsReporter(store, recorder),
        metrics=metrics,
    )


def _nothing() -> None:
    """What is called where nothing is counted or recorded."""


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
            names,
            setup.id,
            lease=config.lease,
            heartbeat=config.heartbeat / 1000,
            proven_dead=proven_dead,
            remove_dead=remove_dead,
            write=announcer.announce,
            on_lost=reporter.lost_worker,
            on_decided=decided,
            every=config.reclaim_every / 1000,
            keep_dead=config.keep_dead,
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


def _heartbeat(
    setup: WorkerSetup,
    leased_jobs: LeasedJobs,
    executor: Executor,
    maintenance: Maintenance,
    reporter: Reporter,
) -> Heartbeat:
    config = setup.config
    return Heartbeat(
        setup.app.store,
        leased_jobs,
        lease=config.lease,
        every=config.heartbeat / 1000,
        block_report=config.block_report / 1000,
        on_lease_status=executor.on_lease_status,
        on_blocked=reporter.blocked,
        on_failed=maintenance.reclaimer.suspend_reclaim,
        table=setup.table,
    )


def _fetcher(
    setup: WorkerSetup,
    executor: Executor,
    slots: Slots,
    settler: Settler,
    leased_jobs: LeasedJobs,
    maintenance: Maintenance,
    heartbeat: Heartbeat,
    on_empty: Callable[[Fetched], bool],
    on_settings: Callable[[], None],
) -> Fetcher:
    config = setup.config
    return Fetcher(
        setup.app.store,
        executor.admission,
        slots,
        settler,
        leased_jobs,
        setup.queues,
        worker=setup.id,
        lease=config.lease,
        look_ahead=config.look_ahead / 1000,
        safety_poll=0.05 if setup.burst else config.safety_poll / 1000,
        strict=setup.strict,
        on_due=maintenance.promoter.expect,
        on_empty=on_empty,
        on_cancel=heartbeat.send_now,
        on_settings=on_settings,
    )


def _commands(
    setup: WorkerSetup, worker: Controlled, leased_jobs: LeasedJobs, executor: Executor
) -> CommandReader:
    control = RemoteControl(
        worker,
        setup.ask_supervisor,
        replaceable=not _in_memory(setup),
        stacks=lambda: stack_report(leased_jobs, executor.thread_of),
    )
    return CommandReader(setup.app.store, setup.id, control.obey)


def _in_memory(setup: WorkerSetup) -> bool:
    """Whether the jobs are in the memory of this process, and would be lost with it."""
    return setup.app.store.url.startswith("memory:")


def _recycler(setup: WorkerSetup, leased_jobs: LeasedJobs) -> Recycler | None:
    """The service that replaces this process; None without a limit, or without a supervisor."""
    config, ask = setup.config, setup.ask_supervisor
    if ask is None or _in_memory(setup) or not (config.max_jobs_per_worker or config.max_memory_per_worker):
        return None
    return Recycler(
        setup.id,
        leased_jobs,
        jobs=config.max_jobs_per_worker,
        memory=config.max_memory_per_worker,
        resident=lambda: resident(os.getpid()),
        replace=lambda: ask("restart"),
    )
