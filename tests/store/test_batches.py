"""Batches: single jobs are collected, become one batch, and end together with it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import TERMINAL, Job, NewJob, Ref, State
from penstock.core.lifecycle import EXPIRED, Transition
from penstock.core.relations import BatchTerms, Partition, Tenant
from penstock.core.unique import UniqueKey
from penstock.stores.contract import BatchInfo, Due, EnqueueStatus, Settled, Settlement, Share, Store, Wake
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    CANCELLED,
    COMPLETED,
    DAY,
    DEAD,
    HOUR,
    KEEP,
    LEASE,
    MINUTE,
    PARKED,
    RELEASED,
    SECOND,
    OpenStore,
    add,
    all_jobs,
    counts,
    end,
    gone,
    ids,
    member,
    new,
    retryable,
    snoozed,
    take,
    take_one,
    the,
    token,
)

S, A, R, G = State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.COLLECTING


async def promote(store: Store, limit: int = 100, queue: str = "default") -> Due:
    return await store.promote([queue], limit=limit)


async def a_batch(store: Store, n: int = 3, **facts: object) -> tuple[Job, list[Job]]:
    """A batch of n members that is available, and they."""
    made = [member(size=n, key="full", payload=b"%d" % i, **facts) for i in range(n)]
    await add(store, *made)
    members = [await the(store, one) for one in made]
    assert members[0].batch is not None
    (batch,) = await store.get([replace(made[0].ref, id=members[0].batch)])
    assert batch is not None
    return batch, members


async def a_running_batch(store: Store, n: int = 3, **facts: object) -> tuple[Job, list[Job]]:
    batch, members = await a_batch(store, n, **facts)
    running = await take_one(store, batch.queue)
    assert running.id == batch.id
    return running, members


# ── joining, and what makes a batch: the eight cases of asynq ────────────────────────────────────


async def test_an_empty_batch_becomes_nothing(store: Store, clock: ManualClock) -> None:
    assert await store.batches() == []
    assert await promote(store) == Due(0, None, clock.now())
    lonely = member()
    await add(store, lonely)
    await store.delete([lonely.ref])
    clock.advance(DAY)
    assert await promote(store) == Due(0, None, clock.now())
    assert await store.batches() == []
    assert await all_jobs(store) == []


async def test_a_batch_that_reaches_its_size_is_a_batch_in_that_step(
    store: Store, clock: ManualClock
) -> None:
    specs = [member(size=5, payload=b'{"n":%d}' % n) for n in range(5)]
    await add(store, *specs[:4])
    assert await counts(store) == {G: 4}
    assert await take(store, 9) == []
    await add(store, specs[4])
    assert await counts(store) == {G: 5, A: 1}
    (batch,) = await take(store, 9)
    assert batch.spec.payload == b'[[{"n":0},{"n":1},{"n":2},{"n":3},{"n":4}]]'
    assert batch.members == tuple(ids(specs))
    assert (batch.task, batch.queue, batch.spec.batch_terms) == ("t", "default", specs[0].batch_terms)
    assert (batch.attempt, batch.run_at, batch.batch) == (1, clock.now(), None)
    for spec in specs:
        job = await the(store, spec)
        assert (job.spec, job.state, job.batch, job.members) == (spec, G, batch.id, ())
    assert await store.batches() == []


async def test_what_is_beyond_the_size_goes_into_the_next_batch(store: Store, clock: ManualClock) -> None:
    early = [member(size=100, payload=b"%d" % n) for n in range(4)]
    await add(store, *early)
    clock.advance(10)
    last = member(size=2, payload=b"4")  # the size was made smaller meanwhile: the last one's counts
    await add(store, last)
    assert [b.spec.payload for b in await take(store, 9)] == [b"[[0,1]]", b"[[2,3]]"]
    assert await store.batches() == [BatchInfo("default", "t", "", 1, clock.now(), clock.now() + DAY)]


async def test_a_batch_without_new_members_is_closed_when_its_grace_period_is_over(
    store: Store, clock: ManualClock
) -> None:
    await add(store, member("a", grace=SECOND))
    clock.advance(900)
    await add(store, member("b", grace=SECOND))
    clock.advance(900)
    assert await promote(store) == Due(0, clock.now() + 100, clock.now())
    clock.advance(100)
    assert await promote(store) == Due(1, None, clock.now())
    assert (await take_one(store)).members == ("a", "b")


async def test_a_batch_whose_first_has_waited_long_enough_is_a_batch(
    store: Store, clock: ManualClock
) -> None:
    await add(store, member("a", wait=3 * SECOND, grace=2 * SECOND))
    for n in range(2):
        clock.advance(SECOND)
        await add(store, member(f"b{n}", wait=3 * SECOND, grace=2 * SECOND))
    clock.advance(999)
    assert await promote(store) == Due(0, clock.now() + 1, clock.now())
    clock.advance(1)
    assert (await promote(store)).moved == 1
    assert (await take_one(store)).members == ("a", "b0", "b1")


async def test_without_a_size_to_reach_only_time_makes_a_batch(store: Store, clock: ManualClock) -> None:
    specs = [member(size=1_000, wait=MINUTE, grace=SECOND) for _ in range(50)]
    await add(store, *specs)
    assert await counts(store) == {G: 50}
    clock.advance(SECOND)
    assert (await promote(store)).moved == 1
    assert (await take_one(store)).members == tuple(ids(specs))


async def test_without_a_longest_wait_a_batch_grows_while_somebody_comes(
    store: Store, clock: ManualClock
) -> None:
    for n in range(20):
        await add(store, member(f"m{n}", size=20 if n == 19 else 1_000, wait=None, grace=SECOND))
        clock.advance(SECOND - 1)
        assert (await promote(store)).moved == 0
    assert len((await take_one(store)).members) == 20


async def test_without_size_and_longest_wait_only_quiet_makes_a_batch(
    store: Store, clock: ManualClock
) -> None:
    for n in range(5):
        await add(store, member(f"m{n}", size=1_000, wait=None, grace=SECOND))
        clock.advance(999)
        assert (await promote(store)).moved == 0
    clock.advance(1)
    assert (await promote(store)).moved == 1
    assert len((await take_one(store)).members) == 5


# ── which batch a job joins ────────────────────────────────────────────────────────────────────────────


async def test_task_queue_and_key_make_a_batch(store: Store, clock: ManualClock) -> None:
    specs = [
        member("a", key="x"),
        member("b", key="y"),
        member("c", key="x", task="u"),
        member("d", key="x", queue="other"),
        member("e", key="x"),
    ]
    await add(store, *specs)
    clock.advance(DAY)
    assert (await store.promote(["default", "other"], limit=9)).moved == 4
    assert [b.members for b in await take(store, 9)] == [("a", "e"), ("b",), ("c",)]
    assert (await take_one(store, "other")).members == ("d",)


async def test_what_the_last_to_join_says_holds_for_the_batch(store: Store, clock: ManualClock) -> None:
    await add(store, member("a", wait=HOUR))
    clock.advance(MINUTE)
    await add(store, member("b", wait=2 * MINUTE))
    assert [g.due for g in await store.batches()] == [clock.now() + MINUTE]
    clock.advance(MINUTE)
    assert (await promote(store)).moved == 1


async def test_a_wait_that_is_over_already_makes_the_batch_at_once(store: Store, clock: ManualClock) -> None:
    await add(store, member("a", wait=HOUR))
    clock.advance(MINUTE)
    await add(store, member("b", wait=SECOND))
    assert (await take_one(store)).members == ("a", "b")


async def test_one_step_may_fill_several_batches(store: Store) -> None:
    specs = [member(f"m{n}", size=2) for n in range(5)]
    await add(store, *specs)
    assert [b.members for b in await take(store, 9)] == [("m0", "m1"), ("m2", "m3")]
    assert await counts(store) == {G: 5, R: 2}


async def test_a_large_batch_is_one_batch(store: Store) -> None:
    specs = [member(size=1_000, payload=b"%d" % n) for n in range(2_500)]
    await add(store, *specs)
    batches = await take(store, 9)
    assert [b.members for b in batches] == [tuple(ids(specs[:1_000])), tuple(ids(specs[1_000:2_000]))]
    assert batches[1].spec.payload == b"[[" + b",".join(b"%d" % n for n in range(1_000, 2_000)) + b"]]"
    await store.settle([Settlement(b.lease, Transition(State.COMPLETED)) for b in batches])
    assert await counts(store) == {G: 500}


# ── what the batch is ────────────────────────────────────────────────────────────────────────────


async def test_a_batch_is_as_its_first_member_and_as_urgent_as_any(store: Store) -> None:
    first = member(
        size=3,
        priority=1,
        timeout=5,
        max_attempts=2,
        retention=7,
        headers={"k": "v"},
        at_most_once=True,
        keep_dead=9,
    )
    await add(store, first, member(size=3, priority=9, timeout=6), member(size=3, headers={"k": "w"}))
    spec = (await take_one(store)).spec
    assert spec == NewJob(
        id=f"{first.id}.batch",
        task="t",
        payload=b"[[1,1,1]]",
        priority=9,
        timeout=5,
        max_attempts=2,
        retention=7,
        keep_dead=9,
        headers={"k": "v"},
        at_most_once=True,
        batch_terms=first.batch_terms,
    )


@each("id", ["0190d1a2-3c4d-7e5f-8a9b-0c1d2e3f4a5b", "x", "nine.char", "a" * 128])
async def test_the_id_of_a_batch_is_made_of_its_first_members(store: Store, id: str) -> None:
    await add(store, new(f"{id[:110]}.batch", delay=DAY), member(id, size=1))
    assert (await take_one(store)).id == f"{id[:110]}.batch2"


async def test_a_batch_stands_where_it_was_made(store: Store) -> None:
    await add(store, new("before"), member("m", size=1), new("after"), new("urgent", priority=1))
    assert ids(await take(store, 9)) == ["urgent", "before", "m.batch", "after"]


async def test_batches_and_members_are_listed_found_and_counted(store: Store) -> None:
    batch, members = await a_batch(store, 3)
    single = member("single")
    await add(store, single)
    listed = await all_jobs(store)
    assert ids(listed) == ["single", batch.id, *reversed(ids(members))]
    assert ids(await all_jobs(store, queue="default", state=G)) == ["single", *reversed(ids(members))]
    assert ids(await store.find(batch.id)) == [batch.id]
    assert await counts(store) == {G: 4, A: 1}
    assert (await store.stats())[0].enqueued == 4


async def test_only_the_batch_is_counted_as_processed(store: Store) -> None:
    batch, _ = await a_running_batch(store, 3)
    await end(store, batch, retryable(0))
    await store.promote(["default"], limit=9)
    await end(store, await take_one(store))
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed, stats.failed) == (3, 2, 1)


# ── members that come later ──────────────────────────────────────────────────────────────────────


async def test_a_delayed_member_joins_when_it_is_due(store: Store, clock: ManualClock) -> None:
    await add(store, member("late", size=2, delay=MINUTE), member("early", size=2))
    assert await counts(store) == {S: 1, G: 1}
    clock.advance(MINUTE + 7)
    assert (await promote(store)).moved == 1
    assert (await the(store, member("late"))).run_at == clock.now()
    assert (await take_one(store)).members == ("early", "late")


async def test_due_members_join_in_the_order_of_their_times(store: Store, clock: ManualClock) -> None:
    await add(store, *[member(f"m{n}", size=3, delay=MINUTE - n) for n in range(4)])
    clock.advance(HOUR)
    assert (await promote(store)).moved == 4
    assert (await take_one(store)).members == ("m3", "m2", "m1")
    assert [g.oldest for g in await store.batches()] == [clock.now()]


async def test_the_limit_of_a_promotion_holds_for_members_and_batches(
    store: Store, clock: ManualClock
) -> None:
    await add(store, member("a", key="x", wait=SECOND), member("b", key="y", wait=2 * SECOND))
    await add(store, member("c", key="z", delay=SECOND), new("d", delay=3 * SECOND))
    clock.advance(HOUR)
    now = clock.now()
    assert await promote(store, 2) == Due(2, now - HOUR + 2 * SECOND, now)
    assert await counts(store) == {G: 3, A: 1, S: 1}
    assert await promote(store, 1) == Due(1, now - HOUR + 3 * SECOND, now)
    assert await promote(store, 9) == Due(1, now + DAY, now)
    assert ids(await take(store, 9)) == ["a.batch", "b.batch", "d"]


async def test_plain_jobs_and_members_that_are_due_together_keep_their_order(
    store: Store, clock: ManualClock
) -> None:
    await add(
        store,
        new("p1", delay=1),
        member("m1", size=2, delay=2),
        new("p2", delay=3),
        member("m2", size=2, delay=4),
        new("p3", delay=5),
        new("p4", delay=5, expires_in=6),
    )
    clock.advance(HOUR)
    assert (await promote(store)).moved == 5
    assert ids(await take(store, 9)) == ["p1", "p2", "m1.batch", "p3"]


async def test_a_paused_queue_collects_and_a_closed_one_takes_none(store: Store, clock: ManualClock) -> None:
    await add(store, member("late", delay=1))
    await store.settings("default", paused=True, closed=True)
    (answer,) = await store.enqueue([member("refused")])
    assert answer.status is EnqueueStatus.CLOSED
    clock.advance(1)
    assert (await promote(store)).moved == 1
    clock.advance(DAY)
    assert (await promote(store)).moved == 1
    assert await take(store) == []
    await store.settings("default", paused=False)
    assert (await take_one(store)).members == ("late",)


async def test_jobs_that_follow_join_their_batch(store: Store) -> None:
    await add(store, new())
    await end(store, await take_one(store), then=(member("a", size=2), member("b", size=2)))
    assert (await take_one(store)).members == ("a", "b")


# ── waiting and waking ───────────────────────────────────────────────────────────────────────────


async def test_the_instant_of_a_batch_is_known_to_fetch_and_wait(store: Store, clock: ManualClock) -> None:
    await add(store, member(wait=MINUTE))
    share = Share("default", 9, 9)
    fetched = await store.fetch([share], limit=9, lease=LEASE, worker="w", token=token())
    assert (fetched.jobs, fetched.due) == ([], clock.now() + MINUTE)
    assert await store.wait(["default"], timeout=MINUTE + 1) == Wake.WORK
    assert await store.wait(["default"], timeout=0) == Wake.NOTHING
    clock.advance(MINUTE)
    assert await store.wait(["default"], timeout=0) == Wake.WORK


async def test_a_full_batch_is_work(store: Store) -> None:
    await a_batch(store, 2)
    assert await store.wait(["default"], timeout=0) == Wake.WORK


# ── the end of a batch is the end of its members ─────────────────────────────────────────────────


@each("to", [COMPLETED, CANCELLED, DEAD])
async def test_members_end_as_their_batch_does(store: Store, clock: ManualClock, to: Transition) -> None:
    batch, members = await a_running_batch(store)
    clock.advance(5)
    await end(store, batch, to, result=b"7")
    done = await the(store, batch)
    assert (done.state, done.result, done.members) == (to.state, b"7", tuple(ids(members)))
    for before in members:
        after = await the(store, before)
        ended = {"state": to.state, "ended_at": clock.now(), "reason": to.reason}
        assert after == replace(before, **ended)
    assert await counts(store) == {to.state: 4}
    clock.advance(KEEP)
    assert (await store.prune()).finished == 4
    assert await all_jobs(store) == []


@each("state", sorted(TERMINAL))
async def test_with_nothing_to_keep_the_members_go_with_their_batch(store: Store, state: State) -> None:
    batch, members = await a_running_batch(store)
    await end(store, batch, Transition(state))
    assert await all_jobs(store) == []
    assert await store.drop("default")
    assert await store.wait_for_end([member.ref for member in members], timeout=0) == [None] * 3


@each("to", [retryable(), snoozed(), AGAIN, RELEASED, PARKED])
async def test_members_wait_for_a_batch_that_runs_again(store: Store, to: Transition) -> None:
    batch, members = await a_running_batch(store)
    await end(store, batch, to)
    after = await the(store, batch)
    assert (after.state, after.members) == (to.state, batch.members)
    assert [await the(store, one) for one in members] == members


async def test_a_stale_lease_ends_no_job(store: Store) -> None:
    batch, members = await a_running_batch(store)
    stale = replace(batch.lease, token="another")
    assert await store.settle([Settlement(stale, COMPLETED)]) == [Settled.STALE]
    assert [await the(store, one) for one in members] == members


async def test_a_lost_batch_is_decided_as_a_whole(store: Store, clock: ManualClock) -> None:
    batch, members = await a_running_batch(store)
    clock.advance(LEASE)
    found = await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())
    assert [(job.id, job.members) for job in found.jobs] == [(batch.id, batch.members)]
    await end(store, found.jobs[0], DEAD)
    assert {(await the(store, one)).state for one in members} == {State.DEAD}


async def test_no_attempt_ends_collecting(store: Store) -> None:
    batch, _ = await a_running_batch(store)
    with pytest.raises(ValueError, match="no attempt ends in the state 'collecting'"):
        await store.settle([Settlement(batch.lease, Transition(G))])
    assert (await the(store, batch)).state is R


async def test_a_wait_for_members_of_a_batch_gets_their_end(store: Store) -> None:
    batch, members = await a_running_batch(store, 2)
    refs = [one.ref for one in members]
    heard = store.stream_ends(refs, timeout=5_000)
    await end(store, batch)
    told = {}
    async for some in heard:
        told |= some
    assert {ref: job and job.state for ref, job in told.items()} == dict.fromkeys(refs, State.COMPLETED)


async def test_many_batches_end_in_one_call(store: Store) -> None:
    await add(store, *[member(f"{g}-{n}", key=g, size=900) for g in "abcd" for n in range(900)])
    batches = await take(store, 9)
    assert len(batches) == 4
    ends = [COMPLETED, Transition(State.DEAD), DEAD, Transition(State.COMPLETED)]
    made = [Settlement(batch.lease, to) for batch, to in zip(batches, ends, strict=True)]
    assert await store.settle(made) == [Settled.APPLIED] * 4
    assert await counts(store) == {State.COMPLETED: 901, State.DEAD: 901}
    assert await store.settle(made) == [Settled.STALE, Settled.GONE, Settled.STALE, Settled.GONE]


# ── what is done to members before they are in a batch ───────────────────────────────────────────


async def test_a_cancelled_member_leaves_its_batch(store: Store, clock: ManualClock) -> None:
    await add(store, member("a", wait=MINUTE), member("b", wait=MINUTE))
    clock.advance(SECOND)
    await add(store, member("c", wait=MINUTE))
    assert await store.cancel([member("a").ref]) == [State.CANCELLED]
    assert await store.cancel([member("b").ref]) == [State.CANCELLED]
    assert await store.batches() == [BatchInfo("default", "t", "", 1, clock.now(), clock.now() + MINUTE)]
    assert await counts(store) == {State.CANCELLED: 2, G: 1}
    clock.advance(MINUTE)
    await promote(store)
    assert (await take_one(store)).members == ("c",)


async def test_a_deleted_member_leaves_its_batch(store: Store) -> None:
    await add(store, member("a", size=3), member("b", size=3))
    assert await store.delete([member("a").ref]) == [G]
    await add(store, member("c", size=3))
    assert await take(store) == []
    assert [g.size for g in await store.batches()] == [2]


async def test_a_purge_of_collecting_jobs_takes_those_in_no_batch(store: Store) -> None:
    batch, members = await a_batch(store, 2)
    await add(store, member("a"), member("b"))
    assert await store.purge("default", [G], limit=1) == 1
    assert await store.purge("default", [G]) == 1
    assert await store.batches() == []
    assert ids(await all_jobs(store)) == [batch.id, *reversed(ids(members))]


async def test_an_expired_member_is_cancelled_by_prune(store: Store, clock: ManualClock) -> None:
    await add(store, member("a", expires_in=SECOND), member("b"))
    clock.advance(SECOND)
    assert (await store.prune()).expired == 1
    assert (await the(store, member("a"))).reason == EXPIRED
    assert [g.size for g in await store.batches()] == [1]


async def test_an_expired_member_does_not_get_into_a_batch(store: Store, clock: ManualClock) -> None:
    await add(store, member("a", size=3, expires_in=SECOND), member("b", size=3, expires_in=HOUR))
    clock.advance(SECOND)
    await add(store, member("c", size=3))
    assert (await take_one(store)).members == ("b", "c")
    late = await the(store, member("a"))
    assert (late.state, late.reason, late.batch) == (State.CANCELLED, EXPIRED, None)
    assert (await the(store, member("b"))).expires_at is None


async def test_where_all_have_expired_there_is_no_batch(store: Store, clock: ManualClock) -> None:
    await add(store, member("a", wait=MINUTE, expires_in=SECOND))
    clock.advance(MINUTE)
    assert await promote(store) == Due(0, None, clock.now())
    assert await counts(store) == {State.CANCELLED: 1}


@each("others", [{}, {"partition": Partition("k", 1)}, {"tenant": Tenant("t")}])
async def test_the_members_of_an_expired_batch_end_with_it(
    store: Store, clock: ManualClock, others: dict[str, Any]
) -> None:
    """In any queue: with partitions or tenants, a fetch takes another way."""
    await add(store, new("other", **others))
    await take(store, 1)
    await add(store, member("a", size=1, retention=HOUR))
    batch = (await the(store, member("a"))).batch
    await store.retry([Ref("default", str(batch))], expires_in=SECOND)
    clock.advance(MINUTE)
    assert await take(store, 9) == []
    for id in (str(batch), "a"):
        ended = await the(store, Ref("default", id))
        assert (ended.state, ended.reason) == (State.CANCELLED, EXPIRED)


async def test_a_member_of_a_batch_expires_no_more(store: Store, clock: ManualClock) -> None:
    _, members = await a_batch(store, 2, expires_in=SECOND)
    clock.advance(DAY)
    assert (await store.prune()).expired == 0
    assert [await the(store, one) for one in members] == members


async def test_a_member_is_rescheduled_to_later_and_comes_back(store: Store, clock: ManualClock) -> None:
    await add(store, member("a", size=2))
    assert await store.reschedule([member("a").ref], delay=MINUTE) == [G]
    job = await the(store, member("a"))
    assert (job.state, job.run_at) == (S, clock.now() + MINUTE)
    assert await store.batches() == []
    assert await store.reschedule([job.ref]) == [S]
    assert [g.size for g in await store.batches()] == [1]


async def test_a_member_that_is_rescheduled_to_now_joins_as_the_last(
    store: Store, clock: ManualClock
) -> None:
    await add(store, member("a", wait=MINUTE), member("b", wait=MINUTE))
    clock.advance(SECOND)
    assert await store.reschedule([member("a").ref]) == [G]
    assert (await the(store, member("a"))).run_at == clock.now()
    clock.advance(HOUR)
    await promote(store)
    assert (await take_one(store)).members == ("b", "a")


@each("before", ["collecting", "scheduled", "cancelled"])
async def test_a_retried_member_is_at_once_a_batch_of_its_own(
    store: Store, clock: ManualClock, before: str
) -> None:
    other, job = member("other"), member("a", delay=MINUTE if before == "scheduled" else 0)
    await add(store, other, job)
    batches = await store.batches() if before != "collecting" else []
    if before == "cancelled":
        await store.cancel([job.ref])
        batches = await store.batches()
    clock.advance(7)
    assert await store.retry([job.ref]) == [State(before)]
    batch = await take_one(store)
    assert (batch.members, batch.spec.payload) == (("a",), b"[[1]]")
    after = await the(store, job)
    assert (after.state, after.batch, after.ended_at, after.run_at) == (G, batch.id, None, clock.now())
    left = await store.batches()
    assert [(g.size, g.oldest) for g in left] == [(1, clock.now() - 7)]
    assert left == batches or before == "collecting"


# ── what is done to batches, and to their members ────────────────────────────────────────────────


@pytest.mark.parametrize("running", [False, True])
async def test_single_members_of_a_batch_are_left_alone(store: Store, running: bool) -> None:
    batch, members = await (a_running_batch if running else a_batch)(store)
    ref = members[1].ref
    assert await store.cancel([ref]) == [G]
    assert await store.delete([ref]) == [G]
    assert await store.reschedule([ref], delay=HOUR) == [G]
    assert await store.reschedule([ref]) == [G]
    assert await store.purge("default", [G]) == 0
    assert [await the(store, one) for one in members] == members
    assert await the(store, batch) == batch


async def test_a_cancelled_batch_cancels_its_members(store: Store, clock: ManualClock) -> None:
    batch, members = await a_batch(store)
    assert await store.cancel([batch.ref], reason="enough") == [State.CANCELLED]
    after = [await the(store, one) for one in (batch, *members)]
    assert {(job.state, job.reason, job.ended_at) for job in after} == {
        (State.CANCELLED, "enough", clock.now())
    }


async def test_a_running_batch_is_asked_to_stop(store: Store) -> None:
    batch, members = await a_running_batch(store)
    assert await store.cancel([batch.ref]) == [R]
    assert (await the(store, batch)).cancel_asked
    assert [await the(store, one) for one in members] == members


@each("to", [None, COMPLETED, DEAD, retryable()])
async def test_members_are_deleted_with_their_batch(store: Store, to: Transition | None) -> None:
    batch, _ = await a_batch(store)
    if to is not None:
        await end(store, await take_one(store), to)
    state = A if to is None else to.state
    assert await store.delete([batch.ref]) == [state]
    assert await all_jobs(store) == []
    assert await store.drop("default")


async def test_members_are_purged_with_their_batch(store: Store) -> None:
    first, _ = await a_batch(store)
    second, members = await a_batch(store)
    assert await store.purge("default", [A], limit=1) == 1
    assert await gone(store, first)
    assert ids(await all_jobs(store)) == [second.id, *reversed(ids(members))]
    assert await counts(store) == {G: 3, A: 1}


async def test_an_ended_batch_and_its_members_are_purged_one_by_one(store: Store) -> None:
    batch, members = await a_running_batch(store)
    await end(store, batch, DEAD)
    assert await store.purge("default", [State.DEAD], limit=2) == 2
    assert ids(await all_jobs(store)) == [batch.id, members[2].id]
    assert await store.purge("default", [State.DEAD]) == 2
    assert await store.queues() != []
    assert await counts(store) == {}


async def test_an_ended_member_is_deleted_alone(store: Store) -> None:
    batch, members = await a_running_batch(store)
    await end(store, batch, DEAD)
    assert await store.delete([members[0].ref]) == [State.DEAD]
    assert ids(await all_jobs(store)) == [batch.id, members[2].id, members[1].id]
    assert await store.retry([batch.ref]) == [State.DEAD]
    assert await counts(store) == {A: 1, G: 2}
    again = await take_one(store)
    assert again.members == batch.members
    await end(store, again)
    assert await counts(store) == {State.COMPLETED: 3}


async def test_prune_to_few_takes_members_before_their_batch(store: Store) -> None:
    batch, _ = await a_running_batch(store)
    await end(store, batch, DEAD)
    await store.prune(keep_dead=2)
    assert len(await all_jobs(store)) == 2
    assert not await gone(store, batch)
    await store.prune(keep_dead=0)
    assert await all_jobs(store) == []


@pytest.mark.parametrize("whom", ["batch", "member"])
async def test_a_dead_batch_comes_back_with_its_members(store: Store, clock: ManualClock, whom: str) -> None:
    batch, members = await a_running_batch(store)
    await end(store, batch, DEAD)
    clock.advance(5)
    ref = batch.ref if whom == "batch" else members[1].ref
    assert await store.retry([ref]) == [State.DEAD]
    assert [await the(store, one) for one in members] == members
    again = await take_one(store)
    assert (again.id, again.attempt, again.members) == (batch.id, 1, batch.members)
    assert again.spec.payload == b"[[0,1,2]]"


async def test_all_of_a_dead_batch_may_be_retried_in_one_call(store: Store) -> None:
    batch, members = await a_running_batch(store)
    await end(store, batch, DEAD)
    refs = [one.ref for one in (*members, batch)]
    assert await store.retry(refs) == [State.DEAD, G, G, A]
    assert await counts(store) == {A: 1, G: 3}


async def test_a_retry_of_a_batch_that_waits_makes_it_start_now(store: Store) -> None:
    batch, members = await a_running_batch(store)
    await end(store, batch, retryable(HOUR))
    assert await store.retry([members[0].ref]) == [G]
    assert (await take_one(store)).attempt == 1
    assert await store.retry([members[0].ref]) == [G]
    assert await counts(store) == {R: 1, G: 3}


# ── unique members ───────────────────────────────────────────────────────────────────────────────


async def test_a_members_key_outlives_a_batch_that_is_not_kept(store: Store, clock: ManualClock) -> None:
    once_a_minute = UniqueKey("k", period=MINUTE, phases=7)
    job, _ = await a_running_batch(store, 1, unique=once_a_minute)
    await end(store, job, replace(COMPLETED, keep=0))
    second = new("second", unique=UniqueKey("k"))
    (answer,) = await store.enqueue([second])
    assert answer.status is EnqueueStatus.DUPLICATE
    clock.advance(MINUTE)
    await add(store, second)


async def test_a_members_key_is_held_until_its_batch_has_ended(store: Store) -> None:
    key = UniqueKey("k")
    await add(store, member("a", size=2, unique=key))
    (answer,) = await store.enqueue([member("b", size=2, unique=key)])
    assert (answer.status, answer.id) == (EnqueueStatus.DUPLICATE, "a")
    await add(store, member("c", size=2))
    batch = await take_one(store)
    assert batch.members == ("a", "c")
    (answer,) = await store.enqueue([member("d", size=2, unique=key)])
    assert answer.status is EnqueueStatus.DUPLICATE
    await end(store, batch, DEAD)
    await store.retry([batch.ref])
    (answer,) = await store.enqueue([member("e", size=2, unique=key)])
    assert (answer.status, answer.id) == (EnqueueStatus.DUPLICATE, "a")
    await end(store, await take_one(store), Transition(State.COMPLETED))
    await add(store, member("f", size=2, unique=key))


# ── operating ────────────────────────────────────────────────────────────────────────────────────


async def test_batches_are_shown_the_one_that_is_due_first_before_others(
    store: Store, clock: ManualClock
) -> None:
    await add(store, member(key="x", wait=HOUR), member(key="x", wait=HOUR), member(key="y", wait=MINUTE))
    await add(store, member(key="never", wait=None), member(key="z", queue="other", wait=SECOND))
    now = clock.now()
    y = BatchInfo("default", "t", "y", 1, now, now + MINUTE)
    x = BatchInfo("default", "t", "x", 2, now, now + HOUR)
    never = BatchInfo("default", "t", "never", 1, now, None)
    z = BatchInfo("other", "t", "z", 1, now, now + SECOND)
    assert await store.batches() == [z, y, x, never]
    assert await store.batches("default", limit=2) == [y, x]
    assert await store.batches("other") == [z]
    assert await store.batches("nowhere") == []


async def test_a_batch_is_made_a_batch_by_hand(store: Store) -> None:
    await add(store, member("a", key="x"), member("b", key="x"), member("c"))
    assert await store.flush_batch("default", task="t", key="x") == "a.batch"
    assert (await take_one(store)).members == ("a", "b")
    assert await store.flush_batch("default", task="t", key="x") is None
    assert await store.flush_batch("nowhere", task="t") is None
    assert await store.flush_batch("default", task="t") == "c.batch"
    assert await store.batches() == []


async def test_nothing_of_batches_stays_when_all_has_ended(store: Store, open_store: OpenStore) -> None:
    batch, _ = await a_running_batch(store)
    await add(store, member("a"))
    await end(store, batch, Transition(State.COMPLETED))
    await store.delete([member("a").ref])
    assert await open_store().batches() == []
    assert await store.drop("default")
    assert await store.queues() == []


def test_the_due_instant_is_the_earlier_one() -> None:
    assert BatchTerms("", 5, wait=10, grace=3).due(100, 105) == 108
    assert BatchTerms("", 5, wait=10, grace=3).due(100, 109) == 110
    assert BatchTerms("", 5, wait=10).due(100, 109) == 110
    assert BatchTerms("", 5, grace=3).due(100, 109) == 112
    assert BatchTerms("", 5).due(100, 109) is None
