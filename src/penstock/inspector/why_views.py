"""Why a job does not run now, as operators see it."""

from __future__ import annotations

import msgspec

__all__ = ["Reason", "WhyView"]


class Reason(msgspec.Struct, frozen=True):
    """One rule that keeps a job. `kind` is stable: paused, throttled, limited, rated, delayed, ahead …"""

    kind: str
    says: str


class WhyView(msgspec.Struct, frozen=True):
    """Why a job does not run now: its state, since when, and the reasons, the decisive one first.

    An ended job has one reason, which says so. A running job has the worker that runs it, and more if that
    worker is silent or gone.
    """

    queue: str
    id: str
    state: str
    since: str
    reasons: list[Reason]
