"""Flows on Redis: keys of another type, and processes that die between two scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from redis.cluster import RedisCluster

from penstock.core.clock import ManualClock
from penstock.core.flow import FAILED_KEPT, USED, FlowPolicy, FlowState, NodeState
from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import FlowChange, Settlement, Share
from penstock.stores.redis.isolation import call_each
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.verbs import delivering, flow_store, flows, settling
from penstock.stores.redis.verbs.fetching import fetch
from penstock.stores.redis.verbs.settling import settle
from tests import servers
from tests.store.facts import COMPLETED as COMPLETES
from tests.store.facts import DEAD, LEASE, end, new, take, take_one
from tests.store.flow_facts import (
    advance,
    flow_of,
    nodes_of,
    put,
    ready,
    ref_of,
    run_one,
    started,
    states,
    the_flow,
)
from tests.store.redis_corruptor import RedisCorruptor

ACTIVE, COMPLETED, GONE = NodeState.ACTIVE, NodeState.COMPLETED, NodeState.GONE
WAITING = NodeState.WAITING


async def test_a_flow_whose_key_holds_something_else_stops_no_other(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    bad, well = flow_of(queue="bad"), flow_of(queue="well")
    for flow in (bad, well):
        await put(store, flow, nodes_of(flow, 2, [(0, 1)]))
    key = corruptor.key("bad", f"flow/{bad.id}")
    with corruptor.client() as client:
        client.delete(key)
        client.set(key, b"somebody else's")
    await store.delete([ref_of(bad, 0), ref_of(well, 0)])
    await advance(store)
    assert await states(store, well) == [GONE, NodeState.SKIPPED]
    with corruptor.client() as client:
        assert client.hlen(corruptor.key("bad", "ends")) == 1  # it is counted when the key is repaired


async def test_a_retried_member_that_ends_before_the_retry_of_its_flow_is_stored_is_counted(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await started(store, 2, [(0, 1)])
    await run_one(store, flow, 0, DEAD)
    assert (await the_flow(store, flow)).state is FlowState.FAILED

    def dying(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(flow_store, "register_for_flows", dying)  # after the retry of the job
        with pytest.raises(KeyboardInterrupt):
            await store.change_flow(flow.ref, FlowChange.RETRY)
    await run_one(store, flow, 0)
    await advance(store)
    assert await states(store, flow) == [COMPLETED, ACTIVE]


async def test_a_member_whose_end_the_server_has_lost_keeps_the_result_of_its_second_end(
    store: RedisStore, corruptor: RedisCorruptor, clock: ManualClock
) -> None:
    """A server that restarts without its last moments may have lost the end that a flow has counted."""
    flow = await started(store, 2, [(0, 1)], queues={0: "other"})
    job = await take_one(store, "other")
    with corruptor.client() as client:
        lose = losing(client, corruptor.key("other", ""))
        await end(store, job, result=b"1")
        await advance(store)
        lose()
    clock.advance(1)
    await end(store, job, result=b"2")
    await advance(store)
    (node,) = await store.flow_nodes(flow.ref, [0])
    assert node is not None
    assert (node.state, node.result) == (COMPLETED, b"2")
    assert await states(store, flow) == [COMPLETED, ACTIVE]


def losing(client: Any, begin: bytes) -> Callable[[], None]:
    """A function by which the server loses what was written to these keys since now; it does so once."""
    before = {name: client.dump(name) for name in client.scan_iter() if name.startswith(begin)}

    def lose() -> None:
        for name in [name for name in client.scan_iter() if before and name.startswith(begin)]:
            client.delete(name)
        while before:
            name, value = before.popitem()
            client.restore(name, 0, value)

    return lose


@pytest.mark.parametrize("outcome", [COMPLETES, DEAD])
async def test_an_end_that_the_server_loses_before_it_is_counted_is_not_counted(
    store: RedisStore, corruptor: RedisCorruptor, outcome: Transition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that counts the end of a job outlives a restart of the server without its last moments."""
    flow = await started(store, 2, [(0, 1)])
    job = await take_one(store)
    whole = flow_store.register_for_flows
    with corruptor.client() as client, monkeypatch.context() as patch:
        lose = losing(client, corruptor.key(flow.queue, ""))

        def slowly(*args: Any) -> Any:
            lose()
            yield from whole(*args)

        patch.setattr(flow_store, "register_for_flows", slowly)
        await end(store, job, outcome)
    await advance(store)
    assert await states(store, flow) == [ACTIVE, WAITING]
    await end(store, job)
    assert await states(store, flow) == [COMPLETED, ACTIVE]


async def test_a_retry_that_the_server_loses_before_its_flow_is_stored_is_repeated(
    store: RedisStore, corruptor: RedisCorruptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the flow would wait for a job that is dead."""
    flow = await started(store, 2, [(0, 1)])
    await run_one(store, flow, 0, DEAD)
    arguments = flow_store._arguments
    with corruptor.client() as client, monkeypatch.context() as patch:
        lose = losing(client, corruptor.key(flow.queue, ""))

        def slowly(context: Any, ref: Any, session: Any, numbers: Any) -> Any:
            if not restarts:
                lose()
                session.run.id = "that of the server before its restart"
                restarts.append(session.run)
            return arguments(context, ref, session, numbers)

        restarts: list[Any] = []
        patch.setattr(flow_store, "_arguments", slowly)
        await store.change_flow(flow.ref, FlowChange.RETRY)
    assert await states(store, flow) == [ACTIVE, WAITING]
    await run_one(store, flow, 0)
    assert await ready(store, flow) == [1]


async def test_no_version_of_a_flow_is_used_twice(store: RedisStore, corruptor: RedisCorruptor) -> None:
    """A change that was computed before the server lost its last moments must not be stored after it."""
    flow = await started(store, 2)
    key, versions = corruptor.key(flow.queue, f"flow/{flow.id}"), set()
    with corruptor.client() as client:
        before = client.dump(key)
        for index in range(2):
            await run_one(store, flow, index)
            versions.add(client.hget(key, "v"))
            client.restore(key, 0, before, replace=True)
    assert len(versions) == 2


async def test_an_end_is_removed_by_the_step_that_counts_it(
    store: RedisStore, corruptor: RedisCorruptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that loses its last moments loses both, or none."""
    flow = await started(store, 2, [(0, 1)], queues={0: "other"})
    commit = flow_store.commit

    def dying(*args: Any) -> Any:
        yield from commit(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(flow_store, "commit", dying)
        with pytest.raises(KeyboardInterrupt):
            await run_one(store, flow, 0, queue="other")
    assert await states(store, flow) == [COMPLETED, ACTIVE]
    with corruptor.client() as client:
        assert client.hlen(corruptor.key("other", "ends")) == 0


async def test_that_an_id_is_taken_is_noted_by_the_step_that_starts_the_node(store: RedisStore) -> None:
    flow = flow_of()
    await store.enqueue([new(f"{flow.id}.0")])
    await store.put_flow(flow, nodes_of(flow, 1))  # its process does nothing more
    await advance(store)
    assert await states(store, flow) == [GONE]
    assert await store.cancel([ref_of(flow, 0)]) == [State.CANCELLED]
    await advance(store)
    assert await states(store, flow) == [GONE]


@pytest.mark.parametrize("outcome", [COMPLETES, DEAD])
@pytest.mark.parametrize("counted", [False, True])
async def test_an_end_whose_worker_dies_before_or_after_it_is_counted_is_counted_once(
    store: RedisStore, outcome: Transition, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await started(store, 3, [(0, 2), (1, 2)], FlowPolicy.FINISH)
    count = flow_store._count

    def dying(*args: Any) -> Any:
        if counted:  # but its note is not removed
            yield from count(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(flow_store, "_count", dying)
        with pytest.raises(KeyboardInterrupt):
            await run_one(store, flow, 0, outcome)
    await advance(store)
    node, waits = (await states(store, flow))[::2]
    assert (node, waits) == (
        (COMPLETED, NodeState.WAITING) if outcome is COMPLETES else (NodeState.DEAD, NodeState.SKIPPED)
    )
    await run_one(store, flow, 1)
    await advance(store)
    assert await ready(store, flow) == ([2] if outcome is COMPLETES else [])


# ── two that change one flow ─────────────────────────────────────────────────────────────────────


async def test_a_job_that_has_completed_meanwhile_is_not_retried_with_its_flow(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await started(store, 2, [(0, 1)])
    await run_one(store, flow, 0, DEAD)
    retry = flow_store.retry

    def slowly(context: Any, *args: Any, **facts: Any) -> Any:
        """Another one was faster, and the job has completed by now."""
        yield from retry(context, *args, **facts)
        fetched = yield from fetch(context, [Share("default", 1, 1)], 1, LEASE, "w", "t", True)
        yield from settle(context, [Settlement(fetched.jobs[0].lease, COMPLETES)])
        yield from retry(context, *args, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(flow_store, "retry", slowly)
        await store.change_flow(flow.ref, FlowChange.RETRY)
    await advance(store)
    assert await states(store, flow) == [COMPLETED, ACTIVE]
    assert await ready(store, flow) == [1]


async def test_a_flow_that_is_retried_while_it_is_removed_stays(
    store: RedisStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flow_of(retention=0)
    await put(store, flow, nodes_of(flow, 2, [(0, 1)]))
    await run_one(store, flow, 0, DEAD)
    clock.advance(FAILED_KEPT)
    remove = flow_store.remove

    def slowly(context: Any, *args: Any) -> Any:
        yield from flows.change_flow(context, flow.ref, FlowChange.RETRY)
        yield from remove(context, *args)

    monkeypatch.setattr(flow_store, "remove", slowly)
    await advance(store)
    await run_one(store, flow, 0)
    await advance(store)
    assert await states(store, flow) == [COMPLETED, ACTIVE]


# ── processes that die between two slots ─────────────────────────────────────────────────────────


@pytest.fixture
def cluster(clock: ManualClock, prefix: str) -> Iterator[RedisStore]:
    made = RedisStore(f"{servers.SHARED_CLUSTER.get().url}?prefix={prefix}", clock=clock)
    yield made
    made.close()


async def test_cancelling_a_flow_cancels_jobs_that_are_not_delivered_yet(
    cluster: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flow_of()
    nodes = nodes_of(flow, 2, queues={0: "blue", 1: "green"})
    with monkeypatch.context() as patch:
        patch.setattr(flow_store, "deliver", lambda *_: iter(()))  # its process dies
        await cluster.put_flow(flow, nodes)
    assert await cluster.get([ref_of(flow, 0, "blue")]) == [None]
    await cluster.change_flow(flow.ref, FlowChange.CANCEL)
    await cluster.prune()
    await advance(cluster)
    assert await states(cluster, flow) == [NodeState.CANCELLED] * 2
    assert (await the_flow(cluster, flow)).state is FlowState.CANCELLED


async def test_a_delivery_is_remembered_until_its_entry_is_removed(
    cluster: RedisStore, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, calls = flow_of(), iter(["read", "enqueue", "remove"])

    def dying(context: Any, those: Any) -> Any:
        if next(calls) == "remove":
            raise KeyboardInterrupt
        return (yield from call_each(context, those))

    with monkeypatch.context() as patch:
        patch.setattr(delivering, "call_each", dying)
        with pytest.raises(KeyboardInterrupt):
            await cluster.put_flow(flow, nodes_of(flow, 1, queues={0: "blue"}))
    port = servers.SHARED_CLUSTER.get().first_masters[0].port
    corruptor = RedisCorruptor(lambda: RedisCluster("127.0.0.1", port), prefix)
    with corruptor.client() as client:
        (name,) = client.scan_iter(corruptor.key("blue", "once/*"))
        assert client.ttl(name) > 29 * 86_400
        await run_one(cluster, flow, 0, Transition(State.COMPLETED), queue="blue")
        await cluster.prune()  # delivers what is left over
        assert client.ttl(name) <= 3_600
    await advance(cluster)
    assert await cluster.get([ref_of(flow, 0, "blue")]) == [None]
    assert await states(cluster, flow) == [COMPLETED]


async def test_only_the_usual_end_is_counted_by_the_script_that_ends_the_job(
    store: RedisStore, corruptor: RedisCorruptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 1 takes the result of node 0, node 3 has the result of the flow, nobody takes that of node 4."""
    flow, uses = flow_of(result=3), (1, 1, 1, 1, 0, -1)
    edges = [(0, 1), (1, 5), (2, 5), (3, 5), (4, 5)]
    plain = nodes_of(flow, 6, edges)
    await put(
        store,
        flow,
        [replace(one, inputs=(0,) if one.index == 1 else (), uses=uses[one.index]) for one in plain],
    )
    left: list[int] = []
    with corruptor.client() as client, monkeypatch.context() as patch:
        patch.setattr(settling, "deliver_ends", lambda *_: iter(()))  # the worker dies after the script
        for index in (0, 2, 3, 4):
            await run_one(store, flow, index, result=b"%d" % index)
            left.append(client.hlen(corruptor.key(flow.queue, "ends")))
        assert left == [1, 1, 2, 3]
        assert await states(store, flow) == [ACTIVE, WAITING, COMPLETED, ACTIVE, ACTIVE, WAITING]
        await advance(store)
        await run_one(store, flow, 1, result=b"1")
        assert client.hlen(corruptor.key(flow.queue, "ends")) == 1
    await advance(store)
    found = await store.flow_nodes(flow.ref, range(6))
    assert [node and node.result for node in found] == [USED, b"1", b"2", b"3", None, None]
    assert await ready(store, flow) == [5]
    assert (await the_flow(store, flow)).counts == {COMPLETED: 5, ACTIVE: 1}


async def test_an_end_is_counted_after_the_one_before_it(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member dies, is retried and completes, before any of that is counted."""
    flow = await started(store, 4, [(0, 3), (1, 3), (2, 3)], FlowPolicy.FINISH)
    await take_one(store)
    with monkeypatch.context() as patch:
        patch.setattr(settling, "deliver_ends", lambda *_: iter(()))
        await run_one(store, flow, 1, DEAD)
        await store.retry([ref_of(flow, 1)])
        await run_one(store, flow, 2)
        await run_one(store, flow, 1)
    assert await states(store, flow) == [ACTIVE, ACTIVE, COMPLETED, WAITING]
    await advance(store)
    assert await states(store, flow) == [ACTIVE, COMPLETED, COMPLETED, WAITING]


async def test_the_end_of_a_member_of_a_flow_that_is_gone_is_as_that_of_any_job(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    flow = await started(store, 3, [(0, 2), (1, 2)])
    with corruptor.client() as client:
        client.delete(corruptor.key(flow.queue, f"flow/{flow.id}"))
        await run_one(store, flow, 0)
        await run_one(store, flow, 1)
        await advance(store)
        assert not client.exists(
            corruptor.key(flow.queue, "ends"), corruptor.key(flow.queue, f"flow/{flow.id}")
        )


async def test_a_flow_that_changes_while_it_is_read_runs_no_job_again(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process reads that a flow runs, and then that it has cancelled a member: it ran that member again."""
    flow = await started(store, 3, [(0, 2), (1, 2)])
    whole, other = flow_store.register_for_flows, flows._count_ends(store._context, [flow.queue])
    calls: list[Any] = []

    def slowly(
        *args: Any,
    ) -> Any:  # a member has died, and the other one was cancelled; that is not stored yet
        if not calls:
            calls.extend(next(other))
            while b"n1" not in calls[0].ask:  # up to the read of the nodes
                calls[:] = other.send((yield calls))
        yield from whole(*args)

    def rest() -> Any:
        answers = yield calls
        while True:
            try:
                answers = yield other.send(answers)
            except StopIteration:
                return

    with monkeypatch.context() as patch:
        patch.setattr(flow_store, "register_for_flows", slowly)
        patch.setattr(flow_store, "retry", lambda *_, **__: pytest.fail("the member runs again"))
        await run_one(store, flow, 0, DEAD)
        await store._plans.run(rest())
    await advance(store)
    assert await states(store, flow) == [NodeState.DEAD, NodeState.CANCELLED, NodeState.SKIPPED]


async def test_a_retry_that_another_change_has_overtaken_runs_no_job_again(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await started(store, 2, [(0, 1)], FlowPolicy.FINISH)
    await run_one(store, flow, 0, DEAD)
    proceed = flow_store.proceed

    def slowly(context: Any, *args: Any) -> Any:
        done = yield from proceed(context, *args)
        if not meanwhile:
            meanwhile.append(True)
            yield from flows.change_flow(context, flow.ref, FlowChange.RETRY)
            yield from flows.change_flow(context, flow.ref, FlowChange.CANCEL)
        return done

    meanwhile: list[bool] = []
    retried: list[Any] = []
    retry = flow_store.retry
    monkeypatch.setattr(flow_store, "proceed", slowly)
    monkeypatch.setattr(
        flow_store, "retry", lambda *args, **facts: retried.append(args) or retry(*args, **facts)
    )
    await store.change_flow(flow.ref, FlowChange.RETRY)
    assert len(retried) == 2, "by the change that came between, and when the first one is repeated"
    await advance(store)
    assert await states(store, flow) == [ACTIVE, WAITING]


@pytest.mark.parametrize("outcome", [COMPLETES, DEAD])
async def test_an_end_between_reading_and_storing_a_change_is_not_lost(
    store: RedisStore, outcome: Transition, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await started(store, 4, [(0, 3), (1, 3), (2, 3)], FlowPolicy.FINISH)
    first, second, third = await take(store, 3)
    whole, settled = flow_store.register_for_flows, 0

    def slowly(*arguments: Any) -> Any:  # the flow has been read: another worker settles a member now
        nonlocal settled
        settled += 1
        if settled == 1:
            yield from settle(arguments[0], [Settlement(second.lease, COMPLETES)])
        yield from whole(*arguments)

    monkeypatch.setattr(flow_store, "register_for_flows", slowly)
    await end(store, first, outcome)  # no script counts it: its result is that of the flow
    assert settled == 2, "the change was computed from what another end has changed"
    await end(store, third)
    completed = outcome is COMPLETES
    assert await states(store, flow) == (
        [COMPLETED, COMPLETED, COMPLETED, ACTIVE]
        if completed
        else [NodeState.DEAD, COMPLETED, COMPLETED, NodeState.SKIPPED]
    )
    assert (await the_flow(store, flow)).state is (FlowState.RUNNING if completed else FlowState.FAILED)
