"""Periodic jobs are enqueued by any worker: each instant once, without a leader."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.app.periodic import AHEAD, new_entry
from penstock.client.middleware import MiddlewareStack
from penstock.core.clock import ManualClock
from penstock.core.job import NewJob, Ref, State
from penstock.core.schedule import NewEntry, Schedule
from penstock.errors import ConfigError, StoreUnavailable
from penstock.events import JobEnqueued
from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer
from penstock.stores.connect import connect
from penstock.stores.contract import Store
from penstock.testing import FaultyStore
from tests.worker.conftest import Told, at_work, in_a_burst, quick, until

SECOND, MINUTE = 1_000, 60_000
START = 1_700_049_600_000  # 2023-11-15 12:00 UTC


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store(url: str, clock: ManualClock) -> Any:
    made = connect(url, clock=clock)
    yield made
    made.close()


def entry(schedule: Schedule | None = None, *, name: str = "report", **policies: Any) -> NewEntry:
    job = NewJob("", "t", queue=policies.pop("queue", "default"))
    return new_entry(name, job, schedule or Schedule.of(every="1m"), **policies)


def enqueuer(store: Store, *mine: NewEntry, **options: Any) -> PeriodicEnqueuer:
    return PeriodicEnqueuer(store, ["default"], {one.ref: one for one in mine}, **options)


async def due(store: Store) -> list[int]:
    """The instants of all jobs there are, in seconds since the start."""
    page = await store.list_jobs(limit=1_000)
    return sorted((job.run_at - START) // SECOND for job in page.jobs)


# ── the service, with the clock in hand ──────────────────────────────────────────────────────────


async def test_it_puts_the_codes_entries_and_sleeps_until_the_next_instant(
    store: Store, clock: ManualClock
) -> None:
    service = enqueuer(store, entry(by_code=True), entry(queue="other", by_code=True))
    pause = await service.tick()
    assert pause * 1000 + 30_000 + AHEAD >= MINUTE - AHEAD  # no longer than its look
    assert [one.ref for one in (await store.entries()).entries] == [Ref("default", "report")]
    clock.advance(40 * SECOND)
    assert 18.0 <= await service.tick() <= 19.0, "not all workers come at once"
    assert await due(store) == []
    clock.advance(18 * SECOND)
    await service.tick()
    assert await due(store) == [60]
    clock.advance(AHEAD)
    await service.tick()
    assert await due(store) == [60], "and not twice"


async def test_an_idle_one_asks_a_few_times_a_minute(store: Store, clock: ManualClock) -> None:
    faulty, asked = FaultyStore(store), 0.0
    service = enqueuer(faulty.store, entry(Schedule.of("@yearly"), by_code=True))
    await service.tick()
    faulty.calls.clear()
    while asked < 60:
        asked += await service.tick()
    assert sum(faulty.calls.values()) <= 3


async def test_any_number_of_them_enqueue_each_instant_once(url: str, clock: ManualClock) -> None:
    stores = [connect(url, clock=clock) for _ in range(5)]
    await stores[0].put_entries([entry(Schedule.of(every="1s")), entry(Schedule.of(every="3s"), name="b")])
    services = [enqueuer(store) for store in stores]
    for _ in range(60):
        clock.advance(500)
        await asyncio.gather(*(service.tick() for service in services))
    found = (await stores[0].entries()).entries
    assert [one.enqueued for one in found] == [10, 32], "of 32 s: 30 and what is ahead"
    assert await due(stores[0]) == sorted([*range(1, 33), *range(3, 33, 3)])
    for store in stores:
        store.close()


async def test_entries_that_other_code_registers_are_left_alone(store: Store, clock: ManualClock) -> None:
    await store.put_entries([entry(name="theirs", by_code=True), entry(name="operators")])
    service = enqueuer(store)
    clock.advance(MINUTE)
    await service.tick()
    assert [job.id for job in (await store.list_jobs()).jobs] == ["operators@2023-11-15T12:01:00Z"]


async def test_one_that_was_late_tries_again_at_once(store: Store, clock: ManualClock) -> None:
    quicker = [enqueuer(store)]

    class Slow(PeriodicEnqueuer):
        async def _apply(self, *args: Any) -> list[float]:
            if quicker:
                await quicker.pop().tick()
            return await super()._apply(*args)

    await store.put_entries([entry()])
    service = Slow(store, ["default"], {})
    clock.advance(MINUTE)
    assert await service.tick() == 0.0
    assert await due(store) == [60]
    assert await service.tick() == 30.0


async def test_middleware_sees_the_jobs_but_does_not_move_them(store: Store, clock: ManualClock) -> None:
    await store.put_entries([entry()])
    told: list[NewJob] = []
    service = enqueuer(
        store,
        rewrite=lambda new: replace(new, id="x", queue="y", delay=5, headers={"trace": "1"}),
        on_enqueued=told.append,
    )
    clock.advance(MINUTE)
    await service.tick()
    (job,) = (await store.list_jobs()).jobs
    assert (job.ref, job.run_at) == (Ref("default", "report@2023-11-15T12:01:00Z"), START + MINUTE)
    assert job.spec.headers == {"trace": "1"}
    assert told == [job.spec]


async def test_one_entry_that_cannot_be_reckoned_stops_no_other(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    strange = replace(entry(name="strange"), schedule=Schedule("@daily", "Atlantis/Capital"))
    await store.put_entries([strange, entry()])
    clock.advance(MINUTE)
    assert await enqueuer(store).tick() == 5.0
    assert await due(store) == [60]
    assert "the periodic entry 'strange' is skipped: tz='Atlantis/Capital'" in caplog.text


async def test_failing_middleware_is_reported_and_its_job_is_enqueued_later(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    failing = [True]

    def rewrite(new: NewJob) -> NewJob:
        if failing:
            raise ValueError(failing.pop())
        return new

    await store.put_entries([entry()])
    service = enqueuer(store, rewrite=rewrite)
    clock.advance(MINUTE)
    assert await service.tick() == 5.0
    assert "its middleware around enqueues failed" in caplog.text
    await service.tick()
    assert await due(store) == [60]


UNSTORABLE = [
    ({"headers": {"tries": 1}}, "Expected `str`, got `int`"),
    ({"priority": 1_000}, "priority=1000"),
    ({"timeout": 2**70}, "cannot be stored"),
    ({"retention": 2**63 - 1}, "retention="),
    ({"max_attempts": 0}, "max_attempts=0"),
]


@pytest.mark.parametrize(("facts", "why"), UNSTORABLE)
async def test_what_middleware_makes_of_a_periodic_job_is_checked_as_by_enqueue(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture, facts: dict[str, Any], why: str
) -> None:
    await store.put_entries([entry(name="odd"), entry()])
    stack = MiddlewareStack()
    stack.add_enqueue(lambda new: replace(new, **facts) if new.id.startswith("odd@") else new)
    service = enqueuer(store, rewrite=stack.rewrite)
    clock.advance(MINUTE)
    assert await service.tick() == 5.0
    assert [job.id for job in (await store.list_jobs()).jobs] == ["report@2023-11-15T12:01:00Z"]
    assert "the periodic entry 'odd' is skipped" in caplog.text
    assert why in caplog.text


@pytest.mark.parametrize(("facts", "why"), UNSTORABLE)
def test_an_entry_whose_jobs_no_enqueue_would_take_is_refused(facts: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"the periodic entry 'report'.*{why}"):
        new_entry("report", replace(NewJob("", "t"), **facts), Schedule.of(every="1m"))


async def test_a_store_that_is_away_is_ridden_out(store: Store, clock: ManualClock) -> None:
    faulty = FaultyStore(store)
    service = enqueuer(faulty.store, entry(by_code=True), look=0.02)
    for verb in ("put_entries", "entries", "tick"):
        faulty.fail(verb)
    running = asyncio.create_task(service.run())
    try:
        await until(lambda: faulty.calls["entries"] > 2, "it has looked")
        clock.advance(MINUTE)
        await until(lambda: _some(store), "the job is there")
    finally:
        service.stop()
        await running


async def test_a_lost_reply_enqueues_nothing_twice(store: Store, clock: ManualClock) -> None:
    faulty = FaultyStore(store)
    service = enqueuer(faulty.store, entry(by_code=True))
    await service.tick()
    clock.advance(MINUTE)
    faulty.lose_reply("tick")
    with contextlib.suppress(StoreUnavailable):
        await service.tick()
    await service.tick()
    assert await due(store) == [60]


async def _some(store: Store) -> bool:
    return bool((await store.list_jobs()).jobs)


# ── in a worker ──────────────────────────────────────────────────────────────────────────────────


def ticking(app: App) -> list[str]:
    """An app with a task for each second; the ids of its jobs that have run."""
    ran: list[str] = []

    @app.periodic(every="1s")
    @app.task(name="tick")
    async def tick() -> None:
        ran.append(current_job().id)

    return ran


@pytest.mark.slow
async def test_a_worker_runs_what_recurs(app: App) -> None:
    ran, told = ticking(app), Told(app)
    async with at_work(app):
        await until(lambda: len(ran) >= 3, "it has run three times")
    assert len(set(ran)) == len(ran)
    assert all(id.startswith("tick@20") for id in ran)
    await until(lambda: len(told.of(JobEnqueued)) >= 3, "listeners hear of them")


async def test_a_burst_does_what_there_is_and_enqueues_nothing(app: App) -> None:
    ran = ticking(app)
    await in_a_burst(app)
    assert ran == []
    assert (await app.store.entries()).entries == []


@pytest.mark.slow
async def test_an_entry_made_at_run_time_is_obeyed_at_once(app: App, new_app: Callable[[], App]) -> None:
    ran: list[str] = []

    @app.task(name="t")
    async def t() -> None:
        ran.append(current_job().id)

    async with at_work(app, config=quick()):
        await asyncio.sleep(0.2)  # it waits by now
        (made,) = await new_app().store.put_entries([entry(Schedule.of(every="1s"))])
        await until(lambda: len(ran) >= 2, "it runs, long before the next look")
        await app.store.pause_entries([made.ref], True)
        await asyncio.sleep(AHEAD / 1000 + 0.2)  # what was enqueued ahead
        then = len(ran)
        await asyncio.sleep(1.2)
        assert len(ran) == then
    counts = (await app.store.queues())[0].counts
    assert counts.get(State.SCHEDULED, 0) == 0
