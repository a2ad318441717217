"""The jobs of a queue in one state, in the order in which they leave it."""

from __future__ import annotations

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import Partition, Tenant
from penstock.errors import ConfigError
from penstock.stores.contract import MOST_FOUND, JobFilter, JobOrder, Settlement, Store
from tests.cases import case, each
from tests.store.facts import (
    AGAIN,
    DEAD,
    KEEP,
    MINUTE,
    RELEASED,
    SECOND,
    OpenStore,
    add,
    counts,
    end,
    ids,
    in_state,
    member,
    new,
    next_jobs,
    retryable,
    snoozed,
    some,
    take,
    the,
)

STATES = (
    State.AVAILABLE,
    State.SCHEDULED,
    State.RETRYABLE,
    State.SUSPENDED,
    State.COMPLETED,
    State.CANCELLED,
    State.DEAD,
)


async def listed(
    store: Store, state: State = State.AVAILABLE, *, limit: int = 50, after: str | None = None
) -> list[Job]:
    """All jobs of a state, page by page."""
    jobs: list[Job] = []
    while True:
        page = await next_jobs(store, state=state, limit=limit, after=after)
        assert len(page.jobs) <= limit
        jobs += page.jobs
        if (after := page.next) is None:
            return jobs


async def drained(store: Store) -> list[str]:
    """The ids in the order in which a worker gets them."""
    found: list[str] = []
    while jobs := await take(store, 100):
        found += ids(jobs)
    return found


# ── the head of a queue ──


async def test_the_head_is_what_a_fetch_takes_next(store: Store) -> None:
    first, second = some(2)
    await add(store, first, second)
    page = await next_jobs(store, limit=1)
    assert ids(page.jobs) == [first.id]
    assert page.jobs == [await the(store, first)]
    assert await counts(store) == {State.AVAILABLE: 2}
    assert ids(await take(store, 1)) == [first.id]
    assert ids((await next_jobs(store, limit=1)).jobs) == [second.id]


async def test_an_empty_queue_has_no_head(store: Store) -> None:
    for state in STATES:
        page = await next_jobs(store, "nowhere", state=state)
        assert (page.jobs, page.next) == ([], None)
    assert await store.queues() == []


@each("limit", [1, 2, 5, 100])
async def test_the_order_is_that_of_a_fetch(store: Store, clock: ManualClock, limit: int) -> None:
    """Jobs of several priorities, new, released, again available, promoted, retried and rescheduled."""
    await add(store, *(new(priority=n % 3 - 1, delay=SECOND if n % 7 == 0 else 0) for n in range(40)))
    busy = await take(store, 12)
    await store.settle([Settlement(job.lease, RELEASED if n % 2 else AGAIN) for n, job in enumerate(busy)])
    clock.advance(SECOND)
    await store.promote(["default"], limit=3)
    await add(store, *some(5, priority=1), *some(5))
    await store.promote(["default"], limit=3)
    some_jobs = await listed(store)
    await store.retry([some_jobs[3].ref, some_jobs[20].ref])
    await store.reschedule([some_jobs[7].ref])
    order = ids(await listed(store, limit=limit))
    assert order == await drained(store)
    assert len(order) == 50


@each("limit", [1, 3, 100])
async def test_the_order_is_that_of_a_fair_fetch(store: Store, limit: int) -> None:
    await add(store, *some(3))
    for key, n in (("a", 6), ("b", 3), ("c", 1)):
        await add(store, *some(n, tenant=Tenant(key, 1)))
    order = ids(await listed(store, limit=limit))
    assert order == await drained(store)


async def test_thousands_are_listed_in_pages(store: Store) -> None:
    jobs = some(2_500)
    await add(store, *jobs)
    await store.delete([job.ref for job in jobs[::5]])
    busy = await take(store, 30)
    await store.settle([Settlement(job.lease, RELEASED) for job in busy[10:]])
    left = [job.id for n, job in enumerate(jobs) if n % 5]
    assert ids(await listed(store, limit=700)) == left[10:]


async def test_a_page_is_bounded(store: Store) -> None:
    await add(store, *some(MOST_FOUND + 1))
    page = await store.search(JobFilter(("default",)), JobOrder.READY, descending=False, limit=10**9)
    assert 100 < len(page.jobs) <= MOST_FOUND
    assert len((await next_jobs(store)).jobs) == 50
    assert len((await next_jobs(store, limit=0)).jobs) == 1


async def test_large_jobs_are_listed(store: Store) -> None:
    jobs = some(5, payload=b"x" * 700_000)
    await add(store, *jobs)
    assert ids(await listed(store)) == ids(jobs)


async def test_the_last_page_says_that_it_is_the_last(store: Store) -> None:
    await add(store, *some(4))
    first = await next_jobs(store, limit=2)
    second = await next_jobs(store, limit=2, after=first.next)
    assert (len(second.jobs), second.next) == (2, None)


async def test_a_waiting_job_is_not_at_the_head(store: Store) -> None:
    partition = Partition("device-7")
    first, second, third = new(partition=partition), new(partition=partition), new()
    await add(store, first, second, third)
    assert ids(await listed(store)) == [first.id, third.id]


# ── later, and ended ──


@each("limit", [1, 2, 50])
async def test_scheduled_jobs_come_in_the_order_of_their_times(store: Store, limit: int) -> None:
    late, soon, later, same = new(delay=9), new(delay=3), new(delay=20), new(delay=3)
    await add(store, late, soon, later, same)
    retried = new(priority=1)
    await add(store, retried, member(delay=1), member())
    (job,) = await take(store)
    await end(store, job, retryable(5))
    shown = [job for job in await listed(store, State.SCHEDULED, limit=limit) if not job.is_member]
    assert ids(shown) == [soon.id, same.id, late.id, later.id]
    assert ids(await listed(store, State.RETRYABLE, limit=limit)) == [retried.id]


async def test_the_jobs_of_one_state_are_found_behind_thousands_of_another(store: Store) -> None:
    await add(store, *some(2_100, delay=MINUTE), new("busy"))
    (job,) = await take(store)
    await end(store, job, retryable(2 * MINUTE))
    assert ids(await listed(store, State.RETRYABLE)) == ["busy"]


@each("limit", [1, 3, 50])
async def test_dead_jobs_come_in_the_order_of_their_deaths(
    store: Store, clock: ManualClock, limit: int
) -> None:
    await add(store, *some(7))
    jobs = await take(store, 7)
    died = [jobs[n] for n in (4, 1, 6, 0)]
    for job in died:
        clock.advance(1)
        await end(store, job, DEAD)
    clock.advance(1)
    await store.settle([Settlement(jobs[n].lease, DEAD) for n in (5, 2, 3)])  # in one instant: as enqueued
    order = [*ids(died), *ids([jobs[2], jobs[3], jobs[5]])]
    assert ids(await listed(store, State.DEAD, limit=limit)) == order


async def test_many_that_died_in_one_instant_are_listed_once(store: Store) -> None:
    await add(store, *some(1_200))
    jobs = await take(store, 1_200)
    await store.settle([Settlement(job.lease, DEAD) for job in reversed(jobs)])
    assert ids(await listed(store, State.DEAD, limit=500)) == ids(jobs)


@each("state", STATES)
async def test_a_listed_job_is_whole(store: Store, state: State) -> None:
    job = await in_state(store, state)
    await in_state(store, State.DEAD, queue="other")
    assert await listed(store, state) == [job]


# ── pages, while jobs move ──


async def test_jobs_that_stay_are_listed_once_while_others_move(store: Store) -> None:
    jobs = some(12)
    await add(store, *jobs)
    page = await next_jobs(store, limit=4)
    await take(store, 2)
    await store.delete([jobs[3].ref, jobs[5].ref])
    await store.retry([jobs[6].ref])
    await add(store, new("urgent", priority=5), new("last"))
    rest = ids(await listed(store, limit=3, after=page.next))
    assert rest == [jobs[n].id for n in (4, 7, 8, 9, 10, 11, 6)] + ["last"]


async def test_dead_jobs_that_go_do_not_shift_the_pages(store: Store, clock: ManualClock) -> None:
    await add(store, *some(6))
    jobs = await take(store, 6)
    for job in jobs:
        clock.advance(1)
        await end(store, job, DEAD)
    page = await next_jobs(store, state=State.DEAD, limit=3)
    await store.retry([jobs[2].ref, jobs[3].ref])
    await store.delete([jobs[0].ref])
    assert ids(await listed(store, State.DEAD, limit=1, after=page.next)) == ids(jobs[4:])


async def test_a_cursor_works_in_every_store_object(store: Store, open_store: OpenStore) -> None:
    jobs = some(3)
    await add(store, *jobs)
    page = await next_jobs(store, limit=1)
    assert ids(await listed(open_store(), after=page.next)) == ids(jobs[1:])


# ── what is refused ──


@each("state", sorted(set(State) - set(STATES)))
async def test_a_state_without_an_order_is_refused(store: Store, state: State) -> None:
    with pytest.raises(ConfigError, match="available"):
        await next_jobs(store, state=state)


@pytest.mark.parametrize("filter", [JobFilter(), JobFilter(("a", "b"))])
async def test_several_queues_have_no_ready_order(store: Store, filter: JobFilter) -> None:
    with pytest.raises(ConfigError, match="one queue"):
        await store.search(filter, JobOrder.READY, descending=False)


async def test_the_ready_order_has_one_direction(store: Store) -> None:
    with pytest.raises(ConfigError, match="descending"):
        await store.search(JobFilter(("default",)), JobOrder.READY)


async def test_the_ready_order_filters_as_every_search(store: Store) -> None:
    await add(store, *(new(f"{n}", task="ab"[n % 2], priority=n // 4) for n in range(8)))
    page = await store.search(JobFilter(("default",), task="b"), JobOrder.READY, descending=False, limit=3)
    assert ids(page.jobs) == ["5", "7", "1"]
    for hit, following in zip(page.hits, [["7", "1", "3"], ["1", "3"], ["3"]], strict=True):
        rest = await store.list_jobs(
            queue="default", task="b", order=JobOrder.READY, descending=False, after=hit.after
        )
        assert ids(rest.jobs) == following


async def test_what_is_no_cursor_is_refused(store: Store) -> None:
    await add(store, new())
    for state in STATES:
        for wrong in ("", "x", "1", "1:x:2", "::", "9" * 5_000, "1:" + "9" * 30 + ":3"):
            with case(state, wrong[:9]), pytest.raises(ConfigError, match="cursor"):
                await next_jobs(store, state=state, after=wrong)


@each("wrong", ["1:2:3:4:5", "1:1:zz", "1:2"])
async def test_a_cursor_of_another_order_is_refused(store: Store, wrong: str) -> None:
    await add(store, new())
    with pytest.raises(ConfigError, match="cursor"):
        await next_jobs(store, after=wrong)


async def test_a_job_that_comes_back_later_is_not_at_the_head(store: Store) -> None:
    first, second = some(2)
    await add(store, first, second)
    (job,) = await take(store)
    await end(store, job, snoozed())
    assert ids(await listed(store)) == [second.id]
    await end(store, *(await take(store)), Transition(State.COMPLETED, keep=KEEP))
    assert await listed(store) == []
