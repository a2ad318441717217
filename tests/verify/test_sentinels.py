"""Private sentinels: faults are real, and at the end of each call the sentinels agree on a master."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import redis as driver

from penstock import App
from penstock.verify.servers.servers import PrivateSentinels
from tests.servers import redis_program, until

pytestmark = [pytest.mark.slow, pytest.mark.server]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSentinels]:
    redis_program()
    with PrivateSentinels(tmp_path_factory.mktemp("sentinels"), down_after=1_000) as watched:
        yield watched


@pytest.fixture
def jobs(watched: PrivateSentinels) -> Iterator[Callable[[], set[str]]]:
    """The states of jobs, stored before the test and by each call, each of them on the replica too."""
    with contextlib.closing(App(watched.url)) as app:
        task = app.task(_nothing)
        handles = [task.enqueue()]

        def states() -> set[str]:
            handles.append(task.enqueue())
            return {job.status() for job in handles}

        yield states


def _nothing() -> None:
    pass


def test_a_replica_takes_over_and_the_master_comes_back_as_its_replica(
    watched: PrivateSentinels, jobs: Callable[[], set[str]]
) -> None:
    first = watched.master()
    before = first.pid
    assert 0 < watched.failover() < 60
    while watched.master() is first:  # a busy machine: the sentinels have failed over once more
        watched.failover()
    assert first.pid != before
    assert first.info("replication")["role"] == "slave"
    assert jobs() == {"available"}


def test_a_failover_there_and_back_is_seen(watched: PrivateSentinels, jobs: Callable[[], set[str]]) -> None:
    first, before = watched.master(), watched.masters_and_epochs()
    watched.failover()
    watched.failover()
    while watched.master() is not first:  # a busy machine: the sentinels have failed over once more
        watched.failover()
    assert watched.masters_and_epochs() != before
    assert jobs() == {"available"}


def test_a_master_that_is_stopped_for_long_is_replaced_and_forgets_what_it_then_took(
    watched: PrivateSentinels, jobs: Callable[[], set[str]]
) -> None:
    first = watched.master()
    watched.stop_for(0.2)
    assert watched.master() is first
    with contextlib.closing(first.client(socket_timeout=30)) as client:
        client.ping()
        late = threading.Timer(0.5, lambda: client.set("late", 1))  # asked of a master that is stopped
        late.start()
        watched.stop_for(6)
        late.join()
    assert watched.master() is not first
    with first.patient_client() as client:
        assert client.get("late") is None
    assert jobs() == {"available"}


def test_all_of_them_killed_come_back_with_everything(
    watched: PrivateSentinels, jobs: Callable[[], set[str]]
) -> None:
    assert 0 < watched.restart() < 60
    assert jobs() == {"available"}


@pytest.mark.skipif(sys.platform != "linux", reason="it takes prlimit")
def test_a_full_disk_of_the_master_is_got_over(
    watched: PrivateSentinels, jobs: Callable[[], set[str]]
) -> None:
    said: list[str] = []
    fault = threading.Thread(target=lambda: said.append(watched.fill_disk(2.0)))
    fault.start()
    until(lambda: not _takes(watched), "writes are refused")
    fault.join(60)
    assert said == ["the server refused writes (MISCONF)"]
    assert jobs() == {"available"}


def _takes(watched: PrivateSentinels) -> bool:
    with watched.master().patient_client() as client, contextlib.suppress(driver.ResponseError):
        return bool(client.set("try", 1))
    return False


def test_scripts_are_forgotten_everywhere(watched: PrivateSentinels, jobs: Callable[[], set[str]]) -> None:
    with watched.master().patient_client() as client:
        sha = client.script_load("return 1")
        watched.flush_scripts()
        assert client.script_exists(sha) == [False]
    assert jobs() == {"available"}
