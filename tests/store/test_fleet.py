"""The inspector's overview of a store and its checks of the fleet, which only read."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.installation import __version__
from penstock.core.limits import LimitChange
from penstock.core.relations import FlowMember
from penstock.inspector import Inspector, worker_views
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import ErrorCount, Level, StatsReport, Store, TaskCount, WorkerInfo
from tests.store.facts import DEAD, MINUTE, PARKED, SECOND, add, end, ids, new, running, some, take
from tests.store.test_statistics import stats

WORKER = WorkerInfo("w1", "box", 7, 0, ("default",), ("t",), 4, version=__version__, memory=1_000)


async def worst(store: Store, what: str) -> tuple[Level, str]:
    """The worst finding of this name."""
    order = [*Level]
    found = [one for one in await Inspector(store).checkup() if one.what == what]
    one = max(found, key=lambda one: order.index(one.level))
    assert bool(one.way_out) is (one.level is not Level.FINE)
    return one.level, one.why


async def bad(store: Store) -> list[str]:
    return [one.what for one in await Inspector(store).checkup() if one.level is not Level.FINE]


async def test_an_overview_has_all_that_a_live_view_shows(store: Store, clock: ManualClock) -> None:
    await store.announce(WORKER)
    dead = await running(store, queue="mail")
    await end(store, dead, DEAD)
    job = await running(store)
    await add(store, *some(3))
    group = ErrorCount("e", "t", "ValueError", "no luck", 1, dead.id)
    await store.add_stats([StatsReport("default", "w1", 1, [TaskCount("t", stats())], [group])])
    clock.advance(2 * SECOND)
    view = await Inspector(store).overview(limit=10)
    assert view.now == clock.now()
    assert {queue.name: queue.workers for queue in view.queues} == {"default": 1, "mail": 0}
    assert view.stats["default"].enqueued == 4
    assert view.waits["default"].p95 is not None
    (worker,) = view.workers
    assert (worker.id, worker.running, worker.silent, worker.ahead) == ("w1", 1, 2.0, None)
    (held,) = view.running
    assert (held.worker, held.id, held.fetched_at) == ("w1", job.id, view.now - 2_000)
    assert not view.more_running
    assert [one.id for one in view.dead] == [dead.id]
    assert [one.kind for one in view.errors] == ["ValueError"]


async def test_each_worker_is_shown_with_its_newest_jobs(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(worker_views, "_STEP", 4)
    monkeypatch.setattr(worker_views, "_MOST", 8)  # so the jobs of the oldest lease are asked for alone
    for id in ("w1", "w2", "w3", "w4"):
        await store.announce(replace(WORKER, id=id, running=9))
    held = {}
    for id, n in (("w1", 2), ("w2", 5), ("w3", 6)):
        await add(store, *(new(queue="ab"[k % 2]) for k in range(n)))
        jobs = [*await take(store, 9, "a", worker=id), *await take(store, 9, "b", worker=id)]
        held[id] = sorted(jobs, key=lambda job: -job.generation)
    shown = {one.id: one for one in await Inspector(store).workers(jobs=3)}
    assert {id: [job.id for job in one.jobs] for id, one in shown.items()} == {
        **{id: ids(jobs[:3]) for id, jobs in held.items()},
        "w4": [],
    }
    assert {id: (one.more, one.running) for id, one in shown.items()} == {
        "w1": (False, 2),
        "w2": (True, 9),
        "w3": (True, 9),
        "w4": (False, 0),
    }
    alone = await Inspector(store).worker("w2", jobs=3)
    assert alone is not None
    assert (alone.jobs, alone.more) == (shown["w2"].jobs, True)


async def test_a_healthy_fleet_has_no_bad_finding(store: Store, clock: ManualClock) -> None:
    assert await bad(store) == []
    await store.announce(replace(WORKER, clock=clock.now()))
    await running(store)
    await add(store, *some(2))
    assert await bad(store) == []


async def test_queues_that_nobody_serves_are_named(store: Store) -> None:
    await store.announce(WORKER)
    await add(store, *some(2, queue="mail"), new())
    level, why = await worst(store, "queues")
    assert (level, why) == (Level.WARNING, "no live worker serves mail (2 jobs)")
    await store.announce(replace(WORKER, state="quiet"))
    assert "default (1 job)" in str(await Inspector(store).checkup())


async def test_leases_of_workers_that_are_gone_are_named(store: Store) -> None:
    job = await running(store)
    level, why = await worst(store, "leases")
    assert level is Level.WARNING
    assert why == f"1 running job is held by workers that are gone (w1), e.g. default/{job.id}"


async def test_clocks_and_versions_of_workers_are_compared(store: Store, clock: ManualClock) -> None:
    await store.announce(replace(WORKER, clock=clock.now() + MINUTE))
    assert (await worst(store, "clocks of workers"))[1].startswith("box: 60.0 s ahead of the store's.")
    assert (await Inspector(store).workers())[0].ahead == 60.0
    await store.announce(replace(WORKER, id="w2", version="9.9"))
    level, why = await worst(store, "versions")
    assert (level, why) == (Level.WARNING, f"workers of several versions run: 1 of {__version__}, 1 of 9.9")
    await store.retire("w1")
    assert "another version than this command" in (await worst(store, "versions"))[1]


async def test_parked_jobs_of_tasks_that_nobody_knows_are_named(store: Store) -> None:
    await store.announce(replace(WORKER, tasks=("other",)))
    await end(store, await running(store), PARKED)
    assert (await worst(store, "parked jobs"))[0] is Level.WARNING
    await store.announce(WORKER)
    assert (await worst(store, "parked jobs"))[0] is Level.FINE


async def test_members_of_what_does_not_exist_are_named(store: Store, monkeypatch: Any) -> None:
    from tests.store.test_batches import a_batch

    await a_batch(store, queue="mail")
    await store.announce(replace(WORKER, queues=("mail",)))
    assert await bad(store) == []

    async def nothing(refs: Any) -> list[None]:
        return [None for _ in refs]

    monkeypatch.setattr(store, "get", nothing)
    assert (await worst(store, "batches"))[1].startswith("3 jobs are members of a batch that does not exist")


async def test_a_running_node_of_a_flow_that_does_not_exist_is_named(store: Store) -> None:
    await store.announce(WORKER)
    job = await running(store, flow=FlowMember("default", "gone", 0))
    level, why = await worst(store, "flows")
    assert level is Level.WARNING
    assert why == f"1 job is a member of a flow that does not exist, e.g. default/{job.id}"


async def test_a_queue_whose_workers_are_quiet_is_named_with_its_jobs(store: Store) -> None:
    await store.announce(replace(WORKER, state="quiet"))
    await add(store, new())
    assert await worst(store, "queues") == (
        Level.WARNING,
        "no worker fetches any more from default (1 job)",
    )


async def test_what_stops_a_queue_is_shown_with_who_did_it(store: Store) -> None:
    job = await running(store)
    await store.settings("default", limits=LimitChange.of(max_running=1))
    queue = await Inspector(store).queue("default")
    assert queue is not None
    assert (queue.held_by, queue.stopped_by) == ((job.id,), None)
    await AuditLog(store).write("cli:bob@box", "queue.set", "default", facts={"throttle": "1h"})
    await store.settings("default", limits=LimitChange.of(throttle="1h"))
    queue = await Inspector(store).queue("default")
    assert queue is not None
    assert str(queue.stopped_by).startswith("cli:bob@box at ")
    await AuditLog(store).write("cli:ann@box", "queue.pause", ["other", "default"])
    await store.settings("default", paused=True)
    queue = await Inspector(store).queue("default")
    assert queue is not None
    assert str(queue.stopped_by).startswith("cli:ann@box at ")
    assert await Inspector(store).queue("unknown") is None
