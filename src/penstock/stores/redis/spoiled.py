"""Queues one of whose keys holds what is not ours, so that every script over them fails (WRONGTYPE).

Such a queue concerns itself alone. After a step over several queues has failed by one of them, verbs go queue
by queue (`apart`), find which it is (`lost`) and leave it out; every few seconds it is tried again.
"""

from __future__ import annotations

import logging
import time

from penstock.core.errors import StoreCorrupt

__all__ = ["Spoiled"]

_log = logging.getLogger("penstock.stores")

#: A spoiled queue is left out for so long (s), and once it is well verbs go queue by queue for as long again.
_REST = 5.0


class Spoiled:
    """Of one store object; for any thread."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # when a queue is tried again (monotonic)
        self._why: dict[str, StoreCorrupt] = {}
        self._apart_until = 0.0

    @property
    def apart(self) -> bool:
        """Whether verbs have to go queue by queue."""
        return self._apart_until > 0.0 and (bool(self._why) or time.monotonic() < self._apart_until)

    def met(self) -> None:
        """A step over several queues has failed by one of them."""
        self._apart_until = time.monotonic() + _REST

    def why(self, queue: str) -> StoreCorrupt | None:
        """Why a queue is left out now."""
        if not self._why or time.monotonic() >= self._until.get(queue, 0.0):
            return None
        return self._why.get(queue)

    def lost(self, queue: str, error: StoreCorrupt) -> None:
        if queue not in self._why:
            _log.warning("queue %r waits: a key of it holds something else: %s", queue, error)
        self._why[queue] = error
        self._until[queue] = time.monotonic() + _REST
        self.met()

    def well(self, queue: str) -> None:
        """It has answered."""
        if self._why and self._why.pop(queue, None) is not None:
            _log.info("queue %r goes on: its keys are well again", queue)
