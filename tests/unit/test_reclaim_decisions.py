"""Reclaimed jobs are decided one by one: an invalid job does not block the decisions about others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.app.deciding import Loss, settle_reclaimed
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import UNREADABLE, Transition
from penstock.retry import DEFAULT, Exponential, Fixed, RetryPolicy, Steps, wait_ms
from penstock.stores.contract import Fetched, Share
from penstock.stores.memory import MemoryStore


@pytest.mark.parametrize(
    "policy",
    [Steps(()), Exponential(factor=1e308), Exponential(base=10**400), Exponential(jitter=float("nan"))],
)
def test_a_policy_that_cannot_be_reckoned_counts_as_the_default(policy: RetryPolicy) -> None:
    assert wait_ms(policy, 70, 0.5) == wait_ms(DEFAULT, 70, 0.5)


def test_no_wait_is_longer_than_any_store_can_add_to_its_time() -> None:
    assert wait_ms(Fixed(2**63), 1, 0.5) < 2**50


@pytest.mark.parametrize(
    ("recorded", "known", "state"),
    [
        (False, None, State.AVAILABLE),
        (True, None, State.DEAD),
        (True, False, State.AVAILABLE),  # the worker died between the record and the call
        (False, True, State.DEAD),  # the server has lost the record
    ],
)
async def test_a_last_attempt_counts_if_its_function_had_started(
    recorded: bool, known: bool | None, state: State
) -> None:
    store = MemoryStore(f"last attempts {recorded} {known}")
    await store.enqueue([NewJob("a", "t", max_attempts=1)])
    found = await store.fetch([Share("default", 9, 9)], limit=9, lease=1, worker="w", token="1")
    jobs = [replace(job, started=recorded) for job in found.jobs]
    loss = Loss("WorkerLost", "died", started=lambda _: known)
    await settle_reclaimed(store, Fetched(jobs, found.now), loss)
    (job,) = await store.get([jobs[0].ref])
    assert job is not None
    assert job.state is state
    store.close()


async def test_a_job_that_cannot_be_decided_is_dead_and_the_others_are_decided() -> None:
    store = MemoryStore("judging")
    await store.enqueue([NewJob("bad", "t", max_attempts=9), NewJob("good", "t", max_attempts=9)])
    found = await store.fetch([Share("default", 9, 9)], limit=9, lease=1, worker="w", token="1")
    number: Any = "nine"
    bad, good = found.jobs
    bad = replace(bad, spec=replace(bad.spec, max_attempts=number), lost=1, started=True)
    told: list[tuple[str, Transition]] = []
    loss = Loss("LeaseLost", "gone", on_decided=lambda job, move: told.append((job.id, move)))
    await settle_reclaimed(store, Fetched([bad, good], found.now), loss)
    dead, again = await store.get([bad.ref, good.ref])
    assert dead is not None
    assert again is not None
    assert dead.state is State.DEAD
    assert (dead.reason or "").startswith(UNREADABLE)
    assert again.state is State.AVAILABLE
    assert [id for id, _ in told] == ["bad", "good"]
    store.close()
