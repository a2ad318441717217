"""The health of a worker process."""

from __future__ import annotations

import msgspec

__all__ = ["Health"]


class Health(msgspec.Struct, frozen=True):
    """The argument of a health callback. `at` is ms since the epoch, by the clock of the worker's host."""

    at: int
    worker: str
    #: "running", "quiet" (fetches no more jobs) or "draining".
    state: str
    #: Whether the store has just accepted a write of this worker.
    store_reachable: bool
    #: The reason why the store is unreachable; None if it is reachable.
    store_error: str | None
    #: Number of slots; slots given up because their attempt is stuck; running attempts.
    concurrency: int
    lost_slots: int
    running: int
    #: Number of fetched jobs that wait for a slot.
    buffered: int
    #: Number of outcomes that wait for the store.
    unsent: int
    #: Seconds since the last successful fetch and heartbeat. A full worker does not fetch.
    since_fetch: float
    since_heartbeat: float
    #: Number of jobs that this process has parked since its start because it does not know their task.
    parked: int = 0
