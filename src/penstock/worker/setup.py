"""The configuration of one worker: its app, queues and options, with defaults filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from penstock.app.app import App
from penstock.config import Config, load
from penstock.core.errors import ConfigError
from penstock.core.ids import mint
from penstock.worker.metrics_page import MetricsPage
from penstock.worker.queues import Queue, as_queues, is_count
from penstock.worker.shared_lease_table import LeaseTable

__all__ = ["WorkerSetup", "worker_setup"]


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The facts of a worker that do not change while it runs."""

    app: App
    config: Config
    id: str
    queues: tuple[Queue, ...]
    concurrency: int
    strict: bool
    #: Whether the worker stops when nothing is left to do.
    burst: bool
    #: Whether it enqueues the jobs of periodic entries.
    periodic: bool
    #: The supervisor's pid, and the lease table shared with it; None without a supervisor.
    supervisor: int | None
    table: LeaseTable | None
    #: Where the worker writes its figures for the supervisor; None: it counts nothing.
    metrics: MetricsPage | None = None
    #: Asks the supervisor to quiet, drain, stop or restart; None without a supervisor.
    ask_supervisor: Callable[[str], None] | None = None

    @property
    def queue_names(self) -> list[str]:
        return [queue.name for queue in self.queues]


def worker_setup(
    app: App,
    queues: Sequence[Queue | str] | None,
    *,
    concurrency: int | None,
    burst: bool,
    strict: bool | None,
    config: Config | None,
    table: LeaseTable | None,
    id: str | None,
    supervisor: int | None,
    periodic: bool,
    metrics: MetricsPage | None = None,
    ask_supervisor: Callable[[str], None] | None = None,
) -> WorkerSetup:
    """Check a worker's options and fill in the missing ones. Raises ConfigError for an invalid option."""
    if not isinstance(app, App):
        raise ConfigError(f"Worker({app!r:.60}) needs the App object itself, imported from its module")
    app.import_tasks()
    config = config or load().config
    served = as_queues(queues if queues is not None else app.queues())
    if not served:
        raise ConfigError("this worker has no queues: register a task first, or name the queues")
    slots = config.concurrency if concurrency is None else concurrency
    if not is_count(slots):
        raise ConfigError(f"concurrency={slots!r} must be a whole number, 1 or more")
    return WorkerSetup(
        app=app,
        config=config,
        id=id or mint(),
        queues=served,
        concurrency=slots,
        strict=config.strict if strict is None else strict,
        burst=burst,
        periodic=periodic and not burst,
        supervisor=supervisor,
        table=table,
        metrics=metrics,
        ask_supervisor=ask_supervisor,
    )
