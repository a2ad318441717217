"""Redis is away for a while (stopped, killed, loading, not started): no job is lost or completed twice."""

from __future__ import annotations

import contextlib
import time

import pytest
from redis.exceptions import BusyLoadingError, ConnectionError

from tests.servers import RedisServer
from tests.system.redis.conftest import Load, cpu_seconds, warnings

#: Whatever was acknowledged is on the disk.
SAFE = ("appendfsync always",)
#: It reads slowly (µs per command), and meanwhile tells those who ask that it is loading.
SLOW_TO_LOAD = ("key-load-delay 100", "loading-process-events-interval-bytes 1024")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("supervised", [True, False])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_redis_ends_under_load_and_comes_back(new_redis, place_at, how, supervised):
    """What ends while it is away is settled afterwards, and does not run again."""
    server = new_redis(*SAFE, appendonly=True)
    place = place_at(server.url)
    worker = place.worker() if supervised else place.lone()
    held = place.hold(3, "held", "held_thread")
    with Load(place) as load:
        load.more(50)
        getattr(server, how)()
        place.let_go(6)
        time.sleep(3.0)
        server.start_again()
        place.works_on(time.monotonic())
        load.more(50)
        jobs = place.completed(held)
        assert {(job.attempt, job.lost) for job in jobs} == {(1, 0)}
        place.all_ran_once(load, worker)


def test_a_long_outage_gives_few_log_lines_and_costs_little(new_redis, place_at):
    """Longer than every lease: nobody may take what the worker had in hand."""
    server = new_redis(*SAFE, appendonly=True)
    place = place_at(server.url)
    worker = place.worker(PENSTOCK_LEASE="6s", PENSTOCK_HEARTBEAT="2s")
    held = place.hold(1, "held", "held_thread", "held_process")
    before, used = worker.log, cpu_seconds(worker)
    began = time.monotonic()
    server.stop()
    place.let_go(3)
    time.sleep(10.0)
    lasted = time.monotonic() - began
    waiting = cpu_seconds(worker) - used
    said = warnings(worker, before)
    server.start_again()
    back = time.monotonic()
    place.tasks.quick.enqueue(1)
    place.works_on(back)
    jobs = place.completed(held)
    assert {(job.attempt, job.lost) for job in jobs} == {(1, 0)}
    place.all_ran_once(Load(place), worker)
    # the worker and its supervisor have a voice each
    assert 1 <= len(said) <= 2 * (lasted / 3 + 1), said
    assert any("more like it in between" in line for line in said)
    assert len(worker.log[len(before) :].splitlines()) < 30
    assert waiting < 0.1 * lasted, "waiting took more than a tenth of a core"


@pytest.mark.parametrize("how", ["stop", "pause"])
def test_after_an_outage_of_some_leases_nobody_takes_what_another_has_in_hand(new_redis, place_at, how):
    """All were cut off alike: nobody could beat, and none is dead."""
    server = new_redis(*SAFE, appendonly=True)
    place = place_at(server.url)
    # who would take them waits for 1.5 heartbeats first: no machine is so busy that none is sent meanwhile
    short = {"PENSTOCK_LEASE": "8s", "PENSTOCK_HEARTBEAT": "2s"}
    supervised, lone = place.worker(**short), place.lone(**short)
    held = place.hold(4, "held", "held_thread")
    getattr(server, how)()
    time.sleep(10.0)
    if how == "stop":
        server.start_again()
    else:
        server.resume()
    back = time.monotonic()
    place.tasks.quick.enqueue(1)
    place.works_on(back)
    time.sleep(9.0)  # a lease, and who would take them has looked
    place.let_go(8)
    jobs = place.completed(held)
    assert {(job.attempt, job.lost) for job in jobs} == {(1, 0)}
    place.all_ran_once(Load(place), supervised, lone)


def test_a_worker_that_was_started_before_redis_waits_for_it(new_redis, place_at):
    server = new_redis(*SAFE, appendonly=True)
    place = place_at(server.url)
    handles = place.app.enqueue_many([place.tasks.quick.job(n) for n in range(20)])
    server.stop()
    supervised, lone = place.worker("--processes", "2", ready=0), place.lone(ready=False)
    place.until(lambda: len(warnings(supervised)) > 1 and warnings(lone), "they find no store")
    time.sleep(4.0)
    assert not supervised.ended
    assert not lone.ended
    since = time.monotonic()  # before: they may have done everything when the start is known
    server.start_again()
    place.works_on(since)
    place.completed(handles)
    place.until(lambda: supervised.log.count(" serves ") == 2 and " serves " in lone.log, "all serve")
    place.all_ran_once(Load(place), supervised, lone)


def test_a_worker_that_waits_for_redis_can_be_stopped(new_redis, place_at):
    server = new_redis()
    place = place_at(server.url)
    server.stop()
    worker = place.worker(ready=0)
    place.until(lambda: warnings(worker), "it finds no store")
    worker.signal(15)
    assert worker.wait(60) == 0


def test_redis_takes_its_time_to_load(new_redis, place_at):
    """It answers LOADING to everything, at first."""
    server = new_redis(*SLOW_TO_LOAD, *SAFE, appendonly=True)
    place = place_at(server.url)
    worker = place.worker()
    held = place.hold(3)
    with server.patient_client() as client, client.pipeline(transaction=False) as pipe:
        for n in range(30_000):
            pipe.set(f"ballast:{n}", "x")
        pipe.execute()
    with Load(place) as load:
        load.more(20)
        server.stop()
        server.launch()
        place.until(lambda: says_loading(server), "it loads")
        place.let_go(3)
        assert says_loading(server), "it was ready too soon: the test shows nothing"
        server.wait_ready()
        place.works_on(time.monotonic())
        place.completed(held)
        place.all_ran_once(load, worker)


def says_loading(server: RedisServer) -> bool:
    with contextlib.closing(server.client()) as client:
        try:
            client.get("ballast:0")
        except BusyLoadingError:
            return True
        except ConnectionError:
            return False
    return False
