"""Large jobs: no script carries many megabytes, and no job is lost, repeated or out of order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock.core.ids import mint
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.schedule import NewEntry, Schedule
from penstock.errors import StoreUnavailable
from penstock.stores.contract import EnqueueStatus, HeartbeatRequest, Settled, Settlement, Share
from penstock.stores.redis.layout import LAYOUT
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.wire import calls
from penstock.stores.redis.wire.calls import Call
from penstock.verify.servers.proxy import Proxy
from tests.servers import RedisServer, remove_keys
from tests.store.facts import KEEP, LEASE, RELEASED, ids

KB, MB = 1 << 10, 1 << 20
#: What comes on top of payloads: ids, numbers, the script's own name.
BESIDES = 64 * KB


@pytest.fixture
def store(redis: RedisServer) -> Iterator[RedisStore]:
    prefix = f"bytes-{mint()}"
    store = RedisStore(f"redis://127.0.0.1:{redis.port}/0?prefix={prefix}")
    yield store
    store.close()
    remove_keys([redis], having=prefix)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """How many bytes each script carried, by its name."""
    sizes: dict[str, list[int]] = {}
    pack = calls.command_of

    def noted(call: Call) -> bytes:
        command = pack(call)
        if call.script is not None:
            sizes.setdefault(call.script.name, []).append(len(command))
        return command

    monkeypatch.setattr(calls, "command_of", noted)
    return sizes


def large(n: int, size: int = 300 * KB, **facts: object) -> list[NewJob]:
    return [NewJob(id=mint(), task="t", queue="large", payload=b"x" * size, **facts) for _ in range(n)]  # type: ignore[arg-type]


async def take(store: RedisStore, n: int) -> list:  # type: ignore[type-arg]
    return (await store.fetch([Share("large", n, n)], limit=n, lease=LEASE, worker="w", token=mint())).jobs


async def test_a_batch_of_large_jobs_is_sent_in_parts_and_keeps_its_order(
    store: RedisStore, sent: dict[str, list[int]]
) -> None:
    jobs = [*large(10), *large(1, size=2 * MB), *large(100, size=10)]
    answers = await store.enqueue(jobs)
    assert [answer.status for answer in answers] == [EnqueueStatus.NEW] * len(jobs)
    assert len(sent["enqueue"]) == 6  # 3 of 300 KB to the megabyte; one that is larger goes alone
    assert sorted(sent["enqueue"])[-2] <= MB + BESIDES
    assert ids(await take(store, 200)) == [job.id for job in jobs]


async def test_a_batch_of_small_jobs_is_one_script(store: RedisStore, sent: dict[str, list[int]]) -> None:
    await store.enqueue(large(2_000, size=100))
    assert len(sent["enqueue"]) == 1


async def test_large_results_and_what_follows_are_settled_in_parts(
    store: RedisStore, sent: dict[str, list[int]]
) -> None:
    await store.enqueue(large(12, size=10))
    done = Transition(State.COMPLETED, keep=KEEP)
    jobs = await take(store, 12)
    settled = await store.settle(
        [Settlement(job.lease, done, b"1" * 200 * KB, then=tuple(large(1, 200 * KB))) for job in jobs]
    )
    assert settled == [Settled.APPLIED] * 12
    assert len(sent["settle"]) == 6
    assert max(sent["settle"]) <= MB + BESIDES
    assert len(await take(store, 20)) == 12


async def test_a_large_release_in_parts_keeps_its_order(store: RedisStore) -> None:
    await store.enqueue(large(6, size=10))
    jobs = await take(store, 6)
    await store.settle([Settlement(job.lease, RELEASED, then=tuple(large(1, MB))) for job in jobs])
    assert ids((await take(store, 20))[:6]) == ids(jobs)


async def test_large_checkpoints_are_extended_in_parts(store: RedisStore, sent: dict[str, list[int]]) -> None:
    await store.enqueue(large(6, size=10))
    requests = [
        HeartbeatRequest(job.lease, LEASE, True, checkpoint=b"c" * 500 * KB) for job in await take(store, 6)
    ]
    await store.extend(requests)
    assert len(sent["extend"]) == 3


async def test_large_periodic_entries_are_put_in_parts(store: RedisStore, sent: dict[str, list[int]]) -> None:
    specs = [NewEntry(f"e{n}", job, Schedule.of(every="1m")) for n, job in enumerate(large(6, 500 * KB))]
    found = await store.put_entries(specs)
    assert [entry.spec for entry in found] == specs
    assert len(sent["put_entries"]) == 3


async def test_many_large_jobs_are_looked_at_in_parts(store: RedisStore, sent: dict[str, list[int]]) -> None:
    jobs = large(40, MB)
    await store.enqueue(jobs)
    await store.get([jobs[0].ref])
    sent.clear()
    found = await store.get([large(1)[0].ref, *(job.ref for job in jobs)])
    assert [job and job.id for job in found] == [None, *(job.id for job in jobs)]
    assert len(sent["get"]) == 5  # an answer ends behind its eighth megabyte


async def test_a_connection_lost_midway_makes_only_its_own_part_unknown(redis: RedisServer) -> None:
    prefix = f"bytes-{mint()}"
    with Proxy(redis.port, bytes_per_second=10 * MB) as wire:
        store = RedisStore(f"redis://127.0.0.1:{wire.port}/0?prefix={prefix}")
        await store.enqueue(large(1, 10))
        jobs = large(20, MB)
        sending = asyncio.ensure_future(store.enqueue(jobs))
        while not await asyncio.to_thread(_there, redis, prefix, 3):
            assert not sending.done()
        wire.cut()
        statuses = [answer.status for answer in await sending]
        store.close()
    remove_keys([redis], having=prefix)
    assert statuses[0] is EnqueueStatus.NEW
    assert statuses[-1] is EnqueueStatus.UNKNOWN


async def test_a_large_batch_for_a_store_that_is_away_says_so_as_a_small_one_does() -> None:
    store = RedisStore("redis://127.0.0.1:1/0?timeout=1s&connect_timeout=200ms")
    with pytest.raises(StoreUnavailable):
        await store.enqueue(large(10, MB))
    store.close()


def _there(redis: RedisServer, prefix: str, n: int) -> bool:
    with redis.client() as client:
        return int(client.hlen(f"{prefix}:{LAYOUT}:{{/large}}:jobs")) >= n
