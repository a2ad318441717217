"""What Prometheus sees of a server, under lmstfy's names: what it counts, and the sizes of queues."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from penstock.core.job import State
from penstock.dialects.lmstfy.names import elapsed_ms, split_queue
from penstock.web.exposition import CALL_BOUNDS, LabelledCounter, LabelledHistogram, exposed
from penstock.web.store_metrics import Samples, StoreReport

#: How lmstfy's names of the metrics of jobs begin.
_REDIS = "infra_lmstfy_redis_"
_BY_QUEUE = ("pool", "namespace", "queue")
#: States that lmstfy keeps in its timer.
_LATER = (State.SCHEDULED, State.RETRYABLE, State.RUNNING)
_BY_VERB = ("pool", "verb")
_BY_ROUTE = ("pool", "namespace", "api", "method")
#: Pool, namespace, route and method of a request.
RequestLabels = tuple[str, str, str, str]
_ELAPSED = tuple(15 * 3.5**n for n in range(7))
_LATENCY = tuple(15 * 2.5**n for n in range(9))
#: Buckets (s): those of a store's call, and those of a long poll.
_DURATION = (*CALL_BOUNDS, 10.0, 30.0, 60.0)
_CLASSES = ("", "1xx", "2xx", "3xx", "4xx", "5xx")


class HttpMetrics:
    """Counts the requests of the data listener."""

    def __init__(self) -> None:
        self._codes = LabelledCounter(
            "infra_lmstfy_http_http_codes", "Answers by status.", (*_BY_ROUTE, "code")
        )
        self._latency = LabelledHistogram(
            "infra_lmstfy_http_latency_milliseconds",
            "Time of requests that succeeded (ms).",
            _BY_ROUTE,
            _LATENCY,
        )
        self._durations = LabelledHistogram(
            "penstock_http_request_duration_seconds",
            "Time from a received request to its answer, waiting for a job included (s).",
            ("api", "method", "code"),
            _DURATION,
        )
        self._limited = LabelledCounter(
            "infra_lmstfy_http_rate_limit",
            "Requests refused by the limit of a token, which is shown as the begin of its hash.",
            ("pool", "namespace", "token", "action"),
        )

    def ended(self, labels: RequestLabels, began: float, status: int) -> None:
        """Count an answered request; `began`: monotonic."""
        if not status:  # the client was gone before the answer
            return
        seconds = time.monotonic() - began
        pool, namespace, api, method = labels
        self._codes.add((pool, namespace, api, method, str(status)))
        self._durations.observe((api, method, _CLASSES[status // 100]), seconds)
        if status < 300:
            self._latency.observe(labels, seconds * 1_000)

    def limited(self, pool: str, namespace: str, token: str, action: str) -> None:
        """Count a request that the limit of a token refused."""
        self._limited.add((pool, namespace, token, action))

    def exposed(self) -> str:
        """The text of these metrics."""
        ours = self._codes.exposed("penstock_http_requests_total")
        parts = (self._codes, self._durations, self._latency, self._limited)
        return ours + "".join(one.exposed() for one in parts)


class RequestMeasure:
    """Counts one request when it is called with the status of its answer."""

    __slots__ = ("_began", "_metrics", "labels")

    def __init__(self, metrics: HttpMetrics, labels: RequestLabels) -> None:
        self._metrics = metrics
        self._began = time.monotonic()
        self.labels = labels

    def __call__(self, status: int) -> None:
        self._metrics.ended(self.labels, self._began, status)


class PoolMetrics:
    """Counts the jobs that this server publishes, delivers and removes in one pool.

    `due`: jobs that became ready because their delay or their TTR was over; `looked_at`: jobs that were shown
    without being delivered; `respawned`: dead letters.
    """

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._labels: dict[str, tuple[str, str, str]] = {}
        self._all_published = self._delayed = self._all_consumed = self._removed = 0
        self.due = self.looked_at = self.respawned = 0
        self._published = LabelledCounter(f"{_REDIS}publish_queue_jobs", "Published jobs.", _BY_QUEUE)
        self._consumed = LabelledCounter(f"{_REDIS}consume_queue_jobs", "Delivered jobs.", _BY_QUEUE)
        self._elapsed = LabelledHistogram(
            f"{_REDIS}job_elapsed_ms", "Time from publish to delivery (ms).", _BY_QUEUE, _ELAPSED
        )
        self._calls = LabelledHistogram(
            "penstock_store_call_duration_seconds", "Time of calls of the store (s).", _BY_VERB, CALL_BOUNDS
        )
        self._failed_calls = LabelledCounter(
            "penstock_store_call_errors_total", "Calls of the store that failed.", _BY_VERB
        )
        self._acknowledged = LabelledHistogram(
            f"{_REDIS}job_ack_elapsed_ms", "Time from publish to acknowledgement (ms).", _BY_QUEUE, _ELAPSED
        )

    def published(self, queue: str, number: int, ready: int) -> None:
        """Count published jobs of one queue, by the store's name of it; `ready`: those without a delay."""
        self._published.add(self._of(queue), number)
        self._all_published += number
        self._delayed += number - ready

    def delivered(self, queue: str, ids: Sequence[str], now: int) -> None:
        """Count delivered jobs of one queue."""
        labels = self._of(queue)
        self._consumed.add(labels, len(ids))
        self._all_consumed += len(ids)
        for id in ids:
            self._elapsed.observe(labels, elapsed_ms(id, now))

    def called(self, verb: str, seconds: float, failed: bool) -> None:
        """Count a call of the store."""
        self._calls.observe((self.pool, verb), seconds)
        if failed:
            self._failed_calls.add((self.pool, verb))

    def acknowledged(self, queue: str, id: str, now: int) -> None:
        """Count a removed job."""
        self._removed += 1
        self._acknowledged.observe(self._of(queue), elapsed_ms(id, now))

    def exposed(self) -> str:
        """The text of these metrics."""
        totals = {
            "publish_jobs": ("Published jobs.", self._all_published),
            "consume_multi_jobs": ("Delivered jobs.", self._all_consumed),
            "pool_add_jobs": ("Stored jobs.", self._all_published),
            "pool_get_jobs": ("Jobs that were read.", self._all_consumed + self.looked_at),
            "pool_delete_jobs": ("Removed jobs.", self._removed),
            "timer_add_jobs": ("Jobs with a delay, and deliveries.", self._delayed + self._all_consumed),
            "timer_due_jobs": ("Jobs whose delay or TTR was over.", self.due),
            "queue_direct_push_jobs": ("Jobs without a delay.", self._all_published - self._delayed),
            "queue_pop_jobs": ("Delivered jobs.", self._all_consumed),
            "deadletter_respawn_jobs": ("Respawned dead letters.", self.respawned),
        }
        of_pool = [
            exposed(f"{_REDIS}{name}", "counter", help, ("pool",), [((self.pool,), number)])
            for name, (help, number) in totals.items()
        ]
        by_queue = (self._published, self._consumed, self._elapsed, self._acknowledged)
        return "".join([*of_pool, *(one.exposed() for one in (*by_queue, self._calls, self._failed_calls))])

    def _of(self, queue: str) -> tuple[str, str, str]:
        known = self._labels.get(queue)
        if known is None:
            if len(self._labels) >= 10_000:
                self._labels.clear()
            namespace, name = split_queue(queue) or ("other", "other")
            known = self._labels[queue] = (self.pool, namespace, name)
        return known


def own_counts(http: HttpMetrics, pools: Iterable[PoolMetrics], waiting: Samples, connections: int) -> str:
    """What one process of the server counts itself. `waiting`: consume requests that wait, by pool."""
    help = "Consume requests that wait for a job."
    of_waiting = exposed("penstock_http_waiting_requests", "gauge", help, ("pool",), waiting)
    help = "Open connections of the data listener."
    of_connections = exposed("penstock_http_connections", "gauge", help, (), [((), connections)])
    return "".join([http.exposed(), *(one.exposed() for one in pools), of_waiting, of_connections])


def queue_sizes(reports: Mapping[str, StoreReport]) -> Iterable[str]:
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
    yield exposed("infra_lmstfy_redis_queue_sizes", "gauge", "Jobs that are ready.", _BY_QUEUE, ready)
    yield exposed("infra_lmstfy_redis_deadletter_sizes", "gauge", "Dead letters.", _BY_QUEUE, dead)
    yield exposed("infra_lmstfy_redis_timer_sizes", "gauge", "Delayed and reserved jobs.", ("pool",), timers)
