"""Paging: every job is listed exactly once, while jobs are added and removed between pages."""

from __future__ import annotations

from penstock.core.job import State
from penstock.stores.contract import SearchPage, Store
from tests.cases import each
from tests.store.facts import AGAIN, OpenStore, add, end, ids, new, some, take


async def pages(store: Store, limit: int) -> list[SearchPage]:
    found = [await store.list_jobs(limit=limit)]
    while found[-1].next is not None:
        found.append(await store.list_jobs(limit=limit, after=found[-1].next))
    return found


@each("limit", [1, 2, 5, 6, 7])
async def test_all_pages_together_are_the_list(store: Store, limit: int) -> None:
    jobs = some(6)
    await add(store, *jobs)
    found = await pages(store, limit)
    assert [job.id for page in found for job in page.jobs] == ids(jobs[::-1])
    assert [len(page.jobs) for page in found[:-1]] == [limit] * (len(found) - 1)


async def test_the_last_page_says_that_it_is_the_last(store: Store) -> None:
    await add(store, *some(6))
    assert len(await pages(store, 3)) == 2  # and no third, empty one
    assert len(await pages(store, 6)) == 1


async def test_with_a_filter_too(store: Store) -> None:
    await add(store, *(new(f"j{n}", task="odd" if n % 2 else "even") for n in range(10)))
    first = await store.list_jobs(task="odd", limit=3)
    assert ids(first.jobs) == ["j9", "j7", "j5"]
    second = await store.list_jobs(task="odd", limit=3, after=first.next)
    assert (ids(second.jobs), second.next) == (["j3", "j1"], None)
    whole = await store.list_jobs(task="odd", limit=5)
    assert (len(whole.jobs), whole.next) == (5, None)  # older jobs there are, but not of this kind


async def test_new_jobs_do_not_shift_the_pages(store: Store) -> None:
    jobs = some(6)
    await add(store, *jobs)
    first = await store.list_jobs(limit=3)
    await add(store, *some(4))
    second = await store.list_jobs(limit=3, after=first.next)
    assert (ids(second.jobs), second.next) == (ids(jobs[2::-1]), None)


async def test_jobs_that_go_do_not_shift_the_pages(store: Store) -> None:
    jobs = some(8)
    await add(store, *jobs)
    first = await store.list_jobs(limit=3)  # 7 6 5
    await store.delete([jobs[7].ref, jobs[5].ref, jobs[4].ref])  # the cursor's own job too
    second = await store.list_jobs(limit=3, after=first.next)
    assert ids(second.jobs) == ids(jobs[3:0:-1])
    third = await store.list_jobs(limit=3, after=second.next)
    assert (ids(third.jobs), third.next) == ([jobs[0].id], None)


async def test_what_becomes_of_jobs_does_not_shift_the_pages(store: Store) -> None:
    jobs = some(6)
    await add(store, *jobs)
    first = await store.list_jobs(limit=3)
    for job in await take(store, 6):
        await end(store, job, AGAIN)
    second = await store.list_jobs(limit=3, after=first.next)
    assert ids(second.jobs) == ids(jobs[2::-1])
    assert {job.state for job in second.jobs} == {State.AVAILABLE}


async def test_a_cursor_past_the_end_finds_nothing(store: Store) -> None:
    jobs = some(4)
    await add(store, *jobs)
    first = await store.list_jobs(limit=2)
    await store.delete([job.ref for job in jobs])
    rest = await store.list_jobs(limit=2, after=first.next)
    assert (rest.jobs, rest.next) == ([], None)


async def test_a_cursor_works_in_every_store_object(store: Store, open_store: OpenStore) -> None:
    jobs = some(4)
    await add(store, *jobs)
    first = await store.list_jobs(limit=2)
    second = await open_store().list_jobs(limit=2, after=first.next)
    assert ids(second.jobs) == ids(jobs[1::-1])


async def test_a_thousand_jobs_in_pages_of_seven(store: Store) -> None:
    jobs = some(1_000)
    await add(store, *jobs)
    await store.delete([job.ref for job in jobs[::3]])
    left = [job.id for n, job in enumerate(jobs) if n % 3]
    found = await pages(store, 7)
    assert [job.id for page in found for job in page.jobs] == left[::-1]
