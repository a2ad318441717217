"""The memory store: `MemoryStore` for event loops, `MemoryStore.sync` for threads.

The verbs are in `verb_table.py`; this module has the verbs that wait. No job survives the process, and no
other process can see the jobs: in a forked child every verb raises StoreError.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence

from penstock.core import forks
from penstock.core.clock import Clock, SystemClock
from penstock.core.job import Job, Ref
from penstock.stores.contract import Finding, OnDue, SyncStore, Wake, WorkerOffer
from penstock.stores.facade import StoreFacade, SyncFacade, VerbTable
from penstock.stores.memory.notifier import Countdown, LoopNotifier, ThreadNotifier
from penstock.stores.memory.state import MemoryState
from penstock.stores.memory.verb_table import OwnedMemory, verb_table
from penstock.stores.memory.verbs import producing, waiting
from penstock.stores.namespace_views import NamespaceViews
from penstock.stores.wake_counts import WakeCounts

__all__ = ["MemoryStore"]


class MemoryStore(NamespaceViews, StoreFacade):
    """A store in the memory of this process.

    Stores with the same name and namespace share one state, and the clock of the first one. A store without a
    name has its own state. `exact`: with a rate, jobs cannot be fetched ahead of their start.
    """

    def __init__(
        self, name: str = "", *, namespace: str = "", clock: Clock | None = None, exact: bool = False
    ) -> None:
        self._clock = clock or SystemClock()
        self._name, self._exact = name, exact
        self._owned = OwnedMemory(name, namespace, self._clock, exact=exact)
        NamespaceViews.__init__(self, namespace)
        StoreFacade.__init__(self, verb_table(self._owned))
        self._seen_counts = self._owned.memory.waiters.wake_counts
        self._seen_lock = forks.lock()

    @property
    def url(self) -> str:
        return self._owned.url

    @property
    def sync(self) -> SyncStore:
        return _SyncMemoryStore(self._owned, self._verbs)

    def close(self) -> None:
        """Do nothing: a memory store has no resources to release."""

    def _view(self, namespace: str) -> MemoryStore:
        return MemoryStore(self._name, namespace=namespace, clock=self._clock, exact=self._exact)

    @property
    def memory(self) -> MemoryState:
        """The data; raises StoreError in a forked child."""
        return self._owned.memory

    async def checkup(self) -> list[Finding]:
        return []

    async def wait_for_end(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        memory, notifier, left = self.memory, LoopNotifier(), Countdown(timeout)
        while (watch := memory.run(waiting.watch_ends, refs, notifier, False)).open:
            try:
                if not await notifier.wait(left()):
                    break
            finally:
                memory.run(waiting.unwatch_ends, watch)
        return memory.run(producing.get, refs)

    async def stream_ends(
        self, refs: Sequence[Ref], *, timeout: int
    ) -> AsyncGenerator[dict[Ref, Job | None], None]:
        memory, notifier, left = self.memory, LoopNotifier(), Countdown(timeout)
        watch = memory.run(waiting.watch_ends, refs, notifier, True)
        try:
            while True:
                in_time = not watch.open or bool(watch.ended) or await notifier.wait(left())
                if ended := memory.run(waiting.take_ended, watch):
                    yield ended
                elif not watch.open or not in_time:
                    return
        finally:
            memory.run(waiting.unwatch_ends, watch)

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: WorkerOffer | None = None,
        parked: Sequence[str] = (),
        on_due: OnDue | None = None,
    ) -> Wake:
        memory, notifier, left = self.memory, LoopNotifier(), Countdown(timeout)
        until, before = self._clock.now() + timeout, self._seen_counts
        memory.run(waiting.watch, queues, notifier)
        try:
            while True:
                found = memory.run(waiting.look, queues, until, before, parked, on_due is None)
                if not found.wake and on_due is not None and found.due is not None:
                    on_due(found.due, found.now)
                if found.wake or not await notifier.wait(left()):
                    self._note(found.counts)
                    return found.wake
        finally:
            memory.run(waiting.unwatch, queues, notifier)

    def _note(self, wake_counts: WakeCounts) -> None:
        """Store the counts that a wait has reported; if several waits end at once, the highest stay."""
        with self._seen_lock:
            self._seen_counts = self._seen_counts.highest(wake_counts)


class _SyncMemoryStore(SyncFacade):
    """The sync verbs, for callers without an event loop."""

    def __init__(self, owned: OwnedMemory, verbs: VerbTable) -> None:
        super().__init__(verbs)
        self._owned = owned

    def wait_for_end(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        memory, notifier, left = self._owned.memory, ThreadNotifier(), Countdown(timeout)
        while (watch := memory.run(waiting.watch_ends, refs, notifier, False)).open:
            try:
                if not notifier.wait(left()):
                    break
            finally:
                memory.run(waiting.unwatch_ends, watch)
        return memory.run(producing.get, refs)

    def stream_ends(
        self, refs: Sequence[Ref], *, timeout: int
    ) -> Generator[dict[Ref, Job | None], None, None]:
        memory, notifier, left = self._owned.memory, ThreadNotifier(), Countdown(timeout)
        watch = memory.run(waiting.watch_ends, refs, notifier, True)
        try:
            while True:
                in_time = not watch.open or bool(watch.ended) or notifier.wait(left())
                if ended := memory.run(waiting.take_ended, watch):
                    yield ended
                elif not watch.open or not in_time:
                    return
        finally:
            memory.run(waiting.unwatch_ends, watch)
