"""The servers for tests are real, use their settings, and leave nothing behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis as driver

from penstock.verify.servers import clusters
from penstock.verify.servers.nodes import RedisNode, ServerFailed
from tests.servers import (
    Cluster,
    RedisServer,
    Sentinels,
    redis_cluster,
    redis_server,
    remove_keys,
    server_or_skip,
    until,
)

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.server


def test_a_server_answers(redis: RedisServer) -> None:
    with redis.patient_client() as client:
        assert client.ping()
    assert redis.url == f"redis://127.0.0.1:{redis.port}"


def test_a_server_obeys_its_settings(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis("maxmemory 2mb", password="quiet", unixsocket=True)
    with server.patient_client() as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(2 * 1024 * 1024)}
    with driver.Redis.from_url(server.unix_url) as client:
        assert client.ping()
    with server.client(password=None) as intruder, pytest.raises(driver.AuthenticationError):
        intruder.ping()


def test_an_append_only_file_survives_a_kill(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis(appendonly=True)
    before = server.pid
    with server.patient_client() as client:
        client.set("kept", "yes")
    server.kill()
    assert not server.running
    server.start_again()
    assert server.pid != before
    with server.patient_client() as client:
        assert client.get("kept") == b"yes"


def test_without_one_a_kill_loses_everything(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis()
    with server.patient_client() as client:
        client.set("kept", "no")
    server.kill()
    with server.start_again().patient_client() as client:
        assert client.dbsize() == 0


def test_a_paused_server_says_nothing_until_it_goes_on(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis()
    with server.client(socket_timeout=0.1) as client:
        client.ping()
        server.pause()
        with pytest.raises(driver.TimeoutError):
            client.ping()
        server.resume()
    with server.patient_client() as client:
        assert client.ping()


def test_a_closed_server_leaves_no_folder_and_no_process() -> None:
    with redis_server() as server:
        folder, pid = server.folder, server.pid
        assert folder.is_dir()
    assert not folder.exists()
    assert not _there(pid)


def test_a_paused_server_can_be_stopped(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis()
    server.pause()
    server.stop()
    assert not server.running


def test_a_folder_of_the_tests_stays(tmp_path: Path) -> None:
    with redis_server(folder=tmp_path, appendonly=True) as server, server.patient_client() as client:
        client.set("kept", "yes")
    with redis_server(folder=tmp_path, appendonly=True) as server, server.patient_client() as client:
        assert client.get("kept") == b"yes"


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerFailed, match="it ended"), redis_server("no-such-setting 1"):
        pass


def test_tls_is_spoken_and_a_client_shows_its_certificate(new_tls_redis: Callable[..., RedisServer]) -> None:
    server = new_tls_redis(client_certificates=True)
    assert server.url.startswith("rediss://")
    with server.patient_client() as client:
        assert client.ping()
    with (
        server.client(ssl_certfile=None, ssl_keyfile=None) as intruder,
        pytest.raises(driver.ConnectionError),
    ):
        intruder.ping()


def test_tls_is_not_trusted_by_others(new_tls_redis: Callable[..., RedisServer]) -> None:
    server = new_tls_redis()
    with (
        server.client(ssl_ca_certs=None) as client,
        pytest.raises(driver.ConnectionError, match="certificate"),
    ):
        client.ping()


@pytest.mark.slow
def test_sentinels_make_the_replica_the_master(new_sentinels: Callable[..., Sentinels]) -> None:
    sentinels = new_sentinels(appendonly=True)
    first = sentinels.master()
    with first.patient_client() as client:
        client.set("kept", "yes")
        assert client.wait(1, 5_000) == 1
    first.kill()
    second = sentinels.wait_failover(first)
    assert second is not first
    with second.patient_client() as client:
        assert client.get("kept") == b"yes"


@pytest.mark.slow
def test_a_replica_takes_over_in_a_cluster(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(appendonly=True)
    assert len(cluster.masters()) == 3
    first = cluster.holder("kept")
    with first.patient_client() as client:
        client.set("kept", "yes")
        assert client.wait(1, 5_000) == 1
    first.kill()
    until(lambda: cluster.holder("kept") is not first, "another holder")
    cluster.wait_ready()
    with cluster.holder("kept").patient_client() as client:
        assert client.get("kept") == b"yes"
    first.start_again()
    cluster.wait_ready()
    first.until(lambda: first.info("replication")["role"] == "slave", "the old master to follow")


@pytest.mark.slow
def test_a_cluster_that_was_killed_whole_comes_back() -> None:
    with redis_cluster(masters=3, replicas=0, appendonly=True) as cluster:
        with cluster.holder("kept").patient_client() as client:
            client.set("kept", "yes")
        for server in cluster.servers:
            server.kill()
        for server in cluster.servers:
            server.start_again()
        cluster.wait_ready()
        with cluster.holder("kept").patient_client() as client:
            assert client.get("kept") == b"yes"


@pytest.mark.slow
def test_a_cluster_forms_though_its_first_handshakes_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    command, lost = clusters._command, set[tuple[int, object]]()

    def loses_the_first(node: RedisNode, *words: Any) -> Any:
        handshake = (node.port, words[-1])
        if words[1] == "MEET" and handshake not in lost:
            lost.add(handshake)
            return b"OK"
        return command(node, *words)

    monkeypatch.setattr(clusters, "_command", loses_the_first)
    with redis_cluster(masters=3, replicas=0) as cluster:
        cluster.wait_ready()
        assert len(cluster.masters()) == 3
    assert len(lost) == 6


@pytest.mark.slow
def test_the_shared_cluster_serves_every_slot_and_forgets_a_test(cluster: Cluster) -> None:
    with driver.RedisCluster(host="127.0.0.1", port=cluster.servers[0].port) as client:
        for n in range(50):
            client.set(f"penstock-forgotten:{n}", n)
        client.set("stays", 1)
        remove_keys(cluster.servers, having="penstock-forgotten")
        left = client.keys(target_nodes=driver.RedisCluster.PRIMARIES)  # other tests' too: it is shared
        assert b"stays" in left
        assert not [key for key in left if key.startswith(b"penstock-forgotten")]
        client.delete("stays")


@pytest.mark.skipif(sys.platform != "linux", reason="it is the kernel of Linux that does this")
def test_servers_end_with_the_process_that_started_them() -> None:
    server_or_skip("redis-server", "valkey-server")
    program = (
        "from tests.servers import redis_server\n"
        "server = redis_server()\n"
        "print(server.pid, server.folder, flush=True)\n"
        "input()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        end = os.pidfd_open(int(pid))
        try:
            assert not _ended(end, 0), "it runs as long as its owner"
            os.kill(owner.pid, signal.SIGKILL)
            assert _ended(end, 10)
        finally:
            os.close(end)
            shutil.rmtree(folder, ignore_errors=True)  # who is killed cannot tidy up


def test_a_server_that_nobody_closed_is_gone_after_an_orderly_end() -> None:
    server_or_skip("redis-server", "valkey-server")
    program = "from tests.servers import redis_server; s = redis_server(); print(s.pid, s.folder)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    pid, folder = done.stdout.split()
    assert not _there(int(pid))
    assert not Path(folder).exists()


def test_a_missing_server_skips_on_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-server, which is not installed"):
        server_or_skip("no-such-server")


def test_a_missing_server_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI is set"):
        server_or_skip("no-such-server")


def _there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _ended(pidfd: int, seconds: float) -> bool:
    watched = select.poll()
    watched.register(pidfd, select.POLLIN)
    return bool(watched.poll(seconds * 1000))
