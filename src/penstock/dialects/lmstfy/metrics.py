"""What Prometheus sees of the server: what it counts itself, and the store's sizes and totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.job import State
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.counters import HttpMetrics
from penstock.dialects.lmstfy.names import split_queue
from penstock.dialects.lmstfy.tokens import DEFAULT_POOL
from penstock.web.exposition import exposed
from penstock.web.store_metrics import (
    Samples,
    StoreReport,
    asynq_metrics,
    process_metrics,
    queue_metrics,
    read_stores,
)

__all__ = ["metrics_text", "own_counts"]

_BY_QUEUE = ("pool", "namespace", "queue")
_LATER = (State.SCHEDULED, State.RETRYABLE, State.RUNNING)


async def metrics_text(
    http: HttpMetrics, pools: Mapping[str, Backend], connections: int, *, asynq: bool = False
) -> str:
    """All metrics of the server. A store that is away lacks those that come from it."""
    reports = await read_stores({name: backend.store for name, backend in pools.items()})
    parts = [own_counts(http, pools, connections), *_sizes(reports), *queue_metrics(reports)]
    if asynq:
        parts += asynq_metrics(reports[DEFAULT_POOL])
    return "".join([*parts, *process_metrics()])


def own_counts(http: HttpMetrics, pools: Mapping[str, Backend], connections: int) -> str:
    """What one process of the server counts itself."""
    parts = [http.exposed(), *(backend.metrics.exposed() for backend in pools.values())]
    waiting: Samples = [((name,), backend.dispatcher.waiting) for name, backend in pools.items()]
    help = "Consume requests that wait for a job."
    parts.append(exposed("penstock_http_waiting_requests", "gauge", help, ("pool",), waiting))
    help = "Open connections of the data listener."
    parts.append(exposed("penstock_http_connections", "gauge", help, (), [((), connections)]))
    return "".join(parts)


def _sizes(reports: Mapping[str, StoreReport]) -> Iterable[str]:
    """The sizes under lmstfy's names, exact and as they are now."""
    ready: Samples = []
    dead: Samples = []
    timers: Samples = []
    for pool, report in reports.items():
        if not report.up:
            continue
        later = 0
        for info in report.queues:
            names = split_queue(info.name)
            if names is None:
                continue
            ready.append(((pool, *names), info.counts.get(State.AVAILABLE, 0)))
            dead.append(((pool, *names), info.counts.get(State.DEAD, 0)))
            later += sum(info.counts.get(state, 0) for state in _LATER)
        timers.append(((pool,), later))
    yield exposed("lmstfy_redis_queue_sizes", "gauge", "Jobs that are ready.", _BY_QUEUE, ready)
    yield exposed("lmstfy_redis_deadletter_sizes", "gauge", "Dead letters.", _BY_QUEUE, dead)
    yield exposed("lmstfy_redis_timer_sizes", "gauge", "Delayed and reserved jobs.", ("pool",), timers)
