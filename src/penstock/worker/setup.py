"""The configuration of one worker: its app, queues and options, with defaults filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from penstock.app.app import App
from penstock.config import Config, load
from penstock.core.clock import Clock
from penstock.core.errors import ConfigError
from penstock.core.ids import mint
from penstock.worker.metrics_page import MetricsPage
from penstock.worker.queues import Queue, as_queues, is_count
from penstock.worker.shared_lease_table import LeaseTable


@dataclasses.dataclass(frozen=True, slots=True)
class Supervision:
    """What a supervisor shares with its worker process. A worker without a supervisor has none of it."""

    #: The supervisor's pid.
    pid: int | None = None
    #: The table in which the supervisor sees the worker's leases, and revokes them.
    table: LeaseTable | None = None
    #: Where the worker writes its figures for the supervisor; None: it counts nothing.
    metrics: MetricsPage | None = None
    #: Asks the supervisor to quiet, drain, stop or restart.
    ask: Callable[[str], None] | None = None


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
    supervision: Supervision
    #: The store's clock, if a test moves it; None: a job reckons the store's time from its fetch.
    store_clock: Clock | None = None

    @property
    def queue_names(self) -> list[str]:
        return [queue.name for queue in self.queues]

    @property
    def keeps_jobs_in_memory(self) -> bool:
        """Whether the jobs are in the memory of this process, and would be lost with it."""
        return self.app.store.url.startswith("memory:")

    @property
    def queue_slots(self) -> dict[str, int]:
        """The slots of queues that have slots of their own."""
        return {queue.name: queue.slots for queue in self.queues if queue.slots is not None}


def worker_setup(
    app: App,
    queues: Sequence[Queue | str] | None,
    *,
    concurrency: int | None,
    burst: bool,
    strict: bool | None,
    config: Config | None,
    id: str | None,
    periodic: bool,
    supervision: Supervision,
    store_clock: Clock | None = None,
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
        supervision=supervision,
        store_clock=store_clock,
    )
