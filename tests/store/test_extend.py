"""extend: prolongs held leases, and stores the progress of their attempts."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import Job, Progress, State
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Store
from tests.cases import each
from tests.store.facts import (
    ENDINGS,
    HOUR,
    LEASE,
    add,
    end,
    gone,
    in_state,
    new,
    running,
    some,
    take,
    the,
    token,
)


async def run_out(store: Store, *, queue: str = "default") -> list[Job]:
    """The jobs whose lease has run out now."""
    found = await store.reclaim([queue], limit=99, lease=LEASE, worker="reclaimer", token=token())
    return found.jobs


async def test_a_lease_is_held_until_the_given_time_from_now(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(LEASE - 1)
    assert await store.extend([HeartbeatRequest(job.lease, 10_000)]) == [LeaseStatus.HELD]
    clock.advance(9_999)
    assert await run_out(store) == []
    clock.advance(1)
    assert len(await run_out(store)) == 1


async def test_a_lease_may_be_shortened(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await store.extend([HeartbeatRequest(job.lease, 1)])
    clock.advance(1)
    assert len(await run_out(store)) == 1


async def test_a_lease_that_ran_out_is_prolonged_as_long_as_nobody_reclaimed_it(
    store: Store, clock: ManualClock
) -> None:
    job = await running(store)
    clock.advance(HOUR)
    assert await store.extend([HeartbeatRequest(job.lease, LEASE)]) == [LeaseStatus.HELD]
    assert await run_out(store) == []
    assert await the(store, job) == job


async def test_a_lease_that_was_reclaimed_is_lost(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(LEASE)
    (reclaimed,) = await run_out(store)
    request = HeartbeatRequest(job.lease, HOUR, started=True, progress=Progress(1), checkpoint=b"x")
    assert await store.extend([request]) == [LeaseStatus.LOST]
    assert await the(store, job) == reclaimed
    assert await store.extend([HeartbeatRequest(reclaimed.lease, LEASE)]) == [LeaseStatus.HELD]


@each("ending", sorted(ENDINGS))
async def test_a_lease_that_was_settled_is_lost(store: Store, ending: str) -> None:
    job = await running(store)
    await end(store, job, ENDINGS[ending])
    before = await store.get([job.ref])
    assert await store.extend([HeartbeatRequest(job.lease, LEASE, started=True, progress=Progress(1))]) == [
        LeaseStatus.LOST
    ]
    assert await store.get([job.ref]) == before


async def test_a_lease_of_a_job_that_is_gone_is_lost(store: Store) -> None:
    job = await running(store)
    nobody = replace(job.lease, id="nobody")
    nowhere = replace(job.lease, queue="nowhere")
    assert await store.extend([HeartbeatRequest(nobody, LEASE), HeartbeatRequest(nowhere, LEASE)]) == [
        LeaseStatus.LOST,
        LeaseStatus.LOST,
    ]


async def test_a_heartbeat_puts_down_what_the_attempt_says(store: Store) -> None:
    job = await running(store)
    progress = Progress(3.5, 10.0, "rows – ½")
    await store.extend(
        [HeartbeatRequest(job.lease, LEASE, started=True, progress=progress, checkpoint=b"\x00page")]
    )
    assert await the(store, job) == replace(job, started=True, progress=progress, checkpoint=b"\x00page")


@each("done", [12, 0, -3, 2**53, 0.5, 12.0])
async def test_whole_numbers_of_progress_stay_ints_and_floats_floats(store: Store, done: float) -> None:
    job = await running(store)
    await store.extend([HeartbeatRequest(job.lease, LEASE, progress=Progress(done, done))])
    kept = (await the(store, job)).progress
    assert kept == Progress(done, done)
    assert (type(kept.done), type(kept.of)) == (type(done), type(done))


async def test_a_heartbeat_that_says_nothing_leaves_everything(store: Store) -> None:
    job = await running(store)
    await store.extend(
        [HeartbeatRequest(job.lease, LEASE, started=True, progress=Progress(1), checkpoint=b"1")]
    )
    told = await the(store, job)
    await store.extend([HeartbeatRequest(job.lease, LEASE)])
    assert await the(store, job) == told


async def test_later_words_replace_earlier_ones(store: Store) -> None:
    job = await running(store)
    await store.extend([HeartbeatRequest(job.lease, LEASE, progress=Progress(1, 9, "a"), checkpoint=b"1")])
    await store.extend([HeartbeatRequest(job.lease, LEASE, progress=Progress(2))])
    told = await the(store, job)
    assert (told.progress, told.checkpoint) == (Progress(2), b"1")
    await store.extend([HeartbeatRequest(job.lease, LEASE, checkpoint=b"")])
    assert (await the(store, job)).checkpoint == b""


async def test_progress_is_still_there_when_the_job_has_ended(store: Store) -> None:
    job = await running(store)
    await store.extend([HeartbeatRequest(job.lease, LEASE, started=True, progress=Progress(2, 2))])
    await end(store, job)
    ended = await the(store, job)
    assert (ended.progress, ended.started) == (Progress(2, 2), False)


async def test_a_cancellation_is_reported_with_every_heartbeat(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await store.cancel([job.ref])
    for _ in range(2):
        clock.advance(LEASE - 1)
        assert await store.extend([HeartbeatRequest(job.lease, LEASE, progress=Progress(1))]) == [
            LeaseStatus.CANCEL_ASKED
        ]
        assert await run_out(store) == []  # it is held all the same
    assert (await the(store, job)).progress == Progress(1)


async def test_a_batch_answers_item_by_item_and_sees_its_earlier_items(store: Store) -> None:
    await add(store, *some(3))
    held, settled, asked = await take(store, 3)
    await end(store, settled)
    await store.cancel([asked.ref])
    requests = [
        HeartbeatRequest(asked.lease, LEASE),
        HeartbeatRequest(settled.lease, LEASE),
        HeartbeatRequest(held.lease, LEASE, progress=Progress(1)),
        HeartbeatRequest(held.lease, LEASE, progress=Progress(2)),
    ]
    assert await store.extend(requests) == [
        LeaseStatus.CANCEL_ASKED,
        LeaseStatus.LOST,
        LeaseStatus.HELD,
        LeaseStatus.HELD,
    ]
    assert (await the(store, held)).progress == Progress(2)
    assert await store.extend([]) == []


async def test_a_queue_that_is_paused_or_closed_does_not_mind(store: Store) -> None:
    job = await running(store)
    await store.settings("default", paused=True, closed=True)
    assert await store.extend([HeartbeatRequest(job.lease, LEASE)]) == [LeaseStatus.HELD]


async def test_extending_leases_nothing(store: Store) -> None:
    job = await in_state(store, State.SCHEDULED)
    lease = replace((await running(store, queue="other")).lease, queue="default", id=job.id)
    assert await store.extend([HeartbeatRequest(lease, LEASE)]) == [LeaseStatus.LOST]
    assert await the(store, job) == job


async def test_many_leases_are_prolonged_at_once(store: Store, clock: ManualClock) -> None:
    jobs = [new() for _ in range(1_100)]
    await add(store, *jobs)
    leased = await take(store, 1_100)
    clock.advance(LEASE - 1)
    assert (
        await store.extend([HeartbeatRequest(job.lease, LEASE) for job in leased[:-1]])
        == [LeaseStatus.HELD] * 1_099
    )
    clock.advance(1)
    assert [job.id for job in await run_out(store)] == [jobs[-1].id]
    assert not await gone(store, jobs[0])
