"""The maintenance services promote, reclaim and prune, with a manual clock."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.app.deciding import Loss
from penstock.core import clock as lease_clock
from penstock.core.clock import ManualClock
from penstock.core.ids import mint_token
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.stats import QueueDepth
from penstock.errors import StoreUnavailable
from penstock.maintenance import promoter as promoting
from penstock.maintenance import reclaimer as reclaiming
from penstock.maintenance import service as services
from penstock.maintenance.housekeeping import DepthSampler, Pruner
from penstock.maintenance.promoter import Promoter
from penstock.maintenance.reclaimer import Reclaimer, ReclaimerSetup, reclaim_all
from penstock.maintenance.service import ProblemLog, Service
from penstock.stores.connect import connect
from penstock.stores.contract import Due, HeartbeatRequest, Resolution, Settlement, Share, Store, WorkerInfo
from penstock.testing import FaultyStore
from tests.worker.conftest import until

LEASE = 15_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(url: str, clock: ManualClock) -> Any:
    made = connect(url, clock=clock)
    yield made
    made.close()


async def leased(store: Store, *jobs: NewJob, to: str = "worker-1") -> list[Job]:
    """These jobs, fetched by somebody."""
    await store.enqueue(jobs)
    queues = [Share(queue, 100, 100) for queue in dict.fromkeys(job.queue for job in jobs)]
    fetched = await store.fetch(queues, limit=100, lease=LEASE, worker=to, token=mint_token())
    assert len(fetched.jobs) == len(jobs)
    return fetched.jobs


async def found(store: Store, id: str, queue: str = "default") -> Job:
    (job,) = await store.get([Ref(queue, id)])
    assert job is not None
    return job


def info(id: str) -> WorkerInfo:
    return WorkerInfo(id, "host", 1, 0, ("default",), (), 20)


# ── reclaimer ────────────────────────────────────────────────────────────────────────────────────


class Court:
    """A reclaimer whose proofs of death the test hands out."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.dead: set[str] = set()
        self.removed: list[str] = []
        self.told: list[tuple[str, str, int]] = []
        settings = {"lease": LEASE, "heartbeat": 5.0, "every": 1.0, **options}
        setup = ReclaimerSetup(
            worker="me",
            queues=("default",),
            proven_dead=lambda _: set(self.dead),
            remove_dead=self._remove_dead,
            on_lost=lambda *told: self.told.append(told),
            **settings,
        )
        self.reclaimer = Reclaimer(store, setup)

    def _remove_dead(self, worker: str) -> bool:
        self.removed.append(worker)
        return True


async def test_an_expired_lease_is_decided_by_the_lifecycle(store: Store, clock: ManualClock) -> None:
    await leased(
        store, NewJob("a", "t"), NewJob("b", "t", max_attempts=1), NewJob("c", "t", at_most_once=True)
    )
    court = Court(store)
    clock.advance(LEASE - 1)
    await court.reclaimer.tick()
    assert {(await found(store, id)).state for id in "abc"} == {State.RUNNING}, "not one ms too early"
    clock.advance(1)
    assert await court.reclaimer.tick() == 1.0
    first = await found(store, "a")
    assert (first.state, first.attempt, first.lost) == (State.AVAILABLE, 1, 1)
    assert [e.kind for e in first.errors] == ["LeaseLost"]
    for id in "bc":  # their start was never put down: they had not begun
        job = await found(store, id)
        assert (job.state, job.attempt, job.lost, job.errors) == (State.AVAILABLE, 0, 1, ())


async def test_what_may_have_begun_and_must_not_begin_again_is_dead(store: Store, clock: ManualClock) -> None:
    jobs = await leased(store, NewJob("b", "t", max_attempts=1), NewJob("c", "t", at_most_once=True))
    await store.extend([HeartbeatRequest(job.lease, LEASE, started=True) for job in jobs])
    clock.advance(LEASE)
    await Court(store).reclaimer.tick()
    for id in "bc":
        job = await found(store, id)
        assert (job.state, job.attempt) == (State.DEAD, 1)


async def test_a_second_loss_waits_as_the_policy_says(store: Store, clock: ManualClock) -> None:
    await leased(store, NewJob("a", "t"))
    court = Court(store)
    for _ in range(2):
        clock.advance(LEASE)
        await court.reclaimer.tick()
        await store.fetch(
            [Share("default", 1, 1)], limit=1, lease=LEASE, worker="worker-2", token=mint_token()
        )
    job = await found(store, "a")
    assert (job.state, job.attempt, job.lost) == (State.RETRYABLE, 2, 2)


async def test_jobs_of_other_queues_are_left_to_those_who_serve_them(
    store: Store, clock: ManualClock
) -> None:
    await leased(store, NewJob("a", "t", queue="other"))
    clock.advance(LEASE)
    await Court(store).reclaimer.tick()
    assert (await found(store, "a", "other")).state is State.RUNNING


async def test_a_worker_proven_dead_loses_its_jobs_at_once_in_all_queues(store: Store) -> None:
    await leased(store, NewJob("a", "t"), NewJob("b", "t", queue="other"), to="deceased")
    await leased(store, NewJob("c", "t"), to="alive")
    for id in ("deceased", "alive", "me"):
        await store.announce(info(id))
    court = Court(store)
    court.dead |= {"deceased", "me"}  # a proof of one's own death would be a mistake
    await court.reclaimer.tick()
    for id, queue in (("a", "default"), ("b", "other")):
        job = await found(store, id, queue)
        assert (job.state, job.attempt) == (State.AVAILABLE, 1)
        assert [(e.kind, e.message) for e in job.errors] == [("WorkerLost", "worker deceased died")]
    assert (await found(store, "c")).state is State.RUNNING
    assert sorted(i.id for i in await store.workers()) == ["alive", "me"]
    assert court.removed == ["deceased"]
    assert court.told == [("deceased", "worker deceased died", 2)]


class Steady:
    """The reclaimer's own clock, in the test's hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        patch.setattr(reclaiming, "time", self)
        patch.setattr(lease_clock, "lease_seconds", self.monotonic)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Steady:
    return Steady(monkeypatch)


@pytest.mark.parametrize(
    ("lease", "heartbeat", "every", "away"), [(15_000, 5.0, 1.0, 20.0), (1_000, 0.3, 0.2, 0.8)]
)
async def test_a_reclaimer_waits_one_heartbeat_after_its_own_outage(
    store: Store, clock: ManualClock, steady: Steady, lease: int, heartbeat: float, every: float, away: float
) -> None:
    """Stopped for so long that a lease may have run out meanwhile: its holder may have been stopped too."""
    await leased(store, NewJob("a", "t"))
    judge = Court(store, lease=lease, heartbeat=heartbeat, every=every).reclaimer
    await judge.tick()
    clock.advance(LEASE)
    steady.now += away
    back = steady.now
    while steady.now - back < heartbeat:
        await judge.tick()
        assert (await found(store, "a")).state is State.RUNNING
        steady.now += every
    while steady.now - back < 2 * heartbeat + every:
        await judge.tick()
        steady.now += every
    assert (await found(store, "a")).state is State.AVAILABLE


async def test_so_does_who_found_no_store(store: Store, clock: ManualClock, steady: Steady) -> None:
    faults = FaultyStore(store)
    await leased(store, NewJob("a", "t"))
    judge = Court(faults.store).reclaimer
    clock.advance(LEASE)
    faults.down()
    with pytest.raises(StoreUnavailable):
        await judge.tick()
    faults.up()
    await judge.tick()
    assert (await found(store, "a")).state is State.RUNNING
    for _ in range(10):
        steady.now += 1.0
        await judge.tick()
    assert (await found(store, "a")).state is State.AVAILABLE


async def test_a_full_batch_is_followed_by_the_next_at_once(store: Store, clock: ManualClock) -> None:
    await leased(store, *(NewJob(f"j{i}", "t") for i in range(5)))
    clock.advance(LEASE)
    court = Court(store, batch=2)
    pauses = [await court.reclaimer.tick() for _ in range(3)]
    assert pauses == [0.0, 0.0, 1.0]
    assert {(await found(store, f"j{i}")).state for i in range(5)} == {State.AVAILABLE}


async def test_jobs_reclaimed_without_a_decision_are_reclaimed_again(
    store: Store, clock: ManualClock, steady: Steady
) -> None:
    faults = FaultyStore(store)
    await leased(store, NewJob("a", "t"))
    clock.advance(LEASE)
    judge = Court(faults.store).reclaimer
    faults.fail("settle")
    with pytest.raises(StoreUnavailable):
        await judge.tick()
    job = await found(store, "a")
    assert (job.state, job.worker) == (State.RUNNING, "me")
    clock.advance(LEASE)
    for _ in range(10):
        await judge.tick()
        steady.now += 1.0
    job = await found(store, "a")
    assert (job.state, job.attempt, job.lost) == (State.AVAILABLE, 1, 1)


async def test_a_job_known_as_unstarted_is_not_charged(store: Store) -> None:
    await leased(store, NewJob("a", "t"), NewJob("b", "t"), to="deceased")
    loss = Loss("WorkerLost", "it died", started=lambda job: job.id == "a")
    jobs = await reclaim_all(store, "deceased", by="me", lease=LEASE, loss=loss)
    assert sorted(job.id for job in jobs) == ["a", "b"]
    assert (await found(store, "a")).attempt == 1
    fresh = await found(store, "b")
    assert (fresh.state, fresh.attempt, fresh.errors) == (State.AVAILABLE, 0, ())


# ── promoter ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def one_clock(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The store's clock, which the promoter's own follows."""
    monkeypatch.setattr(promoting, "time", SimpleNamespace(monotonic=lambda: clock.now() / 1_000))
    return clock


async def test_the_promoter_sleeps_until_the_next_due_instant(store: Store, one_clock: ManualClock) -> None:
    clock = one_clock
    await store.enqueue([NewJob("a", "t", delay=1_500), NewJob("b", "t", delay=60_000)])
    promoter = Promoter(store, ["default"])
    assert 1.49 < await promoter.tick() <= 1.5
    clock.advance(1_499)
    assert 0.0 < await promoter.tick() <= 0.001
    assert (await found(store, "a")).state is State.SCHEDULED
    clock.advance(1)
    assert await promoter.tick() == 5.0, "it looks at least every five seconds"
    assert (await found(store, "a")).state is State.AVAILABLE
    assert (await found(store, "b")).state is State.SCHEDULED


async def test_a_promoter_with_more_than_a_batch_goes_on_at_once(store: Store, clock: ManualClock) -> None:
    await store.enqueue([NewJob(f"j{i}", "t", delay=10) for i in range(5)])
    clock.advance(10)
    promoter = Promoter(store, ["default"], batch=2)
    assert [await promoter.tick() for _ in range(3)] == [0.0, 0.0, 5.0]


async def test_an_expectation_moves_the_promoter_only_if_it_is_earlier(
    store: Store, one_clock: ManualClock
) -> None:
    clock = one_clock
    await store.enqueue([NewJob("a", "t", delay=2_000)])
    promoter = Promoter(store, ["default"])
    await promoter.tick()
    planned = promoter._wakes_at
    promoter.expect(clock.now() + 3_000, clock.now())
    assert promoter._wakes_at == planned
    promoter.expect(clock.now() + 500, clock.now())
    assert planned - 1.6 < promoter._wakes_at < planned - 1.4
    promoter._timer.close()


async def test_an_expectation_during_a_promotion_is_kept(one_clock: ManualClock) -> None:
    clock = one_clock

    class Slow:
        async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
            promoter.expect(clock.now(), clock.now())  # this promotion does it
            promoter.expect(clock.now() + 500, clock.now())
            return Due(0, clock.now() + 2_000, clock.now())

    promoter = Promoter(cast(Store, Slow()), ["default"])
    assert 0.4 < await promoter.tick() <= 0.5


# ── pruner ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_pruner_takes_small_steps_often_while_there_is_much_to_do(
    store: Store, clock: ManualClock
) -> None:
    jobs = await leased(store, *(NewJob(f"j{i}", "t") for i in range(5)))
    done = Transition(State.COMPLETED, keep=1_000)
    await store.settle([Settlement(job.lease, done) for job in jobs])
    pruner = Pruner(store, every=10.0, batch=2)
    assert await pruner.tick() == 10.0
    clock.advance(1_000)
    assert [await pruner.tick() for _ in range(3)] == [0.05, 0.05, 10.0]
    assert await store.get([job.ref for job in jobs]) == [None] * 5


async def test_the_pruner_keeps_the_newest_up_to_the_limit(store: Store) -> None:
    jobs = await leased(store, *(NewJob(f"j{i}", "t") for i in range(4)))
    for job in jobs:
        await store.settle([Settlement(job.lease, Transition(State.COMPLETED, keep=60_000))])
    await Pruner(store, keep_finished=3).tick()
    assert len((await store.list_jobs(state=State.COMPLETED)).jobs) == 3


# ── depth sampler ────────────────────────────────────────────────────────────────────────────────


async def test_the_depths_of_queues_are_sampled_soon_after_each_minute_begins(
    store: Store, clock: ManualClock
) -> None:
    await store.enqueue([NewJob("a", "t")])
    clock.advance(60_000 - clock.now() % 60_000 + 20_000)
    for _ in range(3):
        pause = await DepthSampler(store).tick()
        assert 40.0 < pause <= 45.0, "two samplers make one sample"
        assert 40.0 < await DepthSampler(store).tick() <= 45.0
        clock.advance(60_000)
    (row,) = (await store.read_depths(Resolution.DAY, span=1)).rows
    assert row.depth == QueueDepth(3, 3, 0, 0, 1, 1)


# ── the life of every loop ───────────────────────────────────────────────────────────────────────


class Loop(Service):
    """A service that does as it is told."""

    name = "loop"

    def __init__(self, *pauses: float | Exception) -> None:
        super().__init__()
        self.left = list(pauses)
        self.ticks = 0

    async def tick(self) -> float:
        self.ticks += 1
        pause = self.left.pop(0) if self.left else 3_600.0
        if isinstance(pause, Exception):
            raise pause
        return pause


class Slept(Loop):
    """Its pauses are noted, not slept."""

    def __init__(self, *pauses: float | Exception) -> None:
        super().__init__(*pauses)
        self.slept: list[float] = []

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self.left:
            self.stop()


async def test_a_store_that_is_away_delays_the_next_tick_more_and_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    away = [StoreUnavailable("away") for _ in range(8)]
    loop = Slept(*away, 1.0, StoreUnavailable("away"))
    await loop.run()
    assert loop.slept == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2]


async def test_a_wake_brings_the_next_tick_forward() -> None:
    loop = Loop()
    run = asyncio.create_task(loop.run())
    await until(lambda: loop.ticks == 1, "it ticks")
    loop.wake()
    await until(lambda: loop.ticks == 2, "it ticks again")
    loop.stop()
    await run


async def test_a_wake_during_a_tick_is_not_lost() -> None:
    class WokenLoop(Loop):
        async def tick(self) -> float:
            if not self.ticks:
                self.wake()
            return await super().tick()

    loop = WokenLoop()
    run = asyncio.create_task(loop.run())
    await until(lambda: loop.ticks == 2, "it ticks again")
    loop.stop()
    await run


async def test_what_is_not_the_stores_fault_delays_the_next_tick_too() -> None:
    loop = Loop(ZeroDivisionError())
    run = asyncio.create_task(loop.run())
    await until(lambda: loop.ticks > 1, "it ticks again")
    loop.stop()
    await run


async def test_a_busy_service_does_not_block_other_services() -> None:
    busy, other = Loop(*[0.0] * 1_000_000), Loop()
    runs = [asyncio.create_task(one.run()) for one in (busy, other)]
    await until(lambda: other.ticks == 1 and busy.ticks > 3, "both tick")
    for one in (busy, other):
        one.stop()
    await asyncio.gather(*runs)


def test_a_warning_is_logged_once_in_three_seconds_and_counts_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr(services, "time", SimpleNamespace(monotonic=lambda: now))
    problem_log = ProblemLog(logging.getLogger("test"))

    def say(at: float) -> None:
        nonlocal now
        now = at
        problem_log.report("the fetcher found no store", StoreUnavailable("away"))

    for at in (0.0, 0.1, 2.9, 3.0, 3.1, 6.1):
        say(at)
    assert [record.getMessage() for record in caplog.records] == [
        "the fetcher found no store: away",
        "the fetcher found no store: away (2 more like it in between)",
        "the fetcher found no store: away (1 more like it in between)",
    ]
