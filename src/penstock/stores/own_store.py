"""What Penstock's own stores have in common: checked requests, metrics, namespaces, counts of waits."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from penstock.core import forks
from penstock.core.ids import check_namespace
from penstock.core.job import Job, NewJob, Ref
from penstock.stores.contract import (
    UNWRITABLE,
    Checkup,
    Enqueue,
    Enqueued,
    Request,
    Store,
    StreamEnds,
    SyncRequest,
    SyncStore,
    Wait,
    WaitForEnd,
    Wake,
    unwritable,
)

A = TypeVar("A")

#: Called after each call of a verb: its name, the time that it took (s), and whether it failed.
OnCall = Callable[[str, float, bool], None]

#: Their time says nothing of the store.
_UNTIMED: frozenset[type[Request[Any]]] = frozenset({Wait, WaitForEnd, Checkup})


class OwnStore(Store):
    """A store whose `_answer` is given checked requests."""

    _on_call: tuple[OnCall, ...] = ()

    def observe(self, on_call: OnCall) -> None:
        """Report each async call from now on. `on_call` may be called from any thread with an event loop."""
        self._on_call = (*self._on_call, on_call)

    async def ask(self, request: Request[A]) -> A:
        try:
            if not self._on_call or type(request) in _UNTIMED:
                return await self._answer(request.checked())
            return await self._answer_timed(request.checked())
        except UNWRITABLE as error:
            if not isinstance(request, Enqueue):
                raise
            answer: Any = await self._enqueue_each(request.jobs, error)
            return answer  # type: ignore[no-any-return]

    @abstractmethod
    async def _answer(self, request: Request[A]) -> A:
        """Do what the request says, and return its answer."""

    async def _answer_timed(self, request: Request[A]) -> A:
        began, failed = time.perf_counter(), True
        try:
            answer = await self._answer(request)
            failed = False
            return answer
        finally:
            took = time.perf_counter() - began
            for on_call in self._on_call:
                on_call(request.called, took, failed)

    async def _enqueue_each(self, jobs: Sequence[NewJob], error: Exception) -> list[Enqueued]:
        """Enqueue the jobs of a call of which nothing was stored: one of them cannot be written."""
        if len(jobs) == 1:
            return [unwritable(jobs[0], error)]
        return [answer for job in jobs for answer in await self.ask(Enqueue([job]))]


class OwnSyncStore(SyncStore):
    """The same for callers without an event loop."""

    def ask(self, request: SyncRequest[A]) -> A:
        try:
            return self._answer(request.checked())
        except UNWRITABLE as error:
            if not isinstance(request, Enqueue):
                raise
            answer: Any = self._enqueue_each(request.jobs, error)
            return answer  # type: ignore[no-any-return]

    @abstractmethod
    def _answer(self, request: SyncRequest[A]) -> A:
        """Do what the request says, and return its answer."""

    def _wait_for_end(self, request: WaitForEnd) -> list[Job | None]:
        """Wait by the stream of ends; jobs that have not ended in time are read."""
        found: dict[Ref, Job | None] = {}
        for some in self.stream(StreamEnds(request.refs, timeout=request.timeout)):
            found |= some
        if left := [ref for ref in request.refs if ref not in found]:
            found |= zip(left, self.get(left), strict=True)
        return [found[ref] for ref in request.refs]

    def _enqueue_each(self, jobs: Sequence[NewJob], error: Exception) -> list[Enqueued]:
        if len(jobs) == 1:
            return [unwritable(jobs[0], error)]
        return [answer for job in jobs for answer in self.ask(Enqueue([job]))]


# ── further namespaces of one store, on the same connections ─────────────────────────────────────


class NamespaceViews(Store):
    """A store that makes views of other namespaces, one for each, and keeps them as long as itself."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._origin: Self | None = None  # the store of which this one is a view
        self._views: dict[str, Self] = {}
        self._views_lock = forks.lock()

    def in_namespace(self, namespace: str) -> Self:
        """Return the store's view of this namespace: the same object each time. Raises ConfigError."""
        if check_namespace(namespace) == self.namespace:
            return self
        if self._origin is not None:
            return self._origin.in_namespace(namespace)
        with self._views_lock:
            view = self._views.get(namespace)
            if view is None:
                view = self._views[namespace] = self._view(namespace)
                view._origin = self
            return view

    @abstractmethod
    def _view(self, namespace: str) -> Self:
        """Make a store of another namespace, on the connections of this one."""


# ── what a waiting worker has learned ────────────────────────────────────────────────────────────


class WakeCounts(NamedTuple):
    """The number of cancel requests and of settings changes so far."""

    cancels: int
    changes: int

    def wake_since(self, before: WakeCounts) -> Wake:
        """Return the flags of a wait that began at the counts `before`."""
        wake = Wake.NOTHING
        if self.cancels > before.cancels:
            wake |= Wake.CANCEL
        if self.changes > before.changes:
            wake |= Wake.SETTINGS
        return wake

    def highest(self, other: WakeCounts) -> WakeCounts:
        """Return the higher of each count: several waits may end at once, in any order."""
        return WakeCounts(max(self.cancels, other.cancels), max(self.changes, other.changes))
