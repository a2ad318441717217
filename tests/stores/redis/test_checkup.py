"""The checks of a Redis server: real servers with real settings, and tables for the rest."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from penstock.errors import StoreError
from penstock.stores.contract import Finding, Level
from penstock.stores.redis.checkup import QUESTIONS, SETTINGS, Access, access_of, examined, findings, merged
from penstock.stores.redis.server_facts import read_config, read_info
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.async_runner import AsyncRunner
from tests.servers import Cluster, RedisServer, redis_server

NOW = 1_700_000_000_000
#: A server about which there is nothing bad to say.
GOOD_INFO = {
    "redis_version": "7.2.4",
    "redis_mode": "standalone",
    "role": "master",
    "maxmemory": 1_000_000_000,
    "maxmemory_policy": "noeviction",
    "used_memory": 100_000_000,
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "rdb_last_bgsave_status": "ok",
    "connected_slaves": 1,
    "slave0": {"ip": "10.0.0.2", "port": 6379, "state": "online", "offset": 42, "lag": 0},
    "connected_clients": 5,
    "maxclients": 10_000,
    "cluster_enabled": 0,
}
GOOD_CONFIG = {
    "save": "3600 1",
    "appendfsync": "everysec",
    "no-appendfsync-on-rewrite": "no",
    "stop-writes-on-bgsave-error": "yes",
    "min-replicas-to-write": "1",
    "min-replicas-max-lag": "10",
    "replica-read-only": "yes",
    "cluster-require-full-coverage": "yes",
}


def judged(
    info: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    *,
    mode: str = "single",
    ahead: int = 0,
    wait_replicas: int = 0,
    ours: Access = Access(),  # noqa: B008
) -> list[Finding]:
    return findings(
        {**GOOD_INFO, **(info or {})},
        {**GOOD_CONFIG, **(config or {})},
        mode=mode,
        now_here_ms=NOW,
        now_there_ms=NOW + ahead,
        wait_replicas=wait_replicas,
        ours=ours,
    )


def looked_at(server: RedisServer, *, mode: str = "single", wait_replicas: int = 0) -> list[Finding]:
    """As a store does it."""
    with server.patient_client() as client:
        seconds, micros = client.time()
        return findings(
            read_info(client.info()),
            {name: value for one in SETTINGS for name, value in read_config(client.config_get(one)).items()},
            mode=mode,
            now_here_ms=int(time.time() * 1000),
            now_there_ms=seconds * 1000 + micros // 1000,
            wait_replicas=wait_replicas,
            ours=Access(secret=False),
        )


def bad(found: list[Finding]) -> dict[str, Level]:
    return {f.what: f.level for f in found if f.level is not Level.FINE}


def of(what: str, found: list[Finding]) -> Finding:
    """The worst of this name."""
    order = [Level.FINE, Level.WARNING, Level.ERROR]
    return max((f for f in found if f.what == what), key=lambda f: order.index(f.level))


# ── real servers ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.server
def test_a_server_that_writes_all_down_is_fine() -> None:
    with redis_server("maxmemory 100mb", "maxmemory-policy noeviction", appendonly=True) as server:
        found = looked_at(server)
        assert bad(found) == {}
        assert of("server", found).why == f"Redis {server.info()['redis_version']}"
        assert "synced every second" in of("persistence", found).why
        assert {f.what for f in found} == {"server", "eviction", "memory", "persistence", "clock", "access"}


@pytest.mark.server
def test_a_server_that_writes_nothing_loses_every_job() -> None:
    with redis_server('save ""', "appendonly no") as server:
        finding = of("persistence", looked_at(server))
        assert finding.level is Level.ERROR
        assert "a restart loses every job" in finding.why
        assert "appendonly yes" in finding.way_out


@pytest.mark.server
def test_snapshots_alone_are_a_warning() -> None:
    with redis_server("save 3600 1", "appendonly no") as server:
        finding = of("persistence", looked_at(server))
        assert (finding.level, "3600 1" in finding.why) == (Level.WARNING, True)


@pytest.mark.server
def test_an_eviction_policy_is_worse_with_a_limit_than_without() -> None:
    with redis_server("maxmemory-policy allkeys-lru", appendonly=True) as server:
        assert bad(looked_at(server)) == {"eviction": Level.WARNING}
        with server.patient_client() as client:
            client.config_set("maxmemory", "100mb")
        assert bad(looked_at(server)) == {"eviction": Level.ERROR}
        with server.patient_client() as client:
            client.config_set("maxmemory-policy", "volatile-ttl")
        assert bad(looked_at(server)) == {"eviction": Level.WARNING}


@pytest.mark.server
def test_a_file_that_is_never_synced_is_a_warning() -> None:
    with redis_server(appendonly=True) as server:
        with server.patient_client() as client:
            client.config_set("appendfsync", "no")
            client.config_set("no-appendfsync-on-rewrite", "yes")
        warnings = [f.why for f in looked_at(server) if f.level is Level.WARNING]
        assert len(warnings) == 2
        assert "appendfsync no" in warnings[0]
        assert "no-appendfsync-on-rewrite yes" in warnings[1]


@pytest.mark.server
def test_memory_that_is_nearly_full_is_a_warning() -> None:
    with redis_server(appendonly=True) as server:
        with server.patient_client() as client:  # so much that what a connection takes does not count
            client.eval("for i = 1, 200 do redis.call('SET', 'k' .. i, string.rep('x', 100000)) end", 0)
        with server.patient_client() as client:
            client.config_set("maxmemory", int(client.info()["used_memory"] / 0.93))
        assert of("memory", looked_at(server)).level is Level.WARNING
        with server.patient_client() as client:
            client.config_set("maxmemory", int(client.info()["used_memory"] / 2))
        assert of("memory", looked_at(server)).level is Level.ERROR


@pytest.mark.server
def test_a_master_and_its_replica_are_distinguished() -> None:
    with redis_server(appendonly=True) as master:
        servant = redis_server(f"replicaof 127.0.0.1 {master.port}", appendonly=True)
        with servant as replica:
            replica.wait_synced()
            master.until(lambda: "online" in str(master.info("replication").get("slave0")), "it online")

            cut_off = of("replicas", looked_at(master))
            assert cut_off.level is Level.WARNING
            assert "min-replicas-to-write is off" in cut_off.why

            with master.patient_client() as client:
                client.config_set("min-replicas-to-write", 1)
            assert bad(looked_at(master, wait_replicas=1)) == {}
            assert "an enqueue waits for 1" in of("replicas", looked_at(master, wait_replicas=1)).why
            assert of("replicas", looked_at(master, wait_replicas=2)).level is Level.ERROR

            role = of("role", looked_at(replica))
            assert role.level is Level.ERROR
            assert f"a replica of 127.0.0.1:{master.port}" in role.why
            assert "refuses new jobs" in role.why
            with replica.patient_client() as client:
                client.config_set("replica-read-only", "no")
            assert "its next synchronisation erases them" in of("role", looked_at(replica)).why


def test_a_node_of_a_cluster_is_known_for_one(cluster: Cluster) -> None:
    found = looked_at(cluster.masters()[0], mode="cluster")
    assert of("cluster", found).level is Level.WARNING
    assert "cluster-require-full-coverage" in of("cluster", found).why
    wrong_url = of("cluster", looked_at(cluster.masters()[0]))
    assert (wrong_url.level, wrong_url.way_out) == (Level.ERROR, "write redis+cluster://HOST,HOST")


def test_a_plain_server_is_no_node_of_a_cluster() -> None:
    assert of("cluster", judged(mode="cluster")).level is Level.ERROR


@pytest.mark.parametrize(
    ("url", "config", "says"),
    [
        ("redis://:secret@db", {}, ""),
        ("redis://db:6380", {}, "over the network (db)"),
        ("redis+cluster://127.0.0.1,10.0.0.7", {}, "over the network (10.0.0.7)"),
        ("unix:///run/redis.sock", {"bind": "127.0.0.1 -::1"}, "only this machine"),
        ("redis://localhost", {"bind": "", "protected-mode": "yes"}, "only this machine"),
        ("redis://localhost", {"bind": "* -::*", "protected-mode": "no"}, "bind * -::*, protected-mode no"),
        ("redis://localhost", {"bind": "127.0.0.1 -::1", "protected-mode": "no"}, "only this machine"),
        ("redis://localhost", {}, "only this machine"),
    ],
)
def test_who_else_reaches_a_server_without_a_password(url: str, config: dict[str, Any], says: str) -> None:
    found = [f for f in judged(config=config, ours=access_of(Address.of(url))) if f.what == "access"]
    assert len(found) == bool(says)
    for one in found:
        assert says in one.why
        assert (one.level is Level.FINE) == ("only this machine" in says)
        assert bool(one.way_out) == (one.level is Level.WARNING)


async def asked_of(url: str) -> list[Finding]:
    """Over our own connections, on all masters."""
    address = Address.of(url)
    runner = AsyncRunner(address)
    before = int(time.time() * 1000)
    answers = await runner.everywhere(QUESTIONS)
    found = examined(
        answers,
        address=address,
        before_ms=before,
        after_ms=int(time.time() * 1000),
    )
    runner.close()
    return found


@pytest.mark.server
async def test_our_own_connections_ask_the_same() -> None:
    with redis_server("maxmemory 100mb", appendonly=True) as server:
        assert bad(await asked_of(server.url)) == {}
        ours, theirs = await asked_of(server.url), looked_at(server)
        assert [f for f in ours if f.what != "memory"] == [f for f in theirs if f.what != "memory"]
        with server.patient_client() as client:
            client.config_set("appendonly", "no")
        assert bad(await asked_of(server.url)) == {"persistence": Level.ERROR}


async def test_all_masters_of_a_cluster_are_asked(cluster: Cluster) -> None:
    found = await asked_of(cluster.url)
    assert [f.why for f in found if f.what == "server"] == [
        f"Redis {cluster.masters()[0].info()['redis_version']}"
    ]
    assert of("cluster", found).level is Level.WARNING


@pytest.mark.server
async def test_without_permission_for_config_the_other_checks_are_reported() -> None:
    with redis_server("user default on nopass ~* &* +@all -config", appendonly=True) as server:
        found = await asked_of(server.url)
        assert bad(found) == {}
        assert "CONFIG is forbidden" in of("settings", found).why


@pytest.mark.server
async def test_where_info_is_forbidden_that_is_the_error() -> None:
    with redis_server("user default on nopass ~* &* +@all -info") as server:
        refused = await asyncio.gather(asked_of(server.url), return_exceptions=True)
    assert isinstance(refused[0], StoreError)
    assert "info" in str(refused[0]).lower()


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def test_a_good_server_is_fine_in_all() -> None:
    assert bad(judged()) == {}


@pytest.mark.parametrize(
    ("facts", "level", "says"),
    [
        ({"redis_version": "6.0.16"}, Level.ERROR, "Redis 6.0.16 is too old"),
        ({"redis_version": "5.0.3"}, Level.ERROR, "Redis 5.0.3 is too old"),
        ({"redis_version": "6.2.0"}, Level.FINE, "Redis 6.2.0"),
        ({"redis_version": "10.0.0"}, Level.FINE, "Redis 10.0.0"),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, Level.FINE, "Valkey 8.0.1"),
        ({"loading": 1}, Level.WARNING, "loading its data"),
    ],
)
def test_versions(facts: dict[str, Any], level: Level, says: str) -> None:
    finding = of("server", judged(facts))
    assert finding.level is level
    assert says in finding.why


@pytest.mark.parametrize("ahead", [-5_000, -1_001, 1_001, 90_000])
def test_clocks_that_differ_are_a_warning(ahead: int) -> None:
    finding = of("clock", judged(ahead=ahead))
    assert finding.level is Level.WARNING
    assert ("ahead of" if ahead > 0 else "behind") in finding.why


@pytest.mark.parametrize("ahead", [-1_000, 0, 1_000])
def test_clocks_within_a_second_are_fine(ahead: int) -> None:
    assert of("clock", judged(ahead=ahead)).level is Level.FINE


@pytest.mark.parametrize(
    ("info", "config", "what", "level"),
    [
        ({"evicted_keys": 3}, {}, "eviction", Level.WARNING),
        ({"aof_last_write_status": "err"}, {}, "persistence", Level.ERROR),
        ({"aof_last_bgrewrite_status": "err"}, {}, "persistence", Level.WARNING),
        ({"rdb_last_bgsave_status": "err"}, {}, "persistence", Level.ERROR),
        (
            {"rdb_last_bgsave_status": "err"},
            {"stop-writes-on-bgsave-error": "no"},
            "persistence",
            Level.WARNING,
        ),
        ({}, {"min-replicas-to-write": "2"}, "replicas", Level.ERROR),
        ({}, {"min-replicas-max-lag": "0"}, "replicas", Level.WARNING),
        ({"connected_clients": 9_000}, {}, "clients", Level.WARNING),
        ({"maxmemory": 0, "total_system_memory": 110_000_000}, {}, "memory", Level.WARNING),
    ],
)
def test_troubles(info: dict[str, Any], config: dict[str, Any], what: str, level: Level) -> None:
    found = judged(info, config)
    assert bad(found) == {what: level}
    assert of(what, found).way_out


@pytest.mark.parametrize("mode", ["sentinel", "cluster"])
def test_a_master_without_replicas_cannot_be_replaced(mode: str) -> None:
    clustered = int(mode == "cluster")
    info = {"connected_slaves": 0, "slave0": "", "cluster_enabled": clustered}
    config = {"cluster-require-full-coverage": "no"}
    assert bad(judged(info, config, mode=mode)) == {"replicas": Level.WARNING}
    assert "replicas" not in bad(judged({**info, "cluster_enabled": 0}, mode="single"))


def test_without_config_only_what_is_known_is_said() -> None:
    unknown = findings(GOOD_INFO, None, mode="single", now_here_ms=NOW, now_there_ms=NOW, wait_replicas=0)
    assert bad(unknown) == {}
    assert "CONFIG is forbidden" in of("settings", unknown).why
    no_file = findings(
        {**GOOD_INFO, "aof_enabled": 0},
        None,
        mode="single",
        now_here_ms=NOW,
        now_there_ms=NOW,
        wait_replicas=0,
    )
    assert of("persistence", no_file).level is Level.WARNING
    assert "settings of snapshots cannot be read" in of("persistence", no_file).why


@pytest.mark.server
def test_an_answer_as_text_says_the_same_as_a_parsed_one() -> None:
    with redis_server("maxmemory 100mb", appendonly=True) as server, server.patient_client() as client:
        text = client.execute_command("INFO", NEVER_DECODE=True)
        parsed = client.info()
    raw = read_info(text) if isinstance(text, bytes) else read_info(dict(text))
    for name in ("redis_version", "maxmemory", "aof_enabled", "maxmemory_policy", "role"):
        assert str(raw[name]) == str(parsed[name])
    lines = b"# Server\r\nredis_version:7.0.15\r\nslave0:ip=::1,port=1,state=online,offset=1,lag=0\r\n"
    assert read_info(lines) == {
        "redis_version": "7.0.15",
        "slave0": "ip=::1,port=1,state=online,offset=1,lag=0",
    }
    assert read_config([b"save", b"3600 1"]) == read_config({"save": "3600 1"}) == {"save": "3600 1"}


def test_a_problem_of_all_nodes_is_reported_once() -> None:
    fine, late = Finding(Level.FINE, "server", "Redis 7.2.4"), Finding(Level.WARNING, "clock", "late", "NTP")
    together = merged({"a:1": [fine, late], "b:2": [fine], "c:3": [fine, late]})
    assert together == [fine, Finding(Level.WARNING, "clock", "on a:1, c:3: late", "NTP")]


def test_a_finding_reads_as_one_line() -> None:
    assert str(Finding(Level.WARNING, "clock", "it is late", "use NTP")) == "clock: it is late; use NTP"
    assert str(Finding(Level.FINE, "server", "Redis 7.2.4")) == "server: Redis 7.2.4"


def test_a_server_that_reads_its_append_only_file_is_not_said_to_write_nothing() -> None:
    """Redis reports it as off meanwhile."""
    found = judged({"loading": 1, "aof_enabled": 0}, {"save": ""})
    assert [one.what for one in found if one.level is not Level.FINE] == ["server"]
