"""Pools for tasks that must not run on the event loop: threads, and processes that can be killed."""

from penstock.worker.pools.processes import (
    ChildBroken,
    ChildDied,
    ChildFailed,
    EncodedResult,
    NoChild,
    ProcessPool,
)
from penstock.worker.pools.threads import CallThreadPool, Done

__all__ = [
    "CallThreadPool",
    "ChildBroken",
    "ChildDied",
    "ChildFailed",
    "Done",
    "EncodedResult",
    "NoChild",
    "ProcessPool",
]
