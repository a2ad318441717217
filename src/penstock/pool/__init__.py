"""A bounded queue and its workers inside one process: for work that may end with the process.

One set of rules (`rules`), two fronts: `JobQueue` and `Pool` for an event loop, `ThreadJobQueue` and
`ThreadPool` for threads. Nothing here retries, delays or stores; for jobs that must not get lost there is
`penstock.App`.
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
