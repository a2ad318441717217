"""The documents of one kind in a memory store."""

from __future__ import annotations

from penstock.stores.contract import Document

__all__ = ["MemoryDocuments"]


class MemoryDocuments:
    """Documents by name, and the version of their kind."""

    __slots__ = ("by_name", "version")

    def __init__(self) -> None:
        self.by_name: dict[str, Document] = {}
        self.version = 0
