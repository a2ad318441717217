"""The documents of one kind in the oracle."""

from __future__ import annotations

from penstock.stores.contract import Document

__all__ = ["MemoryDocuments", "expired"]

_FEW = 100


class MemoryDocuments:
    """Documents by name, and the version of their kind."""

    __slots__ = ("_sweep_at", "by_name", "version")

    def __init__(self) -> None:
        self.by_name: dict[str, Document] = {}
        self.version = 0
        self._sweep_at = _FEW

    def sweep(self, now: int, most: int) -> None:
        """Remove expired documents if there are `most` documents, or twice as many as after the last time."""
        if len(self.by_name) >= min(most, self._sweep_at):
            self.by_name = {name: one for name, one in self.by_name.items() if not expired(one, now)}
            self._sweep_at = max(_FEW, 2 * len(self.by_name))


def expired(document: Document, now: int) -> bool:
    """Whether a document does not exist any more."""
    return document.expires_at is not None and document.expires_at <= now
