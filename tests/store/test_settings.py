"""settings and drop: an operator changes and removes queues."""

from __future__ import annotations

from penstock.core.job import State
from penstock.stores.contract import EnqueueStatus, QueueInfo, Store
from tests.store.facts import OpenStore, add, all_jobs, end, gone, in_state, new, running, take, the


async def test_a_queue_comes_to_be_with_its_first_setting(store: Store) -> None:
    assert await store.settings("q", paused=True) == QueueInfo("q", {}, paused=True)
    assert await store.queues() == [QueueInfo("q", {}, paused=True)]
    assert (await store.stats())[0].name == "q"


async def test_none_leaves_a_switch_as_it_is(store: Store) -> None:
    await store.settings("q", paused=True)
    assert await store.settings("q", closed=True) == QueueInfo("q", {}, paused=True, closed=True)
    assert await store.settings("q") == QueueInfo("q", {}, paused=True, closed=True)
    assert await store.settings("q", paused=False) == QueueInfo("q", {}, closed=True)
    assert await store.settings("q", closed=False) == QueueInfo("q", {})
    assert await store.settings("new") == QueueInfo("new", {})


async def test_the_answer_has_the_counts(store: Store) -> None:
    await add(store, new(), new(delay=5))
    info = await store.settings("default", paused=True)
    assert info.counts == {State.AVAILABLE: 1, State.SCHEDULED: 1}
    assert info.oldest_available is not None
    assert await store.queues() == [info]


async def test_settings_are_those_of_one_queue_and_last(store: Store, open_store: OpenStore) -> None:
    await add(store, new(queue="a"), new(queue="b"))
    await store.settings("a", paused=True, closed=True)
    other = open_store()
    a, b = await other.queues()
    assert (a.paused, a.closed, b.paused, b.closed) == (True, True, False, False)
    assert len(await take(other, 9, "b")) == 1
    assert await take(other, 9, "a") == []
    (answer,) = await other.enqueue([new(queue="a")])
    assert answer.status is EnqueueStatus.CLOSED


async def test_a_running_job_goes_on_in_a_paused_queue(store: Store) -> None:
    job = await running(store)
    await store.settings("default", paused=True)
    assert await the(store, job) == job


# ── drop ──


async def test_an_empty_queue_is_dropped_with_its_settings_and_statistics(store: Store) -> None:
    await end(store, await running(store))
    await store.settings("default", paused=True, closed=True)
    await store.purge("default", list(State))
    assert await store.drop("default")
    assert await store.queues() == []
    assert await store.stats() == []
    await add(store, new())
    assert await store.queues() != []
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed, stats.days) == (1, 0, [])
    assert len(await take(store)) == 1


async def test_a_queue_with_jobs_is_not_dropped(store: Store) -> None:
    for state in State:
        job = await in_state(store, state, queue=state)
        before = await store.queues()
        assert not await store.drop(state)
        assert await the(store, job) == job
        assert await store.queues() == before


async def test_of_a_queue_that_nobody_knows_there_is_nothing_left(store: Store) -> None:
    assert await store.drop("nowhere")
    assert await store.queues() == []


async def test_only_the_named_queue_is_dropped(store: Store) -> None:
    kept = await in_state(store, State.SCHEDULED, queue="a")
    await store.settings("b", paused=True)
    assert await store.drop("b")
    assert await all_jobs(store) == [kept]
    assert [queue.name for queue in await store.queues()] == ["a"]


async def test_generations_go_on_after_a_drop(store: Store) -> None:
    first = await in_state(store, State.AVAILABLE)
    await store.delete([first.ref])
    await store.drop("default")
    again = await in_state(store, State.AVAILABLE)
    assert again.generation > first.generation
    assert await gone(store, first)
