"""Faults that users of other systems know, each as a test that passes on every store.

The numbers are those of Celery's issues, as far as there is one.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App
from penstock.core.errors import JobDead
from penstock.core.flow import NodeState
from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settlement, Share
from penstock.testing import FaultyStore
from penstock.workflows import FlowState, chain, chord, group, immutable
from tests.workflows.conftest import in_a_burst


@pytest.fixture
def calls(app: App) -> list[Any]:
    """What the tasks of the app have done. Its tasks: `one`, `many`, `fail`."""
    done: list[Any] = []

    @app.task(name="one")
    async def one(x: int) -> int:
        done.append(x)
        return x + 1

    @app.task(name="many")
    async def many(numbers: list[int]) -> int:
        done.append(numbers)
        return sum(numbers)

    @app.task(name="fail", max_attempts=1)
    async def fail(x: int) -> int:
        raise ValueError(x)

    @app.task(name="bodies")
    async def bodies(numbers: list[int]) -> list[int]:
        done.append(numbers)
        return numbers

    return done


def task(app: App, name: str) -> Any:
    return app.tasks[name]


async def test_the_body_is_called_once_however_the_members_are_settled(app: App, calls: list[Any]) -> None:
    """#4207, #941: the body was never called although all members had finished."""
    handle = await chord([task(app, "one").job(n) for n in range(50)], then=task(app, "many")).aenqueue()
    await in_a_burst(app, concurrency=7)
    assert await handle.aresult(60) == sum(range(1, 51))
    assert calls.count(list(range(1, 51))) == 1


async def test_an_empty_header_runs_its_body(app: App, calls: list[Any]) -> None:
    """#4333, #3756: the body of an empty header never ran."""
    handle = await chord([], then=task(app, "many")).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 0


async def test_a_header_of_one_stays_a_list_also_when_nested(app: App, calls: list[Any]) -> None:
    """#3323, #4393, #3885: a header of one became a chain, and its body got a scalar."""
    inner = chord([task(app, "one").job(1)], then=task(app, "many"))
    handle = await chord([inner], then=task(app, "bodies")).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == [2]


async def test_the_bodies_of_nested_chords_run_once(app: App, calls: list[Any]) -> None:
    """#3538, #2922, #3506: the last bodies ran twice, or hung."""
    inner = [chord([task(app, "one").job(n)] * 3, then=task(app, "many")) for n in range(4)]
    handle = await chain(chord(inner, then=task(app, "many")), task(app, "one")).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 31
    lists = [call for call in calls if isinstance(call, list)]
    assert sorted(lists) == [[1, 1, 1], [2, 2, 2], [3, 3, 3], [3, 6, 9, 12], [4, 4, 4]]


async def test_a_chain_in_a_header_that_fails_early_does_not_hang(app: App, calls: list[Any]) -> None:
    """#6220, #3317: a failure before the last task of a chain in a header hung chord and client."""
    header = [chain(task(app, "fail").job(1), task(app, "one")), task(app, "one").job(2)]
    canvas = chord(header, then=task(app, "many")).on_error(task(app, "one").job(100))
    handle = await canvas.aenqueue()
    await in_a_burst(app)
    with pytest.raises(JobDead, match="ValueError"):
        await handle.aresult(5)
    assert calls.count(100) == 1


@pytest.mark.parametrize("policy", ["stop", "finish", "ignore"])
async def test_a_cancelled_member_does_not_hang_the_chord(app: App, calls: list[Any], policy: str) -> None:
    """#10526: a revoked member hung the chord."""
    members = [task(app, "one").job(n) for n in range(3)]
    handle = await chord(members, then=task(app, "bodies")).aenqueue(policy=policy)
    (node,) = await app.store.flow_nodes(handle.ref, [1])
    assert node is not None
    assert node.job is not None
    await app.store.cancel([node.job])
    await in_a_burst(app)
    expected = FlowState.COMPLETED if policy == "ignore" else FlowState.FAILED
    assert await handle.astatus() is expected


async def test_control_flow_needs_no_kept_result(app: App, calls: list[Any]) -> None:
    """#1857, #5237: results that are ignored or expire broke chords."""
    members = [task(app, "one").using(retention=0).job(n) for n in range(3)]
    handle = await chord(members, then=task(app, "many").using(retention=0)).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 6


async def test_nested_flows_and_long_chains_grow_linearly(app: App) -> None:
    """#3571, #9202, #5000: nested chords were stored exponentially."""

    @app.task(name="step")
    async def step(x: int) -> int:
        return x

    handle = await chain(step.job(0), *[step] * 300).aenqueue()
    nodes = await app.store.flow_nodes(handle.ref, range(300))
    assert sum(len(node.next) for node in nodes if node is not None) == 300
    deep: Any = step.job(1)
    for _ in range(8):
        deep = group(deep, step.job(2))
    assert (await (await deep.aenqueue()).ainfo()).total == 17
    deep = step.job(1)
    for _ in range(8):
        deep = chord([deep, step.job(2)], then=immutable(step.job(3)))
    assert (await (await deep.aenqueue()).ainfo()).total == 1 + 8 * 3


async def test_members_added_while_it_runs_are_neither_lost_nor_doubled(app: App) -> None:
    """#6325, #3535: `replace()` lost or doubled later tasks."""
    from penstock.workflows import current_flow

    done: list[int] = []

    @app.task(name="split")
    async def split(n: int) -> int:
        done.append(n)
        if n > 1:
            await current_flow().add(split.job(n // 2), split.job(n // 2))
        return 1

    @app.task(name="sum_up")
    async def sum_up(ones: list[int]) -> int:
        return sum(ones)

    handle = await chord([split.job(8)], then=sum_up).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 15
    assert sorted(done) == [1] * 8 + [2] * 4 + [4] * 2 + [8]


async def test_a_repeated_and_a_stale_end_count_once(app: App, calls: list[Any]) -> None:
    """#3363: a lost reply while counting lost the part for ever, or it was counted twice."""
    handle = await chord([task(app, "one").job(n) for n in range(2)], then=task(app, "many")).aenqueue()
    store, share = app.store, [Share("default", 2, 2)]
    first, second = (await store.fetch(share, limit=2, lease=15_000, worker="w", token="t")).jobs
    ends = [Settlement(first.lease, Transition(State.COMPLETED), b"1")]
    for _ in range(3):
        await store.settle(ends)
        await store.advance_flows()
    (node,) = await store.flow_nodes(handle.ref, [2])
    assert node is not None
    assert node.state is NodeState.WAITING
    await store.settle([Settlement(second.lease, Transition(State.COMPLETED), b"2")])
    await in_a_burst(app)
    assert await handle.aresult(60) == 3
    assert calls == [[1, 2]]


async def test_a_store_that_fails_while_members_end_loses_none_and_counts_none_twice(
    app: App, calls: list[Any]
) -> None:
    """#3363, and elsewhere: a store that was away while a step ended left the run as it was for ever."""
    handle = await chord([task(app, "one").job(n) for n in range(3)], then=task(app, "many")).aenqueue()
    faults = FaultyStore(app.store)
    app.use_store(faults.store)
    faults.lose_reply("settle", times=2)
    for verb in ("settle", "flow_nodes", "advance_flows"):
        faults.fail(verb)
    await in_a_burst(app)
    assert await handle.aresult(60) == 6
    assert calls.count([1, 2, 3]) == 1


async def test_a_body_that_a_worker_does_not_know_waits_for_one_that_does(app: App, calls: list[Any]) -> None:
    """#3317: a callback that was not registered was discarded."""
    handle = await chord([task(app, "one").job(n) for n in range(2)], then=task(app, "many")).aenqueue()
    other = App("memory://")
    other.use_store(app.store)

    @other.task(name="one")
    async def one(x: int) -> int:
        return 10 * x

    await in_a_burst(other)
    assert (await handle.ainfo()).counts == {NodeState.COMPLETED: 3, NodeState.ACTIVE: 1}
    await in_a_burst(app)
    assert await handle.aresult(60) == 10
    assert calls == [[0, 10]]


async def test_members_without_a_result_move_their_body_at_once(app: App, calls: list[Any]) -> None:
    """A fan-in over children that return None waited 5 s for each elsewhere."""

    @app.task(name="nothing")
    async def nothing(n: int) -> None:
        calls.append(n)

    @app.task(name="how_many")
    async def how_many(values: list[None]) -> int:
        return len(values)

    handle = await chord([nothing.job(n) for n in range(3)], then=how_many).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(0) == 3


async def test_waiting_nodes_do_not_stand_before_other_jobs(app: App, calls: list[Any]) -> None:
    """A hundred dependents of one job stopped all newer work of the queue elsewhere."""
    dependents = group(task(app, "one").using(priority=50) for _ in range(150))
    await chain(task(app, "one").using(priority=-50).job(0), dependents).aenqueue()
    last = await task(app, "one").aenqueue(7)
    fetched = await app.store.fetch([Share("default", 1, 1)], limit=1, lease=15_000, worker="w", token="t")
    assert [job.id for job in fetched.jobs] == [last.id]
