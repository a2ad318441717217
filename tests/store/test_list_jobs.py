"""list_jobs and find: the queries of operators."""

from __future__ import annotations

import pytest

from penstock.core.job import State
from penstock.errors import ConfigError
from penstock.stores.contract import Store
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    add,
    all_jobs,
    end,
    ids,
    in_state,
    new,
    some,
    take,
    the,
)


async def test_the_newest_come_first(store: Store) -> None:
    jobs = some(3)
    await add(store, *jobs)
    page = await store.list_jobs()
    assert ids(page.jobs) == ids(jobs[::-1])
    assert page.next is None


async def test_an_empty_store_lists_nothing(store: Store) -> None:
    page = await store.list_jobs()
    assert (page.jobs, page.next) == ([], None)
    assert (await store.list_jobs(queue="nowhere")).jobs == []
    assert await store.queues() == []


async def test_a_listed_job_is_whole(store: Store) -> None:
    job = await in_state(store, State.DEAD)
    assert (await store.list_jobs()).jobs == [job]


async def test_what_becomes_of_a_job_does_not_move_it_in_the_list(store: Store) -> None:
    jobs = some(3)
    await add(store, *jobs)
    (first,) = await take(store)
    await end(store, first, AGAIN)
    await store.retry([jobs[1].ref])
    await store.reschedule([jobs[0].ref], delay=5)
    assert ids(await all_jobs(store)) == ids(jobs[::-1])


@each("state", State)
async def test_by_state(store: Store, state: State) -> None:
    made = [await in_state(store, each, queue=each) for each in State]
    assert await all_jobs(store, state=state) == [job for job in made if job.state is state]
    assert len(await all_jobs(store)) == len(State)


async def test_by_queue_task_and_worker(store: Store) -> None:
    await add(
        store,
        new("1", queue="a", task="x"),
        new("2", queue="b", task="x"),
        new("3", queue="a", task="y"),
        new("4", queue="a", task="x"),
    )
    await take(store, 2, "a", worker="w1")
    await take(store, 1, "b", worker="w2")
    assert ids(await all_jobs(store, queue="a")) == ["4", "3", "1"]
    assert ids(await all_jobs(store, task="x")) == ["4", "2", "1"]
    assert ids(await all_jobs(store, worker="w1")) == ["3", "1"]
    assert ids(await all_jobs(store, queue="a", task="x")) == ["4", "1"]
    assert ids(await all_jobs(store, queue="a", task="x", state=State.RUNNING)) == ["1"]
    assert ids(await all_jobs(store, queue="a", task="x", worker="w1")) == ["1"]
    assert ids(await all_jobs(store, task="x", state=State.RUNNING)) == ["2", "1"]
    assert await all_jobs(store, queue="b", task="y") == []
    assert await all_jobs(store, worker="nobody") == []


async def test_a_worker_has_only_what_it_holds_now(store: Store) -> None:
    await add(store, *some(2))
    first, second = await take(store, 2, worker="w1")
    await end(store, first)
    assert await all_jobs(store, worker="w1") == [await the(store, second)]


async def test_the_limit_is_the_size_of_a_page(store: Store) -> None:
    await add(store, *some(60))
    assert len((await store.list_jobs()).jobs) == 50
    assert len((await store.list_jobs(limit=7)).jobs) == 7
    assert len((await store.list_jobs(limit=1)).jobs) == 1


@each("wrong", ["", "x", "-1", "1.5", "0x1", "²", "1 OR 1=1", "9" * 5_000, "9" * 5_000 + ":q"])
async def test_what_is_no_cursor_is_refused(store: Store, wrong: str) -> None:
    await add(store, new())
    with pytest.raises(ConfigError, match="cursor"):
        await store.list_jobs(after=wrong)


async def test_a_bare_id_is_found_in_every_queue_that_has_it(store: Store) -> None:
    await add(store, new("same", queue="b"), new("same", queue="a"), new("other", queue="a"))
    found = await store.find("same")
    assert [(job.queue, job.id) for job in found] == [("a", "same"), ("b", "same")]
    assert await store.get([job.ref for job in found]) == found
    assert await store.find("nobody") == []
