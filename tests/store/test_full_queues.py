"""Full queues: which jobs are refused, in which order, and their retry-after time."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.core.limits import LimitChange
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.unique import UniqueKey
from penstock.stores.contract import Enqueued, EnqueueStatus, Settlement, Store, Tick, TickStatus
from tests.store.facts import (
    COMPLETED,
    DEAD,
    HOUR,
    MINUTE,
    PARKED,
    SECOND,
    OpenStore,
    add,
    counts,
    end,
    gone,
    new,
    retryable,
    some,
    take,
)

REMOVED = Transition(State.COMPLETED)


async def bounded(store: Store, size: int, queue: str = "default", **limits: Any) -> None:
    await store.settings(queue, limits=LimitChange.of(max_size=size, **limits))


def statuses(answers: list[Enqueued]) -> str:
    return "".join(answer.status[0] for answer in answers)


async def test_a_full_queue_takes_no_more_and_says_so_per_item_in_order(store: Store) -> None:
    await bounded(store, 3)
    jobs = some(5)
    answers = await store.enqueue([*jobs, new(queue="other")])
    assert statuses(answers) == "nnnffn"
    refused = answers[3]
    assert refused == Enqueued(EnqueueStatus.FULL, jobs[3].id, 1_000, size=3)
    assert await gone(store, jobs[3])
    assert await counts(store) == {State.AVAILABLE: 3}
    assert statuses(await store.enqueue(some(2))) == "ff"


async def test_a_full_queue_reports_whether_enqueues_wait(store: Store) -> None:
    await bounded(store, 1, on_full="wait")
    _, refused = await store.enqueue(some(2))
    assert refused.waits
    await store.settings("default", limits=LimitChange.of(on_full="reject"))
    (refused,) = await store.enqueue([new()])
    assert not refused.waits


async def test_what_waits_to_start_counts_and_what_runs_or_has_ended_does_not(store: Store) -> None:
    await bounded(store, 4)
    await add(store, *some(4))
    one, two, three, four = await take(store, 4)
    await end(store, one, retryable())
    await end(store, two, PARKED)
    await end(store, three, COMPLETED)
    await end(store, four, DEAD)
    await add(store, new(delay=HOUR), new())
    assert statuses(await store.enqueue(some(2))) == "ff"
    assert len(await take(store)) == 1
    assert statuses(await store.enqueue(some(2))) == "nf"


async def test_a_job_that_leaves_makes_room(store: Store) -> None:
    await bounded(store, 2)
    one, two = some(2)
    await add(store, one, two)
    await store.cancel([one.ref])
    assert statuses(await store.enqueue(some(2))) == "nf"
    await store.delete([two.ref])
    assert statuses(await store.enqueue(some(2))) == "nf"
    await bounded(store, 3)
    assert statuses(await store.enqueue(some(2))) == "nf"
    await store.settings("default", limits=LimitChange(max_size=None))
    assert statuses(await store.enqueue(some(2))) == "nn"


async def test_exists_closed_and_duplicate_are_asked_before_full(store: Store) -> None:
    await bounded(store, 2)
    held = new(unique=UniqueKey("k"))
    await add(store, held, new())
    answers = await store.enqueue(
        [held, new(unique=UniqueKey("k")), new(unique=UniqueKey("l")), new(delay=5)]
    )
    assert [answer.status for answer in answers] == [
        EnqueueStatus.EXISTS,
        EnqueueStatus.DUPLICATE,
        EnqueueStatus.FULL,
        EnqueueStatus.FULL,
    ]
    assert answers[1].id == held.id
    await store.settings("default", closed=True)
    assert statuses(await store.enqueue([new()])) == "c"


async def test_what_was_refused_holds_no_key(store: Store) -> None:
    await bounded(store, 1)
    await add(store, new())
    assert statuses(await store.enqueue([new(unique=UniqueKey("k"))])) == "f"
    await bounded(store, 9)
    assert statuses(await store.enqueue([new(unique=UniqueKey("k"))])) == "n"


async def test_a_job_that_follows_enters_a_full_queue(store: Store) -> None:
    await add(store, new())
    (job,) = await take(store)
    await bounded(store, 1)
    await bounded(store, 1, "other")
    await add(store, new(), new(queue="other"))
    then = (new(), new(queue="other"), new(delay=5))
    await store.settle([Settlement(job.lease, REMOVED, then=then)])
    assert await counts(store) == {State.AVAILABLE: 2, State.SCHEDULED: 1}
    assert await counts(store, "other") == {State.AVAILABLE: 2}
    assert statuses(await store.enqueue([new()])) == "f"


async def test_the_tick_of_a_full_queue_is_skipped_and_made_up_for_by_no_one(
    store: Store, clock: ManualClock
) -> None:
    await bounded(store, 1)
    await add(store, new())
    entry = NewEntry("e", new("template"), Schedule.of(every="1s"))
    (put,) = await store.put_entries([entry])
    step = Tick(entry.ref, put.revision, put.watermark, put.watermark + SECOND, 0, jobs=tuple(some(2)))
    (ticked,) = await store.tick([step])
    assert ticked.status is TickStatus.APPLIED
    assert ticked.enqueued == ()
    (stored,) = (await store.entries()).entries
    assert stored.skipped == 2


async def test_retry_after_follows_how_fast_the_queue_drains(
    store: Store, open_store: OpenStore, clock: ManualClock
) -> None:
    await bounded(store, 100)
    await add(store, *some(100))
    for _ in range(20):  # 10 jobs in each second
        clock.advance(SECOND)
        for job in await take(store, 10):
            await end(store, job, REMOVED)
        await store.enqueue(some(10))
    answers = await open_store().enqueue(some(30))
    assert statuses(answers) == "f" * 30
    waits = [answer.retry_after or 0 for answer in answers]
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(100, rel=0.2)
    assert waits[29] == pytest.approx(3_000, rel=0.2)
    clock.advance(10 * MINUTE)  # nothing has left since
    (answer,) = await store.enqueue([new()])
    assert answer.retry_after == 60_000


async def test_retry_after_is_never_less_than_a_blink(store: Store, clock: ManualClock) -> None:
    await bounded(store, 1_000)
    await add(store, *some(1_000))
    assert len(await take(store, 900)) == 900
    await store.enqueue(some(900))
    (answer,) = await store.enqueue([new()])
    assert answer.retry_after == 10


async def test_a_queue_above_a_lowered_size_says_how_long_it_takes_to_come_below(
    store: Store, clock: ManualClock
) -> None:
    await bounded(store, 100)
    await add(store, *some(100))
    for _ in range(10):
        clock.advance(SECOND)
        for job in await take(store, 5):
            await end(store, job, REMOVED)
    await bounded(store, 10)
    (answer,) = await store.enqueue([new()])
    assert answer.retry_after == pytest.approx((50 - 10 + 1) / 5 * 1_000, rel=0.25)


async def test_a_clock_that_is_set_back_by_hours_does_not_stop_it(store: Store, clock: ManualClock) -> None:
    await bounded(store, 9)
    await add(store, *some(2))
    assert len(await take(store, 1)) == 1
    clock.set_wall(clock.now() - 24 * HOUR)
    assert len(await take(store, 1)) == 1
    await add(store, *some(9))
    (answer,) = await store.enqueue([new()])
    assert answer.retry_after == 200, "of how fast it drained by the other clock nothing is believed"


async def test_many_at_once_fill_it_to_the_brim(store: Store) -> None:
    await bounded(store, 2_500)
    answers = await store.enqueue(some(4_100))
    assert statuses(answers) == "n" * 2_500 + "f" * 1_600
    assert await counts(store) == {State.AVAILABLE: 2_500}
