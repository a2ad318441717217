"""What the inspector shows of flows and durable steps, on every store."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from penstock import App, Worker
from penstock.core.errors import ArgumentError
from penstock.core.flow import FlowState
from penstock.core.job import Ref, State
from penstock.inspector import Inspector
from penstock.stores.contract import Share, StepEdit, StepRecord
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
    assert ([flow.spec.id for flow in failed.flows], failed.next is None) == (["second"], False)
    rest = await inspector.flows.flows(states=[FlowState.FAILED], limit=1, after=failed.next)
    assert ([flow.spec.id for flow in rest.flows], rest.next) == (["first"], None)
    assert (await inspector.flows.flows(states=[FlowState.COMPLETED])).flows == []

    part = await inspector.flows.graph("default/first", first=2, limit=2)
    assert part is not None
    assert [(node.index, node.state) for node in part.nodes] == [(2, "completed"), (3, "dead")]
    assert [(node.index, len(node.inputs)) for node in part.behind] == [(6, 6), (7, 1)]
    assert part.behind[0].job is None
    assert part.nodes[1].stored is not None
    assert part.nodes[1].stored.errors[-1].in_a_line == "ValueError: page 3 is gone"
    dead = await inspector.flows.members("default/first", [State.DEAD])
    assert [one.spec.flow and one.spec.flow.node for one in dead.members] == [3]
    assert await inspector.flows.graph("default/nothing") is None
    assert not await inspector.flows.leaves("default/first", ["default"])
    assert await inspector.flows.leaves("default/first", ["mail", "orders.*"])


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
    assert [flow.spec.id for flow in (await flows(sees=sees)).flows] == ["mine-3", "mine-0"]
    page = await flows(sees=sees, limit=1)
    assert ([flow.spec.id for flow in page.flows], "others" in str(page.next)) == (["mine-3"], False)
    assert [flow.spec.id for flow in (await flows(sees=sees, after=page.next)).flows] == ["mine-0"]
    monkeypatch.setattr("penstock.inspector.flow_inspector._MOST_PASSED", 1)
    monkeypatch.setattr("penstock.inspector.flow_inspector.FLOW_STEP", 1)
    found, after = list[str](), None
    for _ in range(20):
        page = await flows(sees=sees, limit=1, after=after)
        found, after = [*found, *(flow.spec.id for flow in page.flows)], page.next
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
        async with asyncio.timeout(60):
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
    assert (found.steps[2].jobs, found.steps[2].flow.total) == (2, 2)
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


async def test_all_that_is_stored_of_an_operation_is_shown(app: App) -> None:
    async def branch() -> Any:
        return await current_flow().wait_for("packed", key="a/b", of=list[int])

    def sold_out() -> None:
        raise ValueError("sold out")

    @app.task
    async def order() -> None:
        flow = current_flow(version="2")
        for _ in range(2):
            await flow.step("charge", str, 7, key="x#1")
        with contextlib.suppress(ValueError):
            await flow.step("reserve", sold_out, attempts=2, retry_delay="0s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await flow.step("slow", asyncio.sleep, 60)
        await flow.first(a=flow.sleep("0s"), b=flow.wait_for("never"))
        await flow.branches(left=branch(), right=flow.sleep("1h"))

    await app.asignal("packed", key="a/b", data={"no": "list"}, flow="o")
    await order.using(id="o").aenqueue()
    await in_a_burst(app)
    inspector = Inspector(app.store)
    found = await inspector.flows.steps("default/o")
    assert found is not None
    assert (found.version, found.failed, found.job.state) == ("2", None, "suspended")
    shown = {one.stored: one for one in found.steps}
    first, second = shown["!step/charge=x%231"], shown["!step/charge=x%231#2"]
    assert (first.name, first.key, first.use, bytes(first.value or b"")) == ("charge", "x#1", 1, b'"7"')
    assert (second.use, second.size) == (2, 3)
    reserve, slow = shown["!step/reserve"], shown["!step/slow"]
    assert (reserve.failed, reserve.tries, reserve.value) == ("ValueError: sold out", 1, None)
    assert (slow.cut, slow.failed, slow.value) == (True, None, None)
    assert bytes(shown["!first/"].value or b"") == b'"a"'
    wait = shown["!wait/left/packed=a%2Fb"]
    assert (wait.name, wait.key, wait.scope, wait.waits) == ("packed", "a/b", "left", True)
    assert bytes(wait.of or b"") == b'{"type":"array","items":{"type":"integer"}}'
    (aside,) = wait.aside
    assert (bytes(aside.data), "list[int]" in aside.why) == (b'{"no":"list"}', True)
    timer = shown["!sleep/right/"]
    assert (timer.waits, timer.due_at is not None) == (True, True)
    assert {wait.kind for wait in await inspector.flows.waits(["default/o"])} == {"signal", "timer"}
    (view,) = await inspector.why("default/o")
    assert view.reasons[0].says == "its flow waits for the signal 'packed' with the key 'a/b' in left"


async def test_what_an_older_release_stored_is_shown(app: App) -> None:
    @app.task
    async def order() -> None: ...

    await order.using(id="o").aenqueue()
    share = [Share("default", 1, 1)]
    (job,) = (await app.store.fetch(share, limit=1, lease=60_000, worker="w", token="t")).jobs
    stored = {"version!": b"1", "charge": b"1", "charge#2!1": b"5", "charge#2": b"2", "gather!!1": b"[]"}
    stored |= {"wait!packed!until": b"1700000000000", "wait!packed": b"", "undo!charge": b"null"}
    await app.store.record_steps(
        [StepRecord(job.lease, name, value, 60_000) for name, value in stored.items()]
    )
    found = await Inspector(app.store).flows.steps("default/o")
    assert found is not None
    assert found.version == "1"
    assert [(one.kind, one.name, one.tries, one.undone) for one in found.steps] == [
        ("step", "charge", 0, True),
        ("step", "charge#2", 1, False),
        ("signal", "packed", 0, False),
        ("undo", "charge", 0, False),
        ("gather", "gather!", 0, False),
    ]


@pytest.mark.parametrize("edit", ["drop", "set"])
async def test_a_parked_flow_goes_on_after_an_edit_of_its_step(app: App, edit: str) -> None:
    answers: list[Any] = ["text", 1]

    def first() -> str:
        return str(answers.pop(0))

    def later() -> int:
        return int(answers.pop(0))

    later.__qualname__ = first.__qualname__
    release = [first]

    @app.task(retention="1h")
    async def order() -> int:
        flow = current_flow()
        number: int = await flow.step("count", release[0])
        await flow.wait_for("packed", of=list[int])
        return number + 1

    handle = await order.using(id="o").aenqueue()
    await in_a_burst(app)
    assert await handle.astatus() is State.SUSPENDED
    release[0] = later  # type: ignore[assignment]
    await app.asignal("packed", data=[1])
    await in_a_burst(app)
    assert await handle.astatus() is State.PARKED
    inspector = Inspector(app.store)
    (view,) = await inspector.why("default/o")
    assert "no longer fits the code" in view.reasons[0].says
    flows = inspector.flows
    if edit == "drop":
        change = await flows.drop_step("default/o", "step/count")
    else:
        change = await flows.set_step("default/o", "step/count", b"1")
    assert (change.outcome, "penstock jobs retry default/o" in change.says) == ("done", True)
    await inspector.retry([Ref("default", "o")])
    await in_a_burst(app)
    assert await handle.aresult(timeout=10) == 2
    assert len(answers) == (edit == "set")
    assert (await flows.drop_step("default/none", "x")).outcome == "missing"


async def test_a_wait_that_an_operator_ends_wakes_the_flow(app: App) -> None:
    @app.task(retention="1h")
    async def order() -> Any:
        return await current_flow().wait_for("packed", of=list[int])

    handle = await order.using(id="o").aenqueue()
    await in_a_burst(app)
    flows = Inspector(app.store).flows
    with pytest.raises(ArgumentError, match="does not fit what wait/packed takes: expected array"):
        await flows.set_step("default/o", "wait/packed", b"{}")
    change = await flows.set_step("default/o", "wait/packed", b"[7]")
    assert "it runs again at once" in change.says
    await in_a_burst(app)
    assert await handle.aresult(timeout=10) == [7]


async def test_a_wait_that_has_timed_out_is_dropped_and_not_replaced(app: App) -> None:
    @app.task(retention="1h")
    async def order() -> Any:
        flow = current_flow()
        first = await flow.wait_for("packed", timeout="1h")
        await flow.wait_for("sent")
        return first

    handle = await order.using(id="o").aenqueue()
    await in_a_burst(app)
    job = await handle.ajob()
    assert job is not None
    await app.store.edit_steps(
        job.ref, [StepEdit("!wait/packed", None), StepEdit("!wait/packed!until", b"1")]
    )
    await in_a_burst(app)
    flows = Inspector(app.store).flows
    change = await flows.set_step("default/o", "wait/packed", b"1")
    assert (change.outcome, "has timed out" in change.says) == ("refused", True)
    assert (await flows.drop_step("default/o", "wait/packed")).outcome == "done"
    await in_a_burst(app)
    assert (await flows.waits(["default/o"]))[0].signal == "packed"
