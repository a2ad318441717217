"""stream_ends: yields the end of each job when it happens, for any number of concurrent waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settlement, Store
from tests.store.facts import (
    COMPLETED,
    DEAD,
    MINUTE,
    SOON,
    OpenStore,
    add,
    asleep,
    end,
    in_state,
    retryable,
    running,
    some,
    take,
)

Ended = dict[Ref, Job | None]
#: The ends of these jobs within this time, by one of the two doors.
Ends = Callable[[Store, list[Ref], int], AsyncGenerator[Ended, None]]


async def _by_loop(store: Store, refs: list[Ref], timeout: int) -> AsyncGenerator[Ended, None]:
    async with contextlib.aclosing(store.stream_ends(refs, timeout=timeout)) as ends:
        async for told in ends:
            yield told


async def _by_thread(store: Store, refs: list[Ref], timeout: int) -> AsyncGenerator[Ended, None]:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:  # a generator of the sync door belongs to one thread
        ends = store.sync.stream_ends(refs, timeout=timeout)
        try:
            while (told := await loop.run_in_executor(thread, next, ends, None)) is not None:
                yield told
        finally:
            await loop.run_in_executor(thread, ends.close)


@pytest.fixture(params=[_by_loop, _by_thread], ids=["loop", "thread"])
def ends(request: pytest.FixtureRequest) -> Ends:
    """Both doors."""
    found: Ends = request.param
    return found


async def all_of(told: AsyncIterator[Ended]) -> Ended:
    found: Ended = {}
    async with asyncio.timeout(4 * SOON):
        async for part in told:
            assert part, "nothing is not told"
            assert not found.keys() & part.keys(), "each comes once"
            found |= part
    return found


async def next_of(told: AsyncGenerator[Ended, None]) -> Ended:
    return await asyncio.wait_for(anext(told), SOON)


async def test_ended_and_missing_jobs_are_reported_at_once(store: Store, ends: Ends) -> None:
    dead, done = await in_state(store, State.DEAD), await in_state(store, State.COMPLETED)
    nobody, nowhere = Ref("default", "nobody"), Ref("nowhere", "x")
    found = await all_of(ends(store, [dead.ref, nobody, done.ref, nowhere, dead.ref], MINUTE))
    assert found == {dead.ref: dead, done.ref: done, nobody: None, nowhere: None}


async def test_an_empty_call_returns_nothing(store: Store, ends: Ends) -> None:
    assert await all_of(ends(store, [], MINUTE)) == {}


@pytest.mark.parametrize("timeout", [0, 30])
async def test_jobs_that_have_not_ended_in_time_are_not_reported(
    store: Store, ends: Ends, timeout: int
) -> None:
    open, done = await running(store), await in_state(store, State.COMPLETED)
    assert await all_of(ends(store, [open.ref, done.ref], timeout)) == {done.ref: done}


async def test_each_end_is_reported_when_it_happens_in_any_queue(store: Store, ends: Ends) -> None:
    jobs = [await running(store, queue=queue) for queue in ("a", "b", "a")]
    told = ends(store, [job.ref for job in jobs], MINUTE)
    for job, how in zip(reversed(jobs), [DEAD, Transition(State.COMPLETED), COMPLETED], strict=True):
        coming = asyncio.create_task(anext(told))
        await asleep(coming)
        await end(store, job, how, result=b"1")
        ((ref, ended),) = (await asyncio.wait_for(coming, SOON)).items()
        assert ref == job.ref
        assert (ended and ended.state) == (how.state if how.keep else None)
    assert await all_of(told) == {}


async def test_an_end_between_two_reads_is_reported_later(store: Store, ends: Ends) -> None:
    jobs = [await running(store) for _ in range(4)]
    told = ends(store, [job.ref for job in jobs], MINUTE)
    await end(store, jobs[0])
    first = await next_of(told)
    for job in jobs[1:]:
        await end(store, job)
    found = first | await all_of(told)
    assert [job and job.state for job in map(found.get, [job.ref for job in jobs])] == [State.COMPLETED] * 4


async def test_an_attempt_that_is_not_the_last_is_no_end(store: Store, ends: Ends) -> None:
    job = await running(store)
    told = ends(store, [job.ref], 200)
    await end(store, job, retryable())
    assert await all_of(told) == {}


async def test_a_large_result_comes_too(store: Store, ends: Ends) -> None:
    job, result = await running(store), b"x" * 200_000
    told = ends(store, [job.ref], MINUTE)
    coming = asyncio.create_task(anext(told))
    await asleep(coming)
    await end(store, job, result=result)
    (ended,) = (await asyncio.wait_for(coming, SOON)).values()
    assert ended is not None
    assert ended.result == result
    await told.aclose()


async def test_a_reader_that_stops_leaves_nothing_behind(store: Store, ends: Ends) -> None:
    jobs = [await running(store) for _ in range(2)]
    refs = [job.ref for job in jobs]
    told = ends(store, refs, MINUTE)
    await end(store, jobs[0])
    assert list(await next_of(told)) == [refs[0]]
    await told.aclose()
    await end(store, jobs[1])
    assert (await all_of(ends(store, refs, MINUTE))).keys() == set(refs)


async def test_a_wait_amid_another_takes_none_of_its_news(store: Store) -> None:
    """A thread that reads ends may wait for something else between two of them."""
    jobs = [await running(store) for _ in range(3)]
    outer, inner = [job.ref for job in jobs[:2]], jobs[2].ref
    step = threading.Event()

    def read() -> list[Ref]:
        seen: list[Ref] = []
        for told in store.sync.stream_ends(outer, timeout=MINUTE):
            seen += told
            if len(seen) == 1:
                step.set()
                store.sync.wait_for_end([inner], timeout=MINUTE)
        return seen

    reading = asyncio.create_task(asyncio.to_thread(read))
    await end(store, jobs[0])
    assert await asyncio.to_thread(step.wait, SOON)
    await end(store, jobs[1])
    await end(store, jobs[2])
    assert await asyncio.wait_for(reading, SOON) == outer


async def test_another_store_object_notifies_too(open_store: OpenStore, ends: Ends) -> None:
    here, there = open_store(), open_store()
    job = await running(here)
    told = ends(there, [job.ref], MINUTE)
    coming = asyncio.create_task(anext(told))
    await asleep(coming)
    await end(here, job, result=b"1")
    (ended,) = (await asyncio.wait_for(coming, SOON)).values()
    assert ended is not None
    assert ended.result == b"1"
    await told.aclose()


async def test_a_thousand_concurrent_waits_each_get_their_own_end(store: Store) -> None:
    specs = some(1_000)
    await store.enqueue(specs)
    waits = [asyncio.create_task(store.wait_for_end([spec.ref], timeout=4 * MINUTE)) for spec in specs]
    await asleep(waits[-1])
    while taken := await take(store, 100):
        for job in taken[:3]:
            await end(store, job, result=job.id.encode())
        await store.settle([_settled(job) for job in taken[3:]])
    async with asyncio.timeout(10 * SOON):
        found = await asyncio.gather(*waits)
    assert [job and job.result for (job,) in found] == [spec.id.encode() for spec in specs]


def _settled(job: Job) -> Settlement:
    return Settlement(job.lease, COMPLETED, job.id.encode())


async def test_waits_that_come_and_go_disturb_no_others(store: Store) -> None:
    specs: list[NewJob] = some(20)
    await add(store, *specs)
    refs = [spec.ref for spec in specs]
    stays = asyncio.create_task(store.wait_for_end(refs, timeout=MINUTE))
    await asleep(stays)
    for ref in refs:  # others wait for the same, and give up in all ways
        brief = asyncio.create_task(store.wait_for_end([ref], timeout=MINUTE))
        await asyncio.sleep(0)
        await store.wait_for_end([ref], timeout=0)
        brief.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await brief
    for job in await take(store, 20):
        await end(store, job)
    assert {job and job.state for job in await asyncio.wait_for(stays, SOON)} == {State.COMPLETED}
