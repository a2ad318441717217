"""queues and stats: the counts are exact."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import DayCount, QueueInfo, QueueStats, Settlement, Store
from tests.store.facts import (
    AGAIN,
    CANCELLED,
    COMPLETED,
    DAY,
    DEAD,
    HOUR,
    MINUTE,
    PARKED,
    PUT_BACK,
    RELEASED,
    add,
    all_jobs,
    end,
    in_state,
    new,
    retryable,
    running,
    snoozed,
    some,
    take,
)

NOON = 1_700_049_600_000  # 2023-11-15 12:00 UTC


async def test_an_empty_store_has_no_queues(store: Store) -> None:
    assert await store.queues() == []
    assert await store.stats() == []


async def test_queues_come_by_name_with_exact_counts(store: Store, clock: ManualClock) -> None:
    await add(store, *some(3, queue="b"), new(queue="b", delay=5), new(queue="a"), new(queue="B"))
    await take(store, 1, "b")
    now = clock.now()
    assert await store.queues() == [
        QueueInfo("B", {State.AVAILABLE: 1}, oldest_available=now),
        QueueInfo("a", {State.AVAILABLE: 1}, oldest_available=now),
        QueueInfo("b", {State.AVAILABLE: 2, State.RUNNING: 1, State.SCHEDULED: 1}, oldest_available=now),
    ]


async def test_some_queues_come_by_name_without_those_that_do_not_exist(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *some(3, queue="b"), new(queue="a"), new(queue="c"))
    await take(store, 1, "b")
    every = {info.name: info for info in await store.queues()}
    assert await store.queues(["b", "no", "a", "b"]) == [every["a"], every["b"]]
    assert await store.queues(["no"]) == []
    assert await store.queues([]) == []
    assert "no" not in {info.name for info in await store.queues()}


async def test_every_state_is_counted_and_states_without_jobs_are_absent(store: Store) -> None:
    for state in State:
        await in_state(store, state, queue=state)
    assert {q.name: q.counts for q in await store.queues()} == {state: {state: 1} for state in State}


async def test_a_queue_that_is_empty_again_is_still_a_queue(store: Store) -> None:
    job = await running(store)
    await end(store, job, Transition(State.COMPLETED))
    assert await store.queues() == [QueueInfo("default", {})]


async def test_the_oldest_available_job_is_the_one_that_is_due_longest(
    store: Store, clock: ManualClock
) -> None:
    async def oldest() -> int | None:
        (info,) = await store.queues()
        return info.oldest_available

    start = clock.now()
    await add(store, new("late", delay=10, priority=100))
    assert await oldest() is None
    clock.advance(20)
    await add(store, new("fresh"))
    assert await oldest() == start + 20
    await store.promote(["default"], limit=9)
    assert await oldest() == start + 10
    await add(store, new("past", run_at=start - HOUR, priority=-100))
    assert await oldest() == start - HOUR
    await store.cancel([new("past").ref])
    assert await oldest() == start + 10
    (late,) = await take(store)
    assert late.id == "late"
    assert await oldest() == start + 20
    clock.advance(5)
    await end(store, late, PUT_BACK)
    assert await oldest() == start + 10
    (late,) = await take(store)
    await end(store, late, RELEASED)
    await take(store, 1)
    await store.delete([new("fresh").ref])
    assert await oldest() is None


async def test_counts_are_true_after_every_kind_of_step(store: Store, clock: ManualClock) -> None:
    async def check() -> None:
        true: dict[str, Counter[State]] = {}
        for job in await all_jobs(store):
            true.setdefault(job.queue, Counter())[job.state] += 1
        shown = {info.name: info.counts for info in await store.queues()}
        assert {name: counted for name, counted in shown.items() if counted} == true

    await add(store, *some(9), *some(4, delay=MINUTE), *some(3, queue="b", expires_in=MINUTE))
    await check()
    jobs = await take(store, 9)
    await check()
    ends = [COMPLETED, CANCELLED, DEAD, AGAIN, retryable(1), snoozed(1), PARKED, RELEASED]
    await store.settle([Settlement(job.lease, to) for job, to in zip(jobs[:8], ends, strict=True)])
    await check()
    await end(store, jobs[8], Transition(State.COMPLETED))
    await check()
    clock.advance(MINUTE)
    await store.promote(["default"], limit=2)
    await check()
    await take(store, 9, "b")
    await check()
    await store.retry([job.ref for job in jobs])
    await check()
    await store.reschedule([jobs[0].ref, jobs[3].ref], delay=5)
    await check()
    await store.cancel([jobs[0].ref, jobs[1].ref])
    await check()
    await store.delete([jobs[2].ref, jobs[1].ref])
    await check()
    await take(store, 2)
    await store.reclaim([], limit=9, lease=1, worker="w2", token="t", of=["w1"])
    await check()
    clock.advance(DAY)
    await store.prune(limit=2)
    await check()
    await store.purge("default", list(State), limit=3)
    await check()


# ── statistics ──


async def test_enqueued_counts_what_was_new(store: Store, clock: ManualClock) -> None:
    spec = new()
    await store.enqueue([spec, spec, new(delay=5), new(queue="b")])
    await store.settings("b", closed=True)
    await store.enqueue([new(queue="b")])
    assert await store.stats() == [QueueStats("b", 1, 0, 0, []), QueueStats("default", 2, 0, 0, [])]
    clock.advance(5)
    await store.promote(["default"], limit=1)
    await store.retry([spec.ref])
    assert (await store.stats())[1].enqueued == 2


async def test_a_charged_transition_is_processed_and_one_with_an_error_failed(store: Store) -> None:
    cases = [
        (COMPLETED, 1, 0),
        (CANCELLED, 1, 0),
        (DEAD, 1, 1),
        (AGAIN, 1, 1),
        (retryable(), 1, 1),
        (snoozed(), 0, 0),
        (PARKED, 0, 0),
        (RELEASED, 0, 0),
        (PUT_BACK, 0, 0),
        (Transition(State.COMPLETED), 1, 0),
        (replace(AGAIN, charge=False), 0, 1),
    ]
    for n, (transition, processed, failed) in enumerate(cases):
        queue = f"q{n:02}"
        await end(store, await running(store, queue=queue), transition)
        found = next(s for s in await store.stats() if s.name == queue)
        assert (found.processed, found.failed) == (processed, failed), transition
        assert [(d.processed, d.failed) for d in found.days] == [(processed, failed)] * bool(
            processed or failed
        )


async def test_what_did_not_apply_is_not_counted(store: Store) -> None:
    job = await running(store)
    await end(store, job)
    await store.settle([Settlement(job.lease, DEAD), Settlement(replace(job.lease, id="x"), DEAD)])
    (stats,) = await store.stats()
    assert (stats.processed, stats.failed) == (1, 0)


async def test_a_batch_counts_each_of_its_jobs(store: Store) -> None:
    await add(store, *some(5))
    jobs = await take(store, 5)
    await store.settle([Settlement(job.lease, DEAD if n < 2 else COMPLETED) for n, job in enumerate(jobs)])
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed, stats.failed) == (5, 5, 2)


async def test_totals_outlive_their_jobs(store: Store) -> None:
    await end(store, await running(store), DEAD)
    await store.purge("default", list(State))
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed, stats.failed) == (1, 1, 1)


async def test_days_are_those_of_utc_newest_first(store: Store, clock: ManualClock) -> None:
    clock.set_wall(NOON + 12 * HOUR - 1)  # the last millisecond of 15 November
    await end(store, await running(store))
    clock.advance(1)
    await end(store, await running(store), DEAD)
    await end(store, await running(store))
    (stats,) = await store.stats()
    assert stats.days == [DayCount("2023-11-16", 2, 1), DayCount("2023-11-15", 1, 0)]
    assert (stats.processed, stats.failed) == (3, 1)


async def test_days_without_any_are_absent_and_only_the_last_ones_are_shown(
    store: Store, clock: ManualClock
) -> None:
    clock.set_wall(NOON)
    for _ in range(4):
        await end(store, await running(store))
        clock.advance(2 * DAY)
    (stats,) = await store.stats()  # the 23rd: the last seven days begin on the 17th
    assert [day.day for day in stats.days] == ["2023-11-21", "2023-11-19", "2023-11-17"]
    (stats,) = await store.stats(days=3)
    assert [day.day for day in stats.days] == ["2023-11-21"]
    (stats,) = await store.stats(days=1)
    assert stats.days == []
    (stats,) = await store.stats(days=1_000)
    assert len(stats.days) == 4


async def test_the_counts_of_ninety_days_are_kept(store: Store, clock: ManualClock) -> None:
    clock.set_wall(NOON)
    await end(store, await running(store))
    clock.advance(89 * DAY)
    await store.prune()
    assert [day.day for day in (await store.stats(days=90))[0].days] == ["2023-11-15"]
    assert (await store.stats(days=89))[0].days == []
    clock.advance(DAY)
    await store.prune()
    assert (await store.stats(days=1_000))[0].days == []
    clock.set_wall(NOON)
    assert (await store.stats(days=1_000))[0].days == []  # it is gone, not only out of sight
    assert (await store.stats())[0].processed == 1


async def test_a_wall_clock_that_is_set_back_over_midnight_counts_on_the_earlier_day(
    store: Store, clock: ManualClock
) -> None:
    clock.set_wall(NOON + 12 * HOUR)
    await end(store, await running(store))
    clock.set_wall(NOON + 11 * HOUR)
    await end(store, await running(store))
    clock.set_wall(NOON + 13 * HOUR)
    (stats,) = await store.stats()
    assert stats.days == [DayCount("2023-11-16", 1, 0), DayCount("2023-11-15", 1, 0)]
