"""Says how the worker is: to the store every few seconds, and to the health callbacks of the app."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.events import Health
from penstock.maintenance.service import ProblemLog, Service, pause_after
from penstock.stores.contract import Capability, WorkerInfo
from penstock.worker.callbacks import CallbackExecutor
from penstock.worker.setup import WorkerSetup

_log = logging.getLogger("penstock.worker")


class Announcer(Service):
    """Writes what `info` returns to the store.

    While the store is unreachable, the first announcement waits; that of a burst raises.
    """

    name = "announcer"
    needs = Capability.WORKERS

    def __init__(self, setup: WorkerSetup, info: Callable[[], WorkerInfo]) -> None:
        super().__init__()
        self._store = setup.app.store
        self._info = info
        self._every = setup.config.announce / 1000
        self._waits = not setup.burst
        self._table = setup.supervision.table

    async def tick(self) -> float:
        await self.announce()
        return self._every

    async def announce(self) -> None:
        """Announce the worker now; a store that keeps no list of workers is only asked whether it answers."""
        if self._store.can(Capability.WORKERS):
            await self._store.announce(self._info())
        else:
            await self._store.now()
        if self._table is not None:
            self._table.record_store_answer()

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


# ── health callbacks ─────────────────────────────────────────────────────────────────────────────

#: The store counts as unreachable after this long without an answer (s); the same request stays pending.
_TIMEOUT = 5.0


class Check(Service):
    """Runs one health callback every `every` seconds.

    `write` writes to the store: a store with a full disk still answers reads, so only a write shows it.
    `facts` makes the Health from the reason why the store is unreachable (None if it answers).
    """

    name = "check"

    def __init__(
        self,
        write: Callable[[], Awaitable[None]],
        facts: Callable[[str | None], Health],
        callback: Callable[[Health], object],
        every: float,
    ) -> None:
        super().__init__()
        self._write = write
        self._facts = facts
        self._callback = callback
        self._every = every
        self._executor = CallbackExecutor(1)
        self._pending_write: asyncio.Future[None] | None = None

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._pending_write is not None:
                self._pending_write.cancel()
            self._executor.close()

    async def tick(self) -> float:
        began = time.monotonic()
        health = self._facts(await self._store_error())
        if not self._stopping:
            calling = asyncio.ensure_future(self._executor.call(self._callback, health, about="on_health"))
            try:
                await self._until_stopped(calling)
            finally:
                calling.cancel()
        return max(0.001, began + self._every - time.monotonic())

    async def _store_error(self) -> str | None:
        """The reason why the store is unreachable; None if it answers."""
        if self._pending_write is None:
            self._pending_write = asyncio.ensure_future(self._write())
        pending = self._pending_write
        await self._until_stopped(pending, _TIMEOUT)
        if not pending.done():
            return f"no answer for {_TIMEOUT:g} s"
        self._pending_write = None
        try:
            pending.result()
        except StoreError as error:
            return str(error)
        return None

    async def _until_stopped(self, work: asyncio.Future[None], timeout: float | None = None) -> None:
        """Wait for `work`, at most until the service stops."""
        stopped = asyncio.ensure_future(self._woken.wait())
        try:
            both: set[asyncio.Future[Any]] = {work, stopped}
            await asyncio.wait(both, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
