"""Findings of a store's checkup: whether jobs are safe, as the store is set up."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["Finding", "Level", "unreadable_settings_of"]


class Level(enum.StrEnum):
    """The severity of a finding."""

    FINE = "fine"
    WARNING = "warning"  # jobs, or the work on them, are at risk
    ERROR = "error"  # jobs will be lost, or cannot be stored

    __hash__ = str.__hash__


class Finding(msgspec.Struct, frozen=True):
    """One result of a checkup: `what` was checked, `why` it has this level, and the `way_out`."""

    level: Level
    what: str
    why: str
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + (f"; {self.way_out}" if self.way_out else "")


def unreadable_settings_of(queue: str, cause: str) -> Finding:
    """The finding for a queue whose settings cannot be read."""
    why = f"they cannot be read, and count as not set ({cause})"
    return Finding(
        Level.WARNING, f"settings of the queue {queue}", why, "set them again with penstock queues set"
    )
