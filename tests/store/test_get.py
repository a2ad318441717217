"""get: returns the jobs as they are now."""

from __future__ import annotations

from penstock.core.job import Ref, State
from penstock.stores.contract import Store
from tests.cases import each
from tests.store.facts import add, in_state, new, some


async def test_what_is_not_there_is_none(store: Store) -> None:
    assert await store.get([Ref("default", "nobody"), Ref("no-such-queue", "x")]) == [None, None]
    assert await store.queues() == []  # asking makes no queue


async def test_nothing_asked_is_nothing_answered(store: Store) -> None:
    assert await store.get([]) == []


async def test_answers_come_in_the_order_of_the_questions(store: Store) -> None:
    a, b = some(2)
    await add(store, a, b)
    asked = [b.ref, Ref("default", "nobody"), a.ref, b.ref]
    found = await store.get(asked)
    assert [job and job.spec for job in found] == [b, None, a, b]


async def test_a_ref_names_its_queue(store: Store) -> None:
    await add(store, new("same", queue="a", task="one"), new("same", queue="b", task="two"))
    found = await store.get([Ref("b", "same"), Ref("a", "same"), Ref("c", "same")])
    assert [job and job.task for job in found] == ["two", "one", None]


@each("state", State)
async def test_a_job_is_found_in_every_state(store: Store, state: State) -> None:
    job = await in_state(store, state)
    (found,) = await store.get([job.ref])
    assert found is not None
    assert found.state is state
    assert found.ended == (state in {State.COMPLETED, State.CANCELLED, State.DEAD})
    assert (found.token is not None) == (found.worker is not None) == (state is State.RUNNING)


async def test_looking_changes_nothing(store: Store) -> None:
    job = await in_state(store, State.RUNNING)
    assert await store.get([job.ref, job.ref]) == [job, job]
    assert await store.get([job.ref]) == [job]


async def test_many_are_found_at_once(store: Store) -> None:
    jobs = some(1_200)
    await add(store, *jobs)
    found = await store.get([job.ref for job in jobs])
    assert [job and job.spec for job in found] == jobs
