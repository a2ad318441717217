"""Samples the depths of all queues once a minute, for the statistics."""

from __future__ import annotations

import random

from penstock.maintenance.service import Service
from penstock.stores.contract import Store

__all__ = ["DepthSampler"]

#: Latest start (s) of a sample in its minute. Jitter, so that a fleet does not ask in the same instant: the
#: first process samples, and the others find that the minute has its samples.
_LATEST = 5.0


class DepthSampler(Service):
    """Samples soon after each minute of the store's clock has begun."""

    name = "depth sampler"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    async def tick(self) -> float:
        left = await self._store.sample_depths()
        return left / 1000 + random.uniform(0.1, _LATEST)  # noqa: S311 (jitter, no secret)
