"""What this server counts for Prometheus, under lmstfy's names."""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.dialects.lmstfy.job_ids import elapsed_ms
from penstock.dialects.lmstfy.names import split_queue
from penstock.web.exposition import CALL_BOUNDS, LabelledCounter, LabelledHistogram

__all__ = ["HttpMetrics", "PoolMetrics", "RequestMeasure"]

_BY_QUEUE = ("pool", "namespace", "queue")
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
        self._codes = LabelledCounter("lmstfy_http_http_codes", "Answers by status.", (*_BY_ROUTE, "code"))
        self._latency = LabelledHistogram(
            "lmstfy_http_latency_milliseconds", "Time of requests that succeeded (ms).", _BY_ROUTE, _LATENCY
        )
        self._durations = LabelledHistogram(
            "penstock_http_request_duration_seconds",
            "Time from a received request to its answer, waiting for a job included (s).",
            ("api", "method", "code"),
            _DURATION,
        )
        self._limited = LabelledCounter(
            "lmstfy_http_rate_limit",
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
    """Counts the jobs that this server publishes, delivers and removes in one pool."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._labels: dict[str, tuple[str, str, str]] = {}
        prefix = "lmstfy_redis_"
        self._published = LabelledCounter(f"{prefix}publish_queue_jobs", "Published jobs.", _BY_QUEUE)
        self._consumed = LabelledCounter(f"{prefix}consume_queue_jobs", "Delivered jobs.", _BY_QUEUE)
        self._all_published = LabelledCounter(f"{prefix}publish_jobs", "Published jobs.", ("pool",))
        self._all_consumed = LabelledCounter(f"{prefix}consume_multi_jobs", "Delivered jobs.", ("pool",))
        self._elapsed = LabelledHistogram(
            f"{prefix}job_elapsed_ms", "Time from publish to delivery (ms).", _BY_QUEUE, _ELAPSED
        )
        self._calls = LabelledHistogram(
            "penstock_store_call_duration_seconds", "Time of calls of the store (s).", _BY_VERB, CALL_BOUNDS
        )
        self._failed_calls = LabelledCounter(
            "penstock_store_call_errors_total", "Calls of the store that failed.", _BY_VERB
        )
        self._acknowledged = LabelledHistogram(
            f"{prefix}job_ack_elapsed_ms", "Time from publish to acknowledgement (ms).", _BY_QUEUE, _ELAPSED
        )

    def published(self, queue: str, number: int) -> None:
        """Count published jobs of one queue, by the store's name of it."""
        self._published.add(self._of(queue), number)
        self._all_published.add((self.pool,), number)

    def delivered(self, queue: str, ids: Sequence[str], now: int) -> None:
        """Count delivered jobs of one queue."""
        labels = self._of(queue)
        self._consumed.add(labels, len(ids))
        self._all_consumed.add((self.pool,), len(ids))
        for id in ids:
            self._elapsed.observe(labels, elapsed_ms(id, now))

    def called(self, verb: str, seconds: float, failed: bool) -> None:
        """Count a call of the store."""
        self._calls.observe((self.pool, verb), seconds)
        if failed:
            self._failed_calls.add((self.pool, verb))

    def acknowledged(self, queue: str, id: str, now: int) -> None:
        """Count a removed job."""
        self._acknowledged.observe(self._of(queue), elapsed_ms(id, now))

    def exposed(self) -> str:
        """The text of these metrics."""
        every = (
            *(self._published, self._consumed, self._all_published, self._all_consumed),
            *(self._elapsed, self._acknowledged, self._calls, self._failed_calls),
        )
        return "".join(one.exposed() for one in every)

    def _of(self, queue: str) -> tuple[str, str, str]:
        known = self._labels.get(queue)
        if known is None:
            if len(self._labels) >= 10_000:
                self._labels.clear()
            namespace, name = split_queue(queue) or ("other", "other")
            known = self._labels[queue] = (self.pool, namespace, name)
        return known
