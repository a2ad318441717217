"""Watches the block of a taken job: extends its lease, and cancels it at its timeout or cancellation."""

from __future__ import annotations

import asyncio
import logging

from penstock.app.taken import INTERRUPTED_BECAUSE, Taken
from penstock.core.errors import AttemptCancelled, AttemptLost, AttemptTimeout, Interrupted, StoreError
from penstock.stores.contract import LeaseStatus

__all__ = ["BlockWatch"]

_log = logging.getLogger("penstock.take")


class BlockWatch:
    """Extends the lease of a block's job, and cancels the block if it must stop.

    The cancellation is replaced by an error with the reason when it arrives.
    """

    def __init__(self, taken: Taken, every: float) -> None:
        self._taken = taken
        self._every = every
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._cancelled_before = owner.cancelling()
        self._why: type[Interrupted] | None = None
        self._reason_raised = False  # whether the reason was raised
        self._heartbeat_task = asyncio.create_task(self._send_heartbeats(), name="penstock-take")
        left = taken.remaining()
        self._alarm = None if left is None else self._loop.call_later(left, self._interrupt, AttemptTimeout)

    def meaning(self, error: BaseException | None) -> BaseException | None:
        """The error itself, or the reason for the cancellation, if this watch cancelled the block."""
        if self._why is None or self._reason_raised:
            return error
        self._reason_raised = True
        if self._owner.uncancel() > self._cancelled_before or not _is_cancel(error):
            return error
        return self._why(INTERRUPTED_BECAUSE[self._why].format(self._taken.id))

    @property
    def cancelled(self) -> bool:
        """Whether the block's task was cancelled by other code."""
        return self._owner.cancelling() > self._cancelled_before

    def stands(self, error: BaseException | None) -> bool:
        """Whether an error ends the attempt regardless of middleware."""
        if _is_cancel(error):  # middleware may have cancelled, as asyncio.timeout does
            return self.cancelled
        return isinstance(error, Interrupted) or not isinstance(error, Exception | None)

    def stop(self) -> None:
        """End the watch."""
        self._cancel()

    def abandon(self) -> None:
        """Stop extending the lease. May be called from any thread."""
        if not self._heartbeat_task.done() and not self._loop.is_closed():
            _log.warning("job %s: its block was never left; its lease expires", self._taken.id)
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._heartbeat_task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()

    async def _send_heartbeats(self) -> None:
        while self._why is None and not self._owner.done():
            try:
                status = await self._taken.send_heartbeat()
            except StoreError as error:  # the lease holds until it is reclaimed
                _log.warning("heartbeat of job %s failed: store unreachable: %s", self._taken.id, error)
                status = LeaseStatus.HELD
            if status is not LeaseStatus.HELD:
                self._interrupt(AttemptLost if status is LeaseStatus.LOST else AttemptCancelled)
            await asyncio.sleep(self._every)

    def _interrupt(self, why: type[Interrupted]) -> None:
        if self._why is None:
            self._why = why
            self._owner.cancel()


def _is_cancel(error: BaseException | None) -> bool:
    return isinstance(error, asyncio.CancelledError)
