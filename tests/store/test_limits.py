"""Limits of a queue: concurrency, rate and throttles."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import LimitChange, LimitLayers, QueueLimits, Rate
from penstock.core.outcomes import QueuePosition
from penstock.stores.contract import EnqueueStatus, Fetched, Settlement, Share, Store, Wake, WorkerInfo
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    COMPLETED,
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
    RELEASED,
    SECOND,
    SOON,
    OpenStore,
    add,
    asleep,
    counts,
    end,
    gone,
    ids,
    member,
    new,
    retryable,
    some,
    take,
    the,
    token,
)

REMOVED = Transition(State.COMPLETED)


async def limit(store: Store, queue: str = "default", **limits: Any) -> None:
    await store.settings(queue, limits=LimitChange.of(**limits))


async def fetch(
    store: Store, n: int = 100, *queues: str, worker: str = "w1", free: int | None = None
) -> Fetched:
    shares = [Share(queue, n, n, free) for queue in queues or ["default"]]
    return await store.fetch(shares, limit=n, lease=LEASE, worker=worker, token=token())


def throttled(ms: int) -> Transition:
    return Transition(
        State.AVAILABLE, place=QueuePosition.HEAD, charge=False, reason="throttled: 429", throttle=ms
    )


async def info_of(store: Store, queue: str = "default") -> Any:
    return next(info for info in await store.queues() if info.name == queue)


# ── settings ──


async def test_limits_are_kept_and_shown(store: Store, open_store: OpenStore) -> None:
    change = LimitChange.of(
        max_size=10,
        on_full="wait",
        max_running=7,
        rate="100/min",
        burst=3,
        keep_finished=0,
        keep_dead=5,
        keep_finished_for="1h",
        keep_dead_for="30d",
    )
    info = await store.settings("new", limits=change)
    assert info.limits == LimitLayers(change).limits()
    assert info.limits.rate == Rate(100, MINUTE, 3)
    assert await open_store().queues() == [info]


async def test_a_change_leaves_the_other_limits_and_switches_as_they_are(store: Store) -> None:
    await store.settings("default", paused=True, limits=LimitChange.of(max_size=10, rate="1/s"))
    await limit(store, max_running=7)
    await limit(store, max_size=None)
    info = await store.settings("default", paused=False)
    assert info.limits == QueueLimits(max_running=7, rate=Rate(1, SECOND))
    await limit(store, max_running=None, rate=None)
    (info,) = await store.queues()
    assert (info.limits, info.paused) == (QueueLimits(), False)


async def test_a_new_rate_leaves_the_burst_as_it_is(store: Store) -> None:
    async def burst(**change: Any) -> int | None:
        rate = (await store.settings("default", limits=LimitChange.of(**change))).limits.rate
        return None if rate is None else rate.burst

    assert await burst(rate="5/s") == 1, "there was none before"
    assert await burst(rate="5/s", burst=20) == 20
    assert await burst(rate="10/s") == 20
    assert await burst(max_size=3) == 20
    assert await burst(rate=Rate(7, 1_000, 4)) == 4, "which has its own"
    assert await burst(rate="10/s", burst=1) == 1
    assert await burst(rate="10/s", burst=5) == 5
    assert await burst(rate=None) is None
    assert await burst(rate="10/s") == 1, "with the rate it went"


async def test_limits_are_those_of_one_queue_and_go_with_it(store: Store) -> None:
    await limit(store, "a", max_running=1, rate="1/s")
    await add(store, *some(3, queue="a"), *some(3, queue="b"))
    assert len((await fetch(store, 9, "a", "b")).jobs) == 4
    await store.purge("a", list(State))
    assert not await store.drop("a")
    await limit(store, "c", max_running=1)
    assert await store.drop("c")
    await add(store, *some(3, queue="c"))
    assert len((await fetch(store, 9, "c")).jobs) == 3


# ── max_running ──


async def test_the_limit_holds_for_all_workers_together(store: Store, open_store: OpenStore) -> None:
    jobs = some(10)
    await add(store, *jobs)
    await limit(store, max_running=3)
    other = open_store()
    first, second = await fetch(store, 2), await fetch(other, 9, worker="w2")
    assert ids(first.jobs) == ids(jobs[:2])
    assert ids(second.jobs) == [jobs[2].id]
    assert (await fetch(store)).jobs == []
    assert (await fetch(store)).opens_at is None
    await end(other, second.jobs[0])
    await end(store, first.jobs[0], REMOVED)
    assert ids((await fetch(store)).jobs) == ids(jobs[3:5])


@each("ending", [COMPLETED, REMOVED, retryable(), AGAIN, PARKED, RELEASED])
async def test_however_an_attempt_ends_it_makes_room(store: Store, ending: Transition) -> None:
    await limit(store, max_running=1)
    await add(store, *some(3))
    (job,) = await take(store, 5)
    assert await take(store, 5) == []
    await end(store, job, ending)
    assert len(await take(store, 5)) == 1


async def test_a_job_with_an_expired_lease_runs_until_it_is_reclaimed(
    store: Store, clock: ManualClock
) -> None:
    await limit(store, max_running=1)
    await add(store, *some(2))
    (job,) = await take(store, 2)
    clock.advance(HOUR)
    assert await take(store, 2) == []
    found = await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())
    assert ids(found.jobs) == [job.id]
    assert await take(store, 2) == []
    await end(store, found.jobs[0], AGAIN)
    assert len(await take(store, 2)) == 1


async def test_a_lowered_limit_lets_what_runs_go_on(store: Store) -> None:
    await add(store, *some(6))
    running = await take(store, 4)
    await limit(store, max_running=2)
    for job in running[:2]:
        assert await take(store, 9) == []
        await end(store, job)
    assert await take(store, 9) == []
    await end(store, running[2])
    assert len(await take(store, 9)) == 1
    await limit(store, max_running=None)
    assert len(await take(store, 9)) == 1


async def test_of_a_limited_queue_a_fetch_takes_no_more_than_there_are_free_slots(store: Store) -> None:
    await add(store, *some(9), *some(9, queue="free"))
    await limit(store, max_running=7)
    found = await fetch(store, 9, "default", "free", free=2)
    assert [job.queue for job in found.jobs].count("default") == 2
    assert len(found.jobs) == 9


async def test_a_limited_queue_does_not_keep_others_from_the_limit_of_a_fetch(store: Store) -> None:
    await add(store, *some(9, queue="a"), *some(9, queue="b"))
    await limit(store, "a", max_running=2)
    found = await fetch(store, 6, "a", "b")
    assert sorted(job.queue for job in found.jobs) == ["a"] * 2 + ["b"] * 4


async def test_parked_jobs_are_limited_too(store: Store) -> None:
    from penstock.stores.contract import WorkerInfo

    await add(store, *some(3))
    for job in await take(store, 3):
        await end(store, job, PARKED)
    await limit(store, max_running=2)
    await store.announce(WorkerInfo("w1", "h", 1, 0, ("default",), ("t",), 5))
    assert len(await take(store, 9)) == 2
    assert await take(store, 9) == []


# ── rate ──


async def granted(store: Store, clock: ManualClock, span: int, every: int, n: int = 100) -> list[int]:
    """The instants of the starts, where somebody fetches that often, for so long."""
    began, instants = clock.now(), []
    while clock.now() < began + span:
        found = await fetch(store, n)
        for job in found.jobs:
            assert job.fetched_at is not None
            assert clock.now() <= job.fetched_at <= clock.now() + 20
            instants.append(job.fetched_at)
            await end(store, job, REMOVED)
        clock.advance(every)
    return instants


def worst_window(instants: list[int], rate: Rate) -> float:
    """How much more than rate * t + burst there was in any window, in starts."""
    return max(
        (j - i + 1) - ((instants[j] - instants[i]) / rate.step + rate.burst)
        for i in range(len(instants))
        for j in range(i, len(instants))
    )


@each(
    "rate, burst, every",
    [
        ("200/s", 1, 7),
        ("200/s", 1, 13),
        ("200/s", 10, 7),
        ("50/s", 1, 3),
        ("100/min", 1, 100),
        ("1/ms", 5, 5),
    ],
)
async def test_a_rate_is_kept_in_every_window_and_used_up(
    store: Store, clock: ManualClock, rate: str, burst: int, every: int
) -> None:
    span = 600 if rate != "100/min" else 6 * SECOND
    wanted = Rate.of(rate, burst=burst)
    await add(store, *some(int(span / wanted.step) + 60))
    await limit(store, rate=rate, burst=burst)
    instants = await granted(store, clock, span, every)
    assert instants == sorted(instants)
    assert worst_window(instants, wanted) <= 0
    assert len(instants) >= int(span / wanted.step) + burst - 1


async def test_the_first_start_after_a_pause_is_at_once_and_no_credit_is_saved_up(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *some(9))
    await limit(store, rate="1/s", burst=2)
    clock.advance(HOUR)
    found = await fetch(store)
    assert [job.fetched_at for job in found.jobs] == [clock.now()] * 2
    assert found.opens_at == clock.now() + SECOND - 10
    clock.advance(SECOND - 21)
    assert (await fetch(store)).jobs == []
    clock.advance(1)
    (job,) = (await fetch(store)).jobs
    assert job.fetched_at == clock.now() + 20
    assert (await the(store, job)).fetched_at == job.fetched_at


async def test_a_repeated_fetch_has_the_same_instants(store: Store, clock: ManualClock) -> None:
    await add(store, *some(9))
    await limit(store, rate="100/s")
    mine = token()
    share = [Share("default", 9, 9)]
    first = await store.fetch(share, limit=9, lease=LEASE, worker="w1", token=mine)
    again = await store.fetch(share, limit=9, lease=LEASE, worker="w1", token=mine)
    assert [job.fetched_at for job in first.jobs] == [clock.now(), clock.now() + 10, clock.now() + 20]
    assert sorted(again.jobs, key=lambda job: job.generation) == first.jobs


async def test_a_clock_that_is_set_back_does_not_stop_the_queue(store: Store, clock: ManualClock) -> None:
    await add(store, *some(9))
    await limit(store, rate="10/s")
    assert len((await fetch(store)).jobs) == 1
    clock.set_wall(clock.now() - DAY)
    assert len((await fetch(store)).jobs) == 1
    clock.advance(79)
    assert (await fetch(store)).jobs == []
    clock.advance(1)
    assert len((await fetch(store)).jobs) == 1


async def test_a_changed_rate_holds_at_once(store: Store, clock: ManualClock) -> None:
    await add(store, *some(9))
    await limit(store, rate="1/day")
    assert len((await fetch(store)).jobs) == 1
    assert (await fetch(store)).opens_at == clock.now() + DAY - 10
    await limit(store, rate="10/s")
    clock.advance(100)
    assert len((await fetch(store)).jobs) == 1
    await limit(store, rate=None)
    assert len((await fetch(store)).jobs) == 7


async def test_a_queue_that_loses_all_limits_remembers_none_of_them(store: Store) -> None:
    await store.settings("default", limits=LimitChange.of(rate="1/min"))
    await add(store, *some(3))
    assert len(await take(store, 9)) == 1
    await store.settings("default", limits=LimitChange(rate=None))
    await store.settings("default", limits=LimitChange.of(rate="1/min"))
    assert len(await take(store, 9)) == 1
    await store.settings("default", limits=LimitChange.of(max_size=9))
    await store.settings("default", limits=LimitChange(rate=None))
    await store.settings("default", limits=LimitChange.of(rate="1/min"))
    assert await take(store, 9) == []  # this one had a limit all the time


@pytest.mark.parametrize("by", ["rate", "throttle"])
async def test_a_worker_with_the_task_of_parked_jobs_learns_when_their_queue_opens(
    store: Store, clock: ManualClock, by: str
) -> None:
    jobs = some(3)
    await add(store, *jobs)
    for job in await take(store, 3):
        await end(store, job, PARKED)
    change = {"rate": "1/min"} if by == "rate" else {"throttle": "1m"}
    await limit(store, **change)
    await store.announce(WorkerInfo("knows", "host", 1, 0, (), (jobs[0].task,), 1))
    assert (await fetch(store, worker="other")).opens_at is None
    found = await fetch(store, worker="knows")
    assert len(found.jobs) == (1 if by == "rate" else 0)
    assert found.opens_at is not None
    assert (await fetch(store, worker="knows")).opens_at == found.opens_at  # also where nothing is leased
    assert (await fetch(store, worker="other")).opens_at is None
    assert clock.now() < found.opens_at <= clock.now() + MINUTE
    clock.advance(MINUTE)
    assert len((await fetch(store, worker="knows")).jobs) == (1 if by == "rate" else 3)


async def test_expired_jobs_use_up_no_start(store: Store, clock: ManualClock) -> None:
    await add(store, *some(5, expires_in=SECOND), *some(2))
    clock.advance(SECOND)
    await limit(store, rate="1/s")
    assert len((await fetch(store)).jobs) == 1
    clock.advance(SECOND)
    assert len((await fetch(store)).jobs) == 1


async def test_with_both_limits_both_hold(store: Store, clock: ManualClock) -> None:
    await add(store, *some(9))
    await limit(store, max_running=2, rate="100/s", burst=5)
    found = await fetch(store)
    assert len(found.jobs) == 2
    assert found.opens_at is None
    await end(store, found.jobs[0])
    assert len((await fetch(store)).jobs) == 1


@pytest.mark.parametrize("share", [Share("default", 0, 0), Share("default", 3, 0), Share("default", 0, 3)])
async def test_an_empty_fetch_of_a_throttled_queue_returns_when_it_opens(
    store: Store, clock: ManualClock, share: Share
) -> None:
    await add(store, new(), new("elsewhere", queue="free"))
    await limit(store, throttle="1m", max_running=1)
    shares = [Share("free", 1, 1), share]
    found = await store.fetch(shares, limit=1, lease=LEASE, worker="w1", token=token())
    assert ids(found.jobs) == ["elsewhere"]
    assert found.opens_at == clock.now() + MINUTE


async def test_a_held_queue_with_as_many_running_as_may_opens_at_no_instant(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *some(2))
    await limit(store, max_running=1)
    (job,) = (await fetch(store)).jobs
    await limit(store, throttle="1m")
    assert (await fetch(store)).opens_at is None
    await end(store, job)
    assert (await fetch(store)).opens_at == clock.now() + MINUTE, "its end leaves the throttle alone"


async def test_a_waiter_of_a_throttled_full_queue_wakes_by_an_end_that_leaves_the_throttle(
    store: Store,
) -> None:
    await add(store, *some(2))
    await limit(store, max_running=1)
    (job,) = (await fetch(store)).jobs
    await limit(store, throttle="30s")
    await look(store)  # hears of the settings
    waiting = sleeping(store)
    await asleep(waiting)
    await end(store, job)
    assert await asyncio.wait_for(waiting, SOON) is Wake.WORK


async def test_instants_hold_over_several_queues_of_one_fetch(store: Store, clock: ManualClock) -> None:
    await add(store, *some(3, queue="a"), *some(3, queue="b"), *some(3, queue="c"))
    await limit(store, "a", rate="100/s")
    await limit(store, "b", rate="1/min")
    found = await fetch(store, 20, "a", "b", "c")
    at = {job.queue: [] for job in found.jobs}
    for job in found.jobs:
        at[job.queue].append((job.fetched_at or 0) - clock.now())
    assert at == {"a": [0, 10, 20], "b": [0], "c": [0, 0, 0]}
    assert found.opens_at == clock.now() + MINUTE - 10


async def test_a_batch_that_starts_in_a_call_counts_for_the_next_jobs_of_the_call(store: Store) -> None:
    await limit(store, max_size=2)
    answers = await store.enqueue([member("a", size=1), new("b")])
    assert [answer.status for answer in answers] == [EnqueueStatus.NEW, EnqueueStatus.FULL]


async def test_a_member_that_expires_in_a_call_makes_room_for_the_next_jobs_of_the_call(store: Store) -> None:
    await limit(store, max_size=1)
    answers = await store.enqueue([member("a", size=1, expires_at=0), new("b")])
    assert [answer.status for answer in answers] == [EnqueueStatus.NEW, EnqueueStatus.NEW]


# ── throttle ──


async def test_a_throttled_queue_gives_nothing_until_its_time_and_no_attempt_is_spent(
    store: Store, open_store: OpenStore, clock: ManualClock
) -> None:
    jobs = some(3)
    await add(store, *jobs)
    (job,) = await take(store, 1)
    await end(store, job, throttled(MINUTE))
    other = open_store()
    found = await fetch(other)
    assert found.jobs == []
    assert found.opens_at == clock.now() + MINUTE
    assert (await info_of(store)).throttled_until == clock.now() + MINUTE
    back = await the(store, job)
    assert (back.state, back.attempt, back.reason) == (State.AVAILABLE, 0, "throttled: 429")
    clock.advance(MINUTE - 1)
    assert (await fetch(other)).jobs == []
    clock.advance(1)
    assert ids((await fetch(other)).jobs) == ids(jobs)
    assert (await info_of(store)).throttled_until is None


async def test_the_longest_throttle_counts_and_an_operator_lifts_it(store: Store, clock: ManualClock) -> None:
    await add(store, *some(3))
    one, two, _ = await take(store, 3)
    await end(store, one, throttled(MINUTE))
    await end(store, two, throttled(SECOND))
    assert (await info_of(store)).throttled_until == clock.now() + MINUTE
    info = await store.settings("default", limits=LimitChange(throttle=None))
    assert info.throttled_until is None
    assert len(await take(store, 3)) == 2


async def test_a_throttle_that_ended_and_was_lifted_does_not_return_with_the_clock(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *some(2))
    (job,) = await take(store, 1)
    await end(store, job, throttled(MINUTE))
    clock.advance(MINUTE)
    await store.settings("default", limits=LimitChange(throttle=None))
    clock.set_wall(clock.now() - SECOND)
    assert (await info_of(store)).throttled_until is None
    assert len(await take(store, 2)) == 2


async def test_a_throttle_is_a_day_at_most_and_100_ms_at_least(store: Store, clock: ManualClock) -> None:
    await add(store, *some(2))
    one, two = await take(store, 2)
    await end(store, one, throttled(1))
    assert (await info_of(store)).throttled_until == clock.now() + 100
    await end(store, two, throttled(100 * DAY))
    assert (await info_of(store)).throttled_until == clock.now() + DAY


async def test_an_operator_throttles_a_queue(store: Store, clock: ManualClock) -> None:
    await add(store, new())
    info = await store.settings("default", limits=LimitChange.of(throttle="1m"))
    assert info.throttled_until == clock.now() + MINUTE
    assert await take(store) == []
    clock.advance(MINUTE)
    assert len(await take(store)) == 1


async def test_other_queues_go_on(store: Store) -> None:
    await add(store, new(), new(queue="other"))
    await end(store, (await take(store))[0], throttled(MINUTE))
    assert len((await fetch(store, 9, "default", "other")).jobs) == 1


# ── waiting ──


async def look(store: Store, *queues: str, timeout: int = 0, parked: Sequence[str] = ()) -> Wake:
    asked = store.wait(list(queues or ["default"]), timeout=timeout, parked=parked)
    return await asyncio.wait_for(asked, SOON)


def sleeping(store: Store, *queues: str, parked: Sequence[str] = ()) -> asyncio.Task[Wake]:
    return asyncio.create_task(store.wait(list(queues or ["default"]), timeout=MINUTE, parked=parked))


async def full_one(store: Store, **facts: Any) -> Job:
    """A queue of which as many run as may, with two more that are ready."""
    await limit(store, max_running=1)
    await add(store, *some(3, **facts))
    (job,) = await take(store, 3)
    await look(store)  # hears of the settings
    return job


async def test_a_queue_at_its_limit_is_no_work(store: Store, clock: ManualClock) -> None:
    job = await full_one(store)
    assert await look(store) is Wake.NOTHING
    assert await look(store, timeout=20) is Wake.NOTHING
    await end(store, job)
    assert await look(store) is Wake.WORK


async def test_a_wait_knows_when_the_next_start_is_allowed(
    store: Store, clock: ManualClock, open_store: OpenStore
) -> None:
    await add(store, *some(3))
    await limit(store, rate="1/s")
    (job,) = await take(store, 3)
    await look(store)  # hears of the settings
    opens = (await fetch(store)).opens_at
    assert opens is not None
    assert await look(store, timeout=5) is Wake.NOTHING
    assert await look(store, timeout=opens - clock.now() + 1) is Wake.WORK
    clock.advance(opens - clock.now())
    assert await look(store) is Wake.WORK
    await end(store, job, throttled(MINUTE))
    other = open_store()  # the end notifies waits of the first one, and a notification may come late
    assert await look(other, timeout=5) is Wake.NOTHING
    assert await look(other, timeout=MINUTE + 1) is Wake.WORK


@pytest.mark.parametrize(
    "ending", [COMPLETED, REMOVED, retryable(), AGAIN, PARKED, RELEASED], ids=lambda e: e.state
)
async def test_a_waiter_is_woken_when_a_running_job_of_a_full_queue_ends(
    store: Store, open_store: OpenStore, ending: Transition
) -> None:
    job = await full_one(store)
    waiting = sleeping(open_store())
    await asleep(waiting)
    await end(store, job, ending)
    assert await asyncio.wait_for(waiting, SOON) is Wake.WORK


async def test_so_it_is_for_jobs_that_ran_before_the_limit_was_set(
    store: Store, open_store: OpenStore
) -> None:
    await add(store, *some(3))
    one, two = await take(store, 2)
    await limit(store, max_running=1)
    other = open_store()
    await look(other)
    waiting = sleeping(other)
    await asleep(waiting)
    await end(store, one)
    await asleep(waiting)
    await end(store, two)
    assert await asyncio.wait_for(waiting, SOON) is Wake.WORK


async def test_the_decision_about_a_lost_job_wakes_a_waiter_too(
    store: Store, open_store: OpenStore, clock: ManualClock
) -> None:
    await full_one(store)
    waiting = sleeping(open_store())
    await asleep(waiting)
    clock.advance(2 * LEASE)
    found = await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())
    await end(store, found.jobs[0], retryable())
    assert await asyncio.wait_for(waiting, SOON) is Wake.WORK


@pytest.mark.parametrize("change", [{"max_running": 2}, {"max_running": None}])
async def test_a_raised_limit_wakes_who_waits(
    store: Store, open_store: OpenStore, change: dict[str, Any]
) -> None:
    await full_one(store)
    other = open_store()
    waiting = sleeping(other)
    await asleep(waiting)
    await limit(store, **change)
    wake = await asyncio.wait_for(waiting, SOON)
    if Wake.SETTINGS not in wake:  # it is work already, and that was told before the news of it
        assert wake is Wake.WORK
        wake = await asyncio.wait_for(sleeping(other), SOON)
    assert Wake.SETTINGS in wake
    assert len(await take(store, 1)) == 1


async def test_an_unchanged_setting_notifies_no_worker(store: Store) -> None:
    await limit(store, max_running=2, rate="1/s")
    await look(store)
    await limit(store, max_running=2, rate="1/s")
    await store.settings("default", limits=LimitChange(throttle=None))
    assert await look(store) is Wake.NOTHING


async def test_a_waiter_knows_when_a_throttled_queue_continues(store: Store, open_store: OpenStore) -> None:
    await add(store, *some(2))
    one, two = await take(store, 2)
    waiting = sleeping(open_store())
    await asleep(waiting)
    await end(store, one, throttled(20 * SECOND))
    assert await asyncio.wait_for(waiting, SOON) is Wake.WORK  # and its fetch says until when to sleep
    del two


async def test_new_jobs_of_a_full_queue_wake_nobody_in_vain_for_ever(store: Store) -> None:
    await full_one(store)
    await add(store, *some(3))
    assert await look(store) is Wake.NOTHING
    assert await counts(store) == {State.AVAILABLE: 5, State.RUNNING: 1}


# ── parked jobs of a full queue ──


async def full_of_parked(store: Store, n: int = 1) -> list[Job]:
    """Of a queue with parked jobs as many run as may: they go to who knows them alone."""
    jobs = some(n + 3)
    await add(store, *jobs)
    for job in await take(store, n + 3):
        await end(store, job, PARKED)
    await limit(store, max_running=n)
    await store.announce(WorkerInfo("knows", "host", 1, 0, (), (jobs[0].task,), 1))
    running = (await fetch(store, worker="knows")).jobs
    assert len(running) == n
    await look(store)  # hears of the settings
    return running


async def test_a_worker_with_the_task_of_parked_jobs_learns_that_their_queue_is_full(store: Store) -> None:
    (job,) = await full_of_parked(store)
    assert (await fetch(store, 9, "other", "default", worker="knows")).kept == ("default",)
    assert (await fetch(store, worker="other")).kept == ()
    await end(store, job)
    found = await fetch(store, worker="knows")
    assert (len(found.jobs), found.kept) == (1, ("default",))
    await limit(store, max_running=None)
    found = await fetch(store, worker="knows")
    assert (len(found.jobs), found.kept) == (2, ())


@pytest.mark.parametrize("change", [{"paused": True}, {"limits": LimitChange.of(throttle="1m")}])
async def test_a_queue_that_no_end_opens_is_not_said_to_be_full(store: Store, change: dict[str, Any]) -> None:
    (job,) = await full_of_parked(store)
    await store.settings("default", **change)
    await end(store, job)
    assert (await fetch(store, worker="knows")).kept == ()


async def test_parked_jobs_are_work_for_who_knows_them_once_there_is_room(store: Store) -> None:
    (job,) = await full_of_parked(store)
    assert await look(store, parked=["default"]) is Wake.NOTHING
    await end(store, job)
    assert await look(store) is Wake.NOTHING
    assert await look(store, parked=["default"]) is Wake.WORK
    await store.settings("default", paused=True)
    await look(store)
    assert await look(store, parked=["default"]) is Wake.NOTHING


async def test_a_worker_with_the_task_of_parked_jobs_is_woken_when_there_is_room(
    store: Store, open_store: OpenStore
) -> None:
    (job,) = await full_of_parked(store)
    others = [sleeping(open_store()) for _ in range(2)]
    await asleep(others[0])
    waiting = sleeping(open_store(), "else", "default", parked=["default"])
    await asleep(waiting)
    await end(store, job, REMOVED)
    assert await asyncio.wait_for(waiting, SOON) is Wake.WORK
    for other in others:
        await asleep(other)
        other.cancel()


async def test_a_cancelled_wait_leaves_its_place_to_the_next_worker_with_the_task(
    store: Store, open_store: OpenStore
) -> None:
    (job,) = await full_of_parked(store)
    gone = open_store()
    first = sleeping(gone, parked=["default"])
    await asleep(first)
    second = sleeping(open_store(), parked=["default"])
    await asleep(second)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await end(store, job, REMOVED)
    assert await asyncio.wait_for(second, SOON) is Wake.WORK


async def test_room_for_several_reaches_all_who_know(store: Store, open_store: OpenStore) -> None:
    running = await full_of_parked(store, 2)
    waits = []
    for _ in range(2):
        waits.append(sleeping(open_store(), parked=["default"]))
        await asleep(waits[-1])
    await store.settle([Settlement(job.lease, REMOVED) for job in running])
    first, _ = await asyncio.wait(waits, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
    assert {wait.result() for wait in first} == {Wake.WORK}
    assert len((await fetch(store, 1, worker="knows")).jobs) == 1
    assert await asyncio.wait_for(asyncio.gather(*waits), SOON) == [Wake.WORK, Wake.WORK]


# ── what is kept ──


async def ended(store: Store, clock: ManualClock, n: int, state: State = State.COMPLETED) -> list[Job]:
    """Jobs that ended one second after the other."""
    jobs = some(n)
    await add(store, *jobs)
    for job in await take(store, n):
        await end(store, job, Transition(state, keep=DAY))
        clock.advance(SECOND)
    return [await the(store, job) for job in jobs]


KEPT = [
    (State.COMPLETED, "keep_finished"),
    (State.CANCELLED, "keep_finished"),
    (State.DEAD, "keep_dead"),
]


@pytest.mark.parametrize(("state", "name"), KEPT)
async def test_a_queue_keeps_as_many_as_it_says(
    store: Store, clock: ManualClock, state: State, name: str
) -> None:
    jobs = await ended(store, clock, 5, state)
    await limit(store, **{name: 3})
    assert (await store.prune(limit=1)).finished == 1
    assert await gone(store, jobs[0])
    assert (await store.prune()).finished == 1
    assert await counts(store) == {state: 3}
    assert (await store.prune(keep_finished=0, keep_dead=0)).finished == 0
    await limit(store, **{name: None})
    assert (await store.prune(keep_finished=1, keep_dead=1)).finished == 2
    assert not await gone(store, jobs[4])


@pytest.mark.parametrize(("state", "name"), KEPT)
async def test_a_queue_keeps_for_as_long_as_it_says(
    store: Store, clock: ManualClock, state: State, name: str
) -> None:
    jobs = await ended(store, clock, 4, state)
    await limit(store, **{f"{name}_for": "3s"})
    assert (await store.prune(limit=1)).finished == 1
    assert (await store.prune()).finished == 1
    assert await gone(store, jobs[1])
    assert not await gone(store, jobs[2])
    clock.advance(SECOND)
    assert (await store.prune()).finished == 1
    other = State.DEAD if state is not State.DEAD else State.COMPLETED
    await ended(store, clock, 1, other)
    clock.advance(MINUTE)
    assert (await store.prune()).finished == 1
    assert await counts(store) == {other: 1}
    assert (await store.prune()).finished == 0


async def test_age_shortens_and_never_lengthens(store: Store, clock: ManualClock) -> None:
    jobs = await ended(store, clock, 3)
    await limit(store, keep_finished_for="10d", keep_finished=1)
    assert (await store.prune()).finished == 2
    clock.advance(DAY)
    assert (await store.prune()).finished == 1
    assert await gone(store, jobs[2])
    assert await counts(store) == {}
