"""How a worker process is, in a few facts."""

from __future__ import annotations

import msgspec

__all__ = ["Health"]


class Health(msgspec.Struct, frozen=True):
    """What a health callback is told. `at` is ms since the epoch, by the clock of the worker's host."""

    at: int
    worker: str
    #: "running", "quiet" (takes no more jobs) or "draining".
    state: str
    #: Whether the store has just taken a write of this worker's.
    store_reachable: bool
    #: Why not.
    store_error: str | None
    #: Slots, those that hang and were given up, and attempts that run.
    concurrency: int
    lost_slots: int
    running: int
    #: Jobs that are fetched and wait for a slot.
    buffered: int
    #: Outcomes that wait for the store.
    unsent: int
    #: Seconds since a fetch, and a heartbeat, last succeeded. A full worker does not fetch.
    since_fetch: float
    since_heartbeat: float
    #: Jobs that this process has parked since it began, for want of their task.
    parked: int = 0
