"""A store that has the core alone: a filter around another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from penstock.stores.around import EndedJobs, StoreAround, StorePlan, SyncStoreAround, asked
from penstock.stores.contract import (
    Capability,
    Request,
    Store,
    StreamEnds,
    SyncStore,
    check_supported,
    unsupported,
)

__all__ = ["CoreAlone"]


class CoreAlone(StoreAround):
    """Refuses every request that is not of these capabilities."""

    def __init__(self, store: Store, *more: Capability) -> None:
        super().__init__(store)
        self._can = frozenset({Capability.CORE, *more})

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]
        return self._can

    def around(self, store: Store) -> Store:
        return CoreAlone(store, *self._can)

    def plan(self, request: Request[Any]) -> StorePlan[Any]:
        check_supported(request, self.url, self._can)
        return (yield from asked(request))

    async def stream(self, request: StreamEnds) -> AsyncGenerator[EndedJobs, None]:
        if Capability.FOLLOW not in self._can:
            raise unsupported(self.url, StreamEnds)
        async for some in super().stream(request):
            yield some

    @property
    def sync(self) -> SyncStore:
        return _SyncCoreAlone(self._store.sync, self)


class _SyncCoreAlone(SyncStoreAround):
    def stream(self, request: StreamEnds) -> Generator[EndedJobs, None, None]:
        if not self._around.can(Capability.FOLLOW):
            raise unsupported(self._around.url, StreamEnds)
        yield from super().stream(request)
