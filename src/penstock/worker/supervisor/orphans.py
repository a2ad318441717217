"""Reaps orphans: processes that a task has left behind, while the supervisor is process 1 of a container."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

__all__ = ["orphan_reaper"]


def orphan_reaper(own: Callable[[], Collection[int]]) -> Callable[[], None]:
    """Return a function that reaps ended orphans, and leaves the processes in `own()` to their waiters.

    The kernel gives orphans to process 1. Without a reaper each of them keeps its entry in the process table
    until the container ends. A supervisor that is not process 1 has no orphans: its function does nothing.
    """
    if os.getpid() != 1:
        return lambda: None

    def reap() -> None:
        # WNOWAIT only looks: an own child is left to the thread that waits for it, and ends this round
        while (ended := _ended_child()) is not None and ended not in own():
            os.waitpid(ended, os.WNOHANG)

    return reap


def _ended_child() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no child at all
        return None
    return None if found is None else found.si_pid
