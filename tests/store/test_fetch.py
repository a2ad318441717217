"""fetch: leases available jobs in order."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Progress, State
from penstock.stores.contract import (
    MOST_FETCHED,
    Fetched,
    HeartbeatRequest,
    Settled,
    Settlement,
    Share,
    Store,
    Wake,
    WorkerInfo,
)
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    COMPLETED,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
    PUT_BACK,
    RELEASED,
    add,
    counts,
    end,
    ids,
    in_state,
    new,
    retryable,
    running,
    snoozed,
    some,
    take,
    take_one,
    the,
    token,
)


async def fetch(store: Store, *shares: Share, limit: int = 100, **facts: Any) -> Fetched:
    facts = {"lease": LEASE, "worker": "w1", "token": token(), **facts}
    return await store.fetch(list(shares), limit=limit, **facts)


def worker(id: str, *tasks: str) -> WorkerInfo:
    return WorkerInfo(id, "host", 1, 0, ("default",), tasks, 4)


# ── what a lease is ──


async def test_a_fetched_job_is_leased(store: Store, clock: ManualClock) -> None:
    spec = new()
    await add(store, spec)
    clock.advance(7)
    fetched = await fetch(store, Share("default", 1, 1), worker="w7", token="secret")
    (job,) = fetched.jobs
    assert fetched.now == clock.now()
    assert (job.spec, job.state, job.attempt, job.lost) == (spec, State.RUNNING, 1, 0)
    assert (job.token, job.worker, job.fetched_at) == ("secret", "w7", clock.now())
    assert (job.started, job.cancel_asked, job.errors) == (False, False, ())
    assert job.run_at == job.enqueued_at == clock.now() - 7
    assert (job.lease.queue, job.lease.id, job.lease.generation) == ("default", spec.id, job.generation)
    assert await the(store, spec) == job
    assert await counts(store) == {State.RUNNING: 1}


@pytest.mark.parametrize("sizes", [(200_000, 3, 200_000), (3, 200_000, 3)])
async def test_large_and_small_jobs_are_fetched_together_and_whole(
    store: Store, sizes: tuple[int, ...]
) -> None:
    specs = [new(payload=b"x" * size) for size in sizes]
    await add(store, *specs)
    fetched = await fetch(store, Share("default", 3, 3))
    assert [job.spec for job in fetched.jobs] == specs


async def test_a_leased_job_is_not_leased_again(store: Store) -> None:
    await running(store)
    assert await take(store, 9, worker="w2") == []


async def test_a_new_attempt_begins_anew_but_keeps_what_was_learned(store: Store) -> None:
    job = await running(store)
    request = HeartbeatRequest(
        job.lease, LEASE, started=True, progress=Progress(1, 2, "half"), checkpoint=b"page 3"
    )
    await store.extend([request])
    await end(store, job, AGAIN)
    again = await take_one(store)
    assert (again.attempt, again.started, again.progress, again.reason) == (2, False, None, None)
    assert (again.errors, again.checkpoint) == ((AGAIN.error,), b"page 3")


async def test_without_charge_the_attempt_is_not_counted_and_not_given_back_either(store: Store) -> None:
    await add(store, new())
    (job,) = (await fetch(store, Share("default", 1, 1), charge=False)).jobs
    assert job.attempt == 0
    await end(store, job, RELEASED)
    assert (await the(store, job)).attempt == 0
    charged = await take_one(store)
    assert charged.attempt == 1
    await end(store, charged, AGAIN)
    (job,) = (await fetch(store, Share("default", 1, 1), charge=False)).jobs
    assert job.attempt == 1
    await end(store, job, PUT_BACK)
    assert (await the(store, job)).attempt == 1


@each("state", sorted(set(State) - {State.AVAILABLE}))
async def test_only_available_jobs_are_leased(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state)
    clock.advance(HOUR)  # being due is not enough: promotion makes it available
    assert await take(store, 9, worker="nobody-announced") == []
    assert await the(store, job) == job


# ── how many, from where ──


async def test_the_limit_holds(store: Store) -> None:
    await add(store, *some(5))
    assert len((await fetch(store, Share("default", 9, 9), limit=3)).jobs) == 3
    assert (await fetch(store, Share("default", 9, 9), limit=0)).jobs == []
    assert len((await fetch(store, Share("default", 9, 9), limit=9)).jobs) == 2


async def test_first_quotas_in_order_then_the_others_in_order_up_to_the_caps(store: Store) -> None:
    await add(store, *(new(f"{queue}{i}", queue=queue) for i in range(1, 6) for queue in "abc"))
    fetched = await fetch(store, Share("b", 2, 3), Share("a", 1, 4), Share("c", 1, 1), limit=7)
    assert ids(fetched.jobs) == ["b1", "b2", "a1", "c1", "b3", "a2", "a3"]


async def test_the_limit_may_end_within_the_quotas(store: Store) -> None:
    await add(store, *(new(f"{queue}{i}", queue=queue) for i in range(1, 4) for queue in "ab"))
    fetched = await fetch(store, Share("a", 2, 9), Share("b", 2, 9), limit=3)
    assert ids(fetched.jobs) == ["a1", "a2", "b1"]


async def test_what_one_queue_does_not_have_the_others_give(store: Store) -> None:
    await add(store, *(new(f"b{i}", queue="b") for i in range(1, 6)))
    fetched = await fetch(store, Share("a", 3, 3), Share("nobody", 1, 9), Share("b", 1, 4), limit=9)
    assert ids(fetched.jobs) == ["b1", "b2", "b3", "b4"]


async def test_a_quota_of_none_gives_only_what_is_left(store: Store) -> None:
    await add(store, *(new(f"{queue}{i}", queue=queue) for i in range(1, 4) for queue in "ab"))
    shares = Share("a", 0, 9), Share("b", 2, 2)
    assert ids((await fetch(store, *shares, limit=2)).jobs) == ["b1", "b2"]
    assert ids((await fetch(store, *shares, limit=2)).jobs) == ["b3", "a1"]


async def test_a_cap_below_the_quota_wins_and_none_gives_none(store: Store) -> None:
    await add(store, *some(5))
    assert (await fetch(store, Share("default", 3, 0))).jobs == []
    assert len((await fetch(store, Share("default", 3, 2))).jobs) == 2


async def test_no_queues_give_no_jobs(store: Store) -> None:
    await add(store, *some(2))
    assert await fetch(store, token="x") == await fetch(store, token="y")
    assert (await fetch(store)).jobs == []


async def test_fetching_makes_no_queue(store: Store) -> None:
    assert (await fetch(store, Share("nowhere", 1, 1))).jobs == []
    assert await store.queues() == []


async def test_a_queue_gives_its_own_jobs_only(store: Store) -> None:
    await add(store, new("a1", queue="a"), new("b1", queue="b"))
    assert ids(await take(store, 9, "b")) == ["b1"]
    assert await counts(store, "a") == {State.AVAILABLE: 1}


async def test_a_paused_queue_gives_nothing_and_does_not_stand_in_the_way(store: Store) -> None:
    await add(store, new("a1", queue="a"), new("b1", queue="b"))
    await store.settings("a", paused=True)
    assert ids((await fetch(store, Share("a", 1, 1), Share("b", 1, 1))).jobs) == ["b1"]
    assert await counts(store, "a") == {State.AVAILABLE: 1}
    await store.settings("a", paused=False)
    assert ids(await take(store, 9, "a")) == ["a1"]


async def test_a_closed_queue_is_drained(store: Store) -> None:
    await add(store, new("a1", queue="a"))
    await store.settings("a", closed=True)
    assert ids(await take(store, 9, "a")) == ["a1"]


async def test_a_thousand_jobs_may_be_leased_at_once(store: Store) -> None:
    jobs = some(2_100)
    await add(store, *jobs)
    fetched = await take(store, 2_050)
    assert ids(fetched) == ids(jobs[:2_050])
    assert await counts(store) == {State.RUNNING: 2_050, State.AVAILABLE: 50}


# ── the next due ──


async def test_fetch_returns_when_the_next_job_of_its_queues_is_due(store: Store, clock: ManualClock) -> None:
    share = Share("default", 1, 1)
    assert (await fetch(store, share)).due is None
    await add(store, new(delay=9), new(delay=5), new(delay=1, queue="other"))
    assert (await fetch(store, share)).due == clock.now() + 5
    assert (await fetch(store, share, Share("other", 1, 1))).due == clock.now() + 1
    assert (await fetch(store, Share("other", 0, 0))).due == clock.now() + 1
    clock.advance(20)
    assert (await fetch(store, share)).due == clock.now() - 15  # overdue until it is promoted


async def test_retries_and_snoozes_count_for_the_next_due(store: Store, clock: ManualClock) -> None:
    first, second = await running(store), await running(store)
    share = Share("default", 1, 1)
    await end(store, first, retryable(50))
    assert (await fetch(store, share)).due == clock.now() + 50
    await end(store, second, snoozed(40))
    assert (await fetch(store, share)).due == clock.now() + 40
    await store.cancel([second.ref])
    assert (await fetch(store, share)).due == clock.now() + 50
    await store.delete([first.ref])
    assert (await fetch(store, share)).due is None


async def test_a_paused_queue_still_reports_its_next_due_job(store: Store, clock: ManualClock) -> None:
    await add(store, new(delay=5))
    await store.settings("default", paused=True)
    assert (await fetch(store, Share("default", 1, 1))).due == clock.now() + 5


# ── the same call again ──


async def test_a_repeated_fetch_returns_the_same_leases(store: Store, clock: ManualClock) -> None:
    await add(store, *some(3))
    first = await fetch(store, Share("default", 2, 2), token="t")
    clock.advance(10)
    again = await fetch(store, Share("default", 2, 2), token="t")
    assert sorted(again.jobs, key=lambda job: job.generation) == first.jobs
    assert again.now == clock.now()
    assert await counts(store) == {State.RUNNING: 2, State.AVAILABLE: 1}


async def test_a_repeated_fetch_returns_what_is_still_leased_as_it_is_now(store: Store) -> None:
    await add(store, *some(4))
    first = await fetch(store, Share("default", 3, 3), token="t")
    await end(store, first.jobs[0])
    await store.extend([HeartbeatRequest(first.jobs[1].lease, LEASE, started=True)])
    await store.cancel([first.jobs[2].ref])
    again = (await fetch(store, Share("default", 9, 9), token="t")).jobs
    again.sort(key=lambda job: job.generation)
    assert ids(again) == ids(first.jobs[1:])
    assert [(job.started, job.cancel_asked) for job in again] == [(True, False), (False, True)]


async def test_a_repeated_fetch_does_not_mind_its_queues_limit_or_pause(store: Store) -> None:
    await add(store, *some(2))
    first = await fetch(store, Share("default", 2, 2), token="t")
    await store.settings("default", paused=True)
    again = await fetch(store, Share("other", 1, 1), limit=1, token="t")
    assert sorted(ids(again.jobs)) == ids(first.jobs)


async def test_a_repeated_fetch_does_not_prolong(store: Store, clock: ManualClock) -> None:
    await add(store, new())
    await fetch(store, Share("default", 1, 1), token="t")
    clock.advance(LEASE - 1)
    await fetch(store, Share("default", 1, 1), token="t")
    clock.advance(1)
    found = await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token="t2")
    assert len(found.jobs) == 1


async def test_a_token_without_leases_leases_new_jobs(store: Store) -> None:
    await add(store, *some(2))
    (first,) = (await fetch(store, Share("default", 1, 1), token="t")).jobs
    await end(store, first)
    (second,) = (await fetch(store, Share("default", 1, 1), token="t")).jobs
    assert second.id != first.id
    assert await store.settle([Settlement(first.lease, COMPLETED)]) == [Settled.STALE]


# ── parked jobs ──


async def parked(store: Store, *specs: Any) -> None:
    """Jobs that a worker took and did not know."""
    await add(store, *specs)
    for job in await take(store, len(specs), specs[0].queue, worker="ignorant"):
        await end(store, job, PARKED)


async def test_a_parked_job_goes_to_a_worker_that_announced_its_task(store: Store) -> None:
    await parked(store, new("p", task="known"))
    await store.announce(worker("w1", "other", "known"))
    (job,) = await take(store, 9)
    assert (job.id, job.state, job.attempt, job.reason) == ("p", State.RUNNING, 1, None)
    assert await counts(store) == {State.RUNNING: 1}


async def test_a_parked_job_does_not_go_to_others(store: Store) -> None:
    await parked(store, new("p", task="known"))
    await store.announce(worker("w1", "known"))
    await store.announce(worker("w2", "unknown"))
    assert await take(store, 9, worker="w2") == []
    assert await take(store, 9, worker="w3") == []
    await store.retire("w1")
    assert await take(store, 9, worker="w1") == []
    assert await counts(store) == {State.PARKED: 1}


async def test_parked_jobs_come_before_available_ones_and_count_for_the_share(store: Store) -> None:
    await parked(store, new("p1", task="known"), new("p2", task="known"), new("p3", task="other"))
    await add(store, new("a1", priority=100), new("a2"))
    await store.announce(worker("w1", "known"))
    fetched = await fetch(store, Share("default", 3, 3), limit=9)
    assert ids(fetched.jobs) == ["p1", "p2", "a1"]


async def test_parked_jobs_come_in_the_order_of_available_ones(store: Store) -> None:
    low, high = new("low", task="a"), new("high", task="b", priority=5)
    await parked(store, low, new("first", task="b"), high)
    await store.announce(worker("w1", "a", "b"))
    assert ids(await take(store, 9)) == ["high", "low", "first"]


async def test_a_paused_queue_keeps_its_parked_jobs(store: Store) -> None:
    await parked(store, new("p", task="known"))
    await store.announce(worker("w1", "known"))
    await store.settings("default", paused=True)
    assert await take(store, 9) == []


async def test_an_announcement_that_is_old_still_serves_its_worker(store: Store, clock: ManualClock) -> None:
    await parked(store, new("p", task="known"))
    await store.announce(worker("w1", "known"))
    clock.advance(2 * MINUTE)
    assert ids(await take(store, 9)) == ["p"]


# ── many queues ──


async def test_many_queues_are_searched_to_the_last_and_a_repeated_fetch_finds_its_lease_again(
    store: Store, clock: ManualClock
) -> None:
    queues = [f"q-{n}" for n in range(2 * MOST_FETCHED + 20)]
    late, last = new(queue=queues[3], delay=HOUR), new(queue=queues[-1])
    await add(store, late, last)
    shares = [Share(queue, 1, 1) for queue in queues]
    found = await fetch(store, *shares, token="t-1")
    assert (ids(found.jobs), found.due) == ([last.id], clock.now() + HOUR)
    await add(store, new(queue=queues[0]))
    assert (await fetch(store, *shares, token="t-1")).jobs == found.jobs
    assert await store.wait(queues, timeout=0) is Wake.WORK
    assert [job.queue for job in (await fetch(store, *shares, token="t-2")).jobs] == queues[:1]
    nothing = await fetch(store, *shares, token="t-3")
    assert (nothing.jobs, nothing.due) == ([], clock.now() + HOUR)
    assert await store.wait(queues, timeout=0) is not Wake.WORK


async def test_a_repeated_fetch_of_many_queues_finds_all_its_leases_in_whatever_order_it_asks(
    store: Store,
) -> None:
    queues = [f"q-{n}" for n in range(MOST_FETCHED + 20)]
    first, last = new(queue=queues[0]), new(queue=queues[-1])
    await add(store, first, last)
    shares = [Share(queue, 1, 1) for queue in (queues[-1], *queues[:-1])]
    found = await fetch(store, *shares, token="t-1")
    assert sorted(ids(found.jobs)) == sorted([first.id, last.id])
    again = await fetch(store, *[Share(queue, 1, 1) for queue in queues], token="t-1")
    assert sorted(ids(again.jobs)) == sorted([first.id, last.id])
