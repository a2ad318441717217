"""Jobs in one SQLite file: see `store.py` for the door, `verbs/` for what happens behind it."""

from penstock.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
