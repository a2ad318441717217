"""Rates of partitions: how many jobs of a key may start per interval, and when a waiting job is due."""

from __future__ import annotations

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.core.limits import Rate
from penstock.core.relations import Partition
from penstock.stores.contract import Share, Store, WorkerInfo
from tests.store.facts import (
    COMPLETED,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
    SECOND,
    add,
    end,
    ids,
    new,
    some,
    take,
    the,
    token,
)


def partition(count: float, burst: int = 1, **terms: object) -> Partition:
    return Partition("k", **{"most": 100, "rate": Rate(count, SECOND, burst), **terms})  # type: ignore[arg-type]


@pytest.mark.parametrize("burst", [1, 3])
async def test_no_more_start_than_the_rate_allows_and_no_fewer(
    store: Store, clock: ManualClock, burst: int
) -> None:
    jobs = some(20, partition=partition(4, burst))
    await add(store, *jobs)
    starts: list[int] = []
    for at in range(0, 3_000, 50):
        await store.promote(["default"], limit=99)
        starts += [at] * len(await take(store, 99))
        clock.advance(50)
    assert starts[:burst] == [0] * burst
    assert starts[burst:] == [250 * n for n in range(1, len(starts) - burst + 1)]
    assert len(starts) == burst + 11


async def test_the_instant_of_the_next_start_is_returned(store: Store, clock: ManualClock) -> None:
    await add(store, *some(2, partition=partition(1)), new(delay=MINUTE))
    await take(store, 9)
    next = clock.now() + SECOND
    assert (await store.promote(["default"], limit=9)).next == next
    fetched = await store.fetch([Share("default", 1, 1)], limit=1, lease=LEASE, worker="w", token=token())
    assert fetched.due == next


async def test_the_fetch_that_starts_a_job_returns_when_the_next_one_may_start(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *some(2, partition=partition(1)))
    fetched = await store.fetch([Share("default", 1, 1)], limit=1, lease=LEASE, worker="w", token=token())
    assert (len(fetched.jobs), fetched.due) == (1, clock.now() + SECOND)


async def test_a_key_whose_jobs_have_not_started_admits_no_more_than_its_burst(store: Store) -> None:
    jobs = some(5, partition=partition(1, 2))
    await add(store, *jobs)
    assert [(await the(store, job)).state for job in jobs] == [State.AVAILABLE] * 2 + [State.WAITING] * 3


async def test_an_ordered_key_keeps_its_order_and_its_rate(store: Store, clock: ManualClock) -> None:
    jobs = some(3, partition=partition(1, most=1, ordered=True))
    await add(store, *jobs)
    seen = []
    for _ in range(3):
        (job,) = await take(store, 9)
        seen.append(job.id)
        await end(store, job)
        assert await take(store, 9) == []
        clock.advance(SECOND)
        await store.promote(["default"], limit=9)
    assert seen == ids(jobs)


async def test_a_parked_job_that_starts_counts(store: Store, clock: ManualClock) -> None:
    jobs = some(2, partition=partition(1, most=1, ordered=True))
    await add(store, *jobs)
    await end(store, *await take(store, 9), PARKED)
    clock.advance(MINUTE)
    await store.announce(WorkerInfo("w1", "host", 1, 0, (), ("t",), 1))
    await end(store, *await take(store, 9))
    assert (await the(store, jobs[1])).state is State.WAITING


async def test_a_parked_job_that_takes_the_room_leaves_nothing_due(store: Store) -> None:
    parked, started, waits = (
        new("parked", priority=1, partition=Partition("k")),
        new("started", partition=partition(1, most=1)),
        new("waits", partition=partition(1, most=1)),
    )
    await add(store, parked)
    await end(store, *await take(store, 1), PARKED)
    await add(store, started, waits)
    await end(store, *await take(store, 1))
    await store.announce(WorkerInfo("w1", "host", 1, 0, (), ("t",), 1))
    found = await store.fetch([Share("default", 9, 9)], limit=9, lease=MINUTE, worker="w1", token="t1")
    assert ids(found.jobs) == ["parked"]
    assert found.due is None


async def test_the_rate_outlives_the_jobs_until_it_is_as_it_was(store: Store, clock: ManualClock) -> None:
    for _ in range(2):
        job = new(partition=partition(1))
        await add(store, job)
        await store.promote(["default"], limit=9)
        (found,) = await take(store, 9)
        await end(store, found)
        await store.prune()
        late = new(partition=partition(1))
        await add(store, late)
        assert (await the(store, late)).state is State.WAITING
        await store.delete([late.ref])
        clock.advance(SECOND)
        await store.prune()


async def test_a_clock_that_is_set_back_does_not_close_a_key_for_as_long(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new(partition=partition(1)))
    await end(store, *await take(store, 9))
    clock.set_wall(clock.now() - 10 * MINUTE)
    late = new(partition=partition(1))
    await add(store, late)
    clock.advance(2 * SECOND)
    await store.promote(["default"], limit=9)
    assert ids(await take(store, 9)) == [late.id]


async def test_jobs_made_available_by_their_rate_count_as_promoted(store: Store, clock: ManualClock) -> None:
    await add(store, *some(3, partition=partition(2, 2)))
    await take(store, 9)
    clock.advance(500)
    assert (await store.promote(["default"], limit=9)).moved == 1
    assert len(await take(store, 9)) == 1


@pytest.mark.parametrize("how", ["delete", "prune"])
async def test_delete_and_prune_admit_jobs_of_a_due_partition(
    store: Store, clock: ManualClock, how: str
) -> None:
    first, second = some(2, partition=partition(1))
    await add(store, first, second)
    await end(store, *await take(store, 9), COMPLETED)
    clock.advance(2 * HOUR)
    await (store.delete([first.ref]) if how == "delete" else store.prune())
    assert (await the(store, second)).state is State.AVAILABLE


async def test_a_cancelled_first_in_line_does_not_keep_the_others(store: Store, clock: ManualClock) -> None:
    jobs = some(3, partition=partition(1))
    await add(store, *jobs)
    await take(store, 9)
    await store.cancel([jobs[1].ref])
    clock.advance(SECOND)
    await store.promote(["default"], limit=9)
    assert ids(await take(store, 9)) == [jobs[2].id]
