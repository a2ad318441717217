"""A finished lease leaves nothing in any key; otherwise keys would grow with every fetch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settled, Settlement
from penstock.stores.redis.store import RedisStore
from tests.servers.single import RedisServer
from tests.store.facts import (
    COMPLETED,
    DEAD,
    LEASE,
    PARKED,
    State,
    add,
    retryable,
    snoozed,
    some,
    take,
    token,
)

ENDS = {
    "removed": Transition(State.COMPLETED),
    "completed": COMPLETED,
    "dead": DEAD,
    "retryable": retryable(),
    "snoozed": snoozed(),
    "released": Transition(State.AVAILABLE, charge=False),
    "parked": PARKED,
}


@pytest.fixture
def store(redis: RedisServer, prefix: str) -> Iterator[RedisStore]:
    made = RedisStore(f"{redis.url}?prefix={prefix}")
    yield made
    made.close()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("judge", ["its holder", "a reclaimer"])
async def test_nothing_of_a_lease_stays(
    store: RedisStore, redis: RedisServer, prefix: str, end: str, judge: str
) -> None:
    await add(store, *some(3))
    jobs = await take(store, 3)
    if judge == "a reclaimer":
        found = await store.reclaim((), limit=9, lease=LEASE, worker="heir", token=token(), of=["w1"])
        jobs = found.jobs
    assert len(jobs) == 3
    for some_of_them in (jobs[:1], jobs[1:]):
        settlements = [Settlement(job.lease, ENDS[end]) for job in some_of_them]
        assert await store.settle(settlements) == [Settled.APPLIED] * len(settlements)
    with redis.client() as client:
        left = {key.rpartition(b":")[2] for key in client.scan_iter(f"*{prefix}*")}
    assert b"meta" in left
    assert not left & {b"tokens", b"held", b"leases"}
