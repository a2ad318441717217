"""Reads the results that jobs of flows take, before these jobs start."""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.flows.inputs import with_inputs
from penstock.core.errors import Undecodable
from penstock.maintenance.service import Service
from penstock.stores.contract import Store
from penstock.worker.leased_jobs import LeasedJob

__all__ = ["FlowInputs"]

_IDLE = 3_600.0


class FlowInputs(Service):
    """Completes the arguments of leased jobs; they start when their results were read."""

    name = "flow inputs"

    def __init__(
        self,
        store: Store,
        on_ready: Callable[[LeasedJob], None],
        on_failed: Callable[[LeasedJob, Undecodable], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._waiting: list[LeasedJob] = []

    def read(self, leased: LeasedJob) -> None:
        """Read the inputs of this job, then call `on_ready`."""
        self._waiting.append(leased)
        self.wake()

    async def tick(self) -> float:
        while self._waiting:
            leased = self._waiting[0]
            try:
                leased.job = await with_inputs(self._store, leased.job)
            except Undecodable as error:
                self._waiting.pop(0)
                self._on_failed(leased, error)
            else:
                self._waiting.pop(0)
                self._on_ready(leased)
        return _IDLE
