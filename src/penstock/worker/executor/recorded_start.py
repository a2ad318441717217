"""Starts attempts whose start must first be in the store: last attempts, and at-most-once ones."""

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
    """Writes starts to the store, those that come together in one call, then launches the attempts.

    `lease` is in milliseconds. `start_ready` is called after each, as its slot may be free again.
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
        """Record the start of this job, which has its slot, and launch it unless it may not run any more."""
        leased.handle = asyncio.create_task(self._start(leased))

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
                    "job %s: its start could not be recorded, it goes back: %s", leased.job.id, error
                )
            return
        leased.handle = None
        if status is LeaseStatus.LOST:
            self._slots.leave(leased)
            self._outcomes.lost(leased)
        elif status is LeaseStatus.CANCEL_ASKED:
            self._slots.leave(leased)
            self._outcomes.report(leased, Cancelled(ASK_CANCELLED))
        elif late := too_late(leased.job, leased.store_now()):  # the store took its time
            self._slots.leave(leased)
            self._outcomes.report(leased, late)
        else:
            self._runners.launch(leased)
        self._start_ready()

    async def _record(self, requests: list[HeartbeatRequest]) -> Sequence[LeaseStatus | BaseException]:
        """The store's answers; an error for a lease whose part of the store is away."""
        away = StoreUnavailable("the part of the store that has its queue is away")
        return [
            away if status is LeaseStatus.UNKNOWN else status for status in await self._store.extend(requests)
        ]
