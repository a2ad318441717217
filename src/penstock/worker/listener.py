"""Asks the store for cancellations and changed settings while attempts run."""

from __future__ import annotations

from collections.abc import Callable

from penstock.maintenance.service import Service
from penstock.stores.contract import Store, Wake
from penstock.worker.executor import Slots

__all__ = ["Listener"]


class Listener(Service):
    """Checks the store five times a second while attempts run; a check is cheap.

    The store reports each change once. `on_settings` is called when settings changed, `on_cancel` when jobs
    were cancelled.
    """

    name = "listener"

    def __init__(
        self,
        store: Store,
        slots: Slots,
        *,
        on_cancel: Callable[[], None],
        on_settings: Callable[[], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._slots = slots
        self._on_cancel = on_cancel
        self._on_settings = on_settings

    async def tick(self) -> float:
        if not self._slots.running:
            self._slots.started.clear()
            await self._slots.started.wait()
            return 0.1
        changes = await self._store.wait((), timeout=0)
        if Wake.CANCEL in changes:
            self._on_cancel()
        if Wake.SETTINGS in changes:
            self._on_settings()
        return 0.2
