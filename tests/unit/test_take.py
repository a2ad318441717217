"""A job taken without a worker: leased inside the block, settled at its end."""

# ruff: noqa: PT012 (what raises here is the block)

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import (
    App,
    AttemptCancelled,
    AttemptLost,
    AttemptTimeout,
    Cancel,
    ConfigError,
    Discard,
    Handle,
    Job,
    Retry,
    Snooze,
    State,
    StoreUnavailable,
    Undecodable,
    fixed,
)
from penstock.app.take import Take
from penstock.app.taken import Taken
from penstock.core.clock import ManualClock, SystemClock
from penstock.core.job import Progress
from penstock.stores.contract import Fetched, HeartbeatRequest, LeaseStatus, Settled, Settlement, Share
from penstock.stores.memory import MemoryStore


class Frail(MemoryStore):
    """A memory store that fails, or keeps its reply back, where a test wants it to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.settle_fails = 0
        self.extend_fails = 0
        self.settled = 0
        self.requests: list[HeartbeatRequest] = []
        self.beaten = asyncio.Event()
        self.fetched = asyncio.Event()
        self.reply = asyncio.Event()
        self.reply.set()

    async def fetch(self, queues: Sequence[Share], **how: Any) -> Fetched:
        fetched = await super().fetch(queues, **how)
        self.fetched.set()
        await self.reply.wait()
        return fetched

    async def extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        if self.extend_fails:
            self.extend_fails -= 1
            raise StoreUnavailable("away")
        statuses = await super().extend(requests)
        self.requests += requests
        self.beaten.set()
        return statuses

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        self.settled += 1
        if self.settle_fails:
            self.settle_fails -= 1
            raise StoreUnavailable("away")
        return await super().settle(settlements)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Frail:
    return Frail(clock)


@pytest.fixture
def app(store: Frail) -> App:
    app = App(store=store)

    @app.task(name="mail", retry=fixed("10s"))
    def mail(to: str, at: datetime | None = None) -> int:
        return 0

    return app


async def enqueued(app: App, **options: Any) -> Handle[Any]:
    return await app.tasks["mail"].using(**options).aenqueue("ann")


async def job_of(handle: Handle[Any]) -> Job:
    job = await handle.ajob()
    assert job is not None
    return job


# ── taking ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_taken_job_has_its_facts_and_typed_arguments(app: App) -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    handle = await app.tasks["mail"].using(headers={"a": "b"}).aenqueue("ann", at=noon)
    async with app.take() as job:
        assert (job.id, job.queue, job.task, job.attempt) == (handle.id, "default", "mail", 1)
        assert (job.args, job.kwargs, dict(job.headers)) == (("ann", noon), {}, {"a": "b"})
        assert job.payload == b'{"to":"ann","at":"2030-01-01T12:00:00Z"}'
        assert job.json() == {"to": "ann", "at": "2030-01-01T12:00:00Z"}
        assert await handle.astatus() is State.RUNNING


async def test_leaving_the_block_completes_the_job(app: App) -> None:
    handle = await enqueued(app)
    async with app.take() as job:
        job.returns(7)
    assert await handle.aresult(timeout=0) == 7


async def test_a_block_that_says_no_result_has_none(app: App) -> None:
    handle = await enqueued(app)
    async with app.take():
        pass
    assert await handle.aresult(timeout=0) is None


async def test_nothing_within_the_wait_is_none(app: App) -> None:
    async with app.take(wait=0) as job:
        assert job is None
    async with app.take("other", wait="20ms") as job:
        assert job is None


async def test_a_job_that_comes_is_waited_for(app: App) -> None:
    async def take() -> str:
        async with app.take() as job:
            return job.id

    taking = asyncio.create_task(take())
    await asyncio.sleep(0)
    handle = await enqueued(app)
    assert await asyncio.wait_for(taking, 60) == handle.id


async def test_a_job_that_falls_due_is_taken_though_nobody_else_promotes(
    app: App, clock: ManualClock
) -> None:
    await enqueued(app, delay="5m")
    async with app.take(wait=0) as job:
        assert job is None
    clock.advance(300_000)
    async with app.take(wait=0) as job:
        assert job is not None


async def test_a_delayed_job_is_waited_for_until_it_is_due() -> None:
    app = App("memory://")
    handle = await app.task(name="x")(lambda: 1).using(delay="30ms").aenqueue()
    async with app.take(wait=20) as job:
        assert job is not None
        assert job.id == handle.id
        assert SystemClock().now() >= job.job.run_at


async def test_a_job_that_another_lost_is_taken_though_nobody_else_reclaims(
    app: App, store: Frail, clock: ManualClock
) -> None:
    handle = await enqueued(app)
    await store.fetch([Share("default", 1, 1)], limit=1, lease=15_000, worker="gone", token="t")
    clock.advance(15_001)
    async with app.take(wait=0) as job:
        assert job is not None
        assert (job.id, job.attempt) == (handle.id, 2)
        assert [error.kind for error in job.job.errors] == ["LeaseLost"]


async def test_what_dies_with_its_former_holder_is_kept_as_long_as_the_configuration_says(
    store: Frail, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KEEP_DEAD", "0s")
    app = App(store=store)
    handle = await app.task(name="x", max_attempts=1, retention=0)(lambda: None).aenqueue()
    (job,) = (
        await store.fetch([Share("default", 1, 1)], limit=1, lease=15_000, worker="gone", token="t")
    ).jobs
    await store.extend([HeartbeatRequest(job.lease, 15_000, started=True)])
    clock.advance(15_001)
    async with app.take(wait=0) as taken:
        assert taken is None
    assert await handle.ajob() is None


async def test_two_blocks_take_two_jobs(app: App) -> None:
    await enqueued(app)
    await enqueued(app)
    async with app.take() as one, app.take() as two:
        assert one.id != two.id


async def test_a_job_that_was_asked_to_stop_is_not_taken(app: App) -> None:
    handle = await enqueued(app)
    async with app.take() as job:
        await handle.acancel()
        raise Retry(delay=0)
    async with app.take(wait=0) as job:  # type: ignore[assignment]
        assert job is None
    assert await handle.astatus() is State.CANCELLED


async def test_a_job_of_an_unknown_task_has_its_payload_only(store: Frail) -> None:
    app = App(store=store)
    await app.aenqueue_raw("default", b'{"to":"bob"}', "other.language")
    async with app.take() as job:
        assert job.json() == {"to": "bob"}
        with pytest.raises(ConfigError, match=r"no task 'other\.language': read \.payload"):
            _ = job.args


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"lease": "50ms"}, "too short"),
        ({"lease": -1}, "lease=-1 is negative"),
        ({"wait": "soon"}, "wait='soon' is not a duration"),
        ({"queue": "a b"}, "cannot be a queue's name"),
    ],
)
def test_a_take_that_makes_no_sense_is_refused(app: App, how: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        app.take(**how)


# ── failing ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_exception_fails_the_attempt_and_goes_on(app: App, clock: ManualClock) -> None:
    handle = await enqueued(app)
    with pytest.raises(ValueError, match="no such address"):
        async with app.take():
            raise ValueError("no such address")
    job = await job_of(handle)
    assert (job.state, job.run_at) == (State.RETRYABLE, clock.now() + 10_000)
    (error,) = job.errors
    assert (error.kind, error.message) == ("ValueError", "no such address")
    assert 'raise ValueError("no such address")' in error.traceback


@pytest.mark.parametrize(
    ("steering", "state", "attempt"),
    [
        (Retry(delay="1m"), State.RETRYABLE, 1),
        (Snooze("1m"), State.SCHEDULED, 0),
        (Discard("wrong"), State.DEAD, 1),
        (Cancel("not wanted"), State.CANCELLED, 1),
    ],
)
async def test_steering_decides_the_outcome_and_ends_with_the_block(
    app: App, steering: Exception, state: State, attempt: int
) -> None:
    handle = await enqueued(app)
    async with app.take():
        raise steering
    job = await job_of(handle)
    assert (job.state, job.attempt) == (state, attempt)


async def test_arguments_that_cannot_be_read_are_the_end_of_the_job(app: App) -> None:
    handle = await app.aenqueue_raw("default", b'{"to":5}', "mail")
    with pytest.raises(Undecodable):
        async with app.take() as job:
            _ = job.args
    assert await handle.astatus() is State.DEAD


async def test_the_tasks_own_retry_function_is_asked(store: Frail, clock: ManualClock) -> None:
    app = App(store=store)
    app.task(name="x", retry=lambda attempt, error, job: 42)(lambda: 1)
    handle = await app.tasks["x"].aenqueue()
    with pytest.raises(LookupError):
        async with app.take():
            raise LookupError
    assert (await job_of(handle)).run_at == clock.now() + 42_000


async def test_a_cancelled_take_returns_the_job_uncharged(app: App) -> None:
    handle = await enqueued(app)
    taken = asyncio.Event()

    async def block() -> None:
        async with app.take():
            taken.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(block())
    await taken.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    job = await job_of(handle)
    assert (job.state, job.attempt, job.errors) == (State.AVAILABLE, 0, ())


async def test_a_take_cancelled_during_its_fetch_returns_the_job(app: App, store: Frail) -> None:
    handle = await enqueued(app)
    store.reply.clear()

    async def block() -> None:
        async with app.take():
            raise AssertionError("never reached")

    running = asyncio.create_task(block())
    await store.fetched.wait()
    running.cancel()
    await asyncio.sleep(0)
    store.reply.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    job = await job_of(handle)
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)


async def test_an_outcome_is_sent_until_the_store_answers(app: App, store: Frail) -> None:
    handle = await enqueued(app)
    store.settle_fails = 2
    async with app.take():
        pass
    assert store.settled == 3
    assert await handle.astatus() is State.COMPLETED


async def test_a_long_outage_of_the_store_is_reported_in_the_end(app: App, store: Frail) -> None:
    await enqueued(app)
    store.settle_fails = 1_000
    with pytest.raises(StoreUnavailable):
        async with app.take(lease="100ms"):
            pass


# ── the lease ────────────────────────────────────────────────────────────────────────────────────


async def steal(store: Frail, clock: ManualClock) -> None:
    """Let the lease run out, and somebody else have the job."""
    clock.advance(60_000)
    await store.reclaim(["default"], limit=1, lease=60_000, worker="other", token="other")


async def test_a_block_is_notified_of_its_lost_lease(app: App, store: Frail, clock: ManualClock) -> None:
    handle = await enqueued(app)
    with pytest.raises(AttemptLost, match=f"the lease of job {handle.id} is lost"):
        async with app.take(lease="100ms"):
            await steal(store, clock)
            await asyncio.Event().wait()
    job = await job_of(handle)
    assert (job.state, job.worker) == (State.RUNNING, "other")
    assert store.settled == 0


async def test_a_block_that_ends_before_it_notices_a_lost_lease_is_refused(
    app: App, store: Frail, clock: ManualClock
) -> None:
    handle = await enqueued(app)
    with pytest.raises(AttemptLost):
        async with app.take():
            await steal(store, clock)
    assert (await job_of(handle)).worker == "other"


async def test_the_error_of_a_block_is_not_hidden_by_a_lost_lease(
    app: App, store: Frail, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await enqueued(app)
    with caplog.at_level(logging.WARNING), pytest.raises(LookupError):
        async with app.take():
            await steal(store, clock)
            raise LookupError
    assert "late outcome ignored" in caplog.text


async def test_the_lease_is_prolonged_while_the_block_runs(
    app: App, store: Frail, clock: ManualClock
) -> None:
    await enqueued(app)
    async with app.take(lease="100ms"):
        for _ in range(5):
            clock.advance(90)
            store.beaten.clear()
            await store.beaten.wait()
            await store.beaten.wait()
            found = await store.reclaim(["default"], limit=1, lease=1, worker="other", token="other")
            assert found.jobs == []


async def test_a_heartbeat_that_finds_no_store_is_no_end(
    app: App, store: Frail, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await enqueued(app)
    store.extend_fails = 2
    with caplog.at_level(logging.WARNING):
        async with app.take(lease="100ms"):
            await store.beaten.wait()
    assert caplog.text.count("failed: store unreachable: away") == 2
    assert await handle.astatus() is State.COMPLETED


async def test_a_lease_may_be_prolonged_by_hand(app: App, store: Frail, clock: ManualClock) -> None:
    handle = await enqueued(app)
    with pytest.raises(AttemptLost):
        async with app.take() as job:
            job.progress(1, of=2, note="half")
            await job.extend()
            assert (await job_of(handle)).progress == Progress(1, 2, "half")
            await steal(store, clock)
            await job.extend()
    assert (await job_of(handle)).worker == "other"


@pytest.mark.parametrize("options", [{"max_attempts": 1}, {"max_attempts": 1, "retry": 0}])
async def test_the_start_of_a_last_attempt_is_recorded_before_it_begins(app: App, options: Any) -> None:
    handle = await enqueued(app, **options)
    async with app.take():
        assert (await job_of(handle)).started


async def test_the_start_of_an_at_most_once_job_is_recorded_before_it_begins(store: Frail) -> None:
    app = App(store=store)
    handle = await app.task(name="x", delivery="at-most-once")(lambda: 1).aenqueue()
    async with app.take():
        assert (await job_of(handle)).started
        assert [request.lasting for request in store.requests] == [True]  # a power cut must not undo it


async def test_a_start_that_cannot_be_recorded_gives_the_job_back(app: App, store: Frail) -> None:
    handle = await enqueued(app, max_attempts=1)
    store.extend_fails = 1
    with pytest.raises(StoreUnavailable):
        async with app.take():
            raise AssertionError("never reached")
    job = await job_of(handle)
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)


# ── interruptions ────────────────────────────────────────────────────────────────────────────────


async def test_a_block_whose_job_is_cancelled_is_interrupted(app: App) -> None:
    handle = await enqueued(app)
    with pytest.raises(AttemptCancelled, match="was cancelled while it ran"):
        async with app.take(lease="100ms") as job:
            await handle.acancel()
            await asyncio.Event().wait()
    assert job.cancelled
    assert await handle.astatus() is State.CANCELLED


async def test_a_block_that_outstays_the_jobs_timeout_is_interrupted(app: App) -> None:
    handle = await enqueued(app, timeout="30ms")
    with pytest.raises(AttemptTimeout):
        async with app.take() as job:
            left = job.remaining()
            assert left is not None
            assert left <= 0.03
            await asyncio.Event().wait()
    stored = await job_of(handle)
    assert (stored.state, stored.errors[-1].kind) == (State.RETRYABLE, "Timeout")


async def test_a_block_that_outstays_the_jobs_deadline_is_interrupted(
    app: App, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's clock says that little is left; in the block it is found to have passed the deadline."""
    deadline = datetime.fromtimestamp(clock.now() / 1000, UTC) + timedelta(hours=1)
    handle = await enqueued(app, deadline=deadline)
    clock.advance(3_599_990)
    take = app.take()
    monkeypatch.setattr(Take, "_now", lambda _take: clock.now())
    with pytest.raises(AttemptTimeout, match="its deadline has passed"):
        async with take:
            clock.advance(20)
            await asyncio.Event().wait()
    job = await job_of(handle)
    assert (job.state, job.reason) == (State.DEAD, "its deadline has passed")
    assert job.errors[-1].message == f"job {job.id}: its deadline has passed"


async def test_a_deadline_that_passes_while_the_start_is_recorded_ends_the_job_without_a_start(
    app: App, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = datetime.fromtimestamp(clock.now() / 1000, UTC) + timedelta(hours=1)
    handle = await enqueued(app, deadline=deadline, max_attempts=1)
    monkeypatch.setattr(Take, "_now", lambda _take: clock.now())
    record_start = Taken.record_start

    async def record_late(taken: Taken) -> None:
        await record_start(taken)
        clock.advance(3_600_001)

    monkeypatch.setattr(Taken, "record_start", record_late)
    async with app.take(wait=0) as job:
        assert job is None
    found = await job_of(handle)
    assert (found.state, found.reason, found.attempt) == (State.DEAD, "its deadline has passed", 0)


async def test_a_job_whose_deadline_has_passed_is_not_taken_and_is_dead() -> None:
    app = App("memory://")
    deadline = datetime.now(UTC)
    handle = await app.task(name="x")(lambda: 1).using(deadline=deadline).aenqueue()
    while datetime.now(UTC) <= deadline + timedelta(milliseconds=1):  # instants are whole ms
        await asyncio.sleep(0)
    async with app.take(wait=0) as job:
        assert job is None
    stored = await job_of(handle)
    assert (stored.state, stored.reason, stored.attempt) == (State.DEAD, "its deadline has passed", 0)


async def test_a_job_without_a_timeout_has_none(app: App) -> None:
    await enqueued(app, timeout=None)
    async with app.take() as job:
        assert job.remaining() is None


async def test_an_interruption_leaves_the_task_around_it_uncancelled(app: App) -> None:
    await enqueued(app, timeout="10ms")
    with pytest.raises(AttemptTimeout):
        async with app.take():
            await asyncio.Event().wait()
    me = asyncio.current_task()
    assert me is not None
    assert me.cancelling() == 0
    async with asyncio.timeout(60):
        await asyncio.sleep(0)


async def test_a_cancellation_from_outside_wins_over_an_interruption(app: App) -> None:
    handle = await enqueued(app, timeout="10ms")
    entered = asyncio.Event()

    async def block() -> None:
        async with app.take():
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                me = asyncio.current_task()
                assert me is not None
                me.cancel()

    running = asyncio.create_task(block())
    await entered.wait()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await handle.astatus() is State.AVAILABLE


# ── blocks that are not left as they should be ──


async def test_a_take_is_one_block_at_a_time(app: App) -> None:
    first, second = await enqueued(app), await enqueued(app)
    taking = app.take()
    async with taking as job:
        with pytest.raises(RuntimeError, match=r"call app.take\(\) again"):
            await taking.__aenter__()
        assert job.id == first.id
    assert await first.astatus() == "completed"
    async with taking as job:
        assert job.id == second.id
    assert await second.astatus() == "completed"


@pytest.mark.slow
async def test_a_job_whose_block_was_abandoned_is_anybodys_when_its_lease_is_over() -> None:
    app = App("memory://")

    @app.task
    async def add(a: int) -> int:
        return a

    handle = await add.aenqueue(1)
    await app.take(lease="200ms").__aenter__()
    async with app.take(wait="10s") as job:
        assert job is not None
        assert job.id == handle.id


@pytest.mark.slow
async def test_so_is_one_whose_asyncio_task_has_ended_within_its_block() -> None:
    app = App("memory://")

    @app.task
    async def add(a: int) -> int:
        return a

    handle, kept = await add.aenqueue(1), app.take(lease="200ms")

    async def forget() -> None:
        await kept.__aenter__()

    await asyncio.create_task(forget())
    async with app.take(wait="10s") as job:
        assert job is not None
        assert job.id == handle.id
