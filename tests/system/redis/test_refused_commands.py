"""Redis answers, but refuses commands: missing scripts, no memory, read only."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from penstock.client.handle import Handle
from penstock.core.job import State
from penstock.errors import StoreFull, StoreUnavailable
from tests.system.redis.conftest import Load, RedisPlace

pytestmark = pytest.mark.slow


def test_scripts_that_are_forgotten_all_the_time_are_given_again(new_redis, place_at):
    server = new_redis()
    place = place_at(server.url)
    worker = place.worker()
    over = threading.Event()

    def forget() -> None:
        with server.patient_client() as client:
            while not over.wait(0.05):
                client.script_flush()

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        with Load(place) as load:
            time.sleep(5.0)
            load.stop()
            assert not load.refused
            place.completed(load.handles)
    finally:
        over.set()
        thread.join()
    place.all_ran_once(load, worker)


def test_a_redis_without_memory_refuses_and_keeps_what_it_has(new_redis, place_at):
    """Nothing is half-written; what runs is settled, at once or when there is memory again."""
    server = new_redis("maxmemory-policy noeviction")
    place = place_at(server.url)
    worker = place.worker()
    tasks = place.tasks
    held = place.hold(4, "held", "held_thread")
    later = place.app.enqueue_many([tasks.nap.using(delay="2s").job(0.01) for _ in range(50)])
    with server.patient_client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 1_000_000)
        later += enqueue_until_full(place)
        place.let_go(8)
        time.sleep(4.0)
        assert not worker.ended
        client.config_set("maxmemory", "1mb")  # what was done since has made some room
        with pytest.raises(StoreFull, match="maxmemory; nothing of this call was stored"):
            tasks.quick.enqueue(1)
        client.config_set("maxmemory", "0")
    raised = time.monotonic()
    jobs = place.completed([*held, *later])
    print(f"all settled {time.monotonic() - raised:.1f} s after there was memory again")
    assert {(job.attempt, job.lost) for job in jobs} == {(1, 0)}
    with Load(place) as load:
        load.more(50)
        load.stop()
        assert not load.refused
        place.all_ran_once(load, worker)
    assert place.counts() == {State.COMPLETED: len(load.handles) + len(held) + len(later)}


def enqueue_until_full(place: RedisPlace) -> list[Handle[Any]]:
    """Jobs for later, in calls of 100, until one is refused: it must have left nothing behind."""
    task = place.tasks.quick.using(delay="4s")
    before = place.counts().get(State.SCHEDULED, 0)
    stored: list[Handle[Any]] = []

    def enqueue_many() -> None:
        while len(stored) < 100_000:
            stored.extend(place.app.enqueue_many([task.job(n) for n in range(100)]))

    with pytest.raises(StoreFull, match="nothing of this call was stored"):
        enqueue_many()
    assert place.counts()[State.SCHEDULED] == before + len(stored)
    return stored


def test_a_master_that_is_a_replica_for_a_while(new_redis, place_at):
    """READONLY: as after a failover that was taken back."""
    server, other = new_redis(), new_redis()
    place = place_at(server.url)
    worker = place.worker()
    held = place.hold(3, "held", "held_thread")
    with Load(place) as load:
        load.more(50)
        with server.patient_client() as client:
            # of a master that takes no replica: it keeps its data, and takes no writes
            with other.patient_client() as master:
                master.config_set("requirepass", "secret")
            client.replicaof("127.0.0.1", other.port)
            place.let_go(6)
            time.sleep(2.0)
            client.replicaof("NO", "ONE")
        place.works_on(time.monotonic())
        load.more(50)
        jobs = place.completed(held)
        assert {(job.attempt, job.lost) for job in jobs} == {(1, 0)}
        place.all_ran_once(load, worker)


def test_a_producer_gets_an_error_if_its_server_takes_no_writes(new_redis, place_at):
    server, other = new_redis(), new_redis(password="secret")
    place = place_at(server.url + "?timeout=1s")
    with server.patient_client() as client:
        client.replicaof("127.0.0.1", other.port)
    with pytest.raises(StoreUnavailable, match="takes no writes"):
        place.tasks.quick.enqueue(1)
