"""Notes about queues beside a listing: one that does not exist, and those that the store cannot read now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli.faults import Exit
from penstock.cli.show import note
from penstock.core.errors import did_you_mean

if TYPE_CHECKING:
    from penstock.cli.session import Session
    from penstock.inspector import QueueView


def why_empty(session: Session, queues: Sequence[str], otherwise: str) -> str:
    """The line for an empty table: that one of these queues does not exist, or `otherwise`."""
    known = [queue.name for queue in _all_queues(session)] if queues else []
    missing = next((name for name in queues if name not in known), None)
    return otherwise if missing is None else f"there is no queue {missing!r}{did_you_mean(missing, known)}"


def note_away(session: Session, queue: str | None) -> Exit:
    """Name the queues, of all or this one, that are missing from numbers; return the exit code."""
    away = [one.name for one in _all_queues(session) if one.away and queue in (None, one.name)]
    if not away:
        return Exit.OK
    note(f"not counted, because their part of the store does not answer: {', '.join(away)}")
    return Exit.UNAVAILABLE


def _all_queues(session: Session) -> list[QueueView]:
    return session.run(lambda inspector: inspector.queues())
