"""Opens the stores of a test by name, so that other processes can open the same store."""

from __future__ import annotations

from pathlib import Path

from penstock.core.clock import Clock
from penstock.stores.contract import Store
from tests.sqlite_files import new_file

__all__ = ["open_store"]


def open_store(kind: str, place: str, clock: Clock) -> Store:
    """One more store object on the data that lie there."""
    if kind == "memory":
        from penstock.stores.memory import MemoryStore

        return MemoryStore(place, clock=clock)
    if kind == "sqlite":
        from penstock.stores.sqlite import SqliteStore

        file = new_file(Path(place), clock)
        return SqliteStore(file, durability="normal", clock=clock)  # a test loses no power
    from penstock.stores.redis.store import RedisStore

    return RedisStore(place, clock=clock)
