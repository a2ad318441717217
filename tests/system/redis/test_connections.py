"""Broken connections to a healthy server: killed, half-open, or hanging."""

from __future__ import annotations

import time

import pytest

from penstock.stores.redis.script_loader import SCRIPTS
from tests.stores.redis.faulty_proxy import FaultyProxy
from tests.system.redis.conftest import Load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["normal", "pubsub", "both"])
def test_connections_are_killed_again_and_again(new_redis, place_at, kind):
    server = new_redis()
    place = place_at(server.url)
    worker = place.worker()
    with Load(place) as load, server.patient_client() as client:
        load.more(20)
        ends = time.monotonic() + 3.0
        while time.monotonic() < ends:
            for one in ("normal", "pubsub") if kind == "both" else (kind,):
                client.execute_command("CLIENT", "KILL", "TYPE", one, "SKIPME", "yes")
            time.sleep(0.15)
        place.works_on(time.monotonic())
        load.more(20)
        place.all_ran_once(load, worker)


def test_an_idle_worker_whose_connections_were_killed_gets_new_work(new_redis, place_at):
    server = new_redis()
    place = place_at(server.url)
    worker = place.worker()
    place.completed([place.tasks.quick.enqueue(0)])
    with server.patient_client() as client:
        for _ in range(3):
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            time.sleep(1.0)
        began = time.monotonic()
        place.tasks.quick.enqueue(1)
        place.works_on(began)
    place.all_ran_once(Load(place), worker)


@pytest.mark.parametrize("supervised", [True, False])
def test_redis_hangs_for_a_while(new_redis, place_at, supervised):
    """SIGSTOP: connections stay, answers do not come, for more than a deadline and less than a lease."""
    server = new_redis()
    place = place_at(server.url)
    worker = place.worker() if supervised else place.lone()
    held = place.hold(3, "held", "held_thread")
    with Load(place) as load:
        load.more(50)
        server.pause()
        try:
            place.let_go(6)
            time.sleep(8.0)
        finally:
            server.resume()
        place.works_on(time.monotonic())
        load.more(50)
        jobs = place.completed(held)
        assert {(job.attempt, job.lost) for job in jobs} == {(1, 0)}
        place.all_ran_once(load, worker)


def test_connections_die_without_notice(new_redis, place_at):
    """Our half of each is open, the other is gone: no FIN, no RST, no answer. New ones work later."""
    server = new_redis()
    with FaultyProxy(server.port) as proxy:
        place = place_at(f"redis://127.0.0.1:{proxy.port}", server.url)
        worker = place.worker()
        held = place.hold(3, "held", "held_thread")
        with Load(place) as load:
            load.more(50)
            proxy.forget()
            proxy.dead = True
            place.let_go(6)
            time.sleep(6.0)
            proxy.dead = False
            place.works_on(time.monotonic())
            load.more(50)
            jobs = place.completed(held)
            assert {(job.attempt, job.lost) for job in jobs} == {(1, 0)}
            place.all_ran_once(load, worker)


def test_an_idle_worker_detects_dead_connections(new_redis, place_at):
    """It is told of nothing, and looks for itself: after 5 s at the latest, then half its deadline of 5 s."""
    server = new_redis()
    with FaultyProxy(server.port) as proxy:
        place = place_at(f"redis://127.0.0.1:{proxy.port}", server.url)
        worker = place.worker()
        place.completed([place.tasks.quick.enqueue(0)])
        proxy.forget()
        began = time.monotonic()
        place.tasks.quick.enqueue(1)
        place.works_on(began)
        place.all_ran_once(Load(place), worker)


@pytest.mark.parametrize("verb", ["fetch", "settle", "extend", "promote"])
def test_a_reply_to_a_worker_is_lost(new_redis, place_at, verb):
    """What it asked was done, and it does not know: asked again, nothing is done twice."""
    server = new_redis()
    with FaultyProxy(server.port) as proxy:
        place = place_at(f"redis://127.0.0.1:{proxy.port}", server.url)
        worker = place.worker(PENSTOCK_LEASE="3s")
        held = place.hold(3, "held", "held_thread")
        with (
            server.patient_client() as client
        ):  # else it is the reply that it does not know the script that is lost
            client.script_load(SCRIPTS[verb].text)
        proxy.lose_reply_to = SCRIPTS[verb].sha.encode()
        handles = [place.tasks.quick.using(delay=0.2).enqueue(n) for n in range(5)]
        place.until(lambda: not proxy.lose_reply_to, "a reply is lost")
        place.open("go")
        jobs = place.completed([*held, *handles])
        assert {(job.attempt, job.lost) for job in jobs} == {(1, 0)}
        place.all_ran_once(Load(place), worker)
        assert "late outcome" not in worker.log
