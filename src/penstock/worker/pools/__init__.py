"""Pools for tasks that must not run on the event loop: threads, and processes that can be killed."""

from penstock.worker.pools.calls import (
    CallEnd,
    CallRefused,
    ChildBroken,
    ChildDied,
    ChildFailed,
    EncodedResult,
    NoChild,
    PoolEvents,
    ProcessCall,
    epoch_of,
)
from penstock.worker.pools.child_group import ChildLimits, ChildOptions
from penstock.worker.pools.process_pool import ProcessPool
from penstock.worker.pools.thread_pool import CallThreadPool, Done

__all__ = [
    "CallEnd",
    "CallRefused",
    "CallThreadPool",
    "ChildBroken",
    "ChildDied",
    "ChildFailed",
    "ChildLimits",
    "ChildOptions",
    "Done",
    "EncodedResult",
    "NoChild",
    "PoolEvents",
    "ProcessCall",
    "ProcessPool",
    "epoch_of",
]
