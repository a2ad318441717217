"""Metrics of a store's queues for Prometheus: sizes, latencies, and totals over all servers and workers."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from penstock.core.errors import StoreError
from penstock.core.job import State
from penstock.stores.contract import Capability, QueueInfo, QueueStats, Store
from penstock.web.exposition import exposed

#: Time (s) in which a store must answer a scrape: Prometheus waits for 10 s.
_WITHIN = 5.0
_BY_QUEUE = ("pool", "queue")
_STARTED = time.time()
#: asynq's names of the states of its jobs.
_ASYNQ_STATES = (
    ("active", State.RUNNING),
    ("pending", State.AVAILABLE),
    ("scheduled", State.SCHEDULED),
    ("retry", State.RETRYABLE),
    ("archived", State.DEAD),
    ("completed", State.COMPLETED),
    ("aggregating", State.COLLECTING),
)

Samples = list[tuple[tuple[str, ...], float]]


class StoreReport:
    """What one store answered: its clock (ms), its queues and their totals. Empty if it is away."""

    def __init__(self) -> None:
        self.up = False
        self.now = 0
        self.queues: Sequence[QueueInfo] = ()
        self.stats: Sequence[QueueStats] = ()


async def read_stores(stores: Mapping[str, Store]) -> dict[str, StoreReport]:
    """Ask all stores, by the names of their pools."""
    reports = await asyncio.gather(*(_read(store) for store in stores.values()))
    return dict(zip(stores, reports, strict=True))


async def _read(store: Store) -> StoreReport:
    report = StoreReport()
    try:
        async with asyncio.timeout(_WITHIN):
            now = await store.now()
            queues = await store.queues()
            stats = await store.stats(days=1) if store.can(Capability.MEASURE) else []
    except (StoreError, TimeoutError):
        return report
    report.up, report.now = True, now
    report.queues, report.stats = [info for info in queues if not info.away], stats
    return report


def queue_metrics(reports: Mapping[str, StoreReport]) -> Iterable[str]:
    """Each metric of the stores' queues under Penstock's names."""
    up: Samples = [((pool,), int(one.up)) for pool, one in reports.items()]
    yield exposed("penstock_store_up", "gauge", "1: the store answers.", ("pool",), up)
    jobs: Samples = []
    oldest: Samples = []
    paused: Samples = []
    throttled: Samples = []
    for pool, report, info in _each_queue(reports):
        # each state also with 0: a series that ends is no number for an alert
        jobs += [((pool, info.name, state.value), info.counts.get(state, 0)) for state in State]
        oldest.append(((pool, info.name), _latency(report, info)))
        paused.append(((pool, info.name), int(info.paused)))
        throttled.append(((pool, info.name), int((info.throttled_until or 0) > report.now)))
    yield exposed("penstock_queue_jobs", "gauge", "Jobs by state.", (*_BY_QUEUE, "state"), jobs)
    help = "Time (s) since which the oldest available job could start."
    yield exposed("penstock_queue_latency_seconds", "gauge", help, _BY_QUEUE, oldest)
    yield exposed("penstock_queue_paused", "gauge", "1: the queue is paused.", _BY_QUEUE, paused)
    help = "1: the queue is throttled and starts no jobs now."
    yield exposed("penstock_queue_throttled", "gauge", help, _BY_QUEUE, throttled)
    for name in ("enqueued", "processed", "failed"):
        help = f"Jobs {name} since the first job of the queue, by all servers and workers."
        yield exposed(f"penstock_jobs_{name}_total", "counter", help, _BY_QUEUE, _totals(reports, name))


def asynq_metrics(report: StoreReport) -> Iterable[str]:
    """The metrics of queues under asynq's names, without its estimate of memory."""
    states: Samples = []
    sizes: Samples = []
    latencies: Samples = []
    paused: Samples = []
    for info in report.queues:
        by_state = [(name, info.counts.get(state, 0)) for name, state in _ASYNQ_STATES]
        states += [((info.name, name), number) for name, number in by_state]
        sizes.append(((info.name,), sum(number for _, number in by_state)))
        latencies.append(((info.name,), _latency(report, info)))
        paused.append(((info.name,), int(info.paused)))
    names = ("queue",)
    yield exposed("asynq_tasks_enqueued_total", "gauge", "Jobs by state.", ("queue", "state"), states)
    yield exposed("asynq_queue_size", "gauge", "Jobs.", names, sizes)
    help = "Time (s) since which the oldest available job could start."
    yield exposed("asynq_queue_latency_seconds", "gauge", help, names, latencies)
    yield exposed("asynq_queue_paused_total", "gauge", "1: the queue is paused.", names, paused)
    for name in ("processed", "failed"):
        samples: Samples = [((one.name,), getattr(one, name)) for one in report.stats]
        yield exposed(f"asynq_tasks_{name}_total", "counter", f"Attempts {name}.", names, samples)


def cpu_metric() -> str:
    """CPU time of this process."""
    cpu: Samples = [((), time.process_time())]
    return exposed("process_cpu_seconds_total", "counter", "CPU time of this process (s).", (), cpu)


def process_metrics() -> Iterable[str]:
    """CPU time, start and memory of this process, under the names that all Prometheus clients use."""
    yield cpu_metric()
    started: Samples = [((), round(_STARTED, 3))]
    help = "Start of this process, Unix time (s)."
    yield exposed("process_start_time_seconds", "gauge", help, (), started)
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return
    memory: Samples = [((), pages * resource.getpagesize())]
    yield exposed("process_resident_memory_bytes", "gauge", "Memory of this process.", (), memory)


def _each_queue(reports: Mapping[str, StoreReport]) -> Iterable[tuple[str, StoreReport, QueueInfo]]:
    for pool, report in reports.items():
        for info in report.queues:
            yield pool, report, info


def _latency(report: StoreReport, info: QueueInfo) -> float:
    since = report.now if info.oldest_available is None else info.oldest_available
    return max(0, report.now - since) / 1_000


def _totals(reports: Mapping[str, StoreReport], name: str) -> Samples:
    return [((pool, one.name), getattr(one, name)) for pool, every in reports.items() for one in every.stats]
