"""Durable steps where something goes wrong: middleware, failures, branches that run on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App
from penstock.core.job import Ref, State
from penstock.testing import inline
from penstock.workflows import current_flow, current_sync_flow
from tests.workflows.steps.conftest import Running, until


@pytest.fixture
def ran() -> list[Any]:
    """What the tasks of the test have done, in order."""
    return []


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
    assert await handle.aresult(timeout=10) == "done"
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
        flow = current_flow()

        async def loop() -> None:
            async for n in flow.iterate("rows", range(2), every=0):
                await flow.step("row", ran.append, n)
            await flow.sleep("1h")

        async def beside() -> None:
            await asyncio.sleep(0.05)
            await flow.step("beside", ran.append, "beside")
            await flow.sleep("1h")

        await asyncio.gather(loop(), beside())

    with inline(app) as box:
        work.enqueue()
        box.run_all()
    assert ran == [0, 1, "beside"]
