"""Stores around a store: what one does is a plan of its requests, which serves event loops and threads alike.

class Counting(StoreAround):
    def __init__(self, store, calls):
        super().__init__(store)
        self.calls = calls

    def around(self, store):
        return Counting(store, self.calls)

    def plan(self, request):
        self.calls[request.called] += 1
        return (yield request)

Streams are not planned: `ended` gets their parts.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, TypeVar

from penstock.core.job import Job, Ref
from penstock.stores.contract import Capability, Request, Store, StreamEnds, SyncRequest, SyncStore

A = TypeVar("A")

EndedJobs = dict[Ref, Job | None]

#: Yields what the store inside is asked: a request, or a list of them, which are asked together. It gets the
#: answer, or the list of answers, and returns the answer of the store around it.
StorePlan = Generator["Request[Any] | list[Request[Any]]", Any, A]


def asked(request: Request[A]) -> StorePlan[A]:
    """The plan that passes a request on; `yield from` it for an answer whose type is known."""
    answer: A = yield request
    return answer


async def carry_out(plan: StorePlan[A], ask: Callable[[Request[Any]], Awaitable[Any]]) -> A:
    """Ask what the plan yields, and return its answer. An error of a request is raised in the plan."""
    try:
        step = next(plan)
        while True:
            try:
                answer: Any = await (_together(step, ask) if isinstance(step, list) else ask(step))
            except BaseException as error:  # noqa: BLE001  # boundary: the plan decides what becomes of it
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        found: A = end.value
        return found


async def _together(requests: list[Request[Any]], ask: Callable[[Request[Any]], Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*map(ask, requests))


def carry_out_sync(plan: StorePlan[A], ask: Callable[[Any], Any]) -> A:
    """The same in the caller's thread, one request after the other."""
    try:
        step = next(plan)
        while True:
            try:
                answer: Any = [ask(one) for one in step] if isinstance(step, list) else ask(step)
            except BaseException as error:  # noqa: BLE001  # boundary: as above
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        found: A = end.value
        return found


class StoreAround(Store):
    """A store around another one. Attributes that are no verbs are those of the store inside."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def plan(self, request: Request[A]) -> StorePlan[A]:
        """What a request becomes."""
        return (yield from asked(request))

    def ended(self, jobs: EndedJobs) -> EndedJobs:
        """What a part of a stream of ended jobs becomes."""
        return jobs

    @abstractmethod
    def around(self, store: Store) -> Store:
        """The same around the store of another namespace."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]
        return self._store.capabilities

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def sync(self) -> SyncStore:
        return SyncStoreAround(self._store.sync, self)

    async def ask(self, request: Request[A]) -> A:
        """Do what the request says, by the plan of it."""
        return await carry_out(self.plan(request), self._store.ask)

    async def stream(self, request: StreamEnds) -> AsyncGenerator[EndedJobs, None]:
        found = self._store.stream(request)
        try:
            async for some in found:
                yield self.ended(some)
        finally:
            await found.aclose()

    def in_namespace(self, namespace: str) -> Store:
        return self.around(self._store.in_namespace(namespace))

    def close(self) -> None:
        self._store.close()


class SyncStoreAround(SyncStore):
    """The verbs of a store around another one for callers without an event loop."""

    def __init__(self, sync: SyncStore, around: StoreAround) -> None:
        self._sync = sync
        self._around = around

    def ask(self, request: SyncRequest[A]) -> A:
        return carry_out_sync(self._around.plan(request), self._sync.ask)

    def stream(self, request: StreamEnds) -> Generator[EndedJobs, None, None]:
        found = self._sync.stream(request)
        try:
            for some in found:
                yield self._around.ended(some)
        finally:
            found.close()
