"""The oracle: `OracleStore` for event loops, `OracleStore.sync` for threads.

What a request does is in `handlers.py`; this module has the requests that wait. No job survives the process,
and no other process can see the jobs: in a forked child every verb raises StoreError.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from penstock.core import forks
from penstock.core.clock import Clock, SystemClock
from penstock.core.job import Job, Ref
from penstock.stores.contract import (
    Checkup,
    Finding,
    Request,
    StreamEnds,
    SyncRequest,
    SyncStore,
    Wait,
    WaitForEnd,
    Wake,
)
from penstock.stores.own_store import NamespaceViews, OwnStore, OwnSyncStore, WakeCounts
from tests.oracle.handlers import OwnedMemory
from tests.oracle.notifier import Countdown, LoopNotifier, ThreadNotifier
from tests.oracle.state import MemoryState
from tests.oracle.verbs import producing, waiting

__all__ = ["OracleStore"]

A = TypeVar("A")


class OracleStore(NamespaceViews, OwnStore):
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
        self._seen_counts = self._owned.memory.waiters.wake_counts
        self._seen_lock = forks.lock()

    @property
    def url(self) -> str:
        return self._owned.url

    @property
    def sync(self) -> SyncStore:
        return _SyncOracleStore(self._owned)

    def close(self) -> None:
        """Do nothing: it has no resources to release."""

    def _view(self, namespace: str) -> OracleStore:
        return OracleStore(self._name, namespace=namespace, clock=self._clock, exact=self._exact)

    @property
    def memory(self) -> MemoryState:
        """The data; raises StoreError in a forked child."""
        return self._owned.memory

    async def _answer(self, request: Request[A]) -> A:
        answer: Any
        if (own := _OWN.get(type(request))) is not None:
            answer = await own(self, request)
        else:
            answer = self._owned.answer(request)
        return answer  # type: ignore[no-any-return]

    async def _checkup(self, request: Checkup) -> list[Finding]:
        return []

    async def _wait_for_end(self, request: WaitForEnd) -> list[Job | None]:
        refs, timeout = request.refs, request.timeout
        memory, notifier, left = self.memory, LoopNotifier(), Countdown(timeout)
        while (watch := memory.run(waiting.watch_ends, refs, notifier, False)).open:
            try:
                if not await notifier.wait(left()):
                    break
            finally:
                memory.run(waiting.unwatch_ends, watch)
        return memory.run(producing.get, refs)

    async def stream(self, request: StreamEnds) -> AsyncGenerator[dict[Ref, Job | None], None]:
        refs, timeout = request.refs, request.timeout
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

    async def _wait(self, request: Wait) -> Wake:
        queues, timeout, on_due = request.queues, request.timeout, request.on_due
        memory, notifier, left = self.memory, LoopNotifier(), Countdown(timeout)
        until, before = self._clock.now() + timeout, self._seen_counts
        memory.run(waiting.watch, queues, notifier)
        try:
            while True:
                found = memory.run(waiting.look, queues, until, before, request.parked, on_due is None)
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


#: What the store does for the requests that are not one step.
_OWN: Mapping[type[Request[Any]], Callable[[OracleStore, Any], Awaitable[Any]]] = {
    Wait: OracleStore._wait,
    WaitForEnd: OracleStore._wait_for_end,
    Checkup: OracleStore._checkup,
}


class _SyncOracleStore(OwnSyncStore):
    """The sync verbs, for callers without an event loop."""

    def __init__(self, owned: OwnedMemory) -> None:
        self._owned = owned

    def _answer(self, request: SyncRequest[A]) -> A:
        if isinstance(request, WaitForEnd):
            answer: Any = self._wait_for_end(request.refs, request.timeout)
            return answer  # type: ignore[no-any-return]
        return self._owned.answer(request)

    def _wait_for_end(self, refs: Sequence[Ref], timeout: int) -> list[Job | None]:
        memory, notifier, left = self._owned.memory, ThreadNotifier(), Countdown(timeout)
        while (watch := memory.run(waiting.watch_ends, refs, notifier, False)).open:
            try:
                if not notifier.wait(left()):
                    break
            finally:
                memory.run(waiting.unwatch_ends, watch)
        return memory.run(producing.get, refs)

    def stream(self, request: StreamEnds) -> Generator[dict[Ref, Job | None], None, None]:
        refs, timeout = request.refs, request.timeout
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
