"""Tells why a listing is empty if it is of a queue that does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.errors import did_you_mean

if TYPE_CHECKING:
    from penstock.cli.session import Session
    from penstock.inspector import Inspector

__all__ = ["why_empty"]


def why_empty(session: Session, queues: Sequence[str], otherwise: str) -> str:
    """The line for an empty table: that one of these queues does not exist, or `otherwise`."""
    if not queues:
        return otherwise

    async def names(inspector: Inspector) -> list[str]:
        return [queue.name for queue in await inspector.queues()]

    known = session.run(names)
    missing = next((name for name in queues if name not in known), None)
    return otherwise if missing is None else f"there is no queue {missing!r}{did_you_mean(missing, known)}"
