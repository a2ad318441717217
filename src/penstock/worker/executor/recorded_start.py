"""Starts attempts whose start must first be in the store: last attempts, and at-most-once ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.core.batcher import Batcher
from penstock.core.errors import AttemptCancelled, StoreError, StoreUnavailable
from penstock.core.lifecycle import ASK_CANCELLED, too_late
from penstock.core.outcomes import Cancelled, Released
from penstock.stores.contract import Beat, Grip, Store
from penstock.worker.executor.ending import Ending
from penstock.worker.executor.slots import Slots
from penstock.worker.leased_jobs import Hold

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
        ending: Ending,
        *,
        launch: Callable[[Hold], None],
        start_ready: Callable[[], None],
        lease: int,
    ) -> None:
        self._store = store
        self._slots = slots
        self._ending = ending
        self._records: Batcher[Beat, Grip] = Batcher(self._record)
        self._launch = launch
        self._start_ready = start_ready
        self._lease = lease

    def start(self, hold: Hold) -> None:
        """Record the start of this job, which has its slot, and launch it unless it may not run any more."""
        hold.handle = asyncio.create_task(self._start(hold))

    async def _start(self, hold: Hold) -> None:
        try:
            grip = await self._records.put(Beat(hold.job.lease, self._lease, started=True, lasting=True))
        except (asyncio.CancelledError, StoreError) as error:
            if not hold.over:
                self._slots.leave(hold)
                cancelled = hold.interrupt is AttemptCancelled
                self._ending.report(hold, Cancelled(ASK_CANCELLED) if cancelled else Released())
            if isinstance(error, StoreError):
                _log.warning("job %s: its start could not be recorded, it goes back: %s", hold.job.id, error)
            return
        hold.handle = None
        if grip is Grip.LOST:
            self._slots.leave(hold)
            self._ending.lost(hold)
        elif grip is Grip.CANCEL_ASKED:
            self._slots.leave(hold)
            self._ending.report(hold, Cancelled(ASK_CANCELLED))
        elif late := too_late(hold.job, hold.store_now()):  # the store took its time
            self._slots.leave(hold)
            self._ending.report(hold, late)
        else:
            self._launch(hold)
        self._start_ready()

    async def _record(self, beats: list[Beat]) -> Sequence[Grip | BaseException]:
        """The store's answers; an error for a lease whose part of the store is away."""
        away = StoreUnavailable("the part of the store that has its queue is away")
        return [away if grip is Grip.UNKNOWN else grip for grip in await self._store.extend(beats)]
