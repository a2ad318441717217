"""The whole contract of a store: all verbs, their sync door, and the store's life."""

from __future__ import annotations

from typing import Protocol

from penstock.stores.contract.consuming import Consuming
from penstock.stores.contract.operating import Operating, SyncOperating
from penstock.stores.contract.producing import Producing, SyncProducing
from penstock.stores.contract.scheduling import Scheduling

__all__ = ["Store", "SyncStore"]


class SyncStore(SyncProducing, SyncOperating, Protocol):
    """The verbs of a store for callers without an event loop."""


class Store(Producing, Consuming, Scheduling, Operating, Protocol):
    """A place where jobs are kept.

    A store opens itself at its first verb, in each process: a fork opens its own.
    """

    @property
    def url(self) -> str:
        """The address of the store, without secrets."""
        ...

    @property
    def sync(self) -> SyncStore:
        """The verbs for callers without an event loop."""
        ...

    def close(self) -> None:
        """Release files, threads and connections. Safe to call twice."""
        ...
