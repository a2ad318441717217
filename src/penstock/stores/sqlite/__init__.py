"""Jobs in one SQLite file: `store.py` is the store, `verbs/` has what each verb does."""

from penstock.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
