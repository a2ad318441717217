"""Reads the results that jobs of flows take, before these jobs start."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from penstock.client.flows.inputs import InputUnreadable, with_inputs
from penstock.core.errors import StoreError, Undecodable
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
        on_failed: Callable[[LeasedJob, Undecodable | InputUnreadable], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._waiting: deque[LeasedJob] = deque()

    def read(self, leased: LeasedJob) -> None:
        """Read the inputs of this job, then call `on_ready`."""
        self._waiting.append(leased)
        self.wake()

    async def tick(self) -> float:
        unanswered: StoreError | None = None
        for _ in range(len(self._waiting)):
            if not self._waiting:
                break
            leased = self._waiting.popleft()
            try:
                leased.job = await with_inputs(self._store, leased.job)
            except (Undecodable, InputUnreadable) as error:
                self._on_failed(leased, error)
            except StoreError as error:  # perhaps only of the slots of this flow: the others need not wait
                self._waiting.append(leased)
                unanswered = error
                if self._stopping:
                    break
            else:
                for one in (leased, *self._take_same(leased)):
                    one.job = replace(one.job, spec=leased.job.spec)
                    self._on_ready(one)
        if unanswered is not None:
            raise unanswered  # tried again after a pause
        return 0.0 if self._waiting else _IDLE

    def _take_same(self, leased: LeasedJob) -> list[LeasedJob]:
        """Take further leases of the same job.

        The supervisor releases what has not started while this process is short of CPU: a job whose results
        take long to read would otherwise be read and released for ever.
        """
        of = (leased.job.spec.queue, leased.job.spec.id, leased.job.generation)
        same = [
            one for one in self._waiting if (one.job.spec.queue, one.job.spec.id, one.job.generation) == of
        ]
        for one in same:
            self._waiting.remove(one)
        return same
