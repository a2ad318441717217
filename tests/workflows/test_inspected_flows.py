"""What the inspector shows of flows and durable steps, on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App, Worker
from penstock.core.flow import FlowState
from penstock.core.job import State
from penstock.inspector import Inspector
from penstock.workflows import chain, chord, current_flow
from tests.workflows.conftest import in_a_burst


async def test_flows_are_listed_by_state_and_shown_in_parts(app: App) -> None:
    @app.task(max_attempts=1)
    async def fetch(n: int) -> int:
        if n == 3:
            raise ValueError("page 3 is gone")
        return n

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    inspector = Inspector(app.store)
    for name in ("first", "second"):
        await chord([fetch.job(n) for n in range(6)], then=total).aenqueue(id=name, policy="finish")
        await in_a_burst(app)
    await chord([fetch.using(delay="1h").job(n) for n in range(4, 7)], then=total).aenqueue(id="open")

    failed = await inspector.flows.flows(states=[FlowState.FAILED], limit=1)
    assert ([flow.id for flow in failed.flows], failed.next is None) == (["second"], False)
    rest = await inspector.flows.flows(states=[FlowState.FAILED], limit=1, after=failed.next)
    assert ([flow.id for flow in rest.flows], rest.next) == (["first"], None)
    assert (await inspector.flows.flows(states=[FlowState.COMPLETED])).flows == []

    part = await inspector.flows.graph("default/first", first=2, limit=2)
    assert part is not None
    assert [(node.node, node.state) for node in part.nodes] == [(2, "completed"), (3, "dead")]
    assert [(node.node, node.inputs) for node in part.behind] == [(6, 6), (7, 1)]
    assert part.behind[0].id is None
    assert part.nodes[1].job is not None
    assert part.nodes[1].job.error == "ValueError: page 3 is gone"
    dead = await inspector.flows.members("default/first", [State.DEAD])
    assert [one.node for one in dead.members] == [3]
    assert await inspector.flows.graph("default/nothing") is None
    assert await inspector.flows.queues("default/first") == {"default"}


async def test_a_list_for_somebody_who_may_not_read_all_queues_names_no_flow_of_the_others(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def fetch(n: int) -> int:
        return n

    for n, queue in enumerate(("mine", "others", "others", "mine", "others")):
        later = fetch.using(queue=queue, delay="1h")
        await chain(later.job(n), fetch).aenqueue(id=f"{queue}-{n}")
    flows, sees = Inspector(app.store).flows.flows, "mine".__eq__
    assert [flow.id for flow in (await flows(sees=sees)).flows] == ["mine-3", "mine-0"]
    page = await flows(sees=sees, limit=1)
    assert ([flow.id for flow in page.flows], "others" in str(page.next)) == (["mine-3"], False)
    assert [flow.id for flow in (await flows(sees=sees, after=page.next)).flows] == ["mine-0"]
    monkeypatch.setattr("penstock.inspector.flow_inspector._MOST_PASSED", 1)
    monkeypatch.setattr("penstock.inspector.flow_inspector.FLOW_STEP", 1)
    found, after = list[str](), None
    for _ in range(20):
        page = await flows(sees=sees, limit=1, after=after)
        found, after = [*found, *(flow.id for flow in page.flows)], page.next
        assert "others" not in str(after)
        if after is None:
            break
    assert list(dict.fromkeys(found)) == ["mine-3", "mine-0"]


async def test_steps_waits_and_undo_runs_are_shown(app: App) -> None:
    @app.task
    async def pack(n: int) -> int:
        return n

    @app.task(retention="1h")
    async def order(order_id: int) -> str:
        flow = current_flow()
        await flow.step("charge", lambda: {"id": order_id}, undo=lambda _: None)
        await flow.wait_for("packed", key=order_id, timeout="3d")
        await flow.gather([pack.using(delay="1h").job(1), pack.using(delay="1h").job(2)])
        return "never"

    @app.task(max_attempts=1)
    async def fails() -> None:
        flow = current_flow()
        await flow.step("charge", lambda: "paid", undo=lambda _: None)
        raise ValueError("no courier")

    inspector = Inspector(app.store)
    await order.using(id="o").aenqueue(7)
    await fails.using(id="f").aenqueue()
    worker = Worker(app, concurrency=4)
    running = asyncio.create_task(worker.run())

    async def shown(id: str, kind: str) -> Any:
        async with asyncio.timeout(20):
            while True:
                found = await inspector.flows.steps(f"default/{id}")
                assert found is not None
                last = found.steps[-1] if found.steps else None
                if last is not None and last.kind == kind and found.job.state != "running":
                    return found
                await asyncio.sleep(0.02)

    found = await shown("o", "signal")
    charge, signal = found.steps
    assert (charge.kind, charge.name, bytes(charge.value)) == ("step", "charge", b'{"id":7}')
    assert (signal.name, signal.key, signal.waits, signal.due_at is not None) == ("packed", "7", True, True)
    (wait,) = await inspector.flows.waits(["default/o", "default/none"])
    assert (wait.kind, wait.signal, wait.key) == ("signal", "packed", "7")
    await app.asignal("packed", key=7, data=[1, 2])
    found = await shown("o", "gather")
    assert [(one.kind, one.waits) for one in found.steps] == [
        ("step", False),
        ("signal", False),
        ("gather", True),
    ]
    assert bytes(found.steps[1].value) == b"[1,2]"
    assert (found.steps[2].jobs, found.steps[2].flow.nodes) == (2, 2)
    assert [wait.kind for wait in await inspector.flows.waits(["default/o"])] == ["gather"]
    (view,) = await inspector.why("default/o")
    assert [one.kind for one in view.reasons] == ["gather", "timer"]
    assert view.reasons[0].says.startswith("its flow waits for a gather of 2 jobs: o.")
    found = await shown("f", "undo")
    assert (found.failed, found.steps[0].undone) == ("no courier", True)
    assert await inspector.flows.steps("default/none") is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await in_a_burst(app)
