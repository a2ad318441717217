"""Parked jobs: exact counts per task, and delivery to a worker that has the task."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.stores.contract import Parked, Share, Store, WorkerInfo
from tests.store.facts import (
    LEASE,
    PARKED,
    SECOND,
    OpenStore,
    add,
    counts,
    end,
    ids,
    in_state,
    new,
    one_of_each,
    some,
    take,
    token,
)

KNOWING = WorkerInfo("knowing", "host", 1, 0, ("default",), ("late",), 10)


async def parked(store: Store, *queues_and_tasks: tuple[str, str]) -> None:
    for queue, task in queues_and_tasks:
        await in_state(store, State.PARKED, queue=queue, task=task)


async def test_without_parked_jobs_nothing_is_reported(store: Store) -> None:
    assert await store.parked() == []
    jobs = await one_of_each(store)
    await store.delete([jobs[State.PARKED].ref])
    assert await store.parked() == []


async def test_they_are_counted_by_queue_and_task(store: Store) -> None:
    await parked(store, ("b", "x"), ("a", "y"), ("b", "x"), ("a", "x"), ("a", "Ü"))
    found = [Parked("a", "x", 1), Parked("a", "y", 1), Parked("a", "Ü", 1), Parked("b", "x", 2)]
    assert await store.parked() == found


async def test_the_count_follows_every_step_away(store: Store, clock: ManualClock) -> None:
    spec = {"queue": "default", "task": "late"}
    jobs = [await in_state(store, State.PARKED, **spec) for _ in range(5)]
    jobs.append(await in_state(store, State.PARKED, expires_in=10 * SECOND, **spec))
    assert await store.parked() == [Parked("default", "late", 6)]
    await store.cancel([jobs[0].ref])
    await store.delete([jobs[1].ref])
    await store.retry([jobs[2].ref])
    assert await store.parked() == [Parked("default", "late", 3)]
    clock.advance(10 * SECOND)
    await store.prune()
    assert await store.parked() == [Parked("default", "late", 2)]
    await store.announce(KNOWING)
    assert ids(await take(store, 1, worker="knowing")) == [jobs[3].id], "before what was enqueued for all"
    assert await store.parked() == [Parked("default", "late", 1)]
    await store.purge("default", [State.PARKED])
    assert await store.parked() == []


async def test_namespaces_are_counted_apart(open_store: OpenStore) -> None:
    ours, theirs = open_store(), open_store(namespace="theirs")
    await parked(theirs, ("default", "t"))
    assert await ours.parked() == []
    assert await theirs.parked() == [Parked("default", "t", 1)]


async def test_many_of_a_task_that_nobody_knows_hide_nothing(store: Store) -> None:
    """A worker of an old release beside one of a new one: each gets what it knows, whatever there is of the
    other's, and what nobody knows is set aside once."""
    await add(store, *some(300, task="unknown"), *some(300, task="late", priority=-1))
    await store.announce(KNOWING)
    for job in await take(store, 600, worker="old"):
        await end(store, job, PARKED)
    await add(store, new("known", task="known", priority=-50))
    assert ids(await take(store, 10, worker="old")) == ["known"]
    assert await store.parked() == [Parked("default", "late", 300), Parked("default", "unknown", 300)]
    theirs = await take(store, 600, worker="knowing")
    assert {job.task for job in theirs} == {"late"}
    assert len(theirs) == 300
    assert await take(store, 600, worker="knowing") == []
    assert (await counts(store))[State.PARKED] == 300


async def test_a_worker_takes_them_with_its_first_fetch(store: Store) -> None:
    await parked(store, ("default", "late"), ("other", "late"))
    both = replace(KNOWING, queues=("default", "other"))
    await store.announce(both)
    shares = [Share("default", 1, 9), Share("other", 1, 9)]
    fetched = await store.fetch(shares, limit=9, lease=LEASE, worker="knowing", token=token())
    assert sorted(job.queue for job in fetched.jobs) == ["default", "other"]


async def test_a_queue_handler_takes_all_jobs_of_its_queue_and_no_others(store: Store) -> None:
    await parked(store, ("whole", "x"), ("whole", "y"), ("other", "x"), ("whole", "x"))
    await store.announce(replace(KNOWING, handled=("whole",), queues=("whole", "other")))
    shares = [Share("whole", 9, 9), Share("other", 9, 9)]
    fetched = await store.fetch(shares, limit=9, lease=LEASE, worker="knowing", token=token())
    assert sorted((job.queue, job.task) for job in fetched.jobs) == [
        ("whole", "x"),
        ("whole", "x"),
        ("whole", "y"),
    ]
    assert await store.parked() == [Parked("other", "x", 1)]
    assert (await store.workers())[0].handled == ("whole",)
