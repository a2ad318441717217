"""Entries of commands in the audit log, with the user who runs them."""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.stores.contract import Store

__all__ = ["AuditedAct", "acting_user"]


@dataclass(frozen=True)
class AuditedAct:
    """What a command does as an operator, e.g. `AuditedAct("queue.purge", ["mail"])`."""

    act: str
    to: Sequence[str]
    facts: Mapping[str, object] = field(default_factory=dict)

    async def write(self, store: Store, **more: str) -> None:
        """Write the entry, with more facts; several if it names many."""
        from penstock.inspector.audit import AuditLog

        facts = {name: "none" if value is None else str(value) for name, value in self.facts.items()} | more
        await AuditLog(store).write(acting_user(), self.act, self.to, facts=facts)


def acting_user() -> str:
    """`cli:USER@HOST`; the user's number where it has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"cli:{user}@{platform.node()}"
