"""What runs in the process of the dashboard beside its pages: bulk acts, and samples of queues' depths."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.ids import mint
from penstock.maintenance.housekeeping import BulkRunner, DepthSampler
from penstock.stores.contract import Capability, Store


class BulkSteps:
    """Continues the bulk acts that no other process continues, from the first `wake` on.

    Without it, an act that is started where no worker runs would only wait. Whichever process dies, another
    one continues its act 15 seconds later.
    """

    def __init__(self, store: Store, *, allowed: bool) -> None:
        self._store = store
        self._allowed = allowed
        self._runner: BulkRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def wake(self) -> None:
        """Look for bulk acts now: one was started or looked at here, or the server starts."""
        if not self._allowed or self._stopped:
            return
        loop = asyncio.get_running_loop()
        task = self._task
        if self._runner is not None and task is not None and not task.done() and task.get_loop() is loop:
            self._runner.wake()
            return
        self._runner = BulkRunner(self._store, f"dashboard {mint()}")
        self._task = loop.create_task(self._runner.run())

    def stop(self) -> None:
        """End after the step in progress: the server stops."""
        self._stopped = True
        if self._runner is not None:
            self._runner.stop()


# ── samples of depths ────────────────────────────────────────────────────────────────────────────


@contextmanager
def sampling(store: Store, *, allowed: bool) -> Iterator[None]:
    """Sample the depths of queues while this block lasts: without a worker, nobody else would.

    `allowed`: not if the dashboard is read-only.
    """
    sampler = DepthSampler(store)
    allowed = allowed and store.can(Capability.MEASURE)
    task = asyncio.get_running_loop().create_task(sampler.run()) if allowed else None
    try:
        yield
    finally:
        sampler.stop()
        if task is not None:
            task.cancel()
