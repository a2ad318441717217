"""What Prometheus sees of the server: what it counts itself, and the store's sizes and totals."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from penstock.core.errors import StoreError
from penstock.core.job import State
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.counters import HttpMetrics
from penstock.dialects.lmstfy.names import split_queue
from penstock.stores.contract import QueueInfo, QueueStats
from penstock.web.exposition import exposed

__all__ = ["metrics_text"]

_BY_QUEUE = ("pool", "namespace", "queue")
_LATER = (State.SCHEDULED, State.RETRYABLE, State.RUNNING)
_STARTED = time.time()


async def metrics_text(http: HttpMetrics, pools: Mapping[str, Backend], connections: int) -> str:
    """All metrics of the server. A store that is away lacks those that come from it."""
    parts = [http.exposed()]
    up: list[tuple[tuple[str, ...], float]] = []
    infos: dict[str, Sequence[QueueInfo]] = {}
    stats: dict[str, Sequence[QueueStats]] = {}
    for name, backend in pools.items():
        parts.append(backend.metrics.exposed())
        try:
            infos[name] = await backend.store.queues()
            stats[name] = await backend.store.stats(days=1)
        except StoreError:
            up.append(((name,), 0))
        else:
            up.append(((name,), 1))
    parts.append(exposed("penstock_store_up", "gauge", "1: the store answers.", ("pool",), up))
    parts += [*_sizes(infos), *_queues(infos, pools), *_totals(stats)]
    waiting = [((name,), backend.dispatcher.waiting) for name, backend in pools.items()]
    help = "Consume requests that wait for a job."
    parts.append(exposed("penstock_http_waiting_requests", "gauge", help, ("pool",), waiting))
    help = "Open connections of the data listener."
    parts.append(exposed("penstock_http_connections", "gauge", help, (), [((), connections)]))
    return "".join([*parts, *_process()])


def _sizes(infos: Mapping[str, Sequence[QueueInfo]]) -> Iterable[str]:
    """The sizes under lmstfy's names, exact and as they are now."""
    ready: list[tuple[tuple[str, ...], float]] = []
    dead: list[tuple[tuple[str, ...], float]] = []
    timers: list[tuple[tuple[str, ...], float]] = []
    for pool, queues in infos.items():
        later = 0
        for info in queues:
            names = split_queue(info.name)
            if names is None or info.away:
                continue
            ready.append(((pool, *names), info.counts.get(State.AVAILABLE, 0)))
            dead.append(((pool, *names), info.counts.get(State.DEAD, 0)))
            later += sum(info.counts.get(state, 0) for state in _LATER)
        timers.append(((pool,), later))
    yield exposed("lmstfy_redis_queue_sizes", "gauge", "Jobs that are ready.", _BY_QUEUE, ready)
    yield exposed("lmstfy_redis_deadletter_sizes", "gauge", "Dead letters.", _BY_QUEUE, dead)
    yield exposed("lmstfy_redis_timer_sizes", "gauge", "Delayed and reserved jobs.", ("pool",), timers)


def _queues(infos: Mapping[str, Sequence[QueueInfo]], pools: Mapping[str, Backend]) -> Iterable[str]:
    jobs: list[tuple[tuple[str, ...], float]] = []
    oldest: list[tuple[tuple[str, ...], float]] = []
    paused: list[tuple[tuple[str, ...], float]] = []
    for pool, queues in infos.items():
        now = pools[pool].now
        for info in queues:
            if info.away:
                continue
            jobs += [((pool, info.name, state.value), n) for state, n in info.counts.items()]
            since = now if info.oldest_available is None else info.oldest_available
            oldest.append(((pool, info.name), max(0, now - since) / 1_000))
            paused.append(((pool, info.name), int(info.paused)))
    by_queue = ("pool", "queue")
    yield exposed("penstock_queue_jobs", "gauge", "Jobs by state.", (*by_queue, "state"), jobs)
    help = "Time (s) since which the oldest available job could start."
    yield exposed("penstock_queue_latency_seconds", "gauge", help, by_queue, oldest)
    yield exposed("penstock_queue_paused", "gauge", "1: the queue is paused.", by_queue, paused)


def _totals(stats: Mapping[str, Sequence[QueueStats]]) -> Iterable[str]:
    for name in ("enqueued", "processed", "failed"):
        samples = [((pool, one.name), getattr(one, name)) for pool, every in stats.items() for one in every]
        help = f"Jobs {name} since the first job of the queue, by all servers and workers."
        yield exposed(f"penstock_jobs_{name}_total", "counter", help, ("pool", "queue"), samples)


def _process() -> Iterable[str]:
    cpu = [((), time.process_time())]
    yield exposed("process_cpu_seconds_total", "counter", "CPU time of the server (s).", (), cpu)
    started = [((), round(_STARTED, 3))]
    yield exposed("process_start_time_seconds", "gauge", "Start of the server, Unix time (s).", (), started)
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return
    memory = [((), pages * resource.getpagesize())]
    yield exposed("process_resident_memory_bytes", "gauge", "Memory of the server.", (), memory)
