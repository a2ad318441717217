"""A bounded in-process queue with workers, for work that may be lost when the process ends.

The rules are in `rules`; `JobQueue` and `Pool` serve an event loop, `ThreadJobQueue` and `ThreadPool` serve
threads. Nothing here retries, delays or stores jobs; use `penstock.App` for jobs that must not get lost.
"""

from __future__ import annotations

from penstock.core.errors import QueueClosed, QueueFull
from penstock.pool.loops import JobQueue, Pool, spawn
from penstock.pool.rules import CancelToken, Stopped
from penstock.pool.threads import ThreadJobQueue, ThreadPool, spawn_thread

__all__ = [
    "CancelToken",
    "JobQueue",
    "Pool",
    "QueueClosed",
    "QueueFull",
    "Stopped",
    "ThreadJobQueue",
    "ThreadPool",
    "spawn",
    "spawn_thread",
]
