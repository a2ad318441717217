"""Pools for tasks that must not run on the event loop: threads, and processes that can be killed."""

from penstock.worker.pools.call_events import CallEnd, PoolEvents
from penstock.worker.pools.calls import (
    CallRefused,
    ChildBroken,
    ChildDied,
    ChildFailed,
    EncodedResult,
    NoChild,
    ProcessCall,
    epoch_of,
)
from penstock.worker.pools.processes import ProcessPool
from penstock.worker.pools.threads import CallThreadPool, Done

__all__ = [
    "CallEnd",
    "CallRefused",
    "CallThreadPool",
    "ChildBroken",
    "ChildDied",
    "ChildFailed",
    "Done",
    "EncodedResult",
    "NoChild",
    "PoolEvents",
    "ProcessCall",
    "ProcessPool",
    "epoch_of",
]
