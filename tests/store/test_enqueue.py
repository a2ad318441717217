"""enqueue: stores all jobs in one transaction, and answers in their order."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, NewJob, State
from penstock.core.lifecycle import ASK_CANCELLED
from penstock.core.relations import Partition
from penstock.core.unique import UniqueKey
from penstock.retry import (
    Custom,
    Exponential,
    Fibonacci,
    Fixed,
    Linear,
    Polynomial,
    RetryPolicy,
    Steps,
)
from penstock.stores.contract import Enqueued, EnqueueStatus, Store
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    COMPLETED,
    HOUR,
    MINUTE,
    add,
    all_jobs,
    counts,
    end,
    gone,
    ids,
    in_state,
    new,
    some,
    take,
    take_one,
    the,
)


async def test_a_new_job_is_available_at_once(store: Store, clock: ManualClock) -> None:
    spec = new()
    assert await store.enqueue([spec]) == [Enqueued(EnqueueStatus.NEW, spec.id)]
    job = await the(store, spec)
    now = clock.now()
    assert job == Job(
        spec, State.AVAILABLE, generation=job.generation, attempt=0, enqueued_at=now, run_at=now
    )


async def test_every_field_of_a_new_job_is_kept(store: Store, clock: ManualClock) -> None:
    spec = NewJob(
        id="A.z_0:9@+=~-" + "x" * 116,
        task="mail.send – ünïcode",
        payload=bytes(range(256)),
        queue="q.1",
        priority=-100,
        run_at=clock.now() + HOUR,
        expires_at=clock.now() + 2 * HOUR,
        timeout=None,
        deadline=clock.now() + 3 * HOUR,
        max_attempts=3,
        retry=Steps((1_000, 2_000)),
        unique=UniqueKey("k", 5 * MINUTE),
        retention=12_345,
        keep_dead=54_321,
        fetch_starts=True,
        at_most_once=True,
        headers={"traceparent": "00-ab", "ключ": "значение \0 \n"},
    )
    await add(store, spec)
    assert (await the(store, spec)).spec == spec


@pytest.mark.parametrize("size", [1 << 20, 4 << 20], ids=["1 MiB", "4 MiB"])
async def test_a_large_payload_goes_through_every_verb(store: Store, size: int) -> None:
    spec, other = new(payload=bytes(range(256)) * (size // 256)), new()
    await add(store, spec, other)
    assert (await the(store, spec)).spec == spec
    assert (await store.list_jobs()).jobs[1].spec == spec
    first, second = await take(store, 2)
    assert (first.spec, second.spec) == (spec, other)
    await end(store, first, AGAIN)
    again = await take_one(store)
    assert again.spec == spec
    await end(store, again, COMPLETED, result=spec.payload)
    assert (await the(store, spec)).result == spec.payload


@each(
    "policy",
    [
        None,
        Exponential(1, 1.5, 9, 0.25),
        Fixed(7),
        Linear(3),
        Fibonacci(),
        Steps((1,)),
        Polynomial(),
        Custom(),
    ],
)
async def test_every_retry_policy_is_kept(store: Store, policy: RetryPolicy | None) -> None:
    spec = new(retry=policy)
    await add(store, spec)
    assert (await the(store, spec)).spec.retry == policy
    assert (await take_one(store)).spec.retry == policy


async def test_nothing_to_enqueue_is_nothing_done(store: Store) -> None:
    assert await store.enqueue([]) == []
    assert await store.queues() == []


async def test_answers_come_in_the_order_of_the_jobs(store: Store) -> None:
    old = new()
    await add(store, old)
    first, last = some(2)
    answers = await store.enqueue([first, old, last, first])
    assert answers == [
        Enqueued(EnqueueStatus.NEW, first.id),
        Enqueued(EnqueueStatus.EXISTS, old.id),
        Enqueued(EnqueueStatus.NEW, last.id),
        Enqueued(EnqueueStatus.EXISTS, first.id),
    ]
    assert await counts(store) == {State.AVAILABLE: 3}


@each("state", State)
async def test_a_used_id_exists_in_any_state_of_its_job(store: Store, state: State) -> None:
    job = await in_state(store, state)
    again = new(job.id, task="another")
    assert await store.enqueue([again]) == [Enqueued(EnqueueStatus.EXISTS, job.id)]
    assert await the(store, job) == job


async def test_an_id_is_taken_in_its_own_queue_only(store: Store) -> None:
    await add(store, new("same", queue="a"), new("same", queue="b"))
    assert await counts(store, "a") == await counts(store, "b") == {State.AVAILABLE: 1}


async def test_an_id_is_free_again_when_its_job_is_gone(store: Store) -> None:
    await add(store, new("order-17"))
    first = await take_one(store)
    await end(store, first, COMPLETED.__class__(State.COMPLETED))
    assert await gone(store, first)
    await add(store, new("order-17"))
    second = await take_one(store)
    assert second.generation > first.generation
    assert second.attempt == 1


async def test_generations_rise_and_are_never_given_twice(store: Store) -> None:
    await add(store, *some(3))
    before = await all_jobs(store)
    await store.delete([job.ref for job in before])
    await add(store, *some(2, queue="other"), *some(1))
    after = await all_jobs(store)
    numbers = [job.generation for job in reversed(before)] + [job.generation for job in reversed(after)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] >= 1


async def test_a_delay_schedules(store: Store, clock: ManualClock) -> None:
    spec = new(delay=1)
    await add(store, spec)
    job = await the(store, spec)
    assert (job.state, job.run_at) == (State.SCHEDULED, clock.now() + 1)
    assert await take(store) == []


async def test_a_run_at_to_come_schedules_and_wins_over_a_delay(store: Store, clock: ManualClock) -> None:
    spec = new(run_at=clock.now() + MINUTE, delay=5)
    await add(store, spec)
    job = await the(store, spec)
    assert (job.state, job.run_at) == (State.SCHEDULED, clock.now() + MINUTE)


@pytest.mark.parametrize("ago", [0, 1, HOUR])
async def test_a_run_at_that_has_come_is_available_and_stays_what_it_was(
    store: Store, clock: ManualClock, ago: int
) -> None:
    spec = new(run_at=clock.now() - ago)
    await add(store, spec)
    job = await the(store, spec)
    assert (job.state, job.run_at) == (State.AVAILABLE, clock.now() - ago)


async def test_expiry_counts_from_the_enqueue_and_the_earlier_one_counts(
    store: Store, clock: ManualClock
) -> None:
    now = clock.now()
    jobs = [
        new(),
        new(expires_in=5),
        new(expires_at=now + 7),
        new(expires_in=9, expires_at=now + 8),
        new(expires_in=3, expires_at=now + 8),
        new(expires_in=5, delay=MINUTE),
    ]
    await add(store, *jobs)
    found = [(await the(store, job)).expires_at for job in jobs]
    assert found == [None, now + 5, now + 7, now + 8, now + 3, now + 5]


async def test_a_closed_queue_takes_nothing_but_says_what_exists(store: Store) -> None:
    old = new()
    await add(store, old)
    await store.settings("default", closed=True)
    more = new()
    assert await store.enqueue([more, old, new("elsewhere", queue="open")]) == [
        Enqueued(EnqueueStatus.CLOSED, more.id),
        Enqueued(EnqueueStatus.EXISTS, old.id),
        Enqueued(EnqueueStatus.NEW, "elsewhere"),
    ]
    assert await gone(store, more)
    assert ids(await take(store, 9)) == [old.id]  # workers drain it
    await store.settings("default", closed=False)
    await add(store, more)


async def test_a_paused_queue_takes_jobs(store: Store) -> None:
    await store.settings("default", paused=True)
    await add(store, new())
    assert await counts(store) == {State.AVAILABLE: 1}


async def test_a_large_batch_is_stored_in_its_order(store: Store) -> None:
    jobs = some(2_500)
    await add(store, *jobs)
    assert await counts(store) == {State.AVAILABLE: 2_500}
    assert ids(await take(store, 2_500)) == ids(jobs)


async def test_a_large_payload_comes_back_whole(store: Store) -> None:
    spec = new(payload=bytes(range(256)) * 4_096)
    await add(store, spec)
    assert (await take_one(store)).spec.payload == spec.payload


async def test_a_cancelled_job_keeps_its_id(store: Store) -> None:
    job = await in_state(store, State.AVAILABLE)
    await store.cancel([job.ref])
    assert await store.enqueue([new(job.id)]) == [Enqueued(EnqueueStatus.EXISTS, job.id)]
    assert (await the(store, job)).reason == ASK_CANCELLED


# ── a job that cannot be written ──

#: Values that a client would not send, and that some store cannot write.
UNWRITABLE_FACTS = [
    {"headers": {"h": "\ud800"}},
    {"partition": Partition("k", most=2**40)},
    {"task": "t" * 70_000},
    {"run_at": "soon"},
    {"expires_in": "soon"},
    {"delay": 2**70},
    {"payload": "text"},
]


@each("facts", UNWRITABLE_FACTS)
@each("door", ["async", "sync"])
async def test_a_job_that_cannot_be_written_fails_alone(
    store: Store, facts: dict[str, Any], door: str
) -> None:
    jobs = [new("a"), new("bad", **facts), new("b")]
    answers = await store.enqueue(jobs) if door == "async" else store.sync.enqueue(jobs)
    assert [answer.id for answer in answers] == ["a", "bad", "b"]
    assert answers[0].status is answers[2].status is EnqueueStatus.NEW
    if answers[1].status is not EnqueueStatus.NEW:
        assert answers[1].status is EnqueueStatus.FAILED
        assert "cannot be written" in answers[1].cause
    assert {"a", "b"} <= set(ids(await take(store, 9)))
