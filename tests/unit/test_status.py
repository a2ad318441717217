"""The status of a job that is not kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.app.app import App
from penstock.core.job import State, Unkept
from penstock.errors import JobNotFound
from penstock.testing import FaultyStore


@pytest.fixture
def app() -> Iterator[App]:
    app = App("memory://")
    yield app
    app.close()


async def test_a_job_that_keeps_nothing_has_ended_once_it_is_gone(app: App) -> None:
    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    handle = await send.aenqueue("you")
    assert await handle.astatus() is State.AVAILABLE
    async with app.take("mail"):
        assert await handle.astatus() is State.RUNNING
    assert await handle.astatus() is handle.status() is Unkept.ENDED
    assert handle.status() == "ended"
    assert handle.status().value == "ended"


async def test_so_says_retention_zero_and_each_handle_of_many(app: App) -> None:
    @app.task(queue="mail", retention=0)
    async def count() -> int:
        return 1

    handles = await app.aenqueue_many([count.job(), count.job()])
    for _ in handles:
        async with app.take("mail"):
            pass
    assert [await handle.astatus() for handle in handles] == ["ended", "ended"]


async def test_who_has_not_enqueued_it_cannot_know(app: App) -> None:
    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    with pytest.raises(JobNotFound):
        app.handle("never-enqueued", "mail", task=send).status()
    handle = await send.aenqueue("you")
    async with app.take("mail"):
        pass
    with pytest.raises(JobNotFound):
        app.handle(handle.id, "mail").status()


async def test_a_job_that_was_kept_and_is_gone_is_not_found(app: App) -> None:
    @app.task(queue="mail")
    async def count() -> int:
        return 1

    handle = await count.aenqueue()
    await app.store.delete([handle.ref])
    with pytest.raises(JobNotFound):
        await handle.astatus()


async def test_a_job_in_the_outbox_has_not_ended() -> None:
    app = App("memory://", outbox=10)
    faults = FaultyStore(app.store)
    app.use_store(faults.store)

    @app.task
    async def send(to: str) -> None: ...

    faults.down()
    try:
        handle = await send.aenqueue("you")
        faults.up()
        await app.store.delete([handle.ref])
        with pytest.raises(JobNotFound):
            await handle.astatus()
    finally:
        app.close()
