"""The SQLite store: the file, its locks and notifications. The verbs are those of `stores/sql/`."""

from penstock.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
