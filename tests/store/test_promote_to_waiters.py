"""promote while workers wait: a due job goes to one of them, once, and not before its time."""

from __future__ import annotations

import asyncio

from penstock.core.clock import ManualClock
from penstock.core.job import Job, State
from penstock.core.lifecycle import EXPIRED
from penstock.core.limits import LimitChange, Rate
from penstock.core.relations import Tenant
from penstock.core.unique import UniqueKey
from penstock.stores.contract import (
    EnqueueStatus,
    Fetched,
    Settled,
    Settlement,
    Share,
    Store,
    Wake,
    WorkerOffer,
)
from tests.store.facts import (
    COMPLETED,
    LEASE,
    MINUTE,
    SECOND,
    SOON,
    OpenStore,
    add,
    end,
    ids,
    new,
    retryable,
    running,
    some,
    take,
    the,
    token,
)


class Waiter:
    """A worker that waits with an offer, as the fetcher does, and leaves what is due to the promoter."""

    def __init__(self, store: Store, *queues: str, worker: str = "w1", most: int = 9) -> None:
        self._store = store
        self._queues = queues or ("default",)
        self._worker = worker
        self._most = most
        self._changed = asyncio.Event()
        self.jobs: list[Job] = []
        self.dues: list[tuple[int, int]] = []
        self._begin()

    def _begin(self) -> None:
        self._token = token()
        self._wait = asyncio.create_task(
            self._store.wait(self._queues, timeout=MINUTE, offer=self._offer(), on_due=self._on_due)
        )
        self._wait.add_done_callback(lambda _: self._changed.set())

    def _offer(self) -> WorkerOffer:
        return WorkerOffer(self._worker, self._token, LEASE, self._take)

    def _take(self, found: Fetched) -> WorkerOffer | None:
        self.jobs += found.jobs
        self._changed.set()
        self._token = token()
        return self._offer() if len(self.jobs) < self._most else None

    def _on_due(self, due: int, now: int) -> None:
        self.dues.append((due, now))
        self._changed.set()

    async def until_due_is_known(self) -> None:
        """Until the wait has said what is due: then the store knows the offer."""
        async with asyncio.timeout(SOON):
            while not self.dues:
                if not self.asleep:  # settings were changed
                    self._begin()
                await self._next()

    async def receives(self, n: int) -> list[Job]:
        """The first n jobs, leased to the waiter or fetched after it was woken."""
        async with asyncio.timeout(SOON):
            while len(self.jobs) < n:
                if self.asleep:
                    await self._next()
                    continue
                if self._wait.result() & Wake.WORK:
                    await self.fetch()
                if len(self.jobs) < n:
                    self._begin()
        return self.jobs

    async def fetch(self) -> list[Job]:
        """What the next fetch brings."""
        shares = [Share(queue, self._most, self._most) for queue in self._queues]
        found = await self._store.fetch(
            shares, limit=self._most, lease=LEASE, worker=self._worker, token=self._token
        )
        self._token = token()
        self.jobs += found.jobs
        return found.jobs

    async def _next(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def stop(self) -> None:
        self._wait.cancel()
        await asyncio.gather(self._wait, return_exceptions=True)

    @property
    def asleep(self) -> bool:
        return not self._wait.done()


async def waiting(store: Store, *queues: str, worker: str = "w1", most: int = 9) -> Waiter:
    """A waiter that the store knows, because a job is due later."""
    waiter = Waiter(store, *queues, worker=worker, most=most)
    await waiter.until_due_is_known()
    return waiter


# ── on_due ──


async def test_a_wait_reports_what_is_due_and_continues(store: Store, clock: ManualClock) -> None:
    await add(store, new(delay=SECOND))
    waiter = await waiting(store)
    assert waiter.dues == [(clock.now() + SECOND, clock.now())]
    assert waiter.asleep
    await waiter.stop()


async def test_what_is_due_earlier_is_reported_when_it_is_enqueued(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store, other = open_store(), open_store()
    await add(other, new(delay=MINUTE))
    waiter = await waiting(store)
    await add(other, new(delay=SECOND))
    async with asyncio.timeout(SOON):
        while waiter.dues[-1] != (clock.now() + SECOND, clock.now()):
            await waiter._next()
    assert waiter.asleep
    await waiter.stop()


async def test_a_job_that_is_overdue_is_reported_and_no_work(store: Store, clock: ManualClock) -> None:
    await add(store, new(delay=SECOND))
    clock.advance(MINUTE)
    waiter = await waiting(store)
    assert waiter.dues == [(clock.now() - MINUTE + SECOND, clock.now())]
    assert waiter.asleep
    await waiter.stop()


async def test_a_wait_that_reports_what_is_due_is_ended_by_available_jobs(store: Store) -> None:
    await add(store, new(delay=MINUTE))
    waiter = await waiting(store)
    await add(store, new("a"), new("b"))
    assert ids(await waiter.receives(2)) == ["a", "b"]
    await waiter.stop()


# ── one job, one worker ──


async def test_a_due_job_is_leased_to_the_worker_that_waits(store: Store, clock: ManualClock) -> None:
    await add(store, new("a", delay=SECOND))
    waiter = await waiting(store)
    clock.advance(SECOND)
    assert (await store.promote(["default"], limit=100)).moved == 1
    (job,) = await waiter.receives(1)
    assert (job.spec.id, job.state, job.attempt, job.worker, job.started) == (
        "a",
        State.RUNNING,
        1,
        "w1",
        False,
    )
    assert job.fetched_at == clock.now()
    assert await the(store, job) == job
    assert await take(store, 9) == []
    assert await store.settle([Settlement(job.lease, COMPLETED)]) == [Settled.APPLIED]
    await waiter.stop()
    (info,) = await store.queues()
    assert info.counts == {State.COMPLETED: 1}


async def test_no_job_is_leased_a_millisecond_before_its_time(store: Store, clock: ManualClock) -> None:
    await add(store, new(delay=SECOND))
    waiter = await waiting(store)
    clock.advance(SECOND - 1)
    due = await store.promote(["default"], limit=100)
    assert (due.moved, due.next) == (0, clock.now() + 1)
    assert waiter.asleep
    assert await waiter.fetch() == []
    await waiter.stop()


async def test_two_workers_that_promote_at_the_same_time_lease_each_job_once(
    open_store: OpenStore, clock: ManualClock
) -> None:
    first, second = open_store(), open_store()
    await add(first, *some(6, delay=SECOND))
    waiters = [await waiting(first), await waiting(second, worker="w2")]
    clock.advance(SECOND)
    found = await asyncio.gather(
        *(store.promote(["default"], limit=100) for store in (first, second, first, second))
    )
    assert sum(due.moved for due in found) == 6
    async with asyncio.timeout(SOON):
        while sum(len(waiter.jobs) for waiter in waiters) < 6:
            for waiter in waiters:
                if not waiter.asleep:
                    await waiter.fetch()
            await asyncio.sleep(0)
    leased = [job for waiter in waiters for job in waiter.jobs]
    assert len({job.spec.id for job in leased}) == 6
    for waiter, store in zip(waiters, (first, second), strict=True):
        answers = await store.settle([Settlement(job.lease, COMPLETED) for job in waiter.jobs])
        assert set(answers) <= {Settled.APPLIED}
        await waiter.stop()


async def test_jobs_due_at_one_instant_come_in_their_order(store: Store, clock: ManualClock) -> None:
    jobs = some(5, delay=SECOND)
    await add(store, *jobs)
    waiter = await waiting(store)
    clock.advance(SECOND)
    await store.promote(["default"], limit=100)
    assert ids(await waiter.receives(5)) == ids(jobs)
    await waiter.stop()


async def test_of_jobs_due_at_one_instant_the_most_urgent_comes_first(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("low", delay=SECOND), new("high", delay=SECOND, priority=50))
    waiter = await waiting(store)
    clock.advance(SECOND)
    await store.promote(["default"], limit=100)
    assert ids(await waiter.receives(2)) == ["high", "low"]
    await waiter.stop()


async def test_a_due_job_comes_after_those_that_are_ready(open_store: OpenStore, clock: ManualClock) -> None:
    store, other = open_store(), open_store()
    await store.settings("default", paused=True)
    await add(store, new("ready"), new("due", delay=SECOND))
    waiter = await waiting(store)
    clock.advance(SECOND)
    await store.settings("default", paused=False)
    await other.promote(["default"], limit=100)
    assert ids(await waiter.receives(2)) == ["ready", "due"]
    await waiter.stop()


async def test_the_job_of_a_wait_that_has_just_ended_comes_with_the_next_fetch(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("a", delay=SECOND))
    waiter = await waiting(store)
    clock.advance(SECOND)
    promoting = asyncio.ensure_future(store.promote(["default"], limit=100))
    await asyncio.sleep(0)  # it is on its way
    await waiter.stop()
    await promoting
    if not waiter.jobs:
        await waiter.fetch()
    assert ids(waiter.jobs) == ["a"]


async def test_a_promotion_that_is_cancelled_loses_no_job_of_the_waiter(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("a", delay=SECOND))
    waiter = await waiting(store)
    clock.advance(SECOND)
    promoting = asyncio.ensure_future(store.promote(["default"], limit=100))
    await asyncio.sleep(0)
    promoting.cancel()
    await asyncio.gather(promoting, return_exceptions=True)
    await store.promote(["default"], limit=100)
    assert ids(await waiter.receives(1)) == ["a"]
    await waiter.stop()


# ── jobs that are not plain, and queues with rules ──


async def test_a_retry_that_is_due_keeps_its_errors(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await end(store, job, retryable(SECOND))
    waiter = await waiting(store)
    clock.advance(SECOND)
    await store.promote(["default"], limit=100)
    (again,) = await waiter.receives(1)
    assert (again.attempt, len(again.errors), again.reason, again.progress) == (2, 1, None, None)
    assert await the(store, again) == again
    await waiter.stop()


async def test_an_expired_job_is_cancelled_instead(store: Store, clock: ManualClock) -> None:
    late, good = (
        new("late", delay=SECOND, expires_in=SECOND),
        new("good", delay=2 * SECOND, expires_in=MINUTE),
    )
    await add(store, late, good)
    waiter = await waiting(store)
    clock.advance(2 * SECOND)
    await store.promote(["default"], limit=100)
    assert ids(await waiter.receives(1)) == ["good"]
    ended = await store.get([late.ref])
    assert ended[0] is None or (ended[0].state, ended[0].reason) == (State.CANCELLED, EXPIRED)
    await waiter.stop()


async def test_a_paused_queue_leases_nothing(store: Store, clock: ManualClock) -> None:
    await add(store, new("a", delay=SECOND))
    await store.settings("default", paused=True)
    waiter = await waiting(store)
    clock.advance(SECOND)
    assert (await store.promote(["default"], limit=100)).moved == 1
    assert waiter.asleep
    assert await waiter.fetch() == []
    assert (await store.get([new("a").ref]))[0].state is State.AVAILABLE  # type: ignore[union-attr]
    await store.settings("default", paused=False)
    assert ids(await waiter.receives(1)) == ["a"]
    await waiter.stop()


async def test_a_throttled_queue_leases_nothing(store: Store, clock: ManualClock) -> None:
    await add(store, new("a", delay=SECOND))
    await store.settings("default", limits=LimitChange.of(throttle="1h"))
    waiter = await waiting(store)
    clock.advance(SECOND)
    await store.promote(["default"], limit=100)
    assert await waiter.fetch() == []
    await waiter.stop()


async def test_a_full_queue_leases_nothing(store: Store, clock: ManualClock) -> None:
    await store.settings("default", limits=LimitChange.of(max_running=1))
    await running(store)
    await add(store, new(delay=SECOND))
    waiter = await waiting(store)
    clock.advance(SECOND)
    await store.promote(["default"], limit=100)
    assert await waiter.fetch() == []
    await waiter.stop()


async def test_the_rate_of_a_queue_holds(store: Store, clock: ManualClock) -> None:
    await store.settings("default", limits=LimitChange.of(rate=Rate(1, MINUTE)))
    await add(store, *some(3, delay=SECOND))
    waiter = await waiting(store)
    clock.advance(SECOND)
    await store.promote(["default"], limit=100)
    assert len(await waiter.receives(1)) == 1
    assert await waiter.fetch() == []
    await waiter.stop()


async def test_a_unique_key_is_held_while_the_job_runs(store: Store, clock: ManualClock) -> None:
    await add(store, new("a", delay=SECOND, unique=UniqueKey("k", None)))
    waiter = await waiting(store)
    clock.advance(SECOND)
    await store.promote(["default"], limit=100)
    (job,) = await waiter.receives(1)
    (answer,) = await store.enqueue([new("b", unique=UniqueKey("k", None))])
    assert answer.status is EnqueueStatus.DUPLICATE
    await end(store, job)
    await waiter.stop()


async def test_tenants_take_turns_with_due_jobs(store: Store, clock: ManualClock) -> None:
    await add(store, *(new(f"a{i}", delay=SECOND, tenant=Tenant("a", 1)) for i in range(3)))
    await add(store, *(new(f"b{i}", delay=SECOND, tenant=Tenant("b", 1)) for i in range(2)))
    waiter = await waiting(store)
    clock.advance(SECOND)
    await store.promote(["default"], limit=100)
    assert ids(await waiter.receives(5)) == ["a0", "b0", "a1", "b1", "a2"]
    await waiter.stop()


async def test_a_worker_gets_no_due_job_of_a_queue_for_which_it_does_not_wait(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("mine", queue="a", delay=MINUTE), new("other", queue="b", delay=SECOND))
    waiter = await waiting(store, "a")
    clock.advance(SECOND)
    assert (await store.promote(["a", "b"], limit=100)).moved == 1
    assert await waiter.fetch() == []
    assert ids(await take(store, 9, "b")) == ["other"]
    await waiter.stop()


async def test_a_worker_without_room_for_more_is_not_given_more(store: Store, clock: ManualClock) -> None:
    await add(store, *some(3, delay=SECOND))
    waiter = await waiting(store, most=1)
    clock.advance(SECOND)
    await store.promote(["default"], limit=100)
    assert len(await waiter.receives(1)) == 1
    assert len(await take(store, 9)) == 2
    await waiter.stop()
