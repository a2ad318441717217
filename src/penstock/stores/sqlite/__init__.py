"""The SQLite store: `store.py` is the store, `verbs/` has the bodies of its verbs."""

from penstock.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
