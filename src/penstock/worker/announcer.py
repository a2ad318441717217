"""Announces the worker to the store every few seconds, and at once when its state changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.core.errors import StoreUnavailable
from penstock.maintenance.service import ProblemLog, Service, pause_after
from penstock.stores.contract import Store, WorkerInfo

__all__ = ["Announcer"]

_log = logging.getLogger("penstock.worker")


class Announcer(Service):
    """Writes what `info` returns to the store every `every` seconds.

    `waits`: while the store is unreachable, the first announcement waits instead of raising.
    """

    name = "announcer"

    def __init__(
        self,
        store: Store,
        info: Callable[[], WorkerInfo],
        every: float,
        *,
        waits: bool,
        on_announced: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._on_announced = on_announced
        self._store = store
        self._info = info
        self._every = every
        self._waits = waits

    async def tick(self) -> float:
        await self.announce()
        return self._every

    async def announce(self) -> None:
        """Announce the worker now."""
        await self._store.announce(self._info())
        self._on_announced()

    async def announce_first(self, stop: asyncio.Event) -> bool:
        """Announce the worker, waiting for the store as long as needed. False if `stop` was set first."""
        announcing = asyncio.ensure_future(self._announce_patiently())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({announcing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if announcing.done():
                announcing.result()
            return announcing.done()
        finally:
            for one in (announcing, stopped):
                one.cancel()
            await asyncio.gather(announcing, stopped, return_exceptions=True)

    async def _announce_patiently(self) -> None:
        problem_log, failures = ProblemLog(_log), 0
        while True:
            try:
                return await self.announce()
            except StoreUnavailable as error:
                if not self._waits:
                    raise
                problem_log.report("the worker waits for the store", error)
                await asyncio.sleep(pause_after(failures))
                failures += 1
