"""Metrics and health of a supervisor and its worker processes, over HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock.config import Config
from penstock.core.errors import ConfigError, StoreError
from penstock.core.loopback import is_loopback
from penstock.stores.contract import Store
from penstock.web.exchange import Exchange
from penstock.web.exposition import EXPOSITION
from penstock.web.hosts import HostRule
from penstock.web.replies import TEXT, reply
from penstock.web.server import HttpServer
from penstock.web.store_metrics import asynq_metrics, process_metrics, queue_metrics, read_stores
from penstock.worker.supervisor.exposed_metrics import figures_text, process_text
from penstock.worker.supervisor.worker_process import WorkerProcess
from penstock.worker.worker_metrics import WorkerFigures, merge_figures, read_figures

__all__ = ["OperatorListener"]

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
