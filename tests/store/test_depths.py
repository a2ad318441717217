"""Samples of queues: how many unfinished and enqueued jobs they had, by minute, hour and day."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock
from penstock.core.stats import QueueDepth
from penstock.stores.contract import DepthRow, Resolution, Store
from tests.store.facts import DAY, HOUR, MINUTE, OpenStore, add, end, new, one_of_each, some, take, take_one

NOON = 1_700_000_000_000 // DAY * DAY + DAY // 2
MINUTES, HOURS, DAYS = Resolution


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock, which stands still at the start of a minute, hour and half-day."""
    return ManualClock(NOON)


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    """A store with three available jobs in one queue, and one in another."""
    store = open_store()
    await add(store, *some(3), new(queue="mail"))
    return store


async def rows(store: Store, resolution: Resolution = MINUTES, queue: str | None = None) -> list[DepthRow]:
    return (await store.read_depths(resolution, span=resolution.length * resolution.kept, queue=queue)).rows


async def available(store: Store, resolution: Resolution = MINUTES) -> list[int]:
    """The sums of the queue `default`, by period."""
    return [row.depth.available for row in await rows(store, resolution, "default")]


async def enqueued(store: Store, resolution: Resolution, queue: str = "default") -> list[int | None]:
    """The enqueued jobs of a queue, by period."""
    return [row.depth.enqueued for row in await rows(store, resolution, queue)]


async def test_a_sample_counts_unfinished_jobs_of_each_queue(open_store: OpenStore) -> None:
    store = open_store()
    await one_of_each(store)
    await add(store, new(queue="mail"))
    assert await store.sample_depths() == MINUTE
    (every,) = [info for info in await store.queues() if info.name == "default"]
    counts = {state.value: number for state, number in every.counts.items()}
    assert len(counts) == 11
    ready, busy = counts.pop("available"), counts.pop("running")
    later = sum(counts.values()) - sum(counts[ended] for ended in ("completed", "cancelled", "dead"))
    totals = {one.name: one.enqueued for one in await store.stats()}
    for resolution in Resolution:
        start = NOON // resolution.length * resolution.length
        assert await rows(store, resolution) == [
            DepthRow("default", start, QueueDepth(1, ready, busy, later, ready, totals["default"])),
            DepthRow("mail", start, QueueDepth(1, 1, 0, 0, 1, 1)),
        ]


async def test_a_minute_has_one_sample_however_many_ask(
    store: Store, open_store: OpenStore, clock: ManualClock
) -> None:
    clock.advance(10_000)
    others = [open_store() for _ in range(3)]
    assert await asyncio.gather(*(one.sample_depths() for one in (store, *others))) == [50_000] * 4
    await add(store, *some(5), new(queue="late"))
    clock.advance(49_999)
    assert await store.sample_depths() == 1
    for resolution in Resolution:
        assert [(row.queue, row.depth.samples) for row in await rows(store, resolution)] == [
            ("default", 1),
            ("late", 1),
            ("mail", 1),
        ]
        assert await available(store, resolution) == [3], "the second sample came within the minute"


async def test_samples_of_an_hour_and_a_day_add_up_and_keep_their_peak(
    store: Store, clock: ManualClock
) -> None:
    await store.sample_depths()
    await add(store, *some(4))
    clock.advance(MINUTE)
    await store.sample_depths()
    for job in await take(store, 6):
        await end(store, job)
    await take_one(store)
    clock.advance(MINUTE)
    await store.sample_depths()
    assert [row.depth for row in await rows(store, MINUTES, "default")] == [
        QueueDepth(1, 3, 0, 0, 3, 7),
        QueueDepth(1, 7, 0, 0, 7, 0),
        QueueDepth(1, 0, 1, 0, 0, 0),
    ]
    for resolution in (HOURS, DAYS):
        (row,) = await rows(store, resolution, "default")
        assert row.depth == QueueDepth(3, 10, 1, 0, 7, 7)


async def test_jobs_are_counted_in_the_period_they_were_enqueued_in(store: Store, clock: ManualClock) -> None:
    """From one sample to the next, or until now. The first period of a queue has all before it, too."""
    clock.set_wall(NOON + HOUR - 2 * MINUTE)
    await store.sample_depths()
    for number in (2, 0, 5):
        await add(store, *some(number))
        await end(store, await take_one(store))
        clock.advance(MINUTE)
        await store.sample_depths()
    await add(store, *some(11))
    assert await enqueued(store, MINUTES) == [3 + 2, 0, 5, 11]
    assert await enqueued(store, HOURS) == [3 + 2 + 0, 5 + 11]
    assert await enqueued(store, DAYS) == [3 + 2 + 0 + 5 + 11]
    await add(store, new(queue="late"), new(queue="late"))
    await store.sample_depths()
    assert [await enqueued(store, one, "late") for one in Resolution] == [[2], [2], [2]]


async def test_jobs_of_a_time_without_samples_count_in_the_period_before_it(
    store: Store, clock: ManualClock
) -> None:
    await store.sample_depths()
    for days, number in ((0, 2), (3, 4)):
        clock.set_wall(NOON + days * DAY + 5 * MINUTE)
        await add(store, *some(number))
        await store.sample_depths()
    assert await enqueued(store, MINUTES) == [0], "the others are too old"
    assert await enqueued(store, DAYS) == [3 + 2 + 4, 0]
    await add(store, new())
    assert await enqueued(store, DAYS) == [9, 1]


async def test_a_time_without_samples_is_a_gap(store: Store, clock: ManualClock) -> None:
    await store.sample_depths()
    clock.advance(3 * MINUTE)
    await store.sample_depths()
    assert [row.at for row in await rows(store, queue="mail")] == [NOON, NOON + 3 * MINUTE]
    page = await store.read_depths(MINUTES, span=2 * MINUTE, queue="mail")
    assert [row.at for row in page.rows] == [NOON + 3 * MINUTE]
    assert page.now == NOON + 3 * MINUTE
    assert await rows(store, queue="nowhere") == []


async def test_old_samples_are_not_shown_and_not_kept(store: Store, clock: ManualClock) -> None:
    await store.sample_depths()
    for resolution in Resolution:
        clock.set_wall(NOON)
        clock.advance(resolution.length * (resolution.kept - 1))
        assert await available(store, resolution) == [3]
        clock.advance(resolution.length)
        assert await available(store, resolution) == []
    clock.set_wall(NOON + 90 * DAY)
    await store.sample_depths()
    for resolution in Resolution:
        assert await available(store, resolution) == [3], "the place of a period is used again"
    assert [row.depth.samples for row in await rows(store, DAYS, "default")] == [1]


async def test_samples_of_a_clock_that_was_set_back_are_not_shown(store: Store, clock: ManualClock) -> None:
    clock.advance(200 * DAY)
    await store.sample_depths()
    clock.set_wall(NOON)
    assert [await rows(store, resolution) for resolution in Resolution] == [[], [], []]
    await store.sample_depths()
    assert [await available(store, resolution) for resolution in Resolution] == [[3], [3], [3]]


async def test_a_queue_that_is_gone_has_no_depths(store: Store, clock: ManualClock) -> None:
    await store.sample_depths()
    await store.delete([job.ref for job in (await store.list_jobs(queue="mail")).jobs])
    assert await store.drop("mail")
    await add(store, new(queue="mail"))
    for resolution in Resolution:
        assert [row.queue for row in await rows(store, resolution)] == ["default"]
    clock.advance(MINUTE)
    await store.sample_depths()
    assert [await enqueued(store, one, "mail") for one in Resolution] == [[1], [1], [1]]


async def test_namespaces_have_depths_of_their_own(store: Store, open_store: OpenStore) -> None:
    other = open_store(namespace="other")
    await add(other, new())
    await other.sample_depths()
    assert await rows(store) == []
    await store.sample_depths()
    assert (await available(store), await available(other)) == ([3], [1])


async def test_many_queues_are_sampled(open_store: OpenStore) -> None:
    store = open_store()
    assert await store.sample_depths() == MINUTE
    names = [f"q{n:03}" for n in range(230)]
    await add(store, *(new(queue=name) for name in names))
    await store.sample_depths()
    assert [row.queue for row in await rows(store)] == names
