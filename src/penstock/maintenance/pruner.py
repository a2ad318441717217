"""Removes ended jobs past their retention, expired jobs, and workers that no longer announce themselves."""

from __future__ import annotations

from penstock.maintenance.service import Service
from penstock.stores.contract import Store

__all__ = ["Pruner"]


class Pruner(Service):
    """Prunes in small steps: every 50 ms while there is much to remove, otherwise every ten seconds."""

    name = "pruner"

    def __init__(
        self,
        store: Store,
        *,
        every: float = 10.0,
        batch: int = 1_000,
        keep_finished: int = 100_000,
        keep_dead: int = 100_000,
    ) -> None:
        super().__init__()
        self._store = store
        self._every = every
        self._batch = batch
        self._keep_finished = keep_finished
        self._keep_dead = keep_dead

    async def tick(self) -> float:
        gone = await self._store.prune(
            limit=self._batch, keep_finished=self._keep_finished, keep_dead=self._keep_dead
        )
        if gone.set_aside:
            self.on_set_aside(gone.set_aside)
        more = gone.finished + gone.expired >= self._batch or gone.unique_keys >= self._batch
        return 0.05 if more else self._every
