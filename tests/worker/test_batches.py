"""Batches in a worker: the function gets a list, and its outcome applies to all members."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.app.app import App
from penstock.client.handle import Handle
from penstock.core.job import Job, State
from penstock.errors import JobDead
from penstock.events import JobDied, JobFailed, JobStarted
from tests.worker.conftest import Told, at_work, in_a_burst, until
from tests.worker.task_bodies import COLLECTED, collect, made


def collecting(app: App, run_in: str) -> Any:
    return made(app, run_in, collect, batch=COLLECTED, retry="1ms", max_attempts=2)


async def the_batch(app: App, member: Handle[Any]) -> Handle[Any]:
    job = await member.ajob()
    assert job is not None
    assert job.batch is not None
    return app.handle(job.batch, queue=job.queue)


async def test_the_function_gets_a_list_of_what_was_enqueued_one_by_one(app: App, run_in: str) -> None:
    task = collecting(app, run_in).using(batch_key="customer-7")
    async with at_work(app):
        handles = await app.aenqueue_many([task.job(item) for item in "abcd"])
        assert [await handle.aresult(60) for handle in handles] == [None] * 4
    full, late = await the_batch(app, handles[0]), await the_batch(app, handles[3])
    ids = [handle.id for handle in handles]
    assert await full.aresult(60) == {
        "items": ["a", "b", "c"],
        "batch_key": "customer-7",
        "members": ids[:3],
        "attempt": 1,
    }
    assert (await late.aresult(60))["items"] == ["d"]
    (stats,) = await app.store.stats()
    assert (stats.enqueued, stats.processed, stats.failed) == (4, 2, 0)


async def test_a_batch_is_tried_again_as_a_whole(app: App, run_in: str) -> None:
    task = collecting(app, run_in)
    async with at_work(app):
        handles = await app.aenqueue_many([task.job(item) for item in ("a", "fail once", "b")])
        assert [await handle.aresult(60) for handle in handles] == [None] * 3
    batch = await the_batch(app, handles[0])
    result = await batch.aresult(60)
    assert (result["items"], result["attempt"]) == (["a", "fail once", "b"], 2)
    job = await batch.ajob()
    assert job is not None
    assert [error.message for error in job.errors] == ["one of them is wrong"]


async def test_a_batch_is_dead_as_a_whole_and_comes_back_as_a_whole(app: App, run_in: str) -> None:
    task = collecting(app, run_in)
    async with at_work(app):
        handles = await app.aenqueue_many([task.job(item) for item in ("a", "dead", "b")])
        for handle in handles:
            with pytest.raises(JobDead, match="with its batch"):
                await handle.aresult(10)
        assert await handles[0].aretry() is State.DEAD
        with pytest.raises(JobDead):
            await (await the_batch(app, handles[2])).aresult(10)
    (info,) = await app.store.queues()
    assert info.counts == {State.DEAD: 4}


async def test_middleware_callbacks_and_events_see_the_batch(app: App) -> None:
    told = Told(app)
    task, seen = collecting(app, "async"), list[tuple[str, tuple[str, ...]]]()

    @app.around_attempt
    async def look(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(("attempt", job.members))
        return await call()

    @app.on_dead
    def mourn(job: Job, error: BaseException) -> None:
        seen.append(("dead", job.members))

    handles = await app.aenqueue_many([task.job(item) for item in ("a", "dead", "b")])
    await in_a_burst(app)
    members = tuple(handle.id for handle in handles)
    assert seen == [("attempt", members), ("attempt", members), ("dead", members)]
    await until(lambda: bool(told.of(JobDied)), "its end is told")
    batch = await the_batch(app, handles[0])
    assert {event.id for kind in (JobStarted, JobFailed, JobDied) for event in told.of(kind)} == {batch.id}


async def test_a_payload_that_fits_not_is_dead_with_its_whole_batch(app: App) -> None:
    task = collecting(app, "async")
    handles = await app.aenqueue_many([task.job(item) for item in "ab"])
    odd = task.job("c").new()
    await app.store.enqueue([replace(odd, payload=b"5")])
    await in_a_burst(app)
    for id in (handles[0].id, odd.id):
        with pytest.raises(JobDead, match="collect"):
            await app.handle(id, queue="default").aresult(10)
