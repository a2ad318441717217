"""reclaim: leases lost jobs to the reclaimer, which decides what happens to them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.app.deciding import Loss, settle_reclaimed
from penstock.core.clock import ManualClock
from penstock.core.job import Job, Progress, State
from penstock.core.lifecycle import LOST_BY
from penstock.stores.contract import Fetched, HeartbeatRequest, LeaseStatus, Settled, Settlement, Share, Store
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    COMPLETED,
    HOUR,
    LEASE,
    OpenStore,
    add,
    counts,
    end,
    ids,
    in_state,
    new,
    running,
    some,
    take,
    take_one,
    the,
    token,
)


async def reclaim(store: Store, *queues: str, **facts: Any) -> Fetched:
    facts = {"limit": 99, "lease": LEASE, "worker": "reclaimer", "token": token(), **facts}
    return await store.reclaim(list(queues or ["default"]), **facts)


async def reclaimed(store: Store, *queues: str, **facts: Any) -> list[Job]:
    return (await reclaim(store, *queues, **facts)).jobs


async def test_a_lease_holds_for_its_time_and_no_longer(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(LEASE - 1)
    assert await reclaim(store) == Fetched([], clock.now(), None)
    clock.advance(1)
    assert ids(await reclaimed(store)) == [job.id]


async def test_a_reclaimed_job_is_leased_to_the_reclaimer_and_as_it_was(
    store: Store, clock: ManualClock
) -> None:
    spec = new()
    await add(store, spec)
    (job,) = await take(store, worker="w-lost")
    await store.extend(
        [HeartbeatRequest(job.lease, LEASE, started=True, progress=Progress(1), checkpoint=b"c")]
    )
    await store.cancel([spec.ref])
    clock.advance(LEASE)
    before = await the(store, spec)
    found = await reclaim(store, worker="w-new", token="t-new")
    assert found.jobs == [replace(before, worker="w-new", token="t-new", reason=f"{LOST_BY}w-lost")]
    assert (found.now, found.due) == (clock.now(), None)
    assert await the(store, spec) == found.jobs[0]
    assert found.jobs[0].started  # whoever judges it must know
    assert (found.jobs[0].attempt, found.jobs[0].lost) == (1, 0)
    assert await counts(store) == {State.RUNNING: 1}


async def test_the_former_holder_has_nothing_any_more(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(LEASE)
    (now,) = await reclaimed(store)
    assert await store.extend([HeartbeatRequest(job.lease, LEASE)]) == [LeaseStatus.LOST]
    assert await store.settle([Settlement(job.lease, COMPLETED)]) == [Settled.STALE]
    assert await the(store, job) == now
    await end(store, now, AGAIN)


async def test_a_reclaimer_that_is_lost_too_loses_its_lease_in_turn(store: Store, clock: ManualClock) -> None:
    await running(store)
    clock.advance(LEASE)
    (first,) = await reclaimed(store, worker="r1", lease=100)
    clock.advance(99)
    assert await reclaimed(store, worker="r2") == []
    clock.advance(1)
    (second,) = await reclaimed(store, worker="r2")
    assert (second.worker, second.attempt, second.reason) == ("r2", 1, f"{LOST_BY}r1")
    assert await store.settle([Settlement(first.lease, COMPLETED)]) == [Settled.STALE]


async def test_an_uncharged_lease_stays_uncharged(store: Store, clock: ManualClock) -> None:
    await add(store, new())
    job = await take_one(store)
    await end(store, job, AGAIN)
    await take(store, worker="w2")
    (judged,) = await reclaimed(store, of=["w2"])
    await end(store, judged, replace(AGAIN, charge=False, lost=True))
    again = await the(store, job)
    assert (again.attempt, again.lost) == (1, 1)


async def test_the_longest_run_out_come_first_and_the_limit_holds(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"), new("b"), new("c"), new("other", queue="other"))
    for lease in (300, 100, 200):
        await take(store, lease=lease)
    await take(store, 1, "other", lease=150)
    clock.advance(250)
    assert ids(await reclaimed(store, "default", "other", limit=2)) == ["b", "other"]
    assert await reclaimed(store, "default", "other", limit=0) == []
    assert ids(await reclaimed(store, "default", "other", limit=9)) == ["c"]
    clock.advance(50)
    assert ids(await reclaimed(store, "default", "other", limit=9)) == ["a"]


async def test_a_lease_of_no_time_is_given_once_per_call(store: Store, clock: ManualClock) -> None:
    jobs = some(2)
    await add(store, *jobs)
    await take(store, 2)
    clock.advance(LEASE)
    for _ in range(3):
        assert sorted(ids(await reclaimed(store, limit=9, lease=0))) == sorted(ids(jobs))


async def test_only_the_named_queues_are_looked_at(store: Store, clock: ManualClock) -> None:
    await running(store, queue="a")
    await running(store, queue="b")
    clock.advance(LEASE)
    assert [job.queue for job in await reclaimed(store, "b", "nowhere")] == ["b"]
    assert [queue.name for queue in await store.queues()] == ["a", "b"]


async def test_a_paused_queue_is_looked_at_too(store: Store, clock: ManualClock) -> None:
    await running(store)
    await store.settings("default", paused=True)
    clock.advance(LEASE)
    assert len(await reclaimed(store)) == 1


@each("state", sorted(set(State) - {State.RUNNING}))
async def test_only_running_jobs_are_reclaimed(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state)
    clock.advance(HOUR)
    assert await reclaimed(store) == []
    assert await reclaimed(store, of=["w1"]) == []
    assert await the(store, job) == job


# ── of: what these workers hold ──


async def test_jobs_of_a_dead_worker_are_reclaimed_at_once_in_any_queue(store: Store) -> None:
    await add(store, *some(2, queue="a"), *some(2, queue="b"))
    first = await take(store, 1, "b", worker="dead")
    await take(store, 1, "a", worker="alive")
    second = await take(store, 1, "a", worker="dead")
    third = await take(store, 1, "b", worker="dead too")
    found = await reclaimed(store, of=["dead", "dead too", "nobody"])
    assert ids(found) == [*ids(second), *ids(first), *ids(third)]  # in order of enqueue
    assert [job.reason for job in found] == [f"{LOST_BY}dead", f"{LOST_BY}dead", f"{LOST_BY}dead too"]
    assert ids((await store.list_jobs(worker="alive")).jobs) != []


async def test_reclaim_of_workers_obeys_the_limit_and_ignores_unknown_workers(store: Store) -> None:
    await add(store, *some(3))
    jobs = await take(store, 3, worker="dead")
    assert await reclaimed(store, of=[]) == []
    assert ids(await reclaimed(store, of=["dead"], limit=2)) == ids(jobs[:2])
    assert ids(await reclaimed(store, of=["dead"], limit=2)) == ids(jobs[2:])
    assert await reclaimed(store, of=["dead"], limit=2) == []


async def test_of_does_not_look_at_what_has_run_out_elsewhere(store: Store, clock: ManualClock) -> None:
    await running(store)
    clock.advance(HOUR)
    assert await reclaimed(store, of=["w2"]) == []


# ── the same call again ──


async def test_a_repeated_reclaim_returns_the_same_leases(store: Store, clock: ManualClock) -> None:
    await add(store, *some(3))
    await take(store, 3)
    clock.advance(LEASE)
    first = await reclaimed(store, limit=2, token="t")
    again = await reclaimed(store, limit=2, token="t")
    assert sorted(again, key=lambda job: job.generation) == sorted(first, key=lambda job: job.generation)
    await end(store, first[0], AGAIN)
    assert await reclaimed(store, limit=2, token="t") == [first[1]]
    await end(store, first[1], AGAIN)
    assert len(await reclaimed(store, limit=2, token="t")) == 1


# ── clocks ──


@pytest.mark.parametrize("by", [-HOUR, HOUR])
async def test_a_wall_clock_that_is_set_neither_voids_nor_prolongs_leases(
    store: Store, clock: ManualClock, by: int
) -> None:
    job = await running(store)
    clock.set_wall(clock.now() + by)
    assert await reclaimed(store) == []
    clock.advance(LEASE - 1)
    assert await reclaimed(store) == []
    assert await store.extend([HeartbeatRequest(job.lease, 100)]) == [LeaseStatus.HELD]
    clock.set_wall(clock.now() - 2 * by)
    clock.advance(99)
    assert await reclaimed(store) == []
    clock.advance(1)
    assert ids(await reclaimed(store)) == [job.id]


async def test_a_reboot_voids_all_leases(store: Store, open_store: OpenStore, clock: ManualClock) -> None:
    await add(store, *some(3))
    jobs = await take(store, 3, lease=HOUR)
    clock.reboot("boot-2")
    after = open_store()
    assert ids(await reclaimed(after)) == ids(jobs)  # in order of enqueue
    assert await reclaimed(after) == []  # the reclaimer's own leases are of this boot


async def test_a_lease_taken_after_the_reboot_holds(
    store: Store, open_store: OpenStore, clock: ManualClock
) -> None:
    await add(store, *some(3))
    old, held = await take(store, 2, lease=HOUR)
    clock.reboot("boot-2")
    after = open_store()
    (fresh,) = await take(after, lease=100)
    assert await after.extend([HeartbeatRequest(held.lease, 50)]) == [
        LeaseStatus.HELD
    ]  # its holder was on another machine
    assert ids(await reclaimed(after)) == [old.id]
    clock.advance(50)
    assert ids(await reclaimed(after)) == [held.id]
    clock.advance(50)
    assert ids(await reclaimed(after)) == [fresh.id]


async def test_void_leases_come_before_those_that_ran_out(
    store: Store, open_store: OpenStore, clock: ManualClock
) -> None:
    await add(store, new("ran-out"), new("void"))
    first, _void = await take(store, 2, lease=HOUR)
    clock.reboot("boot-2")
    after = open_store()
    await after.extend([HeartbeatRequest(first.lease, 0)])
    assert ids(await reclaimed(after)) == ["void", "ran-out"]


async def test_what_was_stored_before_a_reboot_is_there_after_it(
    store: Store, open_store: OpenStore, clock: ManualClock
) -> None:
    queued, done = await in_state(store, State.SCHEDULED), await in_state(store, State.COMPLETED)
    clock.reboot("boot-2")
    assert await open_store().get([queued.ref, done.ref]) == [queued, done]


@each("queues", [["a"], ["b"], ["a", "b"], ["b", "c"], ["c"]])
async def test_a_token_that_comes_again_returns_its_leases_of_all_queues(
    store: Store, queues: list[str]
) -> None:
    await add(store, new("1", queue="a"), new("2", queue="b"))
    shares = [Share("a", 1, 1), Share("b", 1, 1)]
    found = await store.fetch(shares, limit=2, lease=LEASE, worker="w1", token="again")
    assert len(found.jobs) == 2
    again = await store.reclaim(queues, limit=10, lease=LEASE, worker="w1", token="again")
    assert {job.lease for job in again.jobs} == {job.lease for job in found.jobs}


async def test_a_token_of_a_reclaim_that_comes_again_returns_its_leases_of_all_queues(store: Store) -> None:
    await add(store, new("1", queue="a"), new("2", queue="b"))
    await store.fetch([Share("a", 1, 1), Share("b", 1, 1)], limit=2, lease=LEASE, worker="w1", token="t1")
    found = await store.reclaim([], limit=10, lease=LEASE, worker="w2", token="again", of=["w1"])
    assert len(found.jobs) == 2
    again = await store.fetch([Share("a", 1, 1)], limit=10, lease=LEASE, worker="w2", token="again")
    assert {job.lease for job in again.jobs} == {job.lease for job in found.jobs}


async def test_a_lost_job_whose_fetch_starts_it_goes_to_the_tail_until_its_attempts_are_spent(
    store: Store, clock: ManualClock
) -> None:
    pulled, other = new("pulled", fetch_starts=True, max_attempts=2), new("other", delay=1)
    await add(store, pulled, other)

    async def lose_it() -> None:
        """Nobody reports a start, and the lease runs out."""
        assert ids(await take(store)) == ["pulled"]
        clock.advance(LEASE)
        await store.promote(["default"], limit=9)
        found = await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())
        await settle_reclaimed(store, found, Loss("LeaseLost", "not acknowledged in time"))

    await lose_it()
    assert ids(await take(store, 1)) == ["other"]
    assert (await the(store, pulled)).attempt == 1
    await store.delete([other.ref], running=True)
    await lose_it()
    dead = await the(store, pulled)
    assert (dead.state, dead.attempt, dead.lost) == (State.DEAD, 2, 2)
