"""Known faults of other job systems, which no store may have; docs/faults.md lists them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.app.periodic import new_entry
from penstock.core.clock import ManualClock
from penstock.core.job import AttemptError, NewJob, Progress, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.unique import UniqueKey
from penstock.stores.contract import (
    EnqueueStatus,
    HeartbeatRequest,
    LeaseStatus,
    Settled,
    Settlement,
    Share,
    Store,
)
from tests.cases import each
from tests.store.facts import (
    COMPLETED,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
    SECOND,
    OpenStore,
    add,
    all_jobs,
    counts,
    end,
    gone,
    ids,
    in_state,
    new,
    retryable,
    running,
    some,
    take,
    the,
    token,
)

#: What no decoder likes: bytes that are no text, a lone half of a character, a zero in the middle.
ODD_BYTES = b"\xff\xfe\x00{\x80"
ODD_TEXTS = ["\udcff\udc80", "a\x00b", "\ud83d", "\uffff\u2028", "€" * 5_000]


# ── what cannot run does not stand before what can ──


async def test_a_hundred_delayed_jobs_of_high_priority_do_not_hide_one_that_is_ready(store: Store) -> None:
    await add(store, *some(100, delay=HOUR, priority=100), new("ready", priority=-100))
    assert ids(await take(store, 1)) == ["ready"]


async def test_nor_do_jobs_that_wait_for_their_next_attempt_or_for_their_task(store: Store) -> None:
    await add(store, *some(200, priority=100))
    for n, job in enumerate(await take(store, 200)):
        await end(store, job, retryable(HOUR) if n % 2 else PARKED)
    await add(store, new("ready", priority=-100))
    assert ids(await take(store, 1)) == ["ready"]


async def test_nor_do_those_of_a_paused_queue_or_of_another_namespace(
    store: Store, open_store: OpenStore
) -> None:
    await add(store, *some(100, queue="paused", priority=100), *some(100, queue="unserved", priority=100))
    await add(open_store(namespace="theirs"), *some(100, priority=100))
    await store.settings("paused", paused=True)
    await add(store, new("ready", priority=-100))
    shares = [Share("paused", 1, 1), Share("default", 1, 1)]
    fetched = await store.fetch(shares, limit=1, lease=LEASE, worker="w1", token=token())
    assert ids(fetched.jobs) == ["ready"]


# ── what one job holds is its own affair ──


async def test_invalid_bytes_in_a_job_do_not_block_the_reclaim_of_others(
    store: Store, clock: ManualClock
) -> None:
    odd = [
        new(payload=ODD_BYTES),
        new(payload=b""),
        new(headers={"h": "\x00\uffff"}),
        new(task="\uffff·\U0001f600"),
    ]
    await add(store, *some(3), *odd, *some(3))
    taken = await take(store, 10, lease=SECOND)
    clock.advance(SECOND)
    found = await store.reclaim(["default"], limit=100, lease=LEASE, worker="w2", token=token())
    assert ids(found.jobs) == ids(taken)
    assert {job.spec.payload for job in found.jobs} >= {ODD_BYTES, b""}


@each("text", ODD_TEXTS)
async def test_an_attempt_with_any_error_text_is_settled(store: Store, text: str) -> None:
    odd, plain = await running(store), await running(store)
    error = AttemptError(1, 1_700_000_000_000, "ValueError", text, f"Traceback … {text}")
    transition = Transition(State.RETRYABLE, delay=MINUTE, error=error, reason=text)
    settled = await store.settle([Settlement(odd.lease, transition), Settlement(plain.lease, COMPLETED)])
    assert settled == [Settled.APPLIED, Settled.APPLIED]
    job = await the(store, odd)
    assert job.state is State.RETRYABLE
    assert job.errors[-1].kind == "ValueError"


async def test_halves_of_characters_are_kept_as_escapes(store: Store) -> None:
    """As in the names of files that are not UTF-8: what is said of a job can be shown, and sent as JSON."""
    strange, kept = "no file \udce4", "no file \\udce4"
    job, waiting = await running(store), await in_state(store, State.SCHEDULED)
    request = HeartbeatRequest(job.lease, by=LEASE, progress=Progress(1, 2, strange))
    assert await store.extend([request]) == [LeaseStatus.HELD]
    error = AttemptError(1, 0, "OSError", strange, strange)
    await end(store, job, Transition(State.DEAD, keep=HOUR, error=error, reason=strange))
    await store.cancel([waiting.ref], reason=strange)
    found = await the(store, job)
    assert found.progress == Progress(1, 2, kept)
    assert (found.reason, found.errors[0].message, found.errors[0].traceback) == (kept, kept, kept)
    assert (await the(store, waiting)).reason == kept


# ── refused means that nothing was written ──


async def test_an_enqueue_that_is_refused_for_its_id_holds_no_unique_key(store: Store) -> None:
    key = UniqueKey("k", None)
    await add(store, new("taken"))
    (answer,) = await store.enqueue([new("taken", unique=key)])
    assert answer.status is EnqueueStatus.EXISTS
    (answer,) = await store.enqueue([new("free", unique=key)])
    assert answer.status is EnqueueStatus.NEW


async def test_of_a_batch_each_job_has_its_own_answer_and_all_of_its_facts(store: Store) -> None:
    await add(store, new("there"))
    batch = [new("a", headers={"h": "1"}), new("there"), new("b", headers={"h": "2"}), new("a")]
    answers = await store.enqueue(batch)
    assert [answer.status for answer in answers] == [
        EnqueueStatus.NEW,
        EnqueueStatus.EXISTS,
        EnqueueStatus.NEW,
        EnqueueStatus.EXISTS,
    ]
    assert [(await the(store, Ref("default", id))).spec.headers for id in ("a", "b")] == [
        {"h": "1"},
        {"h": "2"},
    ]


# ── nothing is left over ──


@pytest.mark.slow
async def test_thousands_too_many_go_and_exactly_as_many_as_may_stay_do(
    store: Store, clock: ManualClock
) -> None:
    jobs = some(9_000, retention=HOUR)
    await add(store, *jobs)
    await store.cancel([job.ref for job in jobs])
    while (await store.prune(limit=20_000, keep_finished=500)).finished:
        pass
    assert await counts(store) == {State.CANCELLED: 500}
    assert len(await all_jobs(store)) == 500
    clock.advance(2 * HOUR)  # those that stay go by their age, though nothing else ends meanwhile
    while (await store.prune(limit=20_000, keep_finished=500)).finished:
        pass
    assert await counts(store) == {}
    answers = await store.enqueue(jobs[:10])
    assert {answer.status for answer in answers} == {EnqueueStatus.NEW}


@each("how", ["deleted", "purged", "cancelled and pruned"])
async def test_of_jobs_that_were_taken_away_neither_id_nor_key_stays_taken(
    store: Store, clock: ManualClock, how: str
) -> None:
    states = [State.SCHEDULED, State.AVAILABLE, State.RETRYABLE, State.PARKED]
    jobs = [
        await in_state(store, state, unique=UniqueKey(f"k{n}", None))
        for n, state in enumerate([*states[:1], *states[2:], State.AVAILABLE])
    ]
    if how == "deleted":
        await store.delete([job.ref for job in jobs])
    elif how == "purged":
        await store.purge("default", states)
    else:
        await store.cancel([job.ref for job in jobs])
        clock.advance(HOUR)
        await store.prune()
    assert await counts(store) == {}
    again = [NewJob(job.id, "t", unique=job.spec.unique) for job in jobs]
    assert [answer.status for answer in await store.enqueue(again)] == [EnqueueStatus.NEW] * len(jobs)
    await store.purge("default", states)
    assert await store.drop("default")
    assert await store.queues() == []


async def test_the_late_word_of_an_attempt_brings_nothing_back(store: Store, clock: ManualClock) -> None:
    """Progress, an extension or a result for a job that has been reclaimed, ended and removed since."""
    late = await running(store)
    clock.advance(LEASE)
    found = await store.reclaim(["default"], limit=1, lease=LEASE, worker="w2", token=token())
    await store.settle([Settlement(found.jobs[0].lease, Transition(State.COMPLETED))])
    assert await gone(store, late)
    assert await store.extend([HeartbeatRequest(late.lease, by=LEASE, started=True)]) == [LeaseStatus.LOST]
    assert await store.settle([Settlement(late.lease, COMPLETED, result=b"1")]) == [Settled.GONE]
    assert await gone(store, late)
    assert await counts(store) == {}
    assert await store.drop("default")
    assert await store.settle([Settlement(late.lease, COMPLETED, result=b"1")]) == [Settled.GONE]
    assert await store.queues() == []


# ── time ──


async def test_a_job_is_never_a_moment_early(store: Store, clock: ManualClock) -> None:
    await add(store, new("soon", delay=1_234))
    clock.advance(1_233)
    await store.promote(["default"], limit=1)
    assert await take(store, 1) == []
    clock.advance(1)
    await store.promote(["default"], limit=1)
    assert ids(await take(store, 1)) == ["soon"]


async def test_times_are_kept_to_the_millisecond(store: Store) -> None:
    await add(store, new("short", timeout=7, retention=11, expires_in=1_001, delay=13))
    job = await the(store, Ref("default", "short"))
    assert (job.spec.timeout, job.spec.retention) == (7, 11)
    assert job.run_at == job.enqueued_at + 13
    assert job.expires_at == job.enqueued_at + 1_001


async def test_a_dead_job_that_is_brought_back_has_not_waited_since_it_died(
    store: Store, clock: ManualClock
) -> None:
    job = await in_state(store, State.DEAD)
    clock.advance(HOUR)
    await store.retry([job.ref])
    (queue,) = await store.queues()
    assert queue.oldest_available == clock.now()
    assert (await the(store, job)).run_at == clock.now()


# ── what recurs ──


async def test_an_entry_with_other_options_is_another(store: Store) -> None:
    """Its schedule alone does not say whether it has changed."""

    def entry(**facts: Any) -> NewEntry:
        return new_entry("nightly", NewJob("", "t", **facts), Schedule.of("@daily"))

    (first,) = await store.put_entries([entry()])
    (same,) = await store.put_entries([entry()])
    assert same.revision == first.revision
    revision = first.revision
    for facts in ({"headers": {"h": "1"}}, {"headers": {"h": "2"}}, {"max_attempts": 2}, {"payload": b"[1]"}):
        (changed,) = await store.put_entries([entry(**facts)])
        assert changed.revision > revision, facts
        revision = changed.revision
