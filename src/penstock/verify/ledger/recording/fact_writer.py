"""What a recorded store needs of its ledger."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from penstock.verify.ledger.facts import Fact

__all__ = ["FactWriter"]


class FactWriter(Protocol):
    """Writes facts to a ledger."""

    @property
    def self_recorded(self) -> Container[str]: ...

    def write_all(self, facts: Iterable[Fact]) -> None: ...
