"""Runs attempts in child processes."""

from __future__ import annotations

from penstock.app.app import App
from penstock.config import Config
from penstock.worker.executor.attempt_start import Starter
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.pools import EncodedResult, ProcessPool

__all__ = ["ProcessAttempts"]


class ProcessAttempts:
    """Runs attempts of process tasks. The process pool is made for the first attempt.

    Under a supervisor the children get `config`; otherwise they read their own.
    """

    def __init__(
        self,
        starter: Starter,
        size: int,
        app: App,
        config: Config,
        *,
        supervised: bool,
    ) -> None:
        self._starter = starter
        self._size = size
        self._app = app
        self._config = config
        self._supervised = supervised
        self._pool: ProcessPool | None = None

    def lacks_resources(self) -> bool:
        """Whether the system has no resources for another child at the moment."""
        return self._pool is not None and self._pool.lacks_resources

    async def run(self, leased: LeasedJob) -> EncodedResult:
        """Run the attempt in a child. Its clock restarts when the child starts the function."""
        limit = None if leased.ends is None else leased.ends - leased.started
        leased.ends = None
        pool = self._pool or self._open()
        return await pool.run(
            leased,
            leased.job,
            leased.plan.reference,
            now=leased.store_now(),
            seconds=limit,
            on_start=lambda: self._start_clock(leased),
            on_progress=lambda progress: leased.report(leased.job, progress),
        )

    def is_in_child(self, leased: LeasedJob) -> bool:
        """Whether a child runs this attempt now."""
        return self._pool is not None and self._pool.started_at(leased) is not None

    def kill(self, leased: LeasedJob) -> bool:
        """Kill the attempt's child; False if it has none."""
        return self._pool is not None and self._pool.kill(leased)

    def close(self) -> None:
        """End all children."""
        if self._pool is not None:
            self._pool.close()

    def _start_clock(self, leased: LeasedJob) -> None:
        self._starter.clock(leased)

    def _open(self) -> ProcessPool:
        self._pool = pool = ProcessPool(
            self._size,
            self._app.spec,
            config=self._config if self._supervised else None,
            max_jobs_per_child=self._config.max_jobs_per_child,
            max_memory_per_child=self._config.max_memory_per_child,
        )
        return pool
