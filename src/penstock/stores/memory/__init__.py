"""The memory store: jobs in the memory of one process, in the tables of an SQLite database without a file."""

from penstock.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
