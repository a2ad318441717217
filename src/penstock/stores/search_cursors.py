"""The place of a job in the order of a search, and its cursor, on stores with one order of generations."""

from __future__ import annotations

from penstock.stores.cursors import numbers_of

__all__ = ["SearchKey", "search_cursor", "search_key"]

#: The time of a job (0 in order of enqueue), and its generation.
SearchKey = tuple[int, int]


def search_key(after: str) -> SearchKey:
    """Read a cursor. Raises ConfigError."""
    time, generation = numbers_of(after, 2)
    return time, generation


def search_cursor(key: SearchKey) -> str:
    """The cursor behind this place."""
    return f"{key[0]}:{key[1]}"
