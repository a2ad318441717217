"""Durable steps of real apps: run once, suspended, signalled, resumed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from penstock import App, current_job
from penstock.client.handle import Handle
from penstock.core.flow import FLOW_ABANDONED
from penstock.core.job import Job, Ref, State
from penstock.errors import (
    ArgumentError,
    JobDead,
    MemberFailed,
    TooManySignals,
)
from penstock.retry import Fixed
from penstock.stores.contract import SignalStatus
from penstock.testing import inline
from penstock.workflows import chord, current_flow, current_sync_flow
from tests.workflows.steps.conftest import Running, until


def steps_of(app: App, handle: Handle[Any]) -> list[str]:
    return [step.name for step in app.store.sync.steps(Ref(handle.queue, handle.id))]


# ── steps ──


def test_a_step_runs_once(app: App, ran: list[str]) -> None:
    def charge(amount: int) -> dict[str, int]:
        ran.append("charge")
        return {"amount": amount}

    async def ship(item: str, *, to: str) -> tuple[str, str]:
        ran.append("ship")
        return item, to

    @app.task(max_attempts=3)
    async def order(amount: int) -> str:
        flow = current_flow()
        paid = await flow.step("charge", charge, amount)
        shipped = await flow.step("ship", ship, "book", to="me")
        ran.append("between")
        if ran.count("between") < 3:
            raise OSError("again")
        return f"{paid['amount']} {shipped!r}"

    with inline(app, raises=False) as box:
        handle = order.enqueue(7)
        box.run_all()
        assert handle.result(timeout=1) == "7 ('book', 'me')"
    assert ran == ["charge", "ship", "between", "between", "between"]


def test_steps_of_one_name_are_counted(app: App, ran: list[str]) -> None:
    @app.task
    async def count() -> list[int]:
        flow = current_flow()
        found = [await flow.step("next", lambda n: n, n) for n in range(3)]
        ran.append("run")
        await flow.sleep("1h")
        return found

    with inline(app) as box:
        handle = count.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == [0, 1, 2]
    assert ran == ["run", "run"]


def test_a_step_without_a_result_is_remembered(app: App, ran: list[str]) -> None:
    def note() -> None:
        ran.append("note")

    @app.task
    async def work() -> int:
        flow = current_flow()
        assert await flow.step("note", note) is None
        await flow.sleep("1h")
        return 1

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == 1
    assert ran == ["note"]


def test_a_step_has_its_own_retry(app: App, ran: list[str]) -> None:
    def flaky() -> int:
        ran.append("try")
        if len(ran) < 3:
            raise OSError("not yet")
        return 5

    @app.task(max_attempts=1)
    async def work() -> int:
        return await current_flow().step("flaky", flaky, attempts=3, retry_delay="1m")

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == 5
    assert len(ran) == 3


def test_a_step_that_keeps_failing_fails_the_attempt(app: App, ran: list[str]) -> None:
    def bad() -> int:
        ran.append("try")
        raise OSError("never")

    @app.task(max_attempts=1)
    async def work() -> int:
        return await current_flow().step("bad", bad, attempts=2, retry_delay="1m")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        with pytest.raises(JobDead, match="never"):
            handle.result(timeout=1)
    assert len(ran) == 2


def test_a_step_that_the_code_no_longer_has_is_ignored(app: App) -> None:
    @app.task(max_attempts=2)
    async def work(first: bool = True) -> int:
        flow = current_flow()
        if not flow.id or app.state.__dict__.setdefault("runs", 0) == 0:
            app.state.runs = 1
            await flow.step("old", lambda: 1)
            raise OSError("a new release")
        return await flow.step("new", lambda: 2)

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == 2
        assert steps_of(app, handle) == ["!step/old", "!step/new"]


def test_only_another_version_parks_the_job(app: App) -> None:
    release = ["1"]

    @app.task
    async def work() -> str:
        flow = current_flow(version=release[0])
        await flow.sleep("1m")
        await flow.sleep("1h")
        return "done"

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run()
        box.advance("2m")
        assert handle.status() is State.SUSPENDED
        release[0] = "2"
        box.run_all()
        assert handle.status() is State.PARKED
        assert "began with version '1'" in (handle.job().reason or "")
        release[0] = "1"
        handle.retry()
        box.run_all()
        assert handle.result(timeout=1) == "done"


def test_concurrent_branches(app: App, ran: list[str]) -> None:
    async def slow(name: str) -> str:
        ran.append(name)
        await asyncio.sleep(0.05)
        return name

    @app.task
    async def work() -> list[Any]:
        flow = current_flow()
        return list(
            await asyncio.gather(flow.step("a", slow, "a"), flow.sleep("1h"), flow.step("b", slow, "b"))
        )

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == ["a", None, "b"]
    assert sorted(ran) == ["a", "b"]


def test_one_name_twice_at_once_is_refused(app: App) -> None:
    async def slow() -> None:
        await asyncio.sleep(0.01)

    @app.task(max_attempts=1)
    async def work() -> None:
        flow = current_flow()
        await asyncio.gather(flow.step("a", slow), flow.step("a", slow))

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert "step 'a' is used at once" in (handle.job().reason or "")


@pytest.mark.parametrize("size", [2_000_000, 10_000_000])
def test_a_result_that_is_too_large_is_one_clear_error(app: App, size: int) -> None:
    @app.task
    async def work() -> None:
        await current_flow().step("large", lambda: "x" * size)

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.status() is State.DEAD
        reason = handle.job().reason or ""
        assert "the result of step 'large' cannot be remembered" in reason
        assert reason.endswith("the limit is 1,048,576. Store it elsewhere and return its path or key")
        assert steps_of(app, handle) == []


# ── where there is no flow ──


def test_outside_of_a_job_there_is_no_flow() -> None:
    for flow in (current_flow, current_sync_flow):
        with pytest.raises(LookupError, match="inside a task"):
            flow()


@pytest.mark.parametrize(
    ("options", "flow", "why"),
    [
        ({"delivery": "at-most-once"}, current_flow, "at-most-once"),
        ({}, current_sync_flow, "current_flow"),
    ],
)
def test_a_job_that_cannot_have_a_flow_is_dead(
    app: App, options: Any, flow: Callable[[], object], why: str
) -> None:
    @app.task(**options)
    async def work() -> None:
        flow()

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.status() is State.DEAD
        assert why in (handle.job().reason or "")


# ── waits ──


def test_a_timer_gives_the_slot_back(app: App, ran: list[str]) -> None:
    @app.task(max_attempts=1)
    async def work() -> str:
        ran.append("run")
        await current_flow().sleep("1h")
        return "done"

    with inline(app) as box:
        handle = work.enqueue()
        box.run()
        assert handle.status() is State.SUSPENDED
        box.advance("59m")
        assert handle.status() is State.SUSPENDED
        box.advance("1m")
        assert handle.result(timeout=1) == "done"
        assert handle.job().attempt == 1
    assert ran == ["run", "run"]


def test_a_swallowed_suspension_suspends_all_the_same(app: App, ran: list[str]) -> None:
    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            await flow.sleep("1h")
        except BaseException:
            ran.append("swallowed")
        finally:
            ran.append("finally")
        await flow.step("after", ran.append, "after")
        return "done"

    with inline(app) as box:
        handle = work.enqueue()
        box.run()
        assert handle.status() is State.SUSPENDED
        assert ran == ["swallowed", "finally"]
        box.run_all()
        assert handle.result(timeout=1) == "done"
    assert ran == ["swallowed", "finally", "finally", "after"]


def test_a_signal_resumes_the_flow(app: App) -> None:
    @app.task
    async def work(order: int) -> Any:
        return await current_flow().wait_for("packed", key=order, timeout="3d", of=dict[str, list[int]])

    with inline(app) as box:
        handle = work.enqueue(7)
        box.run()
        assert app.signal("packed", key=8) is SignalStatus.STORED
        assert app.signal("packed", key=7, data={"to": [1, 2]}) is SignalStatus.RECEIVED
        box.run()
        assert handle.result(timeout=1) == {"to": [1, 2]}


def test_a_wait_without_its_signal_ends_with_none(app: App) -> None:
    @app.task
    async def work() -> Any:
        return [await current_flow().wait_for("packed", timeout="3d"), "after"]

    with inline(app) as box:
        handle, began = work.enqueue(), box.now
        box.run_all()
        assert handle.result(timeout=1) == [None, "after"]
        assert (box.now - began).days == 3
        assert app.signal("packed") is SignalStatus.STORED


def test_none_is_a_signal(app: App) -> None:
    @app.task
    async def work() -> bool:
        flow = current_flow()
        first = await flow.wait_for("go", timeout="1h")
        second = await flow.wait_for("go", timeout="1h")
        return first is None and second == 2

    with inline(app) as box:
        handle = work.enqueue()
        box.run()
        app.signal("go", data=None)
        box.run()
        app.signal("go", data=2)
        box.run()
        assert handle.result(timeout=1) is True


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"data": "x" * 300_000}, "its data takes 300,002 bytes; the limit is 262,144"),
        ({"data": object()}, "is nothing that a task could return"),
        ({"name": ""}, "a text that is not empty"),
        ({"name": "a#2"}, "has no '!' or '#'"),
        ({"name": "x" * 201}, "its name takes 201 bytes; the limit is 200"),
        ({"name": 7}, "its name is a text"),
        ({"name": "\ud800"}, "holds half of a character"),
        ({"key": "é" * 101}, "its key takes 202 bytes; the limit is 200"),
        ({"key": 1.5}, "key=1.5 is neither a text nor a number"),
        ({"flow": "no id"}, "cannot be a job's id"),
        ({"keep": 0}, "keeps no signal"),
        ({"keep": "soon"}, "not a duration"),
        ({"most": 0}, "is no number of signals"),
    ],
)
def test_a_signal_that_cannot_be_sent_is_refused(arguments: dict[str, Any], why: str) -> None:
    app = App(f"memory://{uuid4().hex}")
    name = arguments.pop("name", "packed")
    with pytest.raises(ArgumentError, match=re.escape(why)):
        app.signal(name, **arguments)
    app.signal("first", most=1)  # nothing was stored before


def test_a_signal_beyond_the_limit_of_its_namespace_is_refused(app: App) -> None:
    app.signal("packed", key=1, most=1)
    with pytest.raises(TooManySignals):
        app.signal("packed", key=2, most=1)


# ── child jobs ──


def test_gather_runs_jobs_and_returns_their_results(app: App, ran: list[str]) -> None:
    @app.task
    async def double(n: int) -> int:
        ran.append(str(n))
        return 2 * n

    @app.task
    def nothing() -> None: ...

    @app.task
    async def work() -> list[Any]:
        flow = current_flow()
        none = await flow.gather([])
        found = await flow.gather([double.using(delay="1m").job(n) for n in range(3)])
        await flow.sleep("1h")
        return [none, found, await flow.gather([nothing.job()])]

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == [[], [0, 2, 4], [None]]
        assert sorted(ran) == ["0", "1", "2"]
        assert [job.task for job in _jobs(app)] == [handle.job().task]  # their results were taken


def test_gather_tells_of_jobs_that_fail(app: App) -> None:
    @app.task(max_attempts=1)
    async def bad(n: int) -> int:
        if n:
            raise OSError("no")
        return n

    @app.task
    async def work() -> str:
        try:
            await current_flow().gather([bad.job(0), bad.job(1)])
        except MemberFailed as error:
            return f"{len(error.ids)} failed"
        return "fine"

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == "1 failed"


def _jobs(app: App) -> list[Job]:
    return [
        job
        for info in app.store.sync.queues()
        for job in asyncio.run(app.store.list_jobs(queue=info.name)).jobs
    ]


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        (lambda child: [child], "gather takes a list of task.job"),
        (lambda child: [child.job()] * 10_001, "the limit is 10,000"),
        (lambda child: [child.using(id="x").job(), child.using(id="x").job()], "the same id"),
    ],
)
def test_a_gather_that_cannot_be_enqueued_stores_nothing(calls: Callable[[Any], Any], why: str) -> None:
    app = App(f"memory://{uuid4().hex}")

    @app.task
    async def child() -> None: ...

    @app.task
    async def work() -> None:
        await current_flow().gather(calls(child))

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.status() is State.DEAD
        assert why in (handle.job().reason or "")
        assert steps_of(app, handle) == []
        assert [job.id for job in _jobs(app)] == [handle.id]


# ── sagas ──


def saga(app: App, ran: list[str], *, fails: Callable[[], object], attempts: int = 2) -> Any:
    def did(name: str) -> Callable[[], str]:
        def act() -> str:
            ran.append(name)
            return name

        return act

    def undo(name: str) -> None:
        ran.append(f"undo {name}")

    @app.task(max_attempts=attempts)
    async def work() -> str:
        flow = current_flow()
        await flow.step("a", did("a"), undo=undo)
        await flow.step("b", did("b"), undo=undo)
        await flow.step("c", did("c"))
        await flow.step("last", fails)
        return "done"

    return work


def test_a_flow_that_fails_for_good_is_undone_backwards(app: App, ran: list[str]) -> None:
    def fails() -> None:
        ran.append("fails")
        raise OSError("no")

    work = saga(app, ran, fails=fails)
    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.status() is State.DEAD
        assert "OSError: no" in str(handle.job().errors[-1]) or handle.job().errors[-1].kind == "OSError"
    assert ran == ["a", "b", "c", "fails", "fails", "undo b", "undo a"]


def test_an_undo_that_fails_is_repeated_and_the_others_are_not(app: App, ran: list[str]) -> None:
    from penstock.errors import Discard

    def fails() -> None:
        ran.append("fails")
        raise Discard("out of stock")

    tries: list[int] = []

    def undo_a(name: str) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("the bank is closed")
        ran.append("undo a")

    @app.task(max_attempts=5)
    async def work() -> None:
        flow = current_flow()
        await flow.step("a", lambda: "a", undo=undo_a)
        await flow.step("b", lambda: "b", undo=lambda name: ran.append("undo b"))
        await flow.step("last", fails)

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        job = handle.job()
        assert job.state is State.DEAD
        assert "undone after: out of stock" in (job.reason or "")
    assert ran == ["fails", "undo b", "undo a"]


def test_a_flow_that_succeeds_is_not_undone(app: App, ran: list[str]) -> None:
    work = saga(app, ran, fails=lambda: None)
    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == "done"
    assert ran == ["a", "b", "c"]


# ── long loops ──


def test_a_loop_goes_on_behind_its_cursor(app: App, ran: list[str]) -> None:
    @app.task(max_attempts=3)
    async def work() -> int:
        flow = current_flow()
        async for n in flow.iterate("rows", range(6), every=0):
            ran.append(str(n))
            if ran.count("3") == 1 and n == 3:
                raise OSError("a crash")
        async for n in flow.iterate("rows", [7, 8]):
            ran.append(str(n))
        return len(ran)

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == 9
    assert ran == ["0", "1", "2", "3", "3", "4", "5", "7", "8"]


def test_a_loop_over_a_function_of_its_cursor(app: App, ran: list[str]) -> None:
    async def rows(after: str | None) -> Any:
        for letter in "abcd":
            if after is None or letter > after:
                yield letter.upper(), letter

    @app.task(max_attempts=2)
    async def work() -> str:
        flow = current_flow()
        async for row in flow.iterate("rows", rows, every=0):
            ran.append(row)
            if ran == ["A", "B"]:
                raise OSError("a crash")
        return "".join(ran)

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == "ABBCD"


async def test_a_loop_stops_at_a_drain_and_goes_on_elsewhere(running: Running, ran: list[str]) -> None:
    app, more = running.app, asyncio.Event()

    @app.task
    async def work() -> int:
        async for n in current_flow().iterate("rows", range(100), every="1h"):
            ran.append(str(n))
            if n == 3:
                more.set()
                while not current_job().stopping:
                    await asyncio.sleep(0.01)
        return len(ran)

    await running.start()
    handle = await work.aenqueue()
    await asyncio.wait_for(more.wait(), 60)
    await running.stop()
    assert ran == ["0", "1", "2", "3"]
    await running.start()
    assert await handle.aresult(timeout=60) == 100
    await running.stop()


# ── real workers ──


async def test_threads_have_the_same_steps_without_await(running: Running, ran: list[str]) -> None:
    app = running.app

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    def work() -> list[Any]:
        flow = current_sync_flow()
        paid = flow.step("charge", lambda: ran.append("charge") or 5)
        try:
            said = flow.wait_for("go", timeout="1h")
        finally:
            ran.append("finally")
        flow.sleep(0.01)
        for n in flow.iterate("rows", range(3)):
            ran.append(str(n))
        return [paid, said, flow.gather([double.job(1)])]

    await running.start()
    handle = await work.aenqueue()
    await until(lambda: handle.astatus(), State.SUSPENDED)
    await app.asignal("go", data="yes", flow=handle.id)
    assert await handle.aresult(timeout=60) == [5, "yes", [2]]
    assert [one for one in ran if one != "finally"] == ["charge", "0", "1", "2"]
    await running.stop()


async def test_steps_in_threads_are_undone_too(running: Running, ran: list[str]) -> None:
    @running.app.task(max_attempts=1)
    def work() -> None:
        flow = current_sync_flow()
        flow.step("reserve", ran.append, "reserve", undo=lambda _: ran.append("undo"))
        raise OSError("out of stock")

    await running.start()
    handle = await work.aenqueue()
    await until(handle.astatus, State.DEAD)
    assert ran == ["reserve", "undo"]
    await running.stop()


async def test_a_flow_goes_on_in_another_worker(running: Running, ran: list[str]) -> None:
    app = running.app

    @app.task
    async def work() -> str:
        flow = current_flow()
        await flow.step("charge", ran.append, "charge")
        said = await flow.wait_for("go")
        return f"{said} {ran}"

    await running.start()
    handle = await work.aenqueue()
    await until(lambda: handle.astatus(), State.SUSPENDED)
    await running.stop()
    assert await app.asignal("go", data="yes") is SignalStatus.RECEIVED
    await running.start()
    assert await handle.aresult(timeout=60) == "yes ['charge']"
    await running.stop()


@pytest.mark.parametrize("how", ["cancelled", "dead"])
async def test_the_jobs_of_a_gather_are_cancelled_with_its_job_and_brought_back(
    running: Running, how: str
) -> None:
    app, begun, free, give_up = running.app, asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.task
    async def child(n: int) -> int:
        begun.set()
        await free.wait()
        return n

    @app.task(max_attempts=1)
    async def work() -> list[int]:
        flow = current_flow()
        if how == "dead" and not free.is_set():
            await flow.step("a step", int)
            asyncio.get_running_loop().call_later(0.2, give_up.set)
            waiting = asyncio.ensure_future(flow.gather(calls))
            await give_up.wait()
            waiting.cancel()
            raise OSError("no")
        return await flow.gather(calls)

    calls = [child.job(1), child.using(delay="1h").job(2)]
    await running.start()
    handle = await work.aenqueue()
    await asyncio.wait_for(begun.wait(), 60)
    if how == "cancelled":
        await until(handle.astatus, State.SUSPENDED)
        await handle.acancel()
    await until(handle.astatus, State(how))

    async def children() -> list[tuple[State, str | None]]:
        page = await app.store.list_jobs(queue="default")
        return [(job.state, job.reason) for job in page.jobs if job.task == child.name]

    await until(children, [(State.CANCELLED, FLOW_ABANDONED)] * 2)
    free.set()
    await handle.aretry()
    assert await handle.aresult(timeout=60) == [1, 2]
    await running.stop()


def test_members_are_added_once_though_their_job_runs_again(app: App, ran: list[str]) -> None:
    @app.task
    async def member(n: int) -> int:
        return n

    @app.task(max_attempts=3, retry=Fixed(0))
    async def adding() -> int:
        flow = current_flow()
        await flow.add(member.job(1), member.job(2))
        ran.append("first")
        if len(ran) < 3:
            raise OSError("again")
        await flow.add(member.job(10))
        return 0

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    with inline(app, raises=False) as box:
        handle = chord([adding.job()], then=total).enqueue()
        box.run_all()
        assert handle.result(timeout=1) == 13
        assert handle.info().total == 6
    assert len(ran) == 3
