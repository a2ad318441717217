"""The whole contract of a store: all verbs, the sync verbs, its address, and how to close it."""

from __future__ import annotations

from typing import Protocol

from penstock.stores.contract.changing import Changing
from penstock.stores.contract.consuming import Consuming
from penstock.stores.contract.documenting import Documenting
from penstock.stores.contract.flowing import Flowing, SyncFlowing
from penstock.stores.contract.measuring import Measuring
from penstock.stores.contract.operating import Operating, SyncOperating
from penstock.stores.contract.producing import Producing, SyncProducing
from penstock.stores.contract.scheduling import Scheduling
from penstock.stores.contract.searching import Searching
from penstock.stores.contract.stepping import Stepping, SyncStepping

__all__ = ["Store", "SyncStore"]


class SyncStore(SyncProducing, SyncOperating, SyncFlowing, SyncStepping, Protocol):
    """The sync verbs of a store, for callers without an event loop."""


class Store(
    Producing,
    Consuming,
    Scheduling,
    Operating,
    Changing,
    Searching,
    Documenting,
    Measuring,
    Flowing,
    Stepping,
    Protocol,
):
    """A place where jobs are kept.

    A store opens its files or connections at its first verb, once per process: a forked child opens its own.
    """

    @property
    def url(self) -> str:
        """The address of the store, without secrets."""
        ...

    @property
    def sync(self) -> SyncStore:
        """The sync verbs, for callers without an event loop."""
        ...

    def in_namespace(self, namespace: str) -> Store:
        """Return the store of another namespace on the connections, threads and files of this one.

        - The same namespace gives the same object, from every view, as long as the store exists: open views
          only of namespaces that are in use. The store's own namespace gives the store.
        - Closing a view releases nothing; closing the store releases what its views share.

        Errors: ConfigError for a name that no namespace can have.
        """
        ...

    def close(self) -> None:
        """Release files, threads and connections. Safe to call twice."""
        ...
