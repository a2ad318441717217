"""The client: which jobs go to the store in one write, and the answer for each."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from penstock import (
    App,
    ArgumentError,
    ConfigError,
    EnqueueManyError,
    EnqueueUnknown,
    Handle,
    JobEnqueued,
    JobExists,
    NewJob,
    QueueClosed,
    QueueFull,
    StoreFull,
)
from penstock.client import client as client_module
from penstock.core.limits import Rate
from penstock.core.relations import BatchTerms, Partition, Tenant
from penstock.core.unique import UniqueKey
from penstock.retry import Fixed
from penstock.stores.contract import Enqueued, EnqueueStatus, SyncStore
from penstock.stores.memory import MemoryStore


class Recording(MemoryStore):
    """A memory store that notes its writes, and fails or waits where a test wants it to."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[NewJob]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails: dict[int, Exception] = {}  # number of the write, from 1 → its error
        self.answers: list[Enqueued] | None = None

    def note(self, jobs: Sequence[NewJob]) -> None:
        self.writes.append(list(jobs))
        if error := self.fails.get(len(self.writes)):
            raise error

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self.note(jobs)
        await self.gate.wait()
        return self.answers or await super().enqueue(jobs)

    @property
    def sync(self) -> SyncStore:
        return _Door(self, super().sync)  # type: ignore[return-value]


class _Door:
    def __init__(self, store: Recording, door: SyncStore) -> None:
        self._store, self._door = store, door

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self._store.note(jobs)
        return self._store.answers or self._door.enqueue(jobs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._door, name)


@pytest.fixture
def store() -> Recording:
    return Recording()


@pytest.fixture
def app(store: Recording) -> App:
    app = App(store=store)

    @app.task(name="add")
    def add(a: int) -> int:
        return a

    return app


@pytest.fixture(params=["sync", "async"])
def many(request: pytest.FixtureRequest, app: App) -> Any:
    """`enqueue_many` by both doors."""
    if request.param == "sync":
        return app.enqueue_many
    return lambda jobs: asyncio.run(app.aenqueue_many(jobs))


# ── one job ──────────────────────────────────────────────────────────────────────────────────────


def test_an_enqueued_job_is_there_under_the_handles_id(app: App) -> None:
    handle = app.tasks["add"].enqueue(1)
    job = handle.job()
    assert job is not None
    assert (job.id, job.queue, job.task, job.spec.payload) == (handle.id, "default", "add", b'{"a":1}')


async def test_sync_and_async_calls_use_the_same_store(app: App) -> None:
    one, two = app.tasks["add"].enqueue(1), await app.tasks["add"].aenqueue(2)
    assert [job.id for job in (await app.store.list_jobs()).jobs] == [two.id, one.id]


def test_an_id_that_is_taken_raises_job_exists(app: App) -> None:
    task = app.tasks["add"].using(id="order-17")
    task.enqueue(1)
    with pytest.raises(JobExists, match="'order-17' exists in the queue 'default'"):
        task.enqueue(2)


async def test_an_existing_id_raises_job_exists_in_async_calls_too(app: App) -> None:
    task = app.tasks["add"].using(id="order-17")
    await task.aenqueue(1)
    with pytest.raises(JobExists):
        await task.aenqueue(2)


async def test_a_closed_queue_refuses(app: App) -> None:
    await app.store.settings("default", closed=True)
    with pytest.raises(QueueClosed, match="'default' is closed"):
        app.tasks["add"].enqueue(1)
    with pytest.raises(QueueClosed):
        await app.tasks["add"].aenqueue(1)


def test_a_full_queue_says_when_to_come_again_in_seconds(app: App, store: Recording) -> None:
    store.answers = [Enqueued(EnqueueStatus.FULL, "x", 1_500)]
    with pytest.raises(QueueFull, match=r"is full; try again in 1\.5 s") as caught:
        app.tasks["add"].enqueue(1)
    assert caught.value.retry_after == 1.5


def test_a_call_that_replaced_a_unique_job_gets_the_handle_of_that(app: App, store: Recording) -> None:
    store.answers = [Enqueued(EnqueueStatus.REPLACED, "x")]
    handle = app.tasks["add"].enqueue(1)
    assert (handle.id, handle.existing) == ("x", True)


# ── concurrent jobs ──────────────────────────────────────────────────────────────────────────────


async def test_a_lone_enqueue_goes_at_once(app: App, store: Recording) -> None:
    await app.tasks["add"].aenqueue(1)
    assert [len(write) for write in store.writes] == [1]


async def test_enqueues_that_arrive_during_a_write_share_the_next_one(app: App, store: Recording) -> None:
    store.gate.clear()
    calls = [asyncio.create_task(app.tasks["add"].aenqueue(n)) for n in range(50)]
    while not store.writes:
        await asyncio.sleep(0)
    store.gate.set()
    handles = await asyncio.gather(*calls)
    assert len(store.writes) <= 2
    assert [handle.id for handle in handles] == [job.id for write in store.writes for job in write]


async def test_one_refused_job_of_a_shared_write_is_its_callers_affair(app: App) -> None:
    same = app.tasks["add"].using(id="one")
    answers = await asyncio.gather(
        same.aenqueue(1), same.aenqueue(2), app.tasks["add"].aenqueue(3), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Handle, JobExists, Handle]


async def test_a_cancelled_caller_does_not_cancel_the_jobs_of_others(app: App, store: Recording) -> None:
    store.gate.clear()
    first = asyncio.create_task(app.tasks["add"].aenqueue(1))
    second = asyncio.create_task(app.tasks["add"].aenqueue(2))
    while not store.writes:
        await asyncio.sleep(0)
    first.cancel()
    store.gate.set()
    assert await (await second).astatus() == "available"
    (info,) = await app.store.queues()
    assert sum(info.counts.values()) == 2


async def test_a_lost_reply_is_reported_to_each_caller_for_its_own_job(app: App, store: Recording) -> None:
    store.fails = {1: EnqueueUnknown(["all"], "connection reset")}
    answers = await asyncio.gather(
        *(app.tasks["add"].using(id=f"j{n}").aenqueue(n) for n in range(3)), return_exceptions=True
    )
    assert [answer.ids for answer in answers if isinstance(answer, EnqueueUnknown)] == [
        ("j0",),
        ("j1",),
        ("j2",),
    ]
    assert "connection reset" in str(answers[0])


def test_one_app_serves_one_event_loop_after_another(app: App) -> None:
    async def enqueue(n: int) -> str:
        return (await app.tasks["add"].aenqueue(n)).id

    ids = [asyncio.run(enqueue(n)) for n in range(3)]
    assert len(set(ids)) == 3


def test_one_app_serves_threads_and_their_loops_at_once(app: App) -> None:
    task = app.tasks["add"]

    async def several() -> None:
        await asyncio.gather(*(task.aenqueue(n) for n in range(20)))

    def by_loop() -> None:
        asyncio.run(several())

    def by_call() -> None:
        for n in range(20):
            task.enqueue(n)

    threads = [threading.Thread(target=way) for way in (by_loop, by_call) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (info,) = app.store.sync.queues()
    assert sum(info.counts.values()) == 160


def test_nothing_is_kept_of_a_loop_that_is_gone(app: App) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(app.tasks["add"].aenqueue(1))
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None


def enqueue_in_a_child(app: App, pipe: Any) -> None:
    pipe.send(app.tasks["add"].enqueue(2).id)


@pytest.mark.skipif(not hasattr(multiprocessing, "get_context"), reason="no fork here")
def test_an_app_that_was_used_works_on_in_a_fork(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="add")
    def add(a: int) -> int:
        return a

    add.enqueue(1)
    ours, theirs = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=enqueue_in_a_child, args=(app, theirs))
    child.start()
    assert ours.poll(20)
    id = ours.recv()
    child.join(60)
    assert app.handle(id).status() == "available"
    app.close()


# ── many jobs ────────────────────────────────────────────────────────────────────────────────────


def test_many_jobs_go_in_one_write_and_come_back_in_order(app: App, store: Recording, many: Any) -> None:
    handles = many([app.tasks["add"].job(n) for n in range(100)])
    assert len(store.writes) == 1
    assert [handle.id for handle in handles] == [job.id for job in store.writes[0]]
    assert [handle.job().spec.payload for handle in handles[:2]] == [b'{"a":0}', b'{"a":1}']


def test_no_jobs_are_no_write(store: Recording, many: Any) -> None:
    assert many([]) == []
    assert store.writes == []


def test_more_than_a_chunk_goes_in_several_writes(
    app: App, store: Recording, many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CHUNK", 40)
    handles = many(app.tasks["add"].job(n) for n in range(100))
    assert [len(write) for write in store.writes] == [40, 40, 20]
    assert len({handle.id for handle in handles}) == 100


def test_the_ids_of_many_rise_in_their_order(app: App, many: Any) -> None:
    ids = [handle.id for handle in many([app.tasks["add"].job(n) for n in range(100)])]
    assert ids == sorted(ids)


def test_refused_jobs_of_a_bulk_call_are_reported_and_the_others_are_stored(app: App, many: Any) -> None:
    add = app.tasks["add"]
    add.using(id="taken").enqueue(0)
    with pytest.raises(
        EnqueueManyError, match=r"^1 of 3 jobs were not stored.*number 2: .*'taken'"
    ) as caught:
        many([add.job(1), add.using(id="taken").job(2), add.job(3)])
    first, none, third = caught.value.handles
    assert none is None
    assert (first.status(), third.status()) == ("available", "available")
    assert [(at, type(error)) for at, error in caught.value.errors.items()] == [(1, JobExists)]


def test_a_duplicate_among_many_is_no_error(app: App, many: Any) -> None:
    once = app.tasks["add"].using(unique=True)
    first, second = many([once.job(1), once.job(1)])
    assert (first.existing, second.existing, first == second) == (False, True, True)


def test_a_store_that_fails_midway_leaves_the_handles_of_what_it_took(
    app: App, store: Recording, many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CHUNK", 2)
    store.fails = {2: StoreFull("the disk is full")}
    with pytest.raises(EnqueueManyError, match=r"3 of 5 jobs .*number 3: the disk is full") as caught:
        many([app.tasks["add"].job(n) for n in range(5)])
    assert [handle is not None for handle in caught.value.handles] == [True, True, False, False, False]
    assert list(caught.value.errors) == [2, 3, 4]
    assert len(store.writes) == 2


def test_a_store_that_fails_before_anything_was_stored_raises_its_own_error(
    app: App, store: Recording, many: Any
) -> None:
    store.fails = {1: StoreFull("the disk is full")}
    with pytest.raises(StoreFull, match="the disk is full"):
        many([app.tasks["add"].job(1)])


def test_a_job_call_that_is_sent_again_is_not_stored_twice(app: App, store: Recording, many: Any) -> None:
    calls = [app.tasks["add"].job(n) for n in range(3)]
    store.fails = {1: EnqueueUnknown([], "connection reset")}
    with pytest.raises(EnqueueUnknown):
        many(calls)
    ids = [call.id for call in calls]
    assert [handle.id for handle in many(calls)] == ids
    with pytest.raises(EnqueueManyError) as caught:
        many(calls)
    assert {type(error) for error in caught.value.errors.values()} == {JobExists}


def test_an_argument_that_does_not_fit_keeps_all_out(app: App, store: Recording, many: Any) -> None:
    def jobs() -> Iterator[Any]:
        yield app.tasks["add"].job(1)
        yield app.tasks["add"].job("two")

    with pytest.raises(ArgumentError):
        many(jobs())
    assert store.writes == []


def test_what_is_no_job_call_is_refused(app: App, store: Recording, many: Any) -> None:
    with pytest.raises(ConfigError, match=r"enqueue_many takes task\.job\(\.\.\.\), not 1"):
        many([app.tasks["add"].job(1), 1])
    assert store.writes == []


def test_a_job_call_knows_its_id_before_it_is_sent(app: App) -> None:
    call = app.tasks["add"].job(1)
    id = call.id
    assert app.enqueue_many([call])[0].id == id == call.id


# ── middleware and events ────────────────────────────────────────────────────────────────────────


def test_middleware_rewrites_jobs_of_every_kind_of_enqueue(app: App) -> None:
    @app.around_enqueue(task="add")
    def stamp(new: NewJob) -> NewJob:
        return msgspec.structs.replace(new, queue="stamped", headers={"by": "me"})

    add = app.tasks["add"]
    handles = [add.enqueue(1), asyncio.run(add.aenqueue(2)), *app.enqueue_many([add.job(3)])]
    for handle in handles:
        assert handle.queue == "stamped"
        assert handle.job().spec.headers == {"by": "me"}  # type: ignore[union-attr]


def test_middleware_that_raises_keeps_the_job_out(app: App, store: Recording) -> None:
    @app.around_enqueue
    def refuse(new: NewJob) -> NewJob:
        raise PermissionError("not on Sundays")

    with pytest.raises(PermissionError, match="not on Sundays"):
        app.tasks["add"].enqueue(1)
    with pytest.raises(PermissionError):
        app.enqueue_many([app.tasks["add"].job(1)])
    assert store.writes == []


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "returned None instead of a NewJob"),
        (NewJob("no spaces", "add"), "cannot be a job's id"),
        (NewJob("id", "add", queue="a b"), "cannot be a queue's name"),
    ],
)
def test_middleware_that_returns_no_proper_job_is_named(app: App, returned: Any, says: str) -> None:
    @app.around_enqueue
    def broken(new: NewJob) -> NewJob:
        result: NewJob = returned
        return result

    with pytest.raises(ConfigError, match=says):
        app.tasks["add"].enqueue(1)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"headers": {"trace": 5}}, "cannot be stored: Expected `str`, got `int`"),
        ({"headers": {"trace": "\udc80"}}, "cannot be stored: .* surrogates not allowed"),
        ({"priority": "high"}, "cannot be stored: Expected `int`, got `str`"),
        ({"priority": 1_000}, "gave a job priority=1000: use -100 to 100"),
        ({"payload": {"n": 1}}, "cannot be stored"),
        ({"timeout": 2**70}, "cannot be stored"),
        ({"task": "a\nb"}, "cannot be a task's name"),
        ({"task": "x" * 100_000}, "cannot be a task's name"),
        ({"headers": {"trace": "x" * 20_000}}, "headers take"),
        ({"delay": -1}, "gave a job delay=-1: use 0 to"),
        ({"delay": 2**62}, "delay="),
        ({"run_at": 2**63 - 1}, "run_at="),
        ({"expires_in": 2**63 - 1}, "expires_in="),
        ({"expires_at": 2**63 - 1}, "expires_at="),
        ({"timeout": 0}, "timeout=0: use 1 to"),
        ({"deadline": -(2**62)}, "deadline="),
        ({"max_attempts": 0}, "max_attempts=0: use 1 to"),
        ({"max_attempts": 2**64 - 1}, "max_attempts="),
        ({"retention": 2**63 - 1}, "retention="),
        ({"keep_dead": -1}, "keep_dead=-1: use 0 to"),
        ({"retry": Fixed(-5)}, "has a negative wait"),
        ({"unique": UniqueKey("", None)}, "unique"),
        ({"unique": UniqueKey("k", -1)}, "unique"),
        ({"partition": Partition("", 1)}, "partition"),
        ({"partition": Partition("k", 0)}, "partition"),
        ({"partition": Partition("k" * 10_000, 1)}, "partition"),
        ({"partition": Partition("k", 1, False, Rate(0, 1))}, "rate"),
        ({"tenant": Tenant("k", 0)}, "tenant"),
        ({"tenant": Tenant("k", -5)}, "tenant"),
        ({"batch_terms": BatchTerms("k", 0, 5)}, "batch_terms"),
        ({"batch_terms": BatchTerms("k", 5)}, "batch_terms"),
    ],
)
def test_middleware_that_makes_a_job_unreadable_gets_an_error(
    app: App, facts: dict[str, Any], says: str
) -> None:
    @app.around_enqueue
    def broken(new: NewJob) -> NewJob:
        return msgspec.structs.replace(new, **facts)

    with pytest.raises(ConfigError, match=says):
        app.tasks["add"].enqueue(1)
    assert app.store.sync.queues() == []


def test_listeners_get_an_event_for_each_stored_job_and_no_other(app: App, many: Any) -> None:
    heard: list[JobEnqueued] = []
    app.on(JobEnqueued)(heard.append)
    once = app.tasks["add"].using(unique=True)
    handles = many([once.job(1), once.job(1), app.tasks["add"].job(2)])
    app.close()
    assert [(event.id, event.task, event.attempt) for event in heard] == [
        (handles[0].id, "add", 0),
        (handles[2].id, "add", 0),
    ]
