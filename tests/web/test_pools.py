"""Pools: several stores behind one service, and a pool whose jobs move to another one.

The old pool is each kind of store, and a running server whose jobs are taken over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import State
from penstock.dialects.lmstfy.migration import MigratingBackend
from penstock.dialects.lmstfy.old_pools import OldStore, TakenJob
from penstock.dialects.lmstfy.service import LmstfyService, PoolMigration
from penstock.dialects.lmstfy.upstream import OldLmstfy
from penstock.stores.contract import Store
from penstock.stores.memory import MemoryStore
from tests.store.facts import SOON
from tests.web.conftest import Served
from tests.web.wire import Client

Q = "/api/ns/q"


class Migrating:
    """An old pool with a server of its own, and the server that drains it into a new store."""

    def __init__(
        self, open_old: Callable[[], Store], new: Store, clock: ManualClock, *, upstream: bool
    ) -> None:
        self.old_store, self.new_store = open_old(), new
        self.before = Served(self.old_store, clock)
        self._open_old = open_old
        self._upstream = upstream
        self._clock = clock
        self.tokens: dict[str, str] = {}
        self.service: LmstfyService
        self.port = self.admin_port = 0
        self._clients: list[Client] = []

    async def switch(self) -> Client:
        """Start the new server; returns a client of it."""
        stores, upstream = {"new": self.new_store}, None
        if self._upstream:
            admin = f"http://127.0.0.1:{self.before.admin_port}"
            old = f"http://127.0.0.1:{self.before.port}"
            upstream = OldLmstfy(old, self.tokens, admin_url=admin)
        else:
            stores["default"] = self._open_old()
        migrations = {"default": PoolMigration("new", upstream)}
        self.service = LmstfyService(stores, migrations=migrations, need_tokens=False)
        self.port = await self.service.start("127.0.0.1", 0)
        self.admin_port = await self.service.start_admin("127.0.0.1", 0)
        await self.backend.catch_up()
        return self.client()

    @property
    def backend(self) -> MigratingBackend:
        backend = self.service.backends["default"]
        assert isinstance(backend, MigratingBackend)
        return backend

    def client(self) -> Client:
        self._clients.append(Client(self.port))
        return self._clients[-1]

    def admin(self) -> Client:
        self._clients.append(Client(self.admin_port))
        return self._clients[-1]

    async def advance(self, seconds: float) -> None:
        """Move the clock of both stores, and do what has become due."""
        await self.before.advance(seconds)
        if isinstance(self.backend._old, OldStore):
            await self.backend._old._backend.catch_up()
        await self.backend.catch_up()

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        if self.port:
            await self.service.stop(2.0)
        await self.before.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "upstream" in metafunc.fixturenames:
        metafunc.parametrize(
            ("kind", "upstream"),
            [("memory", False), ("redis", False), ("sqlite", False), ("memory", True)],
            ids=["memory", "redis", "sqlite", "upstream"],
            indirect=["kind"],
        )


@pytest.fixture
async def pools(
    open_store: Callable[[], Store], clock: ManualClock, home: Path, upstream: bool
) -> AsyncIterator[Migrating]:
    new = MemoryStore(f"{home}-new", clock=clock)
    made = Migrating(open_store, new, clock, upstream=upstream)
    await made.before.start()
    yield made
    await made.stop()
    new.close()


@pytest.fixture
async def old(pools: Migrating) -> Client:
    """A client of the old server."""
    return pools.before.client()


async def bodies(client: Client, number: int, path: str = Q) -> list[bytes]:
    """The bodies of the next jobs, which are acknowledged."""
    found = []
    for _ in range(number):
        job = await client.get(f"{path}?ttr=60")
        assert job.status == 200
        found.append(job.data)
        assert (await client.delete(f"/api/ns/{job.json['queue']}/job/{job.json['job_id']}")).status == 204
    return found


# --- migration ----------------------------------------------------------------------------------


async def test_what_is_published_goes_to_the_new_pool(pools: Migrating, old: Client) -> None:
    client = await pools.switch()
    assert (await client.put(Q, b"x")).status == 201
    assert (await client.put(f"{Q}/bulk", b"[1,2]")).status == 201
    assert (await old.get(f"{Q}/size")).json["size"] == 0
    assert (await client.get(f"{Q}/size")).json["size"] == 3


async def test_jobs_of_the_old_pool_come_first_and_in_order(pools: Migrating, old: Client) -> None:
    for n in range(3):
        await old.put(Q, b"old %d" % n)
    client = await pools.switch()
    await client.put(Q, b"new")
    assert await bodies(client, 4) == [b"old 0", b"old 1", b"old 2", b"new"]
    assert (await client.get(Q)).status == 404


async def test_a_moved_job_is_the_same_job(pools: Migrating, old: Client) -> None:
    headers = [("Enable-Job-Version", "YES"), ("Job-Attr-Color", "red")]
    made = (await old.put(f"{Q}?tries=3&ttl=100", b"x", *headers)).json["job_id"]
    client = await pools.switch()
    found = (await client.get(f"{Q}?ttr=10")).json
    assert (found["job_id"], found["remain_tries"], found["ttl"]) == (made, 2, 100)
    assert found["attributes"] == {"color": "red"}


async def test_spent_tries_stay_spent(pools: Migrating, old: Client) -> None:
    await old.put(f"{Q}?tries=3", b"x")
    assert (await old.get(f"{Q}?ttr=10")).json["remain_tries"] == 2
    client = await pools.switch()
    await pools.advance(11)
    assert (await client.get(f"{Q}?ttr=10")).json["remain_tries"] == 1
    await pools.advance(11)
    assert (await client.get(f"{Q}?ttr=10")).json["remain_tries"] == 0
    await pools.advance(11)
    assert (await client.get(Q)).status == 404
    assert (await client.get(f"{Q}/deadletter/size")).json["size"] == 1


async def test_a_waiting_request_gets_a_job_that_becomes_due_in_the_old_pool(
    pools: Migrating, old: Client
) -> None:
    await old.put(f"{Q}?delay=60", b"later")
    client = await pools.switch()
    waiting = asyncio.create_task(client.get("/api/ns/other,q?timeout=30"))
    async with asyncio.timeout(SOON):
        while not pools.backend.dispatcher.waiting:
            await asyncio.sleep(0.001)
    await pools.advance(61)
    assert (await waiting).data == b"later"


async def test_an_acknowledgement_reaches_a_job_that_is_out_from_the_old_pool(
    pools: Migrating, old: Client
) -> None:
    await old.put(f"{Q}?tries=5", b"x")
    out = (await old.get(f"{Q}?ttr=10")).json["job_id"]
    client = await pools.switch()
    assert (await client.get(f"{Q}/job/{out}")).data == b"x"
    assert (await client.delete(f"{Q}/job/{out}")).status == 204
    await pools.advance(11)
    assert (await client.get(Q)).status == 404
    assert (await client.get(f"{Q}/job/{out}")).status == 404


async def test_a_republished_job_is_removed_from_the_old_pool(pools: Migrating, old: Client) -> None:
    made = (await old.put(f"{Q}?delay=600", b"before")).json["job_id"]
    client = await pools.switch()
    assert (await client.put(f"{Q}/job/{made}", b"after")).status == 201
    assert (await client.get(Q)).data == b"after"
    await pools.advance(601)
    assert (await client.get(Q)).status == 404


async def test_the_head_is_that_of_the_old_pool(pools: Migrating, old: Client) -> None:
    await old.put(f"{Q}?tries=2", b"old")
    client = await pools.switch()
    await client.put(Q, b"new")
    head = await client.get(f"{Q}/peek")
    assert head.data == b"old"
    assert head.json["remain_tries"] == 2


async def test_dead_letters_of_both_are_counted_and_respawned_the_old_ones_first(
    pools: Migrating, old: Client
) -> None:
    ids = [(await old.put(f"{Q}?tries=1", b"%d" % n)).json["job_id"] for n in range(2)]
    await old.get(f"{Q}?ttr=1&count=2")
    await pools.before.advance(2)
    client = await pools.switch()
    await client.put(f"{Q}?tries=1", b"2")
    await client.get(f"{Q}?ttr=1")
    await pools.advance(2)
    shown = (await client.get(f"{Q}/deadletter")).json
    assert (shown["deadletter_head"], shown["deadletter_size"]) == (ids[0], 3)
    assert (await client.request("DELETE", f"{Q}/deadletter?limit=1")).status == 204
    assert (await client.get(f"{Q}/deadletter/size")).json["size"] == 2
    asked = (await pools.before.admin().get("/metrics")).body
    assert b"/:queue/size" not in asked, "a size that nobody needs is not asked for"
    assert (await client.put(f"{Q}/deadletter?limit=5")).json == {"count": 2, "msg": "respawned"}
    assert await bodies(client, 2) == [b"1", b"2"]


async def test_destroy_empties_both(pools: Migrating, old: Client) -> None:
    await old.put(Q, b"old")
    client = await pools.switch()
    await client.put(Q, b"new")
    assert (await client.request("DELETE", Q)).status == 204
    assert (await client.get(Q)).status == 404
    assert (await client.get(f"{Q}/size")).json["size"] == 0


async def test_all_jobs_move_each_once(pools: Migrating, old: Client) -> None:
    """Also those that nobody asks for, and while several clients consume."""
    for n in range(10):
        await old.put(f"/api/ns/q{n % 2}/bulk", b"[%b]" % b",".join(b"%d" % (n * 50 + i) for i in range(50)))
    await pools.switch()

    async def consume(client: Client) -> list[bytes]:
        found: list[bytes] = []
        while (job := await client.get("/api/ns/q0?count=7")).status == 200:
            found += [one["data"] for one in job.json]
        return found

    found = await asyncio.gather(*(consume(pools.client()) for _ in range(4)))
    assert len({body for some in found for body in some}) == 250
    assert sum(map(len, found)) == 250
    async with asyncio.timeout(SOON):
        while (await old.get("/api/ns/q1/size")).json["size"]:
            await asyncio.sleep(0.01)
    assert (await pools.client().get("/api/ns/q1/size")).json["size"] == 250
    admin = Client(pools.admin_port)
    shown = (await admin.get("/migrations")).json["default"]
    await admin.close()
    assert (shown["to"], shown["moved"], shown["problem"]) == ("new", 500, "")
    assert shown["left"]["available"] == 0


async def test_a_move_that_broke_off_is_repeated_without_a_second_delivery(
    pools: Migrating, old: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash between storing a job in the new pool and removing it from the old one."""
    await old.put(f"{Q}?tries=3", b"x")
    lost: list[TakenJob] = []

    async def broken(_: object, taken: Sequence[TakenJob]) -> None:
        lost.extend(taken)
        raise StoreUnavailable("it broke off")

    with monkeypatch.context() as patched:
        patched.setattr(OldStore, "confirm", broken)
        patched.setattr(OldLmstfy, "confirm", broken)
        client = await pools.switch()
        assert (await client.get(f"{Q}?ttr=600&timeout=5")).data == b"x"
    assert len(lost) == 1
    assert (await client.delete(f"{Q}/job/{lost[0].job.id}")).status == 204
    await pools.advance(61)  # the lease of the move is over
    assert (await client.get(Q)).status == 404
    assert (await client.get(f"{Q}/deadletter/size")).json["size"] == 0


async def test_an_old_pool_that_is_away_delays_nothing_new(
    pools: Migrating, old: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await pools.switch()

    async def away(*_: object) -> None:
        raise StoreUnavailable("it is away")

    for verb in ("take", "remove", "get", "answers"):
        monkeypatch.setattr(pools.backend._old, verb, away)
    made = (await client.put(Q, b"new")).json["job_id"]
    assert (await client.get(Q)).data == b"new"
    assert (await client.delete(f"{Q}/job/{made}")).status == 204
    # a job that only the old pool may have: the client must repeat this
    assert (await client.delete(f"{Q}/job/{made}")).status == 500


# --- an old server that does not know one of the tokens -------------------------------------------


@pytest.fixture
async def half_known(clock: ManualClock, home: Path) -> AsyncIterator[Migrating]:
    """A migration from a server that knows no token of ours for the namespace `a`, which comes first."""
    new = MemoryStore(f"{home}-new", clock=clock)
    made = Migrating(lambda: MemoryStore(str(home), clock=clock), new, clock, upstream=True)
    names = {name: frozenset({f"the-token-of-{name}"}) for name in "abc"}
    made.before = Served(made.old_store, clock, need_tokens=True, fixed_tokens=names)
    made.tokens = {"a": "not-its-token", **{name: f"the-token-of-{name}" for name in "bc"}}
    await made.before.start()
    yield made
    await made.stop()
    made.old_store.close()
    new.close()


async def test_a_namespace_whose_token_is_unknown_harms_itself_alone(
    half_known: Migrating, caplog: pytest.LogCaptureFixture
) -> None:
    ids = {}
    for name in "abc":
        old = half_known.before.client(f"the-token-of-{name}")
        ids[name] = (await old.put(f"/api/{name}/q", name.encode())).json["job_id"]
    client = await half_known.switch()
    for name in "bc":
        assert (await client.get(f"/api/{name}/q?timeout=5")).data == name.encode()
    assert (await client.get("/api/a/q")).status == 404
    await client.put("/api/a/q", b"new")
    assert (await client.get("/api/a/q?timeout=5")).data == b"new"
    shown = (await half_known.admin().get("/migrations")).json["default"]
    assert shown["problem"] == (
        "namespace 'a': the old lmstfy answered 401: "
        '{"error":"invalid token"}; give the token of this namespace in UpstreamTokens'
    )
    assert (shown["moved"], shown["left"]) == (2, {"available": 1, "dead": 0})
    assert caplog.text.count("namespace 'a'") == 1
    paths = [f"/api/{name}/q/job/{ids[name]}" for name in "abc"]
    gone = await asyncio.gather(*(half_known.client().delete(path) for path in paths))
    assert [answer.status for answer in gone] == [500, 204, 204]


async def test_a_refused_namespace_stays_named_while_another_one_gives_all_the_jobs(
    half_known: Migrating,
) -> None:
    await half_known.switch()
    backend = half_known.service.backends["default"]
    assert isinstance(backend, MigratingBackend)
    old = backend._old
    assert isinstance(old, OldLmstfy)
    assert await old.take(["a.q"], 1) == []
    said = old.problem
    assert said.startswith("namespace 'a'")
    old._refused["a"] = (old._refused["a"][0], 0.0)  # it would be asked again
    for _ in range(2):
        await half_known.before.client("the-token-of-b").put("/api/b/q", b"x")
    assert len(await old.take(["b.q", "a.q"], 1)) == 2
    assert old.problem == said


async def test_tokens_of_other_namespaces_are_taken_over_if_those_of_one_are_refused(
    half_known: Migrating, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        await half_known.before.admin().request("POST", f"/token/{name}?description=d")
        await half_known.before.client(f"the-token-of-{name}").put(f"/api/{name}/q", b"x")
    await half_known.switch()
    real = OldLmstfy.tokens

    async def tokens(old: OldLmstfy, namespace: str) -> dict[str, str]:
        if namespace == "a":
            raise StoreError("it does not say")
        return await real(old, namespace)

    monkeypatch.setattr(OldLmstfy, "tokens", tokens)
    await half_known.service.take_over()
    assert len((await half_known.admin().get("/token/b")).json["tokens"]) == 1


# --- pools --------------------------------------------------------------------------------------


async def test_the_prefix_of_a_token_chooses_the_pool(clock: ManualClock, home: Path) -> None:
    stores: dict[str, Store] = {
        name: MemoryStore(f"{home}-{name}", clock=clock) for name in ("default", "other")
    }
    service = LmstfyService(stores)
    port = await service.start("127.0.0.1", 0)
    admin = Client(await service.start_admin("127.0.0.1", 0))
    made = (await admin.request("POST", "/token/ns?description=d&pool=other")).json["token"]
    assert made.startswith("other:")
    assert sorted((await admin.get("/pools")).json) == ["default", "other"]
    client = Client(port, made)
    assert (await client.put(Q, b"x")).status == 201
    for wrong, status in ((made.partition(":")[2], 401), (f"none:{made.partition(':')[2]}", 404)):
        client.token = wrong
        assert (await client.put(Q, b"x")).status == status
    (info,) = await stores["other"].queues()
    assert info.counts[State.AVAILABLE] == 1
    assert not await stores["default"].queues()
    await client.close()
    await admin.close()
    await service.stop(1.0)
    for store in stores.values():
        store.close()
