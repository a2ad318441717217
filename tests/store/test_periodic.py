"""Periodic entries: put, list, pause, delete and tick; each job of an entry is enqueued once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import NewJob, Ref, State
from penstock.core.lifecycle import REPLACED
from penstock.core.relations import Partition
from penstock.core.schedule import Entry, Misfire, NewEntry, Overlap, Schedule
from penstock.core.unique import UniqueKey
from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer
from penstock.retry import exponential
from penstock.stores.contract import Store, Tick, TickResult, TickStatus, Wake
from tests.cases import each
from tests.store.facts import (
    ALONE,
    CANCELLED,
    COMPLETED,
    DEAD,
    MINUTE,
    PARKED,
    SECOND,
    OpenStore,
    add,
    all_jobs,
    counts,
    end,
    gone,
    new,
    retryable,
    running,
    suspended,
    take,
    take_one,
    the,
)

HOURLY = Schedule("0 * * * *")


def entry(
    name: str = "report", *, schedule: Schedule = HOURLY, queue: str = "default", **facts: Any
) -> NewEntry:
    """One that nobody else has."""
    return NewEntry(name, NewJob(id="", task="t", queue=queue), schedule, **facts)


def tick(of: Entry, *jobs: NewJob, to: int | None = None, **facts: Any) -> Tick:
    """The next step of the entry, as it was read."""
    to = of.watermark + MINUTE if to is None else to
    facts.setdefault("not_before", 0)
    return Tick(of.ref, of.revision, of.watermark, to, jobs=jobs, **facts)


async def put(store: Store, spec: NewEntry) -> Entry:
    (stored,) = await store.put_entries([spec])
    return stored


async def stored(store: Store, ref: Ref) -> Entry:
    found = {one.ref: one for one in (await store.entries()).entries}
    return found[ref]


async def ticked(store: Store, one: Tick) -> TickResult:
    (answer,) = await store.tick([one])
    return answer


# ── entries ──


async def test_an_empty_store_has_no_entries_and_says_what_time_it_is(
    store: Store, clock: ManualClock
) -> None:
    for queues in (None, [], ["nowhere"]):
        table = await store.entries(queues)
        assert table.entries == []
        assert table.now == clock.now()
    assert await store.queues() == []


async def test_an_entry_comes_back_as_it_was_put(store: Store, clock: ManualClock) -> None:
    job = new(
        "",
        queue="mail",
        payload=b'{"a": "\xc3\xa9"}',
        priority=-7,
        expires_in=5,
        timeout=None,
        retry=exponential(),
        unique=UniqueKey("k", 5),
        headers={"a": "b"},
    )
    spec = NewEntry(
        "night@1", job, Schedule("@daily", "Europe/Berlin"), Misfire.ALL, 7, Overlap.REPLACE, 9, True
    )
    now = clock.now()
    assert await store.put_entries([spec]) == [Entry(spec, now, now)]
    assert (await store.entries()).entries == [Entry(spec, now, now)]


async def test_entries_come_by_queue_and_name(store: Store) -> None:
    addresses = [("b", "z"), ("b", "a"), ("a", "m"), ("B", "a")]
    await store.put_entries([entry(name, queue=queue) for queue, name in addresses])
    table = await store.entries()
    assert [(one.ref.queue, one.spec.name) for one in table.entries] == sorted(addresses)
    table = await store.entries(["b", "nowhere", "b"])
    assert [one.spec.name for one in table.entries] == ["a", "z"]


async def test_a_queue_comes_to_be_with_its_first_entry(store: Store) -> None:
    await put(store, entry(queue="new"))
    assert [info.name for info in await store.queues()] == ["new"]


async def test_a_name_is_unique_in_its_queue_only(store: Store) -> None:
    await store.put_entries([entry(queue="a"), entry(queue="b")])
    assert await store.delete_entries([Ref("a", "report")]) == [True]
    assert [one.ref.queue for one in (await store.entries()).entries] == ["b"]


async def test_the_same_entry_put_again_changes_nothing(store: Store, clock: ManualClock) -> None:
    first = await put(store, entry())
    clock.advance(MINUTE)
    assert await put(store, entry()) == first
    assert (await store.entries()).entries == [first]


async def test_a_changed_entry_keeps_its_watermark_with_its_schedule(
    store: Store, clock: ManualClock
) -> None:
    first = await put(store, entry())
    clock.advance(MINUTE)
    again = await put(store, entry(misfire=Misfire.ALL))
    assert again == Entry(entry(misfire=Misfire.ALL), clock.now(), first.watermark)
    clock.advance(MINUTE)
    other = await put(store, entry(schedule=Schedule("0 * * * *", "Europe/Berlin")))
    assert (other.watermark, other.revision) == (clock.now(), clock.now())


async def test_a_new_schedule_does_not_bring_back_what_was_enqueued_ahead(
    store: Store, clock: ManualClock
) -> None:
    first = await put(store, entry())
    ahead = clock.now() + MINUTE
    assert (await ticked(store, tick(first, to=ahead))).status is TickStatus.APPLIED
    assert (await put(store, entry(schedule=Schedule("@daily")))).watermark == ahead


async def test_every_change_makes_a_new_revision_even_while_the_clock_stands(store: Store) -> None:
    revisions = [(await put(store, entry(jitter=n))).revision for n in range(3)]
    for paused in (True, False):
        (one,) = await store.pause_entries([Ref("default", "report")], paused)
        assert one is not None
        revisions.append(one.revision)
    assert sorted(set(revisions)) == revisions


async def test_missed_instants_of_a_paused_entry_are_skipped(store: Store, clock: ManualClock) -> None:
    first = await put(store, entry())
    (paused, missing) = await store.pause_entries([first.ref, Ref("default", "no")], True)
    assert missing is None
    assert paused is not None
    assert (paused.paused, paused.watermark) == (True, first.watermark)
    clock.advance(MINUTE)
    assert await store.pause_entries([first.ref], True) == [paused]
    changed = await put(store, entry(jitter=1))
    assert changed.paused, "a paused entry stays paused"
    (on,) = await store.pause_entries([first.ref], False)
    assert on is not None
    assert (on.paused, on.watermark) == (False, clock.now())


async def test_a_deleted_entry_is_gone_and_its_jobs_stay(store: Store, clock: ManualClock) -> None:
    first = await put(store, entry())
    job = new(run_at=clock.now() + 5)
    await ticked(store, tick(first, job))
    assert await store.delete_entries([first.ref, first.ref, Ref("no", "no")]) == [True, False, False]
    assert (await store.entries()).entries == []
    assert (await the(store, job)).state is State.SCHEDULED
    assert await ticked(store, tick(first)) == TickResult(TickStatus.GONE)


async def test_entries_go_with_their_queue_when_it_is_dropped(store: Store) -> None:
    await put(store, entry())
    assert await store.drop("default")
    assert (await store.entries(["default"])).entries == []
    assert await store.queues() == []


async def test_namespaces_keep_their_entries_apart(open_store: OpenStore) -> None:
    one, other = open_store(namespace="a"), open_store(namespace="b")
    await put(one, entry())
    assert (await other.entries()).entries == []
    assert await other.delete_entries([Ref("default", "report")]) == [False]


async def test_changes_of_entries_are_notified_as_changes_of_settings(open_store: OpenStore) -> None:
    one, other = open_store(), open_store()
    await one.queues()

    async def told() -> bool:
        return Wake.SETTINGS in await one.wait([], timeout=0)

    first = await put(other, entry())
    assert await told()
    await put(other, entry())
    assert not await told(), "nothing has changed"
    await other.pause_entries([first.ref], True)
    assert await told()
    await other.pause_entries([first.ref], True)
    assert not await told()
    await ticked(other, tick(first))
    assert not await told(), "a tick is no news"
    await other.delete_entries([first.ref])
    assert await told()


# ── tick ──


async def test_a_tick_enqueues_its_jobs_and_moves_the_watermark(store: Store, clock: ManualClock) -> None:
    first, now = await put(store, entry()), clock.now()
    past, ahead = new("past", run_at=now - SECOND), new("ahead", run_at=now + SECOND)
    answer = await ticked(store, tick(first, past, ahead, to=now + SECOND))
    assert answer == TickResult(TickStatus.APPLIED, ("past", "ahead"))
    moved = await stored(store, first.ref)
    assert moved == replace(first, watermark=now + SECOND, last="ahead", enqueued=2)
    assert await counts(store) == {State.AVAILABLE: 1, State.SCHEDULED: 1}
    assert (await the(store, ahead)).run_at == now + SECOND
    assert (await store.stats())[0].enqueued == 2
    clock.advance(SECOND)
    await store.promote(["default"], limit=9)
    assert [job.id for job in await take(store, 9)] == ["past", "ahead"]


async def test_of_many_concurrent_ticks_one_is_applied(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(4)]
    first = await put(stores[0], entry())
    for n in range(5):
        now = await stored(stores[0], first.ref)
        job = new(f"tick-{n}")
        answers = await asyncio.gather(*(ticked(store, tick(now, job)) for store in stores * 3))
        assert sorted(answer.status for answer in answers) == [TickStatus.APPLIED, *[TickStatus.STALE] * 11]
    assert (await stored(stores[0], first.ref)).enqueued == 5
    assert await counts(stores[0]) == {State.AVAILABLE: 5}


async def test_a_job_that_ended_and_was_not_kept_does_not_come_twice(store: Store) -> None:
    first = await put(store, entry())
    await ticked(store, tick(first, new("once")))
    (job,) = await take(store)
    await end(store, job, replace(COMPLETED, keep=0))
    assert await gone(store, job)
    assert await ticked(store, tick(first, new("once"))) == TickResult(TickStatus.STALE)
    assert await counts(store) == {}


async def test_the_stores_clock_decides_what_is_early(store: Store, clock: ManualClock) -> None:
    first = await put(store, entry())
    one = tick(first, new("x"), not_before=clock.now() + 3 * SECOND)
    assert await ticked(store, one) == TickResult(TickStatus.EARLY)
    clock.advance(3 * SECOND - 1)
    assert await ticked(store, one) == TickResult(TickStatus.EARLY)
    assert await stored(store, first.ref) == first
    clock.advance(1)
    assert await ticked(store, one) == TickResult(TickStatus.APPLIED, ("x",))


async def test_a_tick_of_an_older_revision_changes_nothing(store: Store) -> None:
    first = await put(store, entry())
    second = await put(store, entry(jitter=1))
    assert await ticked(store, tick(first, new())) == TickResult(TickStatus.STALE)
    (paused,) = await store.pause_entries([first.ref], True)
    assert paused is not None
    assert await ticked(store, tick(second, new())) == TickResult(TickStatus.STALE)
    assert await ticked(store, tick(paused, new())) == TickResult(TickStatus.STALE), "paused"
    assert await counts(store) == {}


async def test_answers_stand_at_the_place_of_their_questions(store: Store) -> None:
    a, b = await store.put_entries([entry("a", queue="a"), entry("b", queue="b")])
    away = replace(a, spec=entry("c", queue="c"))
    answers = await store.tick(
        [tick(b, new("1", queue="b")), tick(away), tick(a, new("2", queue="a")), tick(b, new("3", queue="b"))]
    )
    assert answers == [
        TickResult(TickStatus.APPLIED, ("1",)),
        TickResult(TickStatus.GONE),
        TickResult(TickStatus.APPLIED, ("2",)),
        TickResult(TickStatus.STALE),
    ]
    assert await store.tick([]) == []


async def test_a_job_whose_id_or_unique_key_is_taken_is_skipped(store: Store) -> None:
    first = await put(store, entry())
    await add(store, new("taken"), new("holder", unique=UniqueKey("k")))
    jobs = [new("taken"), new("other", unique=UniqueKey("k")), new("fine")]
    assert await ticked(store, tick(first, *jobs)) == TickResult(TickStatus.APPLIED, ("fine",))
    moved = await stored(store, first.ref)
    assert (moved.enqueued, moved.skipped, moved.last) == (1, 2, "fine")


async def test_a_closed_queue_skips_and_a_paused_one_gathers(store: Store) -> None:
    first = await put(store, entry())
    await store.settings("default", closed=True)
    assert await ticked(store, tick(first, new())) == TickResult(TickStatus.APPLIED)
    await store.settings("default", closed=False, paused=True)
    now = await stored(store, first.ref)
    assert (await ticked(store, tick(now, new("b")))).enqueued == ("b",)
    assert await counts(store) == {State.AVAILABLE: 1}


@each("state", State)
async def test_a_job_is_skipped_while_the_one_before_has_not_ended(store: Store, state: State) -> None:
    first = await _with_last(store, state)
    answer = await ticked(store, tick(first, new("next"), overlap=Overlap.SKIP))
    ended = state in (State.COMPLETED, State.CANCELLED, State.DEAD)
    assert answer == TickResult(TickStatus.APPLIED, ("next",) if ended else ())
    moved = await stored(store, first.ref)
    assert moved.watermark == first.watermark + MINUTE
    assert (moved.last, moved.skipped) == (("next", 0) if ended else ("last", 1))


@pytest.mark.parametrize("state", State)
async def test_a_job_takes_the_place_of_the_one_before(store: Store, state: State) -> None:
    first = await _with_last(store, state)
    before = await the(store, Ref("default", "last"))
    answer = await ticked(store, tick(first, new("next"), overlap=Overlap.REPLACE))
    assert answer == TickResult(TickStatus.APPLIED, ("next",))
    assert (await the(store, Ref("default", "next"))).state is State.AVAILABLE
    after = await the(store, before)
    if before.ended:
        assert after == before
    elif state is State.RUNNING:
        assert (after.state, after.cancel_asked) == (state, True)
        assert Wake.CANCEL in await store.wait([], timeout=0)
    else:
        assert (after.state, after.reason) == (State.CANCELLED, REPLACED)


async def test_a_last_job_that_is_gone_is_in_nobodys_way(store: Store) -> None:
    first = await _with_last(store, State.AVAILABLE)
    await store.delete([Ref("default", "last")])
    assert (await ticked(store, tick(first, new("next"), overlap=Overlap.SKIP))).enqueued == ("next",)


async def test_of_several_jobs_of_one_tick_each_meets_the_one_before(store: Store) -> None:
    a, b = await store.put_entries([entry("a"), entry("b")])
    assert (await ticked(store, tick(a, new("1"), new("2"), overlap=Overlap.SKIP))).enqueued == ("1",)
    assert (await ticked(store, tick(b, new("3"), new("4"), overlap=Overlap.REPLACE))).enqueued == ("3", "4")
    assert (await the(store, Ref("default", "3"))).state is State.CANCELLED


async def test_an_id_of_any_length_is_known_as_the_last_one(store: Store) -> None:
    first = await put(store, entry())
    for id in ("x", "a" * 15, "0190163d-8694-739b-aea5-966c26f8ad91", "b" * 128):
        now = await stored(store, first.ref)
        assert (await ticked(store, tick(now, new(id)))).enqueued == (id,)
        assert (await stored(store, first.ref)).last == id


async def test_a_tick_wakes_who_waits(open_store: OpenStore) -> None:
    one, other = open_store(), open_store()
    first = await put(one, entry())
    await one.wait(["default"], timeout=0)
    waiting = asyncio.create_task(one.wait(["default"], timeout=5 * SECOND))
    await asyncio.sleep(0.05)
    await ticked(other, tick(first, new()))
    async with asyncio.timeout(60):
        assert Wake.WORK in await waiting


async def test_hundreds_of_jobs_go_in_one_tick(store: Store) -> None:
    first = await put(store, entry())
    jobs = [new(f"n{n:03}") for n in range(200)]
    assert (await ticked(store, tick(first, *jobs))).enqueued == tuple(job.id for job in jobs)
    assert await counts(store) == {State.AVAILABLE: 200}


# ── the whole of it: several workers' enqueuers, the clock in hand ──


async def test_cron_every_5_s_on_4_workers_for_60_s_is_12_jobs(
    open_store: OpenStore, clock: ManualClock
) -> None:
    clock.set_wall(1_700_049_600_000)
    stores = [open_store() for _ in range(4)]
    spec = entry(schedule=Schedule("*/5 * * * * *"))
    await put(stores[0], spec)
    workers = [PeriodicEnqueuer(store, ["default"], {}) for store in stores]
    await _pass(clock, 60, workers)
    await _each_once(stores[0], range(5, 61, 5))


async def test_each_second_on_5_workers_of_which_one_dies_is_one_job_a_second(
    open_store: OpenStore, clock: ManualClock
) -> None:
    clock.set_wall(1_700_049_600_000)
    stores = [open_store() for _ in range(5)]
    mine = {Ref("default", "report"): entry(schedule=Schedule.of(every="1s"), by_code=True)}
    workers = [PeriodicEnqueuer(store, ["default"], mine) for store in stores]
    await _pass(clock, 30, workers)
    await _pass(clock, 30, workers[1:])
    await _each_once(stores[0], range(1, 61))


async def _pass(clock: ManualClock, seconds: int, workers: list[PeriodicEnqueuer]) -> None:
    await asyncio.gather(*(worker.tick() for worker in workers))
    for _ in range(seconds):
        clock.advance(SECOND)
        await asyncio.gather(*(worker.tick() for worker in workers))


async def _each_once(store: Store, seconds: range) -> None:
    """There is a job for each of these seconds; and for those ahead."""
    start = 1_700_049_600_000
    found = sorted((job.run_at - start) // SECOND for job in await all_jobs(store))
    assert found[: len(seconds)] == list(seconds)
    assert all(ahead > seconds[-1] for ahead in found[len(seconds) :])


WAYS = {
    State.RETRYABLE: retryable(),
    State.SUSPENDED: suspended(),
    State.PARKED: PARKED,
    State.COMPLETED: COMPLETED,
    State.CANCELLED: CANCELLED,
    State.DEAD: DEAD,
}


async def _with_last(store: Store, state: State) -> Entry:
    """An entry whose last job, `last`, is in this state."""
    first = await put(store, entry())
    partition = Partition("k") if state is State.WAITING else None
    if partition is not None:
        await running(store, partition=partition, queue="default")
    facts: dict[State, dict[str, Any]] = {
        State.SCHEDULED: {"delay": MINUTE},
        State.COLLECTING: {"batch_terms": ALONE},
        State.WAITING: {"partition": partition},
    }
    await ticked(store, tick(first, new("last", **facts.get(state, {}))))
    if state not in (State.SCHEDULED, State.AVAILABLE, State.WAITING, State.COLLECTING):
        job = await take_one(store)
        if state in WAYS:
            await end(store, job, WAYS[state])
    assert (await the(store, Ref("default", "last"))).state is state
    return await stored(store, first.ref)
