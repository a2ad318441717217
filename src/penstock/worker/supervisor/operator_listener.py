"""Metrics and health of a supervisor and its worker processes, over HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from penstock.config import Config
from penstock.core.errors import ConfigError, StoreError
from penstock.core.security import is_loopback
from penstock.stores.contract import Store
from penstock.web.exchange import Exchange
from penstock.web.exposition import CALL_BOUNDS, EXPOSITION, Labels, exposed, exposed_histogram
from penstock.web.hosts import HostRule
from penstock.web.replies import TEXT, reply
from penstock.web.server import HttpServer
from penstock.web.store_metrics import asynq_metrics, process_metrics, queue_metrics, read_stores
from penstock.worker.shared_lease_table import LeaseTable
from penstock.worker.supervisor.worker_process import WorkerProcess
from penstock.worker.worker_metrics import TIME_BOUNDS, Times, WorkerFigures, merge_figures, read_figures

_log = logging.getLogger("penstock.supervisor")
#: The name of the only store, where a server may have several.
_POOL = "default"
#: Time (s) in which the store must answer for `/readyz`.
_WITHIN = 2.0
#: Intervals of `announce` after which a worker process counts as cut off from the store.
_MISSED = 2.5


class OperatorListener:
    """Serves `/metrics` on one port, and `/livez` and `/readyz` on it and on another one.

    `open_store` returns the store of the workers, or None if it is not known yet, or in their memory.
    """

    def __init__(
        self,
        config: Config,
        children: Callable[[], Sequence[WorkerProcess]],
        open_store: Callable[[], Store | None],
    ) -> None:
        self._config = config
        self._children = children
        self._open_store = open_store
        self._hosts = HostRule(open_to_all=not is_loopback(config.metrics_host))
        self._ended = WorkerFigures()  # of processes that have ended
        self._deaths = 0
        self._servers: list[HttpServer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises ConfigError if a port is taken."""
        config = self._config
        for port, metrics in {config.health_port: False, config.metrics_port: True}.items():
            if not port:
                continue
            server = HttpServer(self._with_metrics if metrics else self._without_metrics)
            try:
                await server.listen(config.metrics_host, port)
            except OSError as error:
                raise ConfigError(
                    f"cannot listen on {config.metrics_host}:{port}: {error.strerror}"
                ) from error
            self._servers.append(server)
            _log.info(
                "%s at http://%s:%d", "metrics and health" if metrics else "health", config.metrics_host, port
            )

    async def stop(self) -> None:
        """Close the ports."""
        for server in self._servers:
            await server.stop(1.0)

    def ended(self, child: WorkerProcess, *, died: bool) -> None:
        """Keep the figures of a process that has ended."""
        self._deaths += died
        if child.metrics is not None:
            merge_figures(self._ended, read_figures(child.metrics))

    def reclaimed(self) -> None:
        """Count a job of a dead process that was taken back by the supervisor."""
        self._ended.reclaimed += 1

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    def _with_metrics(self, exchange: Exchange) -> None:
        self._answer(exchange, metrics=True)

    def _without_metrics(self, exchange: Exchange) -> None:
        self._answer(exchange, metrics=False)

    def _answer(self, exchange: Exchange, *, metrics: bool) -> None:
        if why := self._hosts.refusal(exchange):
            exchange.answer(reply(403, b"403 Forbidden: %b\n" % why.encode(), TEXT))
        elif exchange.method not in ("GET", "HEAD"):
            exchange.answer(reply(405, b"405 Method Not Allowed\n", TEXT, b"Allow: GET, HEAD\r\n"))
        elif exchange.path == b"/livez":
            exchange.answer(reply(200, b"ok\n", TEXT))
        elif exchange.path == b"/readyz":
            self._later(exchange, self._ready)
        elif metrics and exchange.path == b"/metrics":
            self._later(exchange, self._metrics)
        else:
            exchange.answer(reply(404, b"404 Not Found\n", TEXT))

    def _later(self, exchange: Exchange, answering: Callable[[], Awaitable[bytes]]) -> None:
        async def run() -> None:
            try:
                exchange.answer(await answering())
            except Exception:  # noqa: BLE001  # boundary: every request gets an answer
                _log.exception("%s failed", exchange.path.decode("latin-1"))
                exchange.answer(reply(500, b"500 Internal Server Error\n", TEXT))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    async def _metrics(self) -> bytes:
        store = self._open_store()
        figures = WorkerFigures()
        merge_figures(figures, self._ended)
        children = [child for child in self._children() if child.metrics is not None]
        for child in children:
            assert child.metrics is not None
            merge_figures(figures, read_figures(child.metrics))
        tables = [child.table for child in children]
        parts = [
            *figures_text(figures),
            *process_text(tables, slots=self._config.concurrency, deaths=self._deaths),
        ]
        if store is not None:
            reports = await read_stores({_POOL: store})
            parts += queue_metrics(reports)
            if self._config.asynq_metrics:
                parts += asynq_metrics(reports[_POOL])
        return reply(200, "".join([*parts, *process_metrics()]).encode(), EXPOSITION)

    async def _ready(self) -> bytes:
        problem = self._worker_problem() or await self._store_problem()
        if problem:
            return reply(503, problem.encode("utf-8", "replace") + b"\n", TEXT)
        return reply(200, b"ok\n", TEXT)

    def _worker_problem(self) -> str:
        """ "" if a worker process has reached the store recently, else the reason."""
        most = _MISSED * self._config.announce * 1_000_000
        headers = [child.table.header() for child in self._children()]
        if not any(header.store_ns for header in headers):
            return "no worker process has reached the store yet"
        now = time.monotonic_ns()
        if not any(header.store_ns and now - header.store_ns < most for header in headers):
            return "no worker process has reached the store recently"
        return ""

    async def _store_problem(self) -> str:
        store = self._open_store()
        if store is None:
            return ""
        try:
            async with asyncio.timeout(_WITHIN):
                await store.promote((), limit=1)
        except TimeoutError:
            return f"the store did not answer within {_WITHIN:g} s"
        except StoreError as error:
            return str(error)
        return ""


# ── metrics in Prometheus' text format ───────────────────────────────────────────────────────────

_TASK = ("task",)
_VERB = ("verb",)


def figures_text(figures: WorkerFigures) -> Iterable[str]:
    """What the worker processes did since the start of their supervisor."""
    outcomes = [
        ((task, outcome), number)
        for task, one in figures.tasks.items()
        for outcome, number in one.outcomes.items()
    ]
    help = "Attempts and jobs by outcome."
    yield exposed("penstock_worker_attempts_total", "counter", help, ("task", "outcome"), outcomes)
    durations = [((task,), one.durations) for task, one in figures.tasks.items()]
    yield _histogram("penstock_job_duration_seconds", "Run time of attempts (s).", _TASK, durations)
    waits = [
        ((task,), Times(one.waits.buckets, one.waits.total / 1_000)) for task, one in figures.tasks.items()
    ]
    help = "Time from due to leased by a worker (s)."
    yield _histogram("penstock_job_wait_seconds", help, _TASK, waits)
    help = "Attempts whose outcome was refused because another worker had got their lease."
    yield exposed("penstock_leases_lost_total", "counter", help, (), [((), figures.leases_lost)])
    help = "Jobs of lost workers that were taken back here."
    yield exposed("penstock_jobs_reclaimed_total", "counter", help, (), [((), figures.reclaimed)])
    calls = [((verb,), times) for verb, times in figures.calls.items()]
    help = "Time of calls of the store (s)."
    yield exposed_histogram(
        "penstock_store_call_duration_seconds",
        help,
        _VERB,
        CALL_BOUNDS,
        [(labels, times.buckets, times.total) for labels, times in calls],
    )
    failed = [((verb,), number) for verb, number in figures.failed_calls.items()]
    help = "Calls of the store that failed."
    yield exposed("penstock_store_call_errors_total", "counter", help, _VERB, failed)


def process_text(tables: Sequence[LeaseTable], *, slots: int, deaths: int) -> Iterable[str]:
    """The worker processes that run now, and the jobs that they have leased."""
    entries = [table.entries() for table in tables]
    started = sum(one.started for every in entries for one in every)
    leased = sum(len(every) for every in entries)
    for name, help, value in (
        ("penstock_worker_processes", "Worker processes.", len(tables)),
        ("penstock_worker_slots", "Slots of all worker processes.", slots * len(tables)),
        ("penstock_worker_running_jobs", "Attempts that have started and are not settled.", started),
        ("penstock_worker_leased_jobs", "Leased jobs, running ones included.", leased),
    ):
        yield exposed(name, "gauge", help, (), [((), value)])
    help = "Worker processes that died, by a signal, an error or a kill."
    yield exposed("penstock_worker_process_deaths_total", "counter", help, (), [((), deaths)])


def _histogram(name: str, help: str, names: Labels, samples: Iterable[tuple[Labels, Times]]) -> str:
    found = [(labels, times.buckets, times.total) for labels, times in samples]
    return exposed_histogram(name, help, names, TIME_BOUNDS, found)
