"""Moves between pools that break off: the new store is away or full, jobs end meanwhile, and keys repeat.

Tokens of the old store stay valid during a migration and after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.ids import mint_token
from penstock.core.job import Job, NewJob, Ref
from penstock.core.limits import LimitChange
from penstock.dialects.lmstfy.access import Tokens
from penstock.dialects.lmstfy.jobs import acknowledged, new_job, request_key
from penstock.dialects.lmstfy.limits import Limiter, TokenLimits
from penstock.dialects.lmstfy.migration import DrainService, MigratingBackend
from penstock.dialects.lmstfy.names import mint_job_id
from penstock.dialects.lmstfy.old_pools import ACCESS_TOKENS, LMSTFY_TOKENS, OldStore, TakenJob, TokenCopy
from penstock.dialects.lmstfy.service import LmstfyService, PoolMigration
from penstock.stores.contract import Enqueued, Settled, Settlement, Share, Store
from penstock.stores.memory import MemoryStore
from penstock.web.access import AccessTokens
from penstock.web.access_tokens import TokenScope
from tests.web.wire import Client

Q = "ns.q"


def job(key: str | None = None) -> NewJob:
    unique = None if key is None else request_key(key)
    return new_job(Q, mint_job_id(0), b"x", delay=0, ttl=0, tries=1, attributes=None, unique=unique)


class Consumed(OldStore):
    """An old pool that takes no job back, as an lmstfy."""

    kept_for = 50.0

    async def give_back(self, taken: Sequence[TakenJob]) -> None:
        pytest.fail("nothing can be given back")

    async def confirm(self, taken: Sequence[TakenJob]) -> None:
        await self.remove([one.job.ref for one in taken])


class Pools:
    """An old store, and a backend that drains it; nothing happens by time."""

    def __init__(self, kind: type[OldStore] = Consumed) -> None:
        self.old_store, self.new = MemoryStore(mint_token()), MemoryStore(mint_token())
        self.old = kind(self.old_store, "p")
        self.backend = MigratingBackend(self.new, "p", self.old, target="n")

    async def fetch(self) -> list[Job]:
        shares = [Share(Q, 1_000, 1_000)]
        found = await self.new.fetch(shares, limit=1_000, lease=60_000, worker="w", token=mint_token())
        return found.jobs

    async def remove(self, ref: Ref) -> BaseException | None:
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.backend.remove(ref, done.set_result)
        return await done


@pytest.fixture
async def pools() -> AsyncIterator[Pools]:
    made = Pools()
    yield made
    made.old_store.close()
    made.new.close()


def away(*_: object) -> Any:
    raise StoreUnavailable("it is away")


async def test_jobs_are_held_while_the_new_store_is_away(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job() for _ in range(100)]
    await pools.old_store.enqueue(jobs)
    with monkeypatch.context() as patched:
        patched.setattr(pools.new, "enqueue", away)
        for _ in range(5):
            assert await pools.backend.draw([Q], 500) == 0
    left = (await pools.old.left()).values()
    assert len(pools.backend._held) <= 16
    assert sum(left) == 100
    assert sum((await pools.backend.counted(Q)).values()) >= 100
    while await pools.backend.draw([Q], 500):
        pass
    assert {one.id for one in await pools.fetch()} == {one.id for one in jobs}
    assert not any((await pools.old.left()).values())
    assert pools.backend.problem == ""


async def test_no_more_of_a_refused_queue_is_taken(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dialects.lmstfy.migration._AFTER_REFUSAL", 0.0)
    jobs = [job() for _ in range(60)]
    await pools.old_store.enqueue(jobs)
    await pools.new.settings(Q, limits=LimitChange(max_size=5))
    found: list[str] = []
    for _ in range(100):
        await pools.backend.draw([Q], 500)
        assert len(pools.backend._held) <= 16
        for one in await pools.fetch():
            found.append(one.id)
            assert await pools.remove(one.ref) is None
    assert sorted(found) == sorted(one.id for one in jobs)
    assert (pools.backend.problem, pools.backend._held) == ("", {})


async def test_a_held_job_that_is_removed_does_not_come(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job()
    await pools.old_store.enqueue([one])
    with monkeypatch.context() as patched:
        patched.setattr(pools.new, "enqueue", away)
        await pools.backend.draw([Q], 500)
    assert await pools.remove(one.ref) is None
    assert await pools.backend.draw([Q], 500) == 0
    assert await pools.fetch() == []


async def test_a_job_that_is_removed_during_its_move_does_not_come(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job()
    await pools.old_store.enqueue([one])
    enqueue = pools.new.enqueue
    removals: list[asyncio.Task[BaseException | None]] = []

    async def slow(jobs: Sequence[NewJob]) -> list[Enqueued]:
        removals.append(asyncio.create_task(pools.remove(one.ref)))
        for _ in range(20):  # the removal begins
            await asyncio.sleep(0)
        return list(await enqueue(jobs))

    monkeypatch.setattr(pools.new, "enqueue", slow)
    await pools.backend.draw([Q], 500)
    assert await removals[0] is None
    assert await pools.fetch() == []


async def test_a_checked_acknowledgement_removes_the_copy_of_a_move_that_broke_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = Pools(OldStore)
    one = job()
    await pools.old_store.enqueue([one])
    with monkeypatch.context() as patched:
        patched.setattr(pools.old, "confirm", away)
        await pools.backend.draw([Q], 500)
    (got,) = await pools.fetch()
    assert await pools.old_store.get([one.ref]) != [None]
    assert await pools.backend.settled(Settlement(got.lease, acknowledged())) is Settled.APPLIED
    assert await pools.old_store.get([one.ref]) == [None]


async def test_a_job_whose_key_was_repeated_meanwhile_ends_the_migration(pools: Pools) -> None:
    await pools.old_store.enqueue([job("K")])
    (stored,) = await pools.new.enqueue([job("K")])
    assert await pools.backend.draw([Q], 500) == 1
    assert not any((await pools.old.left()).values())
    assert [one.id for one in await pools.fetch()] == [stored.id]
    assert pools.backend.problem == ""


async def test_tokens_of_the_old_store_are_valid_during_a_migration_and_after_it(pools: Pools) -> None:
    old, new = pools.old_store, pools.new
    access = AccessTokens(old)
    _, native = await access.create("app", [TokenScope.of("produce")])
    _, revoked = await access.create("gone", [TokenScope.of("produce")])
    tokens = Tokens(old)
    plain = await tokens.create("default", "ns", "d")
    assert plain is not None
    await TokenLimits(old).put("default", "ns", plain, Limiter(write=100, interval=1))

    async def statuses(stores: dict[str, Store], **options: Any) -> list[int]:
        service = LmstfyService(stores, **options)
        port = await service.start("127.0.0.1", 0)
        found = []
        for token in (native, revoked, plain):
            client = Client(port, token)
            found.append((await client.put("/api/ns/q", b"x")).status)
            await client.close()
        await service.stop(1.0)
        return found

    migrations = {"default": PoolMigration("new")}
    assert await statuses({"default": old, "new": new}, migrations=migrations) == [201, 201, 201]
    await TokenCopy(old, new, [*ACCESS_TOKENS, *LMSTFY_TOKENS]).tick()
    await access.revoke("gone")
    await AccessTokens(new).create("own", [TokenScope.of("read")])
    await TokenCopy(old, new, [*ACCESS_TOKENS, *LMSTFY_TOKENS]).tick()  # of the next server
    assert [one.name for one in await AccessTokens(new).all()] == ["app", "own"]
    assert await statuses({"default": new}) == [201, 401, 201]
    assert await TokenLimits(new).get("default", "ns", plain) == Limiter(write=100, interval=1)


async def test_many_queues_are_asked_in_turn(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"ns.q{n}" for n in range(1_200)]
    asked: list[list[str]] = []

    async def queues() -> list[str]:
        return names

    async def take(queues: Sequence[str], limit: int) -> list[TakenJob]:
        asked.append(list(queues))
        return []

    monkeypatch.setattr(pools.old, "queues", queues)
    monkeypatch.setattr(pools.old, "take", take)
    service = DrainService(pools.backend)
    for _ in range(4):
        await service.tick()
    assert [len(part) for part in asked] == [500, 500, 200, 500]
    assert asked[0] + asked[1] + asked[2] == names
