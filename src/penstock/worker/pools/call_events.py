"""What a process pool reports of its calls: to its owner in batches, or to the one who awaits a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.core.job import Progress
from penstock.stores.job_log import LogLine
from penstock.worker.pools.calls import EncodedResult, ProcessCall

__all__ = ["CallEnd", "CallReports", "CallWaiter", "PoolEvents"]

#: A call that has ended: the call, its result, its error.
CallEnd = tuple[ProcessCall, EncodedResult | None, Exception | None]


class PoolEvents:
    """Receives the events of submitted calls; this one ignores them."""

    def started(self, call: ProcessCall) -> None:
        """A call was seen running; `call.started` is set. A short call may be reported as ended only."""

    def progressed(self, call: ProcessCall, progress: Progress | LogLine) -> None:
        """A call has reported progress, or logged a line."""

    def lease_end(self, call: ProcessCall) -> float:
        """`clock.lease_seconds()` until which the call may start, now that it is dispatched."""
        return call.until

    def ended(self, batch: list[CallEnd]) -> None:
        """These calls have ended."""


class CallWaiter:
    """What `run` waits for."""

    __slots__ = ("end", "on_progress", "on_start")

    def __init__(
        self,
        end: asyncio.Future[EncodedResult],
        on_start: Callable[[], None] | None,
        on_progress: Callable[[Progress | LogLine], None] | None,
    ) -> None:
        self.end = end
        self.on_start = on_start
        self.on_progress = on_progress


class CallReports:
    """Passes events on: to `events`, or to the waiter of an awaited call."""

    def __init__(self, events: PoolEvents) -> None:
        self._events = events
        #: The waiters, by the identity of the call.
        self.awaited: dict[int, CallWaiter] = {}
        #: Calls that have ended since the last `deliver`.
        self.ends: list[CallEnd] = []

    def started(self, call: ProcessCall) -> None:
        """Report that the call was seen running."""
        call.seen = True
        if not call.awaited:
            self._events.started(call)
        elif (waiter := self.awaited.get(id(call))) is not None and waiter.on_start is not None:
            waiter.on_start()

    def progressed(self, call: ProcessCall, progress: Progress | LogLine) -> None:
        """Report the call's progress, or a line of its log."""
        waiter = self.awaited.get(id(call)) if call.awaited else None
        if waiter is None:
            self._events.progressed(call, progress)
        elif waiter.on_progress is not None:
            waiter.on_progress(progress)

    def deliver(self) -> None:
        """Report the calls that have ended since the last time."""
        ends, self.ends = self.ends, []
        batch = [end for end in ends if not end[0].awaited]
        if len(batch) < len(ends):
            for call, result, error in ends:
                if call.awaited:
                    self._end_awaited(call, result, error)
        if batch:
            self._events.ended(batch)

    def _end_awaited(self, call: ProcessCall, result: EncodedResult | None, error: Exception | None) -> None:
        waiter = self.awaited.get(id(call))
        if waiter is None or waiter.end.done():
            return
        if call.started and not call.seen:
            self.started(call)
        if error is not None:
            waiter.end.set_exception(error)
        else:
            assert result is not None
            waiter.end.set_result(result)
