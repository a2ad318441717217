"""Durable steps where something goes wrong: middleware, failures, branches that run on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from penstock import App, Unique, current_job
from penstock.client.handle import Handle
from penstock.core.job import Ref, State
from penstock.errors import Cancel, Discard, MemberFailed
from penstock.retry import Fixed
from penstock.stores.contract import SignalStatus, StoredStep
from penstock.testing import inline
from penstock.worker.leased_jobs import LeasedJob
from penstock.workflows import current_flow, current_sync_flow, step_memory
from penstock.workflows.child_jobs import _Gather
from tests.lease_clocks import time_out
from tests.workflows.steps.conftest import Running, until


def steps_of(app: App, handle: Handle[Any]) -> list[StoredStep]:
    return app.store.sync.steps(Ref(handle.queue, handle.id))


async def reason_of(handle: Handle[Any]) -> str:
    job = await handle.ajob()
    assert job is not None
    return job.reason or ""


# ── middleware ──


@pytest.mark.parametrize("raises", [False, True])
async def test_middleware_cannot_swallow_a_suspension_of_a_thread(running: Running, raises: bool) -> None:
    app = running.app

    @app.around_attempt
    async def swallow(job: Any, call: Any) -> Any:
        try:
            return await call()
        except BaseException:
            if raises:
                raise ValueError("metrics are down") from None
            return "swallowed"

    @app.task(max_attempts=1)
    def work() -> str:
        current_sync_flow().wait_for("go", timeout="1h")
        return "done"

    await running.start()
    handle = await work.aenqueue()
    await until(lambda: handle.astatus(), State.SUSPENDED)
    await app.asignal("go")
    assert await handle.aresult(timeout=60) == "done"
    await running.stop()


# ── loops ──


def test_steps_of_a_loop_go_on_behind_its_cursor(app: App, ran: list[Any]) -> None:
    @app.task(max_attempts=3)
    async def work() -> list[Any]:
        flow = current_flow()
        async for n in flow.iterate("rows", range(5), every=0):
            assert await flow.step("handle", lambda n: n, n) == n
            async for m in flow.iterate("cells", range(2), every=0):
                assert await flow.step("cell", lambda *at: list(at), n, m) == [n, m]
                ran.append((n, m))
                if len(ran) == 6:
                    raise OSError("a crash")
        return [await flow.step("handle", lambda: "after")]

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == ["after"]
    assert sorted(set(ran)) == [(n, m) for n in range(5) for m in range(2)]
    assert len(ran) == 11  # the item of the crash comes again


def test_each_item_of_a_loop_waits_for_its_signal(app: App, ran: list[Any]) -> None:
    @app.task
    async def work() -> None:
        flow = current_flow()
        async for n in flow.iterate("rows", range(3), every=0):
            ran.append(await flow.wait_for("go", key=n, timeout="1h"))

    with inline(app) as box:
        work.enqueue()
        for n in range(3):
            box.run()
            app.signal("go", key=n, data=n)
        box.run_all()
    assert ran == [0, 1, 2]


def test_a_loop_leaves_the_names_of_other_branches_alone(app: App, ran: list[Any]) -> None:
    @app.task
    async def work() -> None:
        flow, passed = current_flow(), asyncio.Event()

        async def loop() -> None:
            async for n in flow.iterate("rows", range(2), every=0):
                await flow.step("row", ran.append, n)
            passed.set()
            await flow.sleep("1h", key="loop")

        async def beside() -> None:
            await passed.wait()
            await flow.step("beside", ran.append, "beside")
            await flow.sleep("1h", key="beside")

        await asyncio.gather(loop(), beside())

    with inline(app) as box:
        work.enqueue()
        box.run_all()
    assert ran == [0, 1, "beside"]


# ── branches ──


async def test_branches_end_with_their_attempt(running: Running, ran: list[Any]) -> None:
    app, ended = running.app, asyncio.Event()

    @app.task(max_attempts=1)
    async def work() -> None:
        flow = current_flow()

        async def beside() -> None:
            await until(handle.astatus, State.DEAD)
            try:
                await flow.step("beside", ran.append, "beside")
            finally:
                ended.set()

        async def bad() -> None:
            await flow.step("a", ran.append, "a")
            raise OSError("no")

        await asyncio.gather(beside(), bad())

    handle = await work.aenqueue()
    await running.start()
    await asyncio.wait_for(ended.wait(), 60)
    assert ran == ["a"]
    await running.stop()


async def test_an_undo_waits_for_the_steps_that_run(running: Running, ran: list[Any]) -> None:
    app, failed, undone = running.app, asyncio.Event(), asyncio.Event()

    async def charge() -> str:
        await failed.wait()
        await asyncio.sleep(0.05)  # what follows from the failure has begun meanwhile
        ran.append("charge")
        return "paid"

    async def fails() -> None:
        failed.set()
        raise Discard("no")

    @app.task(max_attempts=1)
    async def work() -> None:
        flow = current_flow()
        await flow.step("a", ran.append, "a", undo=lambda _: ran.append("undo a") or undone.set())
        await asyncio.gather(
            flow.step("charge", charge, undo=lambda paid: ran.append(f"undo {paid}")),
            flow.step("bad", fails),
        )

    await running.start()
    await work.aenqueue()
    await asyncio.wait_for(undone.wait(), 60)
    assert ran == ["a", "charge", "undo paid", "undo a"]
    await running.stop()


def test_the_shortest_of_concurrent_waits_counts(app: App, ran: list[Any]) -> None:
    @app.task
    async def work() -> None:
        flow = current_flow()

        async def wait(name: str, time: str) -> None:
            await flow.step(f"before {name}", asyncio.sleep, 0.02 if name == "short" else 0)
            await flow.sleep(time)
            await flow.step(name, ran.append, name)

        await flow.branches(
            long=wait("long", "1d"), short=wait("short", "1m"), signal=flow.wait_for("go", timeout="2h")
        )

    with inline(app) as box:
        handle = work.enqueue()
        box.run()
        assert {"!sleep/long/", "!sleep/short/", "!wait/signal/go!until"} <= {
            step.name for step in steps_of(app, handle)
        }
        box.advance("2m")
        assert ran == ["short"]
        box.run_all()
    assert ran == ["short", "long"]


async def test_a_signal_of_any_branch_resumes_the_flow(running: Running) -> None:
    app = running.app

    @app.task
    async def work() -> list[Any]:
        flow = current_flow()

        async def late() -> Any:
            await flow.step("before", asyncio.sleep, 0.03)
            return await flow.wait_for("second", timeout="1h")

        return list(await asyncio.gather(flow.wait_for("first", timeout="1h"), late()))

    await running.start()
    handle = await work.aenqueue()
    await until(handle.astatus, State.SUSPENDED)
    for n, name in enumerate(("second", "first")):
        assert await app.asignal(name, data=n) is SignalStatus.RECEIVED
    assert await handle.aresult(timeout=60) == [1, 0]
    await running.stop()


async def test_a_wait_for_a_signal_is_repeated_soon_as_the_store_may_have_lost_it(
    running: Running, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that restarts without its last moments may have lost the wait, and have the suspension."""
    monkeypatch.setattr(step_memory, "_EARLY_LOOKS", (600,))

    @running.app.task
    async def work() -> Any:
        ran.append("a run")
        return await current_flow().wait_for("packed")

    await running.start()
    handle = await work.aenqueue()
    await until(lambda: asyncio.sleep(0, len(ran)), 2)
    await until(handle.astatus, State.SUSPENDED)
    job = await handle.ajob()
    assert job is not None
    assert job.run_at > time.time() * 1_000 + 3_600_000
    await running.app.asignal("packed", data=7)
    assert await handle.aresult(timeout=60) == 7
    await running.stop()


async def test_one_name_twice_at_once_is_refused_before_its_functions_run(
    running: Running, ran: list[Any]
) -> None:
    @running.app.task(max_attempts=1)
    async def work() -> None:
        flow = current_flow()
        await asyncio.gather(*(flow.step("a", asyncio.sleep, 0.02) for _ in range(2)))

    await running.start()
    handle = await work.aenqueue()
    await until(handle.astatus, State.DEAD)
    assert "step 'a' is used at once" in await reason_of(handle)
    await running.stop()


# ── errors ──


def test_another_version_cannot_be_swallowed(app: App, ran: list[Any]) -> None:
    releases = ["1", "2"]

    @app.task
    async def work() -> None:
        flow = current_flow(version=releases.pop(0))
        for name in "ab":
            try:
                await flow.step(name, ran.append, name)
            except Exception:
                ran.append("caught")
        await flow.sleep("1h")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run()
        box.advance("1h")
        assert handle.status() is State.PARKED
    assert ran == ["a", "b", "caught", "caught"]


@pytest.mark.parametrize("error", [Discard("no"), Cancel("no")])
def test_a_step_is_not_tried_again_after_a_choice_of_its_function(
    app: App, ran: list[Any], error: Exception
) -> None:
    def chooses() -> None:
        ran.append("try")
        raise error

    @app.task
    async def work() -> None:
        await current_flow().step("a", chooses, attempts=4, retry_delay="1s")

    with inline(app, raises=False) as box:
        work.enqueue()
        box.run_all()
    assert ran == ["try"]


async def test_a_wait_inside_a_step_is_refused(running: Running) -> None:
    app = running.app

    @app.task
    async def work() -> None:
        flow = current_flow()
        await flow.step("a", flow.wait_for, "go")

    @app.task
    def in_thread() -> None:
        flow = current_sync_flow()
        flow.step("a", lambda: flow.sleep("1h"))

    await running.start()
    for task in (work, in_thread):
        handle = await task.aenqueue()
        await until(handle.astatus, State.DEAD)
        assert "inside the function of a step" in await reason_of(handle)
    await running.stop()


def test_a_flow_call_inside_an_undo_is_refused(app: App) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        flow = current_flow()
        await flow.step("a", lambda: 1, undo=lambda _: flow.sleep("1h"))
        raise OSError("no")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert "inside an undo function" in asyncio.run(reason_of(handle))


@pytest.mark.parametrize("early", [False, True], ids=["in its flow", "before its flow"])
@pytest.mark.parametrize("last", [2, 3])
def test_steps_are_undone_after_a_last_attempt_that_did_not_reach_them(
    app: App, ran: list[Any], last: int, early: bool
) -> None:
    @app.task(max_attempts=2)
    async def work() -> None:
        flow = None if early else current_flow()
        ran.append("begin")
        if 2 <= ran.count("begin") <= last:
            raise OSError("the database is down")
        flow = flow or current_flow()
        await flow.step("charge", lambda: ran.append("charge"), undo=lambda _: ran.append("undo"))
        raise OSError("no")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.status() is State.DEAD
        reason = asyncio.run(reason_of(handle))
        assert ("not undone" in reason and "is down" in reason) is (last == 3)
    assert ran == ["begin", "charge", "begin", "begin", *(["undo"] if last == 2 else [])]


def test_steps_are_undone_after_a_last_attempt_that_times_out(app: App, ran: list[Any]) -> None:
    async def ship() -> None:
        leased = current_job().owner
        assert isinstance(leased, LeasedJob)
        time_out(leased)
        await asyncio.Event().wait()

    @app.task(max_attempts=1, timeout="1h")
    async def work() -> None:
        flow = current_flow()
        await flow.step("charge", lambda: ran.append("charge"), undo=lambda _: ran.append("undo"))
        await flow.step("ship", ship)

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        job = handle.job()
    assert job is not None
    assert job.state is State.DEAD
    assert "undone after: the attempt timed out" in (job.reason or "")
    assert [error.kind for error in job.errors] == ["Timeout", "Discard"]
    assert ran == ["charge", "undo"]


# ── child jobs ──


async def test_gather_waits_for_room_in_a_full_queue(running: Running, ran: list[Any]) -> None:
    app = running.app
    await app.queue("default").asettings(max_size=1)

    @app.task
    async def child(n: int) -> int:
        ran.append(n)
        return n

    @app.task(queue="flows")
    async def work() -> list[int]:
        return await current_flow().gather([child.job(n) for n in range(2)])

    handle = await work.aenqueue()
    await running.start()
    assert await handle.aresult(timeout=60) == [0, 1]
    assert ran == [0, 1]
    await running.stop()


async def test_a_flow_is_woken_by_the_ends_of_its_jobs(running: Running) -> None:
    app, ends = running.app, asyncio.Event()

    @app.task
    async def child(n: int) -> int:
        await ends.wait()
        return n

    @app.task(queue="flows")
    async def work() -> list[int]:
        return await current_flow().gather([child.job(n) for n in range(2)])

    handle = await work.aenqueue()
    await running.start()
    await until(handle.astatus, State.SUSPENDED)
    job = await handle.ajob()
    assert job is not None
    assert job.run_at < time.time() * 1_000 + 60_001  # it looks then if the store has lost its wait
    ends.set()
    assert await handle.aresult(timeout=60) == [0, 1]
    await running.stop()


async def test_a_job_that_dies_while_it_stores_the_flow_of_a_gather_leaves_none_behind(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, ends, watch = running.app, asyncio.Event(), _Gather._watch

    @app.task
    async def child() -> int:
        await ends.wait()
        return 1

    @app.task(queue="flows", max_attempts=2, retry=Fixed(0))
    async def work() -> list[int]:
        return await current_flow().gather([child.job()])

    def dying(self: _Gather, *args: Any) -> Any:
        plan = watch(self, *args)
        yield next(plan)  # stores the nodes; the next call would start the flow
        if not ends.is_set():
            ends.set()
            raise OSError("the worker dies")
        yield from plan

    monkeypatch.setattr(_Gather, "_watch", dying)
    handle = await work.aenqueue()
    await running.start()
    assert await handle.aresult(timeout=60) == [1]
    assert ends.is_set()

    async def left() -> list[bool]:
        return [flow.ended for flow in (await app.store.list_flows()).flows]

    await until(left, [True])
    await running.stop()


def test_gather_waits_for_the_holder_of_a_unique_key(app: App, ran: list[Any]) -> None:
    @app.task(unique=True)
    async def child(n: int) -> int:
        ran.append(n)
        return 2 * n

    @app.task
    async def work() -> list[int]:
        return await current_flow().gather([child.job(1), child.job(1)])

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == [2, 2]
    assert ran == [1]


def test_a_unique_job_of_a_gather_stays_for_those_that_share_it(app: App, ran: list[Any]) -> None:
    """Its key holds as long as its rule says, and another flow that waits for it finds its result later."""

    @app.task(unique=Unique(by="invoice", period="1d", states=("queued", "running", "finished")))
    async def pay(invoice: int) -> int:
        ran.append(invoice)
        return invoice

    @app.task
    async def order(n: int) -> list[int]:
        flow = current_flow()
        await flow.step("n", lambda: n)
        return await flow.gather([pay.job(17)])

    with inline(app) as box:
        orders = [order.enqueue(n) for n in range(2)]
        box.run_all()
        orders.append(order.enqueue(2))
        box.run_all()
        assert [one.result(timeout=1) for one in orders] == [[17]] * 3
        assert pay.enqueue(17).existing
        box.run_all()
    assert ran == [17], "paid once"


def test_a_caught_failure_of_a_gather_is_remembered(app: App, ran: list[Any]) -> None:
    @app.task(max_attempts=1)
    async def child() -> None:
        ran.append("child")
        raise OSError("no")

    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            await flow.gather([child.job()])
        except MemberFailed as error:
            ran.append(len(error.ids))
            refs = [Ref("default", id) for id in error.ids]
            await app.store.delete(refs)
        await flow.sleep("1h")
        return "done"

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == "done"
    assert ran == ["child", 1, 1]


def test_the_jobs_of_a_gather_pass_the_enqueue_middleware(app: App, ran: list[Any]) -> None:
    @app.around_enqueue
    def note(new: Any) -> Any:
        ran.append(new.task.rpartition(".")[2])
        return new

    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def work() -> list[int]:
        flow = current_flow()
        found = await flow.gather([child.using(delay="1s").job()])
        await flow.sleep("1h")
        return found

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == [1]
    assert ran == ["work", "child"]
