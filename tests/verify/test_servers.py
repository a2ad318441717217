"""Private servers: faults are real, and at the end of each call the server is healthy again."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis as driver

from penstock import App
from penstock.app.task import Task
from penstock.client.handle import Handle
from penstock.errors import ConfigError, PenstockError, StoreFull
from penstock.verify.servers.clusters import PrivateCluster
from penstock.verify.servers.disks import SmallDisk
from penstock.verify.servers.nodes import RedisNode, free_port
from penstock.verify.servers.servers import PrivateRedis
from tests.servers import redis_program, until

linux = pytest.mark.skipif(sys.platform != "linux", reason="it takes prlimit, or a tmpfs")


def asked(server: PrivateRedis, **options: float) -> contextlib.closing[driver.Redis]:
    return contextlib.closing(driver.Redis.from_url(server.url, **options))


def wait_written(client: driver.Redis) -> None:
    """While a sync is under way, Redis keeps back what it has acknowledged, and a kill would take it."""
    until(lambda: client.info("persistence")["aof_buffer_length"] == 0, "all is written")


@pytest.fixture
def open_redis(redis_path: str, tmp_path: Path) -> Iterator[Callable[..., PrivateRedis]]:
    with contextlib.ExitStack() as stack:
        yield lambda *args: stack.enter_context(PrivateRedis(tmp_path / "redis", *args))


def ping_on(server: PrivateRedis) -> None:
    with asked(server, socket_timeout=0.1) as client:
        while client.ping():
            pass


def enqueue_on(task: Task[..., Any], stored: list[Handle[Any]]) -> None:
    while True:
        stored.append(task.enqueue())


@contextlib.contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[list[object]]:
    """`act` in a thread; what it said stands in the list after the block."""
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.append(act()))
    thread.start()
    yield said
    thread.join(60)
    assert said, "it has not come to its end"


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_a_restart_kills_and_keeps_what_was_acknowledged(
    open_redis: Callable[..., PrivateRedis], fsync: str
) -> None:
    server = open_redis(fsync)
    before = server.pid
    with asked(server) as client:
        assert client.config_get("append*")["appendfsync"] == fsync
        client.set("kept", "yes")
        wait_written(client)
        took = server.restart()
        assert took > 0
        assert client.get("kept") == b"yes"
    assert server.pid != before


def test_a_server_that_loads_its_data_is_waited_for(redis_path: str, tmp_path: Path) -> None:
    port = free_port()
    slowly = ["appendonly yes", "key-load-delay 100"]  # µs per command; it hears clients every 1 024
    with RedisNode(redis_path, tmp_path, [f"port {port}", *slowly], port=port) as node:
        node.launch()
        with node.wait_ready().patient_client() as client:
            pipeline = client.pipeline(transaction=False)
            for i in range(16_000):
                pipeline.set(f"key-{i}", "v")
            pipeline.execute()
            wait_written(client)
        node.kill()
        node.launch()
        until(lambda: _loads(node), "it to load its data")
        with node.patient_client() as client:
            assert client.dbsize() == 16_000


def _loads(node: RedisNode) -> bool:
    with contextlib.closing(node.client()) as client:
        try:
            client.dbsize()
        except driver.exceptions.BusyLoadingError:
            return True
        except driver.ConnectionError:
            return False
    pytest.fail("it has loaded all before anybody asked")


def test_a_stopped_server_says_nothing_for_so_long(open_redis: Callable[..., PrivateRedis]) -> None:
    server = open_redis()
    with meanwhile(lambda: server.stop_for(1.0)), pytest.raises(driver.TimeoutError):
        ping_on(server)
    with asked(server) as client:
        assert client.ping()


@pytest.mark.parametrize(("fsync", "left"), [("always", b"2"), ("everysec", b"1")])
def test_a_power_cut_takes_what_was_not_synced(
    open_redis: Callable[..., PrivateRedis], fsync: str, left: bytes
) -> None:
    server = open_redis(fsync)
    with asked(server) as client:
        client.set("n", 1)
        if fsync == "always":
            client.set("n", 2)
            server.power_cut()
        else:
            with meanwhile(server.power_cut):
                threading.Event().wait(0.3)  # it is in the second that it takes
                client.set("n", 2)
        assert client.get("n") == left


def test_scripts_are_forgotten_when_asked(open_redis: Callable[..., PrivateRedis]) -> None:
    server = open_redis()
    with asked(server) as client:
        sha = client.script_load("return 1")
        server.flush_scripts()
        assert client.script_exists(sha) == [False]


@linux
def test_a_full_disk_refuses_writes_and_keeps_what_there_is(open_redis: Callable[..., PrivateRedis]) -> None:
    server = open_redis("everysec")
    with contextlib.closing(App(server.url)) as app:
        task = app.task(_nothing)
        stored = [task.enqueue()]
        with meanwhile(lambda: server.fill_disk(2.0)) as said, pytest.raises(StoreFull, match="MISCONF"):
            enqueue_on(task, stored)
        assert said == ["the server refused writes (MISCONF)"]
        stored.append(task.enqueue())
        with asked(server) as client:
            wait_written(client)
        server.restart()
        assert {job.status() for job in stored} == {"available"}


@linux
def test_a_full_disk_ends_a_server_that_always_syncs_and_it_comes_back(
    open_redis: Callable[..., PrivateRedis],
) -> None:
    server = open_redis("always")
    with contextlib.closing(App(server.url + "?timeout=300ms")) as app:
        task = app.task(_nothing)
        stored = [task.enqueue()]
        with meanwhile(lambda: server.fill_disk(2.0)) as said, pytest.raises(PenstockError):
            enqueue_on(task, stored)
        assert said == ["the server exited at its first write, as it does with appendfsync always"]
        stored.append(task.enqueue())
        assert {job.status() for job in stored} == {"available"}


@linux
def test_a_full_disk_without_writes_is_reported(open_redis: Callable[..., PrivateRedis]) -> None:
    assert open_redis().fill_disk(0.1) == "nothing was written meanwhile"


def _nothing() -> None:
    pass


def test_a_missing_server_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="neither is installed: apt-get install redis-server"):
        PrivateRedis(tmp_path)


# ── a cluster ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCluster]:
    redis_program()
    with PrivateCluster(tmp_path_factory.mktemp("cluster"), proxied=True) as cluster:
        yield cluster


@pytest.fixture
def jobs(cluster: PrivateCluster) -> Iterator[Callable[[], set[str]]]:
    """The states of jobs in every share of the slots, stored before the test and by each call."""
    with contextlib.closing(App(cluster.url, namespace=f"test-{secrets.token_hex(4)}")) as app:
        task = app.task(_nothing)
        handles = [task.using(queue=f"q{n}").enqueue() for n in range(20)]
        _wait_all_written(cluster)

        def states() -> set[str]:
            handles.append(task.enqueue())
            _wait_all_written(cluster)
            return {job.status() for job in handles}

        yield states


def _wait_all_written(cluster: PrivateCluster) -> None:
    for shard in range(cluster.shards):
        with cluster.master(shard).patient_client() as client:
            wait_written(client)


@pytest.mark.slow
def test_a_replica_takes_over_and_the_master_comes_back_as_its_replica(
    cluster: PrivateCluster, jobs: Callable[[], set[str]]
) -> None:
    first, masters = cluster.master(1), cluster.masters_and_epochs()
    before = first.pid
    took = cluster.failover(1)
    assert [one != other for one, other in zip(cluster.masters_and_epochs(), masters, strict=True)] == [
        False,
        True,
        False,
    ]
    assert took > 0
    assert cluster.master(1) is not first
    assert first.pid != before
    assert first.info("replication")["role"] == "slave"
    assert jobs() == {"available"}


@pytest.mark.slow
def test_a_master_that_is_stopped_for_long_is_replaced(
    cluster: PrivateCluster, jobs: Callable[[], set[str]]
) -> None:
    first = cluster.master(0)
    cluster.stop_for(0.2)
    assert cluster.master(0) is first
    cluster.stop_for(10)
    assert cluster.master(0) is not first
    assert jobs() == {"available"}


@pytest.mark.slow
def test_a_shard_that_is_lost_leaves_the_others_and_comes_back_with_everything(
    cluster: PrivateCluster, jobs: Callable[[], set[str]]
) -> None:
    homes = cluster.shards_by_queue("", [f"q{n}" for n in range(20)])
    assert set(homes.values()) == {0, 1, 2}
    first, masters = cluster.master(1), cluster.masters_and_epochs()
    seen: dict[str, bool] = {}

    def look() -> None:
        with contextlib.closing(App(cluster.url)) as app:
            task = app.task(_nothing)

            def is_accepted(queue: str) -> bool:
                with contextlib.suppress(PenstockError):
                    return bool(task.using(queue=queue).enqueue())
                return False

            with ThreadPoolExecutor(len(homes)) as all_at_once:  # each of a lost queue waits for its timeout
                seen.update(zip(homes, all_at_once.map(is_accepted, homes), strict=True))

    cluster.lose(1, look)
    assert seen == {queue: home != 1 for queue, home in homes.items()}
    assert cluster.master(1) is first
    assert cluster.masters_and_epochs() == masters
    assert jobs() == {"available"}


@pytest.mark.slow
def test_a_cluster_that_is_killed_whole_comes_back_with_everything(
    cluster: PrivateCluster, jobs: Callable[[], set[str]]
) -> None:
    assert 0 < cluster.restart() < 60
    assert jobs() == {"available"}
    assert 0 < cluster.restart(2) < 60
    assert jobs() == {"available"}


@linux
@pytest.mark.slow
def test_a_full_disk_of_one_master_is_got_over(cluster: PrivateCluster, jobs: Callable[[], set[str]]) -> None:
    with meanwhile(lambda: cluster.fill_disk(2.0, 1)) as said:
        until(lambda: not _takes(cluster, 1), "writes are refused")
    assert said == ["the server refused writes (MISCONF)"]
    assert jobs() == {"available"}


def _takes(cluster: PrivateCluster, shard: int) -> bool:
    """Whether this master can write to its file; keys enough for one of its own slots try it."""
    with cluster.master(shard).patient_client() as client:
        for n in range(20):
            with contextlib.suppress(driver.ResponseError):
                client.set(f"try-{n}", 1)
        return bool(client.info("persistence")["aof_last_write_status"] == "ok")


@pytest.mark.slow
def test_clients_of_a_cluster_come_by_its_relays(
    cluster: PrivateCluster, jobs: Callable[[], set[str]]
) -> None:
    assert jobs() == {"available"}
    assert {proxy.port for proxy in cluster.proxies} >= {
        int(host.rpartition(":")[2]) for host in cluster.url.partition("?")[0].rpartition("/")[2].split(",")
    }
    connections = [proxy.connections for proxy in cluster.proxies]
    assert sum(proxy.reset() for proxy in cluster.proxies) > 0
    assert jobs() == {"available"}
    assert sum(proxy.connections for proxy in cluster.proxies) > sum(connections)


@pytest.mark.slow
def test_scripts_are_forgotten_on_every_node(cluster: PrivateCluster, jobs: Callable[[], set[str]]) -> None:
    cluster.flush_scripts()
    assert jobs() == {"available"}


# ── a file ───────────────────────────────────────────────────────────────────────────────────────


@linux
def test_a_small_disk_is_filled_and_has_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, contextlib.closing(App(_file(disk))) as app:
        task = app.task(_nothing)
        stored = [task.enqueue()]
        with meanwhile(lambda: disk.fill_disk(1.5)) as said, pytest.raises(StoreFull, match="no room left"):
            enqueue_on(task, stored)
        assert str(said[0]).endswith("of its disk were taken")
        stored.append(task.enqueue())
        assert {job.status() for job in stored} == {"available"}
    assert not os.path.ismount(disk.folder)
    disk.close()


@linux
def test_a_small_disk_goes_with_who_mounted_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "probe"):
        pass
    program = (
        "import os, pathlib, signal, sys\n"
        "from penstock.verify.servers.disks import SmallDisk\n"
        "disk = SmallDisk(pathlib.Path(sys.argv[1]), 1)\n"
        "assert os.path.ismount(disk.folder)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "disk")], capture_output=True)
    assert done.returncode == -9, done.stderr
    until(lambda: not os.path.ismount(tmp_path / "disk"), "it is unmounted")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(folder, 4)
    except ConfigError as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(str(error))
    with disk:
        yield disk


def _file(disk: SmallDisk) -> str:
    return f"sqlite:///{disk.folder / 'jobs.db'}"


def test_a_failed_mount_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only root on Linux can do that"):
        SmallDisk(tmp_path)
