"""The event loop of a process that runs workers or serves requests, and what reports that it is blocked."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.worker.logs import log_with_traceback

if TYPE_CHECKING:
    from penstock.worker.shared_lease_table import LeaseTable

_log = logging.getLogger("penstock.worker")


def loop_runner() -> asyncio.Runner:
    """A runner with uvloop's event loop; with asyncio's own if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


class LoopMonitor:
    """Logs the stack of the running event loop once per block of more than `block_report` seconds.

    `check` is to be called from another thread. There `on_blocked` is called with the seconds for which the
    loop is blocked, and its stack. The supervisor sees the loop's ticks in `table`.
    """

    def __init__(
        self, block_report: float, table: LeaseTable | None, *, on_blocked: Callable[[float, str], None]
    ) -> None:
        self.block_report = block_report
        self._table = table
        self._on_blocked = on_blocked
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ticked = time.monotonic()
        self._blocked_since = 0.0
        self._stopping = False

    # ── on the loop ──────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Record a few times per `block_report` that the loop runs, until `stop`."""
        self.tick()
        if not self._stopping:
            self._loop.call_later(self.block_report / 3, self.start)

    def stop(self) -> None:
        self._stopping = True

    def tick(self) -> None:
        """Record that the loop is not blocked."""
        self._ticked = time.monotonic()
        if self._table is not None:
            self._table.tick()

    def set_idle(self, idle: bool) -> None:
        """Record for the supervisor whether nothing runs: an idle loop calls `tick` only seldom."""
        if self._table is not None:
            self._table.set_idle(idle)

    # ── in the other thread ──────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Report the loop if it is blocked; each block once."""
        blocked = time.monotonic() - self._ticked
        if blocked < self.block_report + self.block_report / 3:
            self._blocked_since = 0.0
            return
        if self._blocked_since == self._ticked:
            return  # this block was reported before
        self._blocked_since = self._ticked
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
        log_with_traceback(
            _log,
            logging.WARNING,
            stack,
            "the event loop has been blocked for %.1f s: a task does blocking work in an async function; "
            'use run_in="thread" for it. Its stack:',
            blocked,
        )
        self._on_blocked(blocked, stack)
