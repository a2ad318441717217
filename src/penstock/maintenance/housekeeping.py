"""The small services: prune, sample depths, continue flows, store limits that code sets, run bulk acts."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.errors import StoreError
from penstock.core.limits import NO_LAYERS, NO_LIMITS, LimitChange
from penstock.maintenance.service import Service
from penstock.stores.contract import Capability, Store
from penstock.stores.worker_commands import BULK_ACTS

if TYPE_CHECKING:
    from penstock.inspector.bulk_acts import PacedSteps


# ── ended jobs ───────────────────────────────────────────────────────────────────────────────────


class Pruner(Service):
    """Removes ended jobs past their retention, expired jobs, and workers that no longer announce themselves.

    In small steps: one every 50 ms until all queues are done, then again after ten seconds.
    """

    name = "pruner"

    def __init__(
        self,
        store: Store,
        *,
        every: float = 10.0,
        batch: int = 1_000,
        keep_finished: int = 100_000,
        keep_dead: int = 100_000,
    ) -> None:
        super().__init__()
        self._store = store
        self._every = every
        self._batch = batch
        self._keep_finished = keep_finished
        self._keep_dead = keep_dead
        self._after = ""  # the queues up to this one are done

    async def tick(self) -> float:
        gone = await self._store.prune(
            limit=self._batch,
            keep_finished=self._keep_finished,
            keep_dead=self._keep_dead,
            after=self._after,
        )
        if gone.set_aside:
            self.on_set_aside(gone.set_aside)
        if gone.finished + gone.expired >= self._batch or gone.unique_keys >= self._batch:
            return 0.05  # these queues have more
        self._after = gone.next or ""
        return 0.05 if self._after else self._every


# ── depths of queues ─────────────────────────────────────────────────────────────────────────────

#: Latest start (s) of a sample in its minute. Jitter, so that a fleet does not ask in the same instant: the
#: first process samples, and the others find that the minute has its samples.
_LATEST_SAMPLE = 5.0


class DepthSampler(Service):
    """Samples the depths of all queues, for the statistics, soon after each minute of the store's clock."""

    name = "depth sampler"
    needs = Capability.MEASURE

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    async def tick(self) -> float:
        left = await self._store.sample_depths()
        return left / 1000 + random.uniform(0.1, _LATEST_SAMPLE)  # noqa: S311 (jitter, no secret)


#: Interval (s) of the checks: while this worker runs jobs of flows, and otherwise.
_FLOWS_SOON, _FLOWS_LATER = 0.5, 5.0


# ── flows ────────────────────────────────────────────────────────────────────────────────────────

#: How long (s) the checks are frequent after a job of a flow.
_FLOWS_ACTIVE = 10.0


class FlowAdvancer(Service):
    """Continues flows: what is left over of large steps, and ends that nobody has counted yet.

    In bounded steps, without a pause while there is something to do.
    """

    name = "flow advancer"
    needs = Capability.FLOW

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._active_until = 0.0

    def noticed(self) -> None:
        """A job of a flow has come to this worker."""
        idle = time.monotonic() > self._active_until
        self._active_until = time.monotonic() + _FLOWS_ACTIVE
        if idle:
            self.wake()

    async def tick(self) -> float:
        if await self._store.advance_flows():
            return 0.0
        return _FLOWS_SOON if time.monotonic() < self._active_until else _FLOWS_LATER


_log = logging.getLogger("penstock.maintenance")


# ── limits in the app's code ─────────────────────────────────────────────────────────────────────

#: Interval (s). While two releases of an app run, each stores its own limits; this long after the last worker
#: of the old release has ended, the new one's are in effect.
_DEFAULTS_EVERY = 60.0


class QueueDefaultsWriter(Service):
    """Stores the limits of queues that the app's code sets: at the start of a worker, and every minute.

    It writes what differs, of the queues that the code names: another app may limit the others.
    """

    name = "queue defaults"

    def __init__(self, store: Store, defaults: Mapping[str, LimitChange] | None) -> None:
        super().__init__()
        self._store = store
        self._wanted = defaults or {}
        self._written: set[str] = set()
        self._contested: set[str] = set()

    async def first(self) -> None:
        """Store the limits before the first fetch. If the store does not answer, the next tick does it."""
        try:
            await self.tick()
        except StoreError as error:
            _log.warning("the limits of queues in code are not stored yet: %s", error)

    async def tick(self) -> float:
        if self._wanted:
            stored = {info.name: info for info in await self._store.queues()}
            for queue, change in self._wanted.items():
                info = stored.get(queue)
                before = NO_LAYERS if info is None else info.layers
                if (info is None or not info.away) and before.changed(change, NO_LIMITS) != before:
                    self._report_contest(queue)
                    await self._store.settings(queue, limits=change)
                    self._written.add(queue)
        return _DEFAULTS_EVERY

    def _report_contest(self, queue: str) -> None:
        """Warn once per queue that another release or app has overwritten the limits since the last tick."""
        if queue in self._written and queue not in self._contested:
            self._contested.add(queue)
            _log.warning(
                "the limits of the queue %r in code were changed by another release or app: "
                "name the queue in the code of one app only",
                queue,
            )


# ── bulk acts ────────────────────────────────────────────────────────────────────────────────────

#: The store wakes the runner (SETTINGS). This interval (s) is for a notification lost with its sender.
_BULK_SAFETY = 60.0
#: How often (s) a runner looks whether the process that holds a bulk act has died.
_BULK_HELD_ELSEWHERE = 2.0


class BulkRunner(Service):
    """Runs the bulk acts of operators, step by step, next to the jobs.

    One at a time, if no other process does. Woken by changes of settings, e.g. a new one.
    """

    name = "bulk runner"
    needs = Capability.DOCUMENTS

    def __init__(self, store: Store, holder: str) -> None:
        super().__init__()
        self._store = store
        self._holder = holder
        self._steps: PacedSteps | None = None
        self._version = 0

    def wake(self) -> None:
        """Look for a bulk act now. The pauses between the steps of one are kept."""
        if self._steps is None:
            super().wake()

    async def tick(self) -> float:
        (version,) = await self._store.document_versions([BULK_ACTS])
        if self._steps is None:
            return _BULK_SAFETY if version == self._version else await self._find(version)
        stepped, pause = await self._steps.next()
        if stepped is None:
            self._steps = None
        return pause

    async def _find(self, version: int) -> float:
        """Choose a bulk act that nobody runs; returns the seconds until the next tick."""
        # loaded only while there is a bulk act: it takes a megabyte
        from penstock.inspector.bulk_acts import BulkActs, PacedSteps

        acts = BulkActs(self._store)
        free, free_in = await acts.next_free()
        if free_in is None:
            self._version = version
            return _BULK_SAFETY
        if free is None:
            return min(_BULK_HELD_ELSEWHERE, free_in / 1000)
        self._steps = PacedSteps(acts, free.id, self._holder)
        return 0.0
