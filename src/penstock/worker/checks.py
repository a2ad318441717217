"""Calls an app's health callbacks at their interval with the health of this worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.core.errors import StoreError
from penstock.core.health import Health
from penstock.maintenance.service import Service
from penstock.worker.callback_executor import CallbackExecutor

__all__ = ["Check"]

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
