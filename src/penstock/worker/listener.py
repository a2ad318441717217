"""Asks the store for cancellations and changed settings while attempts run."""

from __future__ import annotations

from collections.abc import Callable

from penstock.maintenance.service import Service
from penstock.stores.contract import Store, Wake
from penstock.worker.executor import Slots

__all__ = ["Listener"]


class Listener(Service):
    """Checks the store five times a second while attempts run, or the worker is quiet; a check is cheap.

    At other times the fetcher waits at the store, and learns of changes there.

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
        fetches: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._store = store
        self._slots = slots
        self._on_cancel = on_cancel
        self._on_settings = on_settings
        self._fetches = fetches

    async def tick(self) -> float:
        if not self._slots.running and self._fetches():
            self._slots.started.clear()
            await self._slots.started.wait()
            return 0.1
        changes = await self._store.wait((), timeout=0)
        if Wake.CANCEL in changes:
            self._on_cancel()
        if Wake.SETTINGS in changes:
            self._on_settings()
        return 0.2
