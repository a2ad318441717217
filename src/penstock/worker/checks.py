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
_PATIENCE = 5.0


class Check(Service):
    """Runs one health callback every `every` seconds.

    `ask` writes to the store: a store with a full disk still answers reads, so only a write shows it.
    `facts` makes the Health from the reason why the store is unreachable (None if it answers).
    """

    name = "check"

    def __init__(
        self,
        ask: Callable[[], Awaitable[None]],
        facts: Callable[[str | None], Health],
        tell: Callable[[Health], object],
        every: float,
    ) -> None:
        super().__init__()
        self._ask = ask
        self._facts = facts
        self._tell = tell
        self._every = every
        self._executor = CallbackExecutor(1)
        self._asking: asyncio.Future[None] | None = None

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._asking is not None:
                self._asking.cancel()
            self._executor.close()

    async def tick(self) -> float:
        began = time.monotonic()
        health = self._facts(await self._trouble())
        if not self._stopping:
            telling = asyncio.ensure_future(self._executor.call(self._tell, health, about="on_health"))
            try:
                await self._or_stopped(telling)
            finally:
                telling.cancel()
        return max(0.001, began + self._every - time.monotonic())

    async def _trouble(self) -> str | None:
        """The reason why the store is unreachable; None if it answers."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        asking = self._asking
        await self._or_stopped(asking, _PATIENCE)
        if not asking.done():
            return f"no answer for {_PATIENCE:g} s"
        self._asking = None
        try:
            asking.result()
        except StoreError as error:
            return str(error)
        return None

    async def _or_stopped(self, work: asyncio.Future[None], timeout: float | None = None) -> None:
        """Wait for `work`, at most until the service stops."""
        stopped = asyncio.ensure_future(self._woken.wait())
        try:
            both: set[asyncio.Future[Any]] = {work, stopped}
            await asyncio.wait(both, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
