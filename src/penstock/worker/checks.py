"""Tells an app's health callbacks, now and then, how this worker is."""

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

#: A store that has not answered for so long (s) is told of as away; the question stays open.
_PATIENCE = 5.0


class Check(Service):
    """One health callback. `ask` is any write to the store: one whose disk is full still answers questions.
    `facts` makes the Health, given why the store is away, or None."""

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
        """Why the store is away; None: it is not."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        asking = self._asking
        await self._or_stopped(asking, _PATIENCE)
        if not asking.done():
            return f"it has not answered for {_PATIENCE:g} s"
        self._asking = None
        try:
            asking.result()
        except StoreError as error:
            return str(error)
        return None

    async def _or_stopped(self, work: asyncio.Future[None], timeout: float | None = None) -> None:
        """Wait for this, but no longer than the worker lives."""
        stopped = asyncio.ensure_future(self._woken.wait())
        try:
            both: set[asyncio.Future[Any]] = {work, stopped}
            await asyncio.wait(both, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
