"""Many queues: no script of a fetch or a wait looks at more of them than would block the server for long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.stores.contract import MOST_FETCHED, Share, Wake, WorkerOffer
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.verbs.waiting import offer_of
from penstock.stores.redis.wire.calls import Call
from tests.store.facts import LEASE, token

QUEUES = [f"q-{n}" for n in range(2 * MOST_FETCHED + 20)]


@pytest.fixture
def keys(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each call has."""
    counted: list[int] = []
    run = store._runner.run

    async def counting(calls: Sequence[Call], **options: Any) -> list[Any]:
        counted.extend(len(call.redis_keys) for call in calls)
        return await run(calls, **options)

    monkeypatch.setattr(store._runner, "run", counting)
    return counted


async def test_a_fetch_and_a_wait_of_many_queues_are_several_scripts(
    store: RedisStore, keys: list[int]
) -> None:
    shares = [Share(queue, 1, 1) for queue in QUEUES]
    found = await store.fetch(shares, limit=1, lease=LEASE, worker="w1", token=token())
    assert found.jobs == []
    assert await store.wait(QUEUES, timeout=0) is not Wake.WORK
    assert sum(keys) >= 2 * len(QUEUES)
    assert max(keys) <= MOST_FETCHED + 1  # and one of the namespace


def test_a_worker_of_many_queues_makes_no_offer_which_each_of_them_would_store(store: RedisStore) -> None:
    offer = WorkerOffer("w1", "t", LEASE)
    assert offer_of(store._context, QUEUES[:10], offer) != ""
    assert offer_of(store._context, QUEUES, offer) == ""
