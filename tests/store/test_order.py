"""Order: by priority, then by position (head, tail, or the job's own)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import PRIORITIES, Job, State
from penstock.core.lifecycle import Transition
from penstock.core.outcomes import QueuePosition
from penstock.stores.contract import Settlement, Share, Store, WorkerInfo
from tests.store.facts import (
    AGAIN,
    COMPLETED,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
    PUT_BACK,
    RELEASED,
    OpenStore,
    add,
    end,
    error,
    ids,
    new,
    retryable,
    snoozed,
    some,
    take,
    take_one,
    token,
)


async def drained(store: Store, queue: str = "default") -> list[str]:
    """The ids in the order in which they come out one by one."""
    found = []
    while jobs := await take(store, 1, queue):
        found.append(jobs[0].id)
    return found


async def settle_all(store: Store, jobs: list[Job], transition: Transition) -> None:
    await store.settle([Settlement(job.lease, transition) for job in jobs])


async def test_first_in_first_out(store: Store) -> None:
    jobs = some(20)
    for job in jobs[:10]:
        await add(store, job)
    await add(store, *jobs[10:])
    assert ids(await take(store, 7)) == ids(jobs[:7])
    assert await drained(store) == ids(jobs[7:])


async def test_ids_mean_nothing_for_the_order(store: Store) -> None:
    await add(store, new("z"), new("a"), new("m"), new("A"))
    assert await drained(store) == ["z", "a", "m", "A"]


async def test_higher_priority_first_and_fifo_within_one(store: Store) -> None:
    await add(
        store,
        new("low", priority=-100),
        new("a", priority=0),
        new("high", priority=100),
        new("b", priority=0),
        new("ten", priority=10),
        new("nine", priority=9),
        new("minus", priority=-1),
    )
    assert await drained(store) == ["high", "ten", "nine", "a", "b", "minus", "low"]


async def test_every_priority_has_its_place(store: Store) -> None:
    await add(store, *(new(f"p{p}", priority=p) for p in sorted(PRIORITIES, key=lambda p: (p * 37) % 201)))
    assert await drained(store) == [f"p{p}" for p in sorted(PRIORITIES, reverse=True)]


async def test_a_late_job_of_high_priority_goes_first(store: Store) -> None:
    await add(store, *some(3, priority=1))
    await take(store)
    await add(store, new("urgent", priority=2))
    assert (await take_one(store)).id == "urgent"


async def test_priorities_of_one_queue_mean_nothing_to_another(store: Store) -> None:
    await add(store, new("low", queue="a", priority=-5), new("high", queue="b", priority=5))
    shares = [Share("a", 1, 1), Share("b", 1, 1)]
    fetched = await store.fetch(shares, limit=2, lease=LEASE, worker="w", token=token())
    assert ids(fetched.jobs) == ["low", "high"]


# ── the tail ──


async def test_another_attempt_at_once_goes_to_the_tail(store: Store) -> None:
    a, b = new("a"), new("b")
    await add(store, a, b)
    await end(store, await take_one(store), AGAIN)
    await add(store, new("c"))
    assert await drained(store) == ["b", "a", "c"]


async def test_several_go_to_the_tail_in_the_order_of_their_settlements(store: Store) -> None:
    await add(store, *(new(id) for id in "abc"))
    a, b, c = await take(store, 3)
    await settle_all(store, [c, a, b], AGAIN)
    assert await drained(store) == ["c", "a", "b"]


# ── the head ──


async def test_a_released_job_goes_before_all_others_of_its_priority(store: Store) -> None:
    await add(store, *(new(id) for id in "abc"))
    await end(store, await take_one(store), AGAIN)  # order now: b c a
    b = await take_one(store)
    await end(store, b, RELEASED)
    assert await drained(store) == ["b", "c", "a"]


async def test_a_released_job_does_not_pass_a_higher_priority(store: Store) -> None:
    await add(store, new("low"))
    low = await take_one(store)
    await add(store, new("high", priority=1), new("other"))
    await end(store, low, RELEASED)
    assert await drained(store) == ["high", "low", "other"]


async def test_several_released_together_keep_their_order(store: Store) -> None:
    await add(store, *(new(f"j{n}") for n in range(6)))
    jobs = await take(store, 4)
    await settle_all(store, jobs, RELEASED)
    assert await drained(store) == ["j0", "j1", "j2", "j3", "j4", "j5"]


async def test_the_first_in_the_list_is_the_first_out(store: Store) -> None:
    await add(store, *(new(id) for id in "abcd"))
    a, b, c, _ = await take(store, 4)
    await store.settle(
        [
            Settlement(c.lease, RELEASED),
            Settlement(replace(b.lease, token="stale"), RELEASED),
            Settlement(a.lease, AGAIN),
            Settlement(b.lease, RELEASED),
        ]
    )
    assert await drained(store) == ["c", "b", "a"]


async def test_what_is_released_later_goes_before_what_was_released_earlier(store: Store) -> None:
    await add(store, *(new(id) for id in "abcd"))
    a, b, c, d = await take(store, 4)
    await settle_all(store, [a, b], RELEASED)
    await settle_all(store, [c, d], RELEASED)
    assert await drained(store) == ["c", "d", "a", "b"]


async def test_a_large_batch_that_is_released_keeps_its_order(store: Store) -> None:
    jobs = some(2_300)
    await add(store, *jobs)
    await settle_all(store, await take(store, 2_200), RELEASED)
    assert ids(await take(store, 3_000)) == ids(jobs)


async def test_a_lost_attempt_may_go_to_the_head_too(store: Store) -> None:
    await add(store, *(new(id) for id in "abc"))
    a = await take_one(store)
    await end(store, a, Transition(State.AVAILABLE, place=QueuePosition.HEAD, error=error(), lost=True))
    assert await drained(store) == ["a", "b", "c"]


# ── one's own place ──


async def test_a_returned_job_keeps_its_place(store: Store) -> None:
    await add(store, *(new(id) for id in "abcd"))
    a, b, c = await take(store, 3)
    await end(store, c, PUT_BACK)
    await end(store, a, PUT_BACK)
    await add(store, new("e"))
    await end(store, b, PUT_BACK)
    assert await drained(store) == ["a", "b", "c", "d", "e"]


async def test_a_place_at_the_head_is_ones_own_from_then_on(store: Store) -> None:
    await add(store, *(new(id) for id in "abc"))
    _, b = await take(store, 2)
    await end(store, b, RELEASED)
    b = await take_one(store)
    assert b.id == "b"
    await add(store, new("d"))
    await end(store, b, PUT_BACK)
    assert await drained(store) == ["b", "c", "d"]


async def test_a_place_at_the_tail_is_ones_own_from_then_on(store: Store) -> None:
    await add(store, *(new(id) for id in "ab"))
    await end(store, await take_one(store), AGAIN)
    await add(store, new("c"))
    b, a = await take(store, 2)
    assert ids([b, a]) == ["b", "a"]
    await end(store, a, PUT_BACK)
    await end(store, b, PUT_BACK)
    assert await drained(store) == ["b", "a", "c"]


async def test_a_reclaimed_job_may_go_back_to_its_own_place(store: Store) -> None:
    await add(store, *(new(id) for id in "abc"))
    await take(store, 2)
    held = (await store.reclaim([], limit=9, lease=LEASE, worker="w2", token=token(), of=["w1"])).jobs
    await settle_all(store, held[::-1], PUT_BACK)
    assert await drained(store) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("place", "order"),
    [
        (QueuePosition.OWN, ["a", "b", "c"]),
        (QueuePosition.HEAD, ["b", "a", "c"]),
        (QueuePosition.TAIL, ["a", "c", "b"]),
    ],
)
async def test_a_parked_job_has_a_place_too(store: Store, place: QueuePosition, order: list[str]) -> None:
    await add(store, *(new(id) for id in "abc"))
    jobs = await take(store, 3)
    await store.settle(
        [
            Settlement(j.lease, replace(PARKED, place=place if j.id == "b" else QueuePosition.OWN))
            for j in jobs
        ]
    )
    refs = [job.ref for job in jobs]
    await store.announce(WorkerInfo("w1", "host", 1, 0, (), ("t",), 1))
    assert await drained(store) == order
    assert await store.retry(refs) == [State.RUNNING] * 3


# ── promotion ──


async def test_promoted_jobs_go_to_the_tail_in_the_order_of_their_times(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("c", delay=30), new("a", delay=10), new("b", delay=20), new("first"))
    clock.advance(30)
    await store.promote(["default"], limit=9)
    await add(store, new("last"))
    assert await drained(store) == ["first", "a", "b", "c", "last"]


async def test_jobs_due_at_the_same_time_go_in_order_of_enqueue(store: Store, clock: ManualClock) -> None:
    at = clock.now() + 10
    await add(store, new("z", delay=10), new("a", run_at=at))
    clock.advance(5)
    await add(store, new("m", delay=5), new("b", run_at=at))
    clock.advance(5)
    await store.promote(["default"], limit=9)
    assert await drained(store) == ["z", "a", "m", "b"]


async def test_two_promotions_keep_the_order_of_the_times(store: Store, clock: ManualClock) -> None:
    await add(store, *(new(f"d{n}", delay=n) for n in (5, 3, 1, 4, 2)))
    clock.advance(10)
    await store.promote(["default"], limit=2)
    await store.promote(["default"], limit=9)
    assert await drained(store) == ["d1", "d2", "d3", "d4", "d5"]


async def test_promoted_jobs_keep_their_priority(store: Store, clock: ManualClock) -> None:
    await add(store, new("plain"), new("late", delay=1, priority=1))
    clock.advance(1)
    await store.promote(["default"], limit=9)
    assert await drained(store) == ["late", "plain"]


async def test_retries_and_snoozes_are_promoted_by_their_times_together(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *(new(id) for id in "abc"))
    a, b, c = await take(store, 3)
    await end(store, a, retryable(3 * MINUTE))
    await end(store, b, snoozed(2 * MINUTE))
    await end(store, c, retryable(MINUTE))
    await add(store, new("d", delay=2 * MINUTE))
    clock.advance(3 * MINUTE)
    await store.promote(["default"], limit=9)
    assert await drained(store) == ["c", "b", "d", "a"]


async def test_the_order_is_the_same_in_every_store_object(store: Store, open_store: OpenStore) -> None:
    other = open_store()
    await add(store, new("a"))
    await add(other, new("b"))
    await add(store, new("c"))
    b = (await take(other, 2))[1]
    await end(store, b, RELEASED)
    assert await drained(other) == ["b", "c"]


@pytest.mark.parametrize("by", [4_000, HOUR])
async def test_a_clock_that_is_set_back_leaves_the_order_of_each_queue(
    store: Store, clock: ManualClock, by: int
) -> None:
    await add(store, new("a"), new("b", queue="other"))
    clock.set_wall(clock.now() - by)
    await add(store, new("c"), new("d", queue="other"), new("e"))
    await add(store, new("late", delay=1), new("later", delay=1))
    assert ids((await store.list_jobs(queue="default")).jobs) == ["later", "late", "e", "c", "a"]
    assert ids((await store.list_jobs(queue="other")).jobs) == ["d", "b"]
    clock.advance(1)
    assert (await store.promote(["default", "other"], limit=9)).moved == 2
    assert await drained(store) == ["a", "c", "e", "late", "later"]
    assert await drained(store, "other") == ["b", "d"]


async def test_a_clock_that_is_set_back_by_seconds_leaves_the_order_over_all_queues(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("a"), new("b", queue="other"))
    clock.set_wall(clock.now() - 4_000)
    await add(store, new("c", delay=1), new("d", queue="other", delay=1))
    await add(store, new("e", queue="third", delay=1))
    await add(store, new("f", delay=1))
    assert ids((await store.list_jobs()).jobs) == ["f", "e", "d", "c", "b", "a"]
    clock.advance(1)
    await store.promote(["default", "other", "third"], limit=3)
    scheduled = (await store.list_jobs(state=State.SCHEDULED)).jobs
    assert ids(scheduled) == ["f"]


async def test_nothing_is_skipped_for_ever(store: Store) -> None:
    """I2: whatever is released, parked, cancelled or deleted around it, each job comes out in the end."""
    await add(store, *(new(f"j{n}", priority=n % 3) for n in range(60)))
    await store.cancel([new(f"j{n}").ref for n in range(0, 60, 7)])
    await store.delete([new(f"j{n}").ref for n in range(1, 60, 7)])
    seen: set[str] = set()
    for turn in range(200):
        jobs = await take(store, 5)
        if not jobs:
            break
        fresh = [job for job in jobs if job.id not in seen]
        seen.update(ids(jobs))
        ways = [RELEASED, PUT_BACK, AGAIN]
        await store.settle([Settlement(j.lease, ways[turn % 3] if j in fresh else COMPLETED) for j in jobs])
    assert seen == {f"j{n}" for n in range(60) if n % 7 not in (0, 1)}
