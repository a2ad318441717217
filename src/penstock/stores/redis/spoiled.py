"""Spoiled queues: queues with a key that another program has overwritten, so that scripts fail (WRONGTYPE).

Such a queue must not affect others. After a step over several queues has failed because of one of them, verbs
run queue by queue (`apart`), find the spoiled queue (`lost`) and leave it out. It is tried again every few
seconds.
"""

from __future__ import annotations

import logging
import time

from penstock.core.errors import StoreCorrupt

__all__ = ["Spoiled"]

_log = logging.getLogger("penstock.stores")

#: A spoiled queue is left out for this time (seconds). After that, verbs run queue by queue for the same
#: time.
_REST = 5.0


class Spoiled:
    """The spoiled queues that one store object has found; thread-safe."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # when a queue is tried again (monotonic)
        self._why: dict[str, StoreCorrupt] = {}
        self._apart_until = 0.0

    @property
    def apart(self) -> bool:
        """True if verbs must run queue by queue."""
        return self._apart_until > 0.0 and (bool(self._why) or time.monotonic() < self._apart_until)

    def met(self) -> None:
        """Note that a step over several queues has failed because of one of them."""
        self._apart_until = time.monotonic() + _REST

    def why(self, queue: str) -> StoreCorrupt | None:
        """Return why a queue is left out now; None if it is not."""
        if not self._why or time.monotonic() >= self._until.get(queue, 0.0):
            return None
        return self._why.get(queue)

    def lost(self, queue: str, error: StoreCorrupt) -> None:
        if queue not in self._why:
            _log.warning("queue %r is unavailable: one of its keys was overwritten: %s", queue, error)
        self._why[queue] = error
        self._until[queue] = time.monotonic() + _REST
        self.met()

    def well(self, queue: str) -> None:
        """Note that a queue has answered."""
        if self._why and self._why.pop(queue, None) is not None:
            _log.info("queue %r is available again: its keys are valid", queue)
