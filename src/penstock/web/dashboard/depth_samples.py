"""Samples the depths of queues in the process of the dashboard: without a worker, nobody else would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.maintenance.depth_sampler import DepthSampler
from penstock.stores.contract import Store

__all__ = ["sampling"]


@contextmanager
def sampling(store: Store, *, allowed: bool) -> Iterator[None]:
    """Sample while this block lasts; `allowed`: not if the dashboard is read-only."""
    sampler = DepthSampler(store)
    task = asyncio.get_running_loop().create_task(sampler.run()) if allowed else None
    try:
        yield
    finally:
        sampler.stop()
        if task is not None:
            task.cancel()
