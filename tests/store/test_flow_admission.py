"""New flows are refused by queues that are closed, or have no room for their first jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App, QueueClosed, QueueFull
from penstock.client.backpressure import Patience
from penstock.core.job import State
from penstock.core.limits import LimitChange
from penstock.stores.contract import FLOW_STEP, Store
from penstock.workflows import Flow, chain, chord, group, immutable
from tests.store.facts import SECOND, add, counts, end, new, take
from tests.store.flow_facts import flow_of, nodes_of, the_flow


class Tasks:
    """Tasks of an app on this store, each in the queue of its name."""

    def __init__(self, store: Store) -> None:
        self.app = App("memory://")
        self.app.use_store(store)
        self.p, self.q = self._task("p"), self._task("q")

    def _task(self, queue: str) -> Any:
        @self.app.task(name=queue, queue=queue)
        async def work() -> None: ...

        return work

    def some(self, n: int) -> Any:
        return group([self.p.job() for _ in range(n)])


@pytest.fixture
def tasks(store: Store) -> Tasks:
    return Tasks(store)


async def nothing_is_stored(store: Store, *queues: str) -> bool:
    jobs = [await counts(store, queue) for queue in queues or ("p", "q")]
    return not any(sum(found.values()) for found in jobs) and not (await store.list_flows()).flows


async def test_a_closed_queue_refuses_a_new_flow_of_any_shape(store: Store, tasks: Tasks) -> None:
    await store.settings("p", closed=True)
    p, q = tasks.p, tasks.q
    graph = Flow()
    graph.add(p.job(), name="first")
    graph.add(immutable(q.job()), after="first")
    graph.add(q.job())
    shapes = [
        tasks.some(100),
        tasks.some(FLOW_STEP + 1),
        chain(p.job(), immutable(q.job())),
        chord([p.job()], immutable(q.job())),
        chain(group([]), immutable(p.job())),
        graph,
    ]
    for shape in shapes:
        with pytest.raises(QueueClosed, match="'p' is closed"):
            await shape.aenqueue()
    assert await nothing_is_stored(store)


async def test_a_full_queue_refuses_a_flow_whose_first_jobs_do_not_fit(store: Store, tasks: Tasks) -> None:
    await store.settings("p", limits=LimitChange.of(max_size=3))
    with pytest.raises(QueueFull, match=r"no room for the 100 jobs.*at most 3 may wait there") as refusal:
        await tasks.some(100).aenqueue()
    assert (refusal.value.size, refusal.value.needs, refusal.value.retry_after) == (3, 100, None)
    assert await nothing_is_stored(store)
    await tasks.some(2).aenqueue()
    with pytest.raises(QueueFull) as refusal:
        await tasks.some(2).aenqueue()
    assert refusal.value.retry_after == 1.0
    await tasks.some(1).aenqueue()
    with pytest.raises(QueueFull, match="3 jobs wait in it"):
        await tasks.some(1).aenqueue()
    with pytest.raises(QueueFull, match="3 jobs wait in it"):
        await tasks.p.aenqueue()
    assert await counts(store, "p") == {State.AVAILABLE: 3}


async def test_what_follows_an_accepted_job_is_taken(store: Store, tasks: Tasks) -> None:
    await store.settings("q", closed=True, limits=LimitChange.of(max_size=1))
    members = group([tasks.p.job(), tasks.p.job()]).on_complete(tasks.q.job())
    await chord(members, immutable(tasks.q.job())).aenqueue()
    await store.settings("p", closed=True)
    for job in await take(store, 2, queue="p"):
        await end(store, job)
    while await store.advance_flows():
        pass
    assert await counts(store, "q") == {State.AVAILABLE: 2}


async def test_one_queue_that_refuses_refuses_the_whole_flow(store: Store, tasks: Tasks) -> None:
    await store.settings("q", limits=LimitChange.of(max_size=1))
    await add(store, new(queue="q"))
    with pytest.raises(QueueFull, match="'q' is full"):
        await group([tasks.p.job(), tasks.q.job()]).aenqueue()
    assert await counts(store, "p") == {}
    await store.settings("q", closed=True)
    with pytest.raises(QueueClosed, match="'q' is closed"):
        await group([tasks.p.job(), tasks.q.job()]).aenqueue()
    assert await counts(store, "p") == {}


async def test_flows_at_the_same_time_do_not_exceed_the_limit(store: Store, tasks: Tasks) -> None:
    await store.settings("p", limits=LimitChange.of(max_size=9))
    made = [tasks.some(2).aenqueue() for _ in range(20)]
    answers = await asyncio.gather(*made, return_exceptions=True)
    assert sum(isinstance(answer, QueueFull) for answer in answers) == 16
    assert await counts(store, "p") == {State.AVAILABLE: 8}


async def test_a_flow_waits_for_room_where_the_rule_is_to_wait(
    store: Store, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = asyncio.Event()

    def no_pause(self: Patience, retry_after: float | None) -> float:
        refused.set()
        return 0.0

    monkeypatch.setattr(Patience, "pause", no_pause)
    await store.settings("p", limits=LimitChange.of(max_size=2, on_full="wait"))
    with pytest.raises(QueueFull):  # it never fits: there is nothing to wait for
        await tasks.some(3).aenqueue()
    await add(store, new(queue="p"))
    waiting = asyncio.create_task(tasks.some(2).aenqueue())
    await refused.wait()
    assert not waiting.done()
    await take(store, queue="p")
    await waiting
    assert await counts(store, "p") == {State.AVAILABLE: 2, State.RUNNING: 1}


async def test_a_thread_gets_the_same_refusals(store: Store, tasks: Tasks) -> None:
    await store.settings("p", limits=LimitChange.of(max_size=2))
    with pytest.raises(QueueFull):
        await asyncio.to_thread(tasks.some(3).enqueue)
    await store.settings("p", closed=True)
    with pytest.raises(QueueClosed):
        await asyncio.to_thread(tasks.some(2).enqueue)
    assert await nothing_is_stored(store)


async def test_a_repeated_call_of_an_accepted_flow_is_not_refused(store: Store) -> None:
    flow = flow_of(queue="p", starts=(("p", 2),))
    nodes = nodes_of(flow, 2)
    await store.put_flow(flow, nodes[:1], start=False)
    await store.settings("p", closed=True, limits=LimitChange.of(max_size=1))
    await store.put_flow(flow, nodes[1:])
    await store.put_flow(flow, nodes[1:])
    assert (await the_flow(store, flow)).total == 2
    assert await counts(store, "p") == {State.AVAILABLE: 2}


async def test_a_flow_counts_what_is_scheduled_as_an_enqueue_does(store: Store, tasks: Tasks) -> None:
    await store.settings("p", limits=LimitChange.of(max_size=2))
    await add(store, new(queue="p", delay=SECOND))
    with pytest.raises(QueueFull):
        await tasks.some(2).aenqueue()
    await tasks.some(1).aenqueue()
