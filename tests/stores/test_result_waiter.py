"""The result waiter of an event loop: one query for all waits, and errors for the affected waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from penstock.core.job import Ref
from penstock.errors import StoreUnavailable
from penstock.stores.result_waiter import EndedJobs, ResultWaiter

A, B, C = (Ref("default", id) for id in "abc")
SOON = 60.0


class FakeStore:
    """A store as the result waiter sees it: the jobs in `over` have ended."""

    def __init__(self, every: float = 60.0) -> None:
        self.over: set[Ref] = set()
        self.checks: list[set[Ref]] = []
        self.away = False
        self.on_report: Callable[[], None] | None = None
        self.result_waiter = ResultWaiter(self.find_ended, every=every, listening=self.listening)

    async def find_ended(self, refs: Sequence[Ref], seconds: float) -> EndedJobs:
        assert len(set(refs)) == len(refs)
        assert seconds >= self.result_waiter._every, "the store reports ends until the next check"
        self.checks.append(set(refs))
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("away")
        return dict.fromkeys(ref for ref in refs if ref in self.over)

    @contextlib.contextmanager
    def listening(self, on_report: Callable[[], None]) -> Iterator[None]:
        assert self.on_report is None, "once for all"
        self.on_report = on_report
        yield
        self.on_report = None

    def wait(self, *refs: Ref, timeout: int = 60_000) -> asyncio.Task[EndedJobs]:
        return asyncio.create_task(self._all(refs, timeout))

    async def _all(self, refs: Sequence[Ref], timeout: int) -> EndedJobs:
        found: EndedJobs = {}
        async with contextlib.aclosing(self.result_waiter.stream_ends(refs, timeout)) as ends:
            async for some in ends:
                found |= some
        return found

    async def report(self, *over: Ref) -> None:
        self.over |= set(over)
        assert self.on_report is not None, "somebody listens"
        self.on_report()
        await ticks()


async def ticks(n: int = 10) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_a_report_is_one_check_for_all() -> None:
    store = FakeStore()
    waits = [store.wait(A), store.wait(B), store.wait(A, B, C)]
    await ticks()
    assert store.checks == [{A, B, C}], "waits that begin at the same moment share a check"
    await store.report(A, B)
    assert store.checks[1:] == [{A, B, C}]
    assert [wait.done() for wait in waits] == [True, True, False]
    await store.report(C)
    assert store.checks[2:] == [{C}]
    assert await asyncio.wait_for(waits[2], SOON) == {A: None, B: None, C: None}
    assert store.on_report is None, "nobody listens when nobody waits"


async def test_reports_while_a_check_is_under_way_are_one_more() -> None:
    store = FakeStore()
    wait = store.wait(A)
    await ticks()
    for _ in range(5):
        store.result_waiter.recheck()
    await ticks()
    for _ in range(5):
        store.result_waiter.recheck()
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert len(store.checks) <= 7
    await store.report(A)
    assert await asyncio.wait_for(wait, SOON) == {A: None}


async def test_a_reported_end_needs_no_check() -> None:
    store = FakeStore()
    wait = store.wait(A)
    await ticks()
    store.result_waiter.on_ended({A: None, B: None})
    assert await asyncio.wait_for(wait, SOON) == {A: None}
    assert len(store.checks) == 1


async def test_a_recheck_of_one_job_checks_that_one() -> None:
    store = FakeStore()
    wait = store.wait(A, B)
    await ticks()
    store.over = {A, B}
    store.result_waiter.recheck(A)
    store.result_waiter.recheck(C)  # nobody waits for it
    await ticks()
    assert store.checks[1:] == [{A}]
    wait.cancel()


async def test_the_check_at_an_interval_makes_up_for_a_lost_report() -> None:
    store = FakeStore(every=0.02)
    wait = store.wait(A)
    await ticks()
    store.over = {A}
    assert await asyncio.wait_for(wait, SOON) == {A: None}


async def test_when_the_first_check_fails_each_wait_gets_the_error() -> None:
    store = FakeStore()
    store.away = True
    for wait in [store.wait(A), store.wait(B)]:
        with pytest.raises(StoreUnavailable):
            await wait
    assert store.on_report is None
    store.away = False
    wait = store.wait(A)
    await ticks()
    await store.report(A)
    assert await wait == {A: None}


async def test_when_a_later_check_fails_every_wait_gets_the_error() -> None:
    store = FakeStore()
    waits = [store.wait(A), store.wait(B)]
    await ticks()
    store.away = True
    await store.report()
    for wait in waits:
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(wait, SOON)


async def test_a_caller_that_gives_up_is_removed_and_no_other() -> None:
    store = FakeStore()
    leaves, stays = store.wait(A, B), store.wait(B)
    await ticks()
    leaves.cancel()
    await ticks()
    await store.report(B)
    assert store.checks[1:] == [{B}]
    assert await stays == {B: None}
    assert not store.result_waiter._waits
    assert await store.wait(A, timeout=0) == {}
    assert not store.result_waiter._waits
