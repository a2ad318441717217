"""Queues that cannot be used now, and that verbs over several queues leave out (see `isolation.py`).

*Outages*: a Cluster with `cluster-require-full-coverage no` serves the slots of the masters that are up. A
verb that finds a queue whose slot no server serves reports the queue (`Outages.begin`). Verbs then leave it
out, at no cost, until a background thread, which asks with back-off, finds that the slot is served again.

*Corrupt queues*: another program has overwritten a key of the queue, so that scripts fail (WRONGTYPE). After
a step over several queues has failed because of one of them, verbs run queue by queue
(`CorruptQueues.isolate`), find the corrupt queue and leave it out. It is tried again every few seconds.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable

from penstock.core.errors import StoreCorrupt, StoreUnavailable

_log = logging.getLogger("penstock.stores")

#: The name of the namespace's own slot; no queue has this name.
SHARED = ""
#: The first and the longest pause between two probes (seconds); each pause is twice the previous one.
_FIRST, _LAST = 0.1, 2.0
#: An outage that returns within this time (seconds) is not logged again.
_SAME = 10.0
#: A corrupt queue is left out for this time (seconds); then verbs run queue by queue for the same time.
_PAUSE = 5.0


class Outages:
    """The outages that one store object has found; thread-safe."""

    def __init__(self) -> None:
        self._away: dict[str, StoreUnavailable] = {}
        self._back: dict[str, float] = {}  # when its last outage ended (monotonic)
        #: Called when an outage begins or is met again; it starts the prober.
        self.on_begin: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return bool(self._away)

    @property
    def names(self) -> list[str]:
        return list(self._away)

    def why(self, name: str) -> StoreUnavailable | None:
        """Return why a queue is away; None if no outage of it is known."""
        found = self._away.get(name)
        if found is not None:
            self.on_begin()
        return found

    def begin(self, name: str, error: StoreUnavailable) -> None:
        """Note that no server serves the slot of this queue now."""
        new = name not in self._away
        self._away[name] = error
        if new and time.monotonic() - self._back.get(name, float("-inf")) > _SAME:
            _log.warning("%s is unavailable: its part of the Cluster is away: %s", _title(name), error)
        self.on_begin()

    def end(self, name: str) -> None:
        if self._away.pop(name, None) is not None:
            self._back[name] = time.monotonic()
            _log.info("%s is available again: its part of the Cluster is back", _title(name))


class Prober:
    """Checks in a background thread, during an outage, whether it is over.

    `ask(names)` returns the names that are served again. The thread ends when the store is closed or
    collected.
    """

    def __init__(
        self, outages: Outages, ask: Callable[[list[str]], list[str]], let_go: Callable[[], None]
    ) -> None:
        self._outages = outages
        self._ask = ask
        self._let_go = let_go  # closes connections that a probe opened while the store was being closed
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = threading.Event()
        outages.on_begin = self._start

    def close(self) -> None:
        """Stop the thread; the next outage starts a new one."""
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
        """Probe once; return True if an outage remains."""
        try:
            for name in self._ask(self._outages.names):
                self._outages.end(name)
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


class CorruptQueues:
    """The corrupt queues that one store object has found; thread-safe."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # when a queue is tried again (monotonic)
        self._why: dict[str, StoreCorrupt] = {}
        self._isolated_until = 0.0

    @property
    def isolating(self) -> bool:
        """True if verbs must run queue by queue."""
        return self._isolated_until > 0.0 and (bool(self._why) or time.monotonic() < self._isolated_until)

    def isolate(self) -> None:
        """Run verbs queue by queue: a step over several queues has failed because of one of them."""
        self._isolated_until = time.monotonic() + _PAUSE

    def why(self, queue: str) -> StoreCorrupt | None:
        """Return why a queue is left out now; None if it is not."""
        if not self._why or time.monotonic() >= self._until.get(queue, 0.0):
            return None
        return self._why.get(queue)

    def leave_out(self, queue: str, error: StoreCorrupt) -> None:
        if queue not in self._why:
            _log.warning("queue %r is unavailable: one of its keys was overwritten: %s", queue, error)
        self._why[queue] = error
        self._until[queue] = time.monotonic() + _PAUSE
        self.isolate()

    def answered(self, queue: str) -> None:
        if self._why and self._why.pop(queue, None) is not None:
            _log.info("queue %r is available again: its keys are valid", queue)


def _title(name: str) -> str:
    return "the shared data of the namespace" if name == SHARED else f"queue {name!r}"
