"""Starts attempts whose start must be stored first: last attempts and at-most-once ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.core.batcher import Batcher
from penstock.core.errors import AttemptCancelled, StoreError, StoreUnavailable
from penstock.core.lifecycle import ASK_CANCELLED, too_late
from penstock.core.outcomes import Cancelled, Released
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Store
from penstock.worker.executor.outcome_reporter import OutcomeReporter
from penstock.worker.executor.runners import Runners
from penstock.worker.executor.slots import Slots
from penstock.worker.leased_jobs import LeasedJob

__all__ = ["RecordedStart"]

_log = logging.getLogger("penstock.worker")


class RecordedStart:
    """Stores starts, batched into one call when they come together, then launches the attempts.

    `lease` is in milliseconds. `start_ready` is called after each start, because its slot may be free again.
    """

    def __init__(
        self,
        store: Store,
        slots: Slots,
        outcomes: OutcomeReporter,
        runners: Runners,
        *,
        start_ready: Callable[[], None],
        lease: int,
    ) -> None:
        self._store = store
        self._slots = slots
        self._outcomes = outcomes
        self._records: Batcher[HeartbeatRequest, LeaseStatus] = Batcher(self._record)
        self._runners = runners
        self._start_ready = start_ready
        self._lease = lease

    def start(self, leased: LeasedJob) -> None:
        """Store the start of this job, which has a slot, and launch it unless it may no longer run."""
        leased.runner = asyncio.create_task(self._start(leased))

    async def _start(self, leased: LeasedJob) -> None:
        try:
            status = await self._records.put(
                HeartbeatRequest(leased.job.lease, self._lease, started=True, lasting=True)
            )
        except (asyncio.CancelledError, StoreError) as error:
            if not leased.over:
                self._slots.leave(leased)
                cancelled = leased.interrupt is AttemptCancelled
                self._outcomes.report(leased, Cancelled(ASK_CANCELLED) if cancelled else Released())
            if isinstance(error, StoreError):
                _log.warning(
                    "job %s: its start could not be stored; it is released: %s", leased.job.id, error
                )
            return
        leased.runner = None
        if status is LeaseStatus.LOST:
            self._slots.leave(leased)
            self._outcomes.lost(leased)
        elif status is LeaseStatus.CANCEL_ASKED:
            self._slots.leave(leased)
            self._outcomes.report(leased, Cancelled(ASK_CANCELLED))
        elif late := too_late(leased.job, leased.store_now()):  # the store was slow
            self._slots.leave(leased)
            self._outcomes.report(leased, late)
        else:
            self._runners.launch(leased)
        self._start_ready()

    async def _record(self, requests: list[HeartbeatRequest]) -> Sequence[LeaseStatus | BaseException]:
        """The store's answers; StoreUnavailable for a lease whose part of the store is unreachable."""
        away = StoreUnavailable("the part of the store that holds its queue is unreachable")
        return [
            away if status is LeaseStatus.UNKNOWN else status for status in await self._store.extend(requests)
        ]
