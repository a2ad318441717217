"""A call of a task of one app never becomes a job in the store of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import App, ConfigError, Worker
from penstock.stores.contract import Store
from penstock.workflows import chain, chord, current_flow, group, immutable

ANOTHER = "is a call of another app"


class TwoApps:
    """Two apps: one on the store of the test, and another one."""

    def __init__(self, store: Store) -> None:
        self.app, self.other = App("memory://"), App("memory://")
        self.app.use_store(store)

        @self.app.task
        async def own(x: int = 0) -> None: ...

        @self.other.task
        async def foreign(x: int = 0) -> None: ...

        self.own, self.foreign = own, foreign


@pytest.fixture
def two(store: Store) -> TwoApps:
    return TwoApps(store)


Act = Callable[[TwoApps], Awaitable[Any]]


async def _in_a_thread(two: TwoApps, calls: list[Any]) -> None:
    await asyncio.to_thread(two.app.enqueue_many, calls)


ACTS: dict[str, Act] = {
    "enqueue_many": lambda two: _in_a_thread(two, [two.own.job(), two.foreign.job()]),
    "aenqueue_many": lambda two: two.app.aenqueue_many([two.own.job(), two.foreign.job()]),
    "using": lambda two: two.app.aenqueue_many([two.foreign.using(queue="low").job(1)]),
    "a raw job": lambda two: two.app.aenqueue_many([two.other.raw_job("default", b"x")]),
    "group": lambda two: group([two.own.job(), two.foreign.job()]).aenqueue(),
    "chain": lambda two: chain(two.own.job(), immutable(two.foreign.job())).aenqueue(),
    "chord": lambda two: chord([two.own.job()], immutable(two.foreign.job())).aenqueue(),
    "on_error": lambda two: group([two.own.job()]).on_error(two.foreign.job()).aenqueue(),
    "on_complete": lambda two: group([two.own.job()]).on_complete(two.foreign.job()).aenqueue(),
}


@pytest.mark.parametrize("act", ACTS)
async def test_a_call_of_another_app_is_refused_and_nothing_is_stored(
    store: Store, two: TwoApps, act: str
) -> None:
    with pytest.raises(ConfigError, match=ANOTHER):
        await ACTS[act](two)
    assert not await store.queues()
    assert not await two.other.store.queues()
    assert not (await store.list_flows()).flows


async def test_a_running_job_adds_and_gathers_jobs_of_its_own_app_only(store: Store, two: TwoApps) -> None:
    told: list[str] = []

    @two.app.task
    async def adds() -> None:
        try:
            await current_flow().add(two.foreign.job())
        except ConfigError as error:
            told.append(str(error))
        await current_flow().add(two.own.job(1))

    @two.app.task(max_attempts=1)
    async def gathers() -> None:
        try:
            await current_flow().gather([two.foreign.job(1)])
        except ConfigError as error:
            told.append(str(error))

    await group([adds.job()]).aenqueue()
    await gathers.aenqueue()
    await Worker(two.app, burst=True).run()
    assert len(told) == 2
    assert all(ANOTHER in text for text in told)
    assert not await two.other.store.queues()


async def test_schedules_and_handles_take_tasks_of_their_own_app_only(two: TwoApps) -> None:
    with pytest.raises(ConfigError, match=ANOTHER):
        two.app.periodic(every="1h", task=two.foreign)
    with pytest.raises(ConfigError, match=ANOTHER):
        two.app.periodic(every="1h", task=two.foreign.using(queue="low"))
    with pytest.raises(ConfigError, match="is a task of another app"):
        two.app.handle("some-id", task=two.foreign)
    handle = await two.foreign.aenqueue()
    with pytest.raises(ConfigError, match="is another app's"):
        await two.app.aresults([handle])


async def test_an_app_takes_calls_that_were_made_before_its_store_was_changed(store: Store) -> None:
    app = App("memory://")

    @app.task
    async def work(x: int) -> None: ...

    call = work.job(1)
    app.use_store(store)
    (handle,) = await app.aenqueue_many([call])
    assert await store.get([handle.ref]) != [None]
