"""What a process pool reports of its calls: to its owner in batches, or to the one who awaits a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.core.job import Progress
from penstock.worker.pools.calls import EncodedResult, ProcessCall

__all__ = ["CallEnd", "CallWaiter", "PoolEvents"]

#: A call that has ended: the call, its result, its error.
CallEnd = tuple[ProcessCall, EncodedResult | None, Exception | None]


class PoolEvents:
    """Receives the events of submitted calls; this one ignores them."""

    def started(self, call: ProcessCall) -> None:
        """A call was seen running; `call.started` is set. A short call may be reported as ended only."""

    def progressed(self, call: ProcessCall, progress: Progress) -> None:
        """A call has reported progress."""

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
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.end = end
        self.on_start = on_start
        self.on_progress = on_progress
