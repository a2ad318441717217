"""The ends of waiting requests: one timer for all of them."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable

from penstock.dialects.lmstfy.poll import Poll

__all__ = ["Deadlines"]

#: The least step (s), and the part of a request's timeout, by which it may end late. Few steps are kept then,
#: and a request is some bytes in one of them; a timer of its own takes 600.
_LEAST, _PART = 0.005, 2_000
#: Added to the time of the timer (s): timers count whole milliseconds, and a request must not end too early.
_LATER = 0.002


class Deadlines:
    """Calls `on_over` with each request when its deadline has passed."""

    def __init__(self, on_over: Callable[[Poll], None]) -> None:
        self._on_over = on_over
        self._steps: dict[float, dict[Poll, None]] = {}  # by their end, in order of arrival
        self._ends: list[float] = []  # the keys of `_steps`, as a heap
        self._timer: asyncio.TimerHandle | None = None

    def add(self, poll: Poll) -> None:
        """Note a request; its deadline becomes the end of its step."""
        step = max(_LEAST, poll.timeout / _PART)
        end = poll.deadline = (poll.deadline // step + 1) * step
        polls = self._steps.get(end)
        if polls is not None:
            polls[poll] = None
            return
        self._steps[end] = {poll: None}
        heapq.heappush(self._ends, end)
        if self._ends[0] == end:
            self._set_timer()

    def discard(self, poll: Poll) -> None:
        """Forget a request that was answered. Its step stays until it is over."""
        polls = self._steps.get(poll.deadline)
        if polls is not None:
            polls.pop(poll, None)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self.stop()
        left = self._ends[0] - time.monotonic() + _LATER
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        while self._ends and self._ends[0] <= now:
            for poll in self._steps.pop(heapq.heappop(self._ends)):
                self._on_over(poll)
        if self._ends:
            self._set_timer()
