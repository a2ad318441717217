"""Between fetch and start each job is on its own: one that cannot be started harms no neighbour."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from penstock import App, Worker
from penstock.app.deciding import Loss, settle_reclaimed
from penstock.client.handle import Handle
from penstock.core import lifecycle
from penstock.core.clock import SystemClock
from penstock.core.job import Job, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.retry import Fixed
from penstock.stores.contract import HeartbeatRequest, Settled, Settlement, Share, Store
from penstock.worker import leased_jobs
from penstock.worker.executor import admission, settler
from penstock.worker.executor.runners import Runners
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.plan import Plan, Plans
from penstock.workflows import chain, current_flow
from tests.store.facts import OpenStore, add, token
from tests.worker.conftest import nothing_left, quick

GOOD = 8


@pytest.fixture
def clock() -> SystemClock:
    """A worker lives in real time."""
    return SystemClock()


@pytest.fixture
def app(open_store: OpenStore) -> Iterator[App]:
    app = App("memory://")
    app.use_store(open_store())

    @app.task(name="good")
    def good(n: int) -> int:
        return n

    @app.task(name="bad", retry="1h")
    def bad(n: int) -> int:
        return n

    yield app
    app.close()


async def in_a_burst(app: App) -> None:
    """Run a worker whose leases last: nothing here may wait for the end of one."""
    worker = Worker(app, burst=True, config=quick(lease="60s"))
    async with asyncio.timeout(20):
        await worker.run()
    await nothing_left(worker)


async def mixed(app: App, **options: Any) -> tuple[Handle[Any], list[Handle[Any]]]:
    """A bad job between good ones, all in one fetch."""
    good, bad = app.tasks["good"], app.tasks["bad"]
    calls = [
        good.using(**options).job(n) if n != GOOD // 2 else bad.using(**options).job(n) for n in range(GOOD)
    ]
    handles = await app.aenqueue_many(calls)
    handle = handles.pop(GOOD // 2)
    return handle, list(handles)


async def state_of(handle: Handle[Any]) -> Job:
    job = await handle.ajob()
    assert job is not None
    return job


async def all_completed(handles: Sequence[Handle[Any]]) -> bool:
    return {(await state_of(handle)).state for handle in handles} == {State.COMPLETED}


class Adder:
    def __init__(self, to: int) -> None:
        self._to = to

    def __call__(self, n: int) -> int:
        return self._to + n

    def method(self, n: int) -> int:
        return self._to - n


class AsyncAdder(Adder):
    async def __call__(self, n: int) -> int:  # type: ignore[override]
        return self._to + n


def _add(to: int, n: int) -> int:
    return to + n


async def _add_later(to: int, n: int) -> int:
    return to + n


async def test_what_can_be_called_and_has_no_name_of_its_own_is_a_task_with_one(app: App) -> None:
    tasks = [
        app.task(name=f"t{number}")(function)
        for number, function in enumerate(
            [functools.partial(_add, 40), functools.partial(_add_later, 40), Adder(40), AsyncAdder(40)]
        )
    ]
    _, good = await mixed(app)
    handles = [await task.aenqueue(2) for task in tasks]
    method = await app.task(Adder(44).method).aenqueue(2)
    await in_a_burst(app)
    assert [await handle.aresult(5) for handle in [*handles, method]] == [42] * 5
    assert await all_completed(good)


async def test_a_task_that_cannot_be_planned_parks_its_jobs_alone(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Plans._make

    def fails(self: Plans, queue: str, name: str, kept: bool) -> Plan | None:
        if name == "bad":
            raise AttributeError("no __qualname__")
        return make(self, queue, name, kept)

    monkeypatch.setattr(Plans, "_make", fails)
    bad, good = await mixed(app)
    await in_a_burst(app)
    job = await state_of(bad)
    assert (job.state, job.attempt, job.reason) == (State.PARKED, 0, "cannot run here: no __qualname__")
    assert await all_completed(good)


@pytest.mark.parametrize("step", ["limits", "launch", "launch on record"])
async def test_an_error_in_a_step_before_the_start_fails_that_job_alone(
    app: App, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    launch, too_late = Runners.launch, leased_jobs.too_late

    def broken_launch(self: Runners, leased: LeasedJob) -> None:
        if leased.job.task == "bad":
            raise OSError("no more files")
        launch(self, leased)

    def broken_check(job: Job, now: int) -> Any:
        if job.task == "bad":
            raise OSError("no more files")
        return too_late(job, now)

    options: dict[str, Any] = {}
    match step:
        case "launch":
            monkeypatch.setattr(Runners, "launch", broken_launch)
        case "launch on record":
            monkeypatch.setattr(Runners, "launch", broken_launch)
            options = {"max_attempts": 1}
        case _:
            monkeypatch.setattr(leased_jobs, "too_late", broken_check)
            options = {"expires": "1h"}
    bad, good = await mixed(app, **options)
    await in_a_burst(app)
    job = await state_of(bad)
    dead = step == "launch on record"
    assert (job.state, job.attempt) == (State.DEAD if dead else State.RETRYABLE, 1)
    assert [(e.kind, e.message) for e in job.errors] == [("OSError", "no more files")]
    assert await all_completed(good)


async def test_a_start_that_cannot_be_recorded_fails_that_job_alone(app: App) -> None:
    class Choosy:
        def __init__(self, store: Store) -> None:
            self._store = store
            self.refused = ""

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def extend(self, requests: Sequence[HeartbeatRequest]) -> Any:
            if any(one.lease.id == self.refused for one in requests):
                raise TypeError("cannot be encoded")
            return await self._store.extend(requests)

    choosy = Choosy(app.store)
    app.use_store(cast(Store, choosy))
    bad, good = await mixed(app, max_attempts=1)
    choosy.refused = bad.id
    await in_a_burst(app)
    job = await state_of(bad)
    assert (job.state, [e.kind for e in job.errors]) == (State.DEAD, ["TypeError"])
    assert await all_completed(good)


async def test_inputs_that_cannot_be_read_for_an_unforeseen_reason_fail_that_node_alone(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_inputs = admission.with_inputs

    async def broken(store: Store, job: Job) -> Job:
        if job.task == "bad":
            raise ZeroDivisionError
        return await with_inputs(store, job)

    monkeypatch.setattr(admission, "with_inputs", broken)
    good, bad = app.tasks["good"], app.tasks["bad"]
    flows = [await chain(good.job(1), task).aenqueue() for task in (good, bad, good)]
    for _ in range(3):
        await in_a_burst(app)
        await app.store.advance_flows()
    page = await app.store.list_jobs(task="bad")
    assert [(job.state, job.errors[0].kind) for job in page.jobs] == [(State.RETRYABLE, "ZeroDivisionError")]
    assert [await flows[place].aresult(5) for place in (0, 2)] == [1, 1]


async def test_a_flow_that_cannot_be_undone_keeps_no_other_outcome_from_the_store(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(store: Store, job: Job, move: Transition, by: int, **more: Any) -> Transition:
        raise ZeroDivisionError

    monkeypatch.setattr(settler, "undo_first", broken)
    gone = [False]

    @app.task(name="flow", max_attempts=2, retry="0s")
    async def flow(n: int) -> None:
        if gone[0]:  # the second attempt fails before its flow begins
            raise ValueError("no luck")
        gone[0] = True
        await current_flow().step("pay", lambda: "paid", undo=lambda _: None)
        raise ValueError("no luck")

    handle = await flow.aenqueue(1)
    bad, good = await mixed(app)
    await in_a_burst(app)
    job = await state_of(handle)
    assert (job.state, job.attempt, job.reason) == (State.DEAD, 2, "not undone: ZeroDivisionError")
    assert await all_completed([bad, *good])


async def test_a_job_whose_terms_cannot_be_reckoned_is_dead_and_the_others_are_settled(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = lifecycle.wait_ms

    def broken(policy: Any, attempt: int, luck: float) -> int:
        if policy == Fixed(77):
            raise OverflowError("too large")
        return wait(policy, attempt, luck)

    monkeypatch.setattr(lifecycle, "wait_ms", broken)

    @app.task
    def fails() -> None:
        raise ValueError("no luck")

    handle, other = await fails.using(retry="77ms").aenqueue(), await fails.using(retry="1h").aenqueue()
    bad, good = await mixed(app)
    await in_a_burst(app)
    job = await state_of(handle)
    assert (job.state, [e.message for e in job.errors]) == (State.DEAD, ["no luck"])
    assert job.reason == f"{lifecycle.UNREADABLE}its outcome cannot be decided: too large"
    assert (await state_of(other)).state is State.RETRYABLE
    assert await all_completed([bad, *good])


async def test_a_reclaimed_job_that_cannot_be_settled_keeps_no_other_from_it(store: Store) -> None:
    class Choosy:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
            if any(one.lease.id == "bad" for one in settlements):
                raise TypeError("cannot be encoded")
            return await store.settle(settlements)

    await add(store, *[NewJob(id, "t") for id in ("a", "bad", "c")])
    found = await store.fetch([Share("default", 9, 9)], limit=9, lease=60_000, worker="w", token=token())
    told: list[str] = []
    loss = Loss("WorkerLost", "died", on_decided=lambda job, _: told.append(job.id))
    await settle_reclaimed(cast(Store, Choosy()), found, loss)
    assert sorted(told) == ["a", "c"]
    jobs = await store.get([job.ref for job in found.jobs])
    assert {job.id: job.state for job in jobs if job is not None} == {
        "a": State.AVAILABLE,
        "bad": State.RUNNING,  # until its lease ends: then it is reclaimed again
        "c": State.AVAILABLE,
    }
