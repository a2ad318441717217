"""How far a waiting worker has read the cancel requests and settings changes of a store."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["WakeCounts"]


class WakeCounts(NamedTuple):
    """The number of cancel requests and of settings changes so far."""

    cancels: int
    changes: int
