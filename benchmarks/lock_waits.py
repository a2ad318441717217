"""Times every wait of this process at the fair write lock of SQLite files."""

from __future__ import annotations

import time

from penstock.stores.sqlite.fair_write_lock import FairWriteLock

__all__ = ["LockWaits"]


class LockWaits:
    """Replaces the lock's two ways in: `waits` has the duration (ms) of each wait, from the first attempt."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._plain_acquire, self._plain_try = FairWriteLock.acquire, FairWriteLock.try_acquire
        timed = self

        def acquire(lock: FairWriteLock) -> None:
            started = time.perf_counter()
            timed._plain_acquire(lock)
            timed.waits.append((time.perf_counter() - started) * 1000)

        def try_acquire(lock: FairWriteLock) -> bool:
            entered = timed._plain_try(lock)
            if entered:  # otherwise the caller waits in `enter`
                timed.waits.append(0.0)
            return entered

        FairWriteLock.acquire, FairWriteLock.try_acquire = acquire, try_acquire  # type: ignore[assignment, method-assign]
