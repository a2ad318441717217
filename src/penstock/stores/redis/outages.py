"""Parts of a Cluster that are away while the others answer: which queues, since when, and when they are back.

A Cluster with `cluster-require-full-coverage no` serves the slots of the masters that live. A verb that finds
a queue whose slot nobody serves reports the queue here (`lost`). From then on verbs over several queues leave
it out, at no cost, until a thread that asks in the background, with back-off, finds it served again.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable

from penstock.core.errors import StoreUnavailable

__all__ = ["SHARED", "Outages", "Prober"]

_log = logging.getLogger("penstock.stores")

#: The name under which the namespace's own slot is kept: no queue is called so.
SHARED = ""
#: The pause between two probes (s) is doubled from the first to the last.
_FIRST, _LAST = 0.1, 2.0
#: What is lost again so soon (s) is the same outage, and not told once more.
_SAME = 10.0


class Outages:
    """Of one store object; for any thread."""

    def __init__(self) -> None:
        self._away: dict[str, StoreUnavailable] = {}
        self._back: dict[str, float] = {}  # when it came back (monotonic)
        #: Called when something is away: begins to ask when it is back.
        self.on_lost: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return bool(self._away)

    @property
    def names(self) -> list[str]:
        return list(self._away)

    def why(self, name: str) -> StoreUnavailable | None:
        """Why a queue is away; None: it is not, as far as we know."""
        found = self._away.get(name)
        if found is not None:
            self.on_lost()
        return found

    def lost(self, name: str, error: StoreUnavailable) -> None:
        """Nobody serves the slot of this queue now."""
        new = name not in self._away
        self._away[name] = error
        if new and time.monotonic() - self._back.get(name, float("-inf")) > _SAME:
            _log.warning("%s waits: its part of the Cluster is away: %s", _title(name), error)
        self.on_lost()

    def back(self, name: str) -> None:
        if self._away.pop(name, None) is not None:
            self._back[name] = time.monotonic()
            _log.info("%s goes on: its part of the Cluster is back", _title(name))


class Prober:
    """Asks in a thread of its own, while anything is away, whether it is back.

    `ask(names)` names those that are; a store that is let go of, or closed, asks no more.
    """

    def __init__(
        self, outages: Outages, ask: Callable[[list[str]], list[str]], let_go: Callable[[], None]
    ) -> None:
        self._outages = outages
        self._ask = ask
        self._let_go = let_go  # of what was opened for a question while the store was closed
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = threading.Event()
        outages.on_lost = self._start

    def close(self) -> None:
        """Until the next loss."""
        self._closed.set()

    def _start(self) -> None:
        thread = self._thread
        if thread is not None and self._pid == os.getpid() and thread.is_alive():
            return
        self._closed, self._pid = threading.Event(), os.getpid()
        args = (weakref.ref(self), self._closed)
        self._thread = threading.Thread(target=_probe, args=args, name="penstock-outages", daemon=True)
        self._thread.start()

    def _look(self) -> bool:
        """Ask once; whether anything is left."""
        try:
            for name in self._ask(self._outages.names):
                self._outages.back(name)
        finally:
            if self._closed.is_set():
                self._let_go()
        return bool(self._outages)


def _probe(prober: weakref.ref[Prober], closed: threading.Event) -> None:
    pause = _FIRST
    while not closed.wait(pause * random.uniform(0.5, 1.0)):  # noqa: S311 (jitter, no secret)
        one = prober()
        if one is None or not one._look():
            return
        del one
        pause = min(_LAST, 2 * pause)


def _title(name: str) -> str:
    return "what belongs to the whole namespace" if name == SHARED else f"queue {name!r}"
