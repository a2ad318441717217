"""Workers and producers on a Cluster without full coverage that has lost a master for good."""

from __future__ import annotations

import itertools
import signal
import time

import pytest

from penstock.errors import PenstockError
from tests.system.redis.conftest import warnings


@pytest.mark.parametrize("whose", ["queue", "namespace"])
def test_the_queues_of_the_other_masters_work_on(new_cluster, place_at, whose):
    cluster = new_cluster("cluster-require-full-coverage no", replicas=0, appendonly=True)
    place = place_at(cluster.url)
    home = cluster.holder("penstock:4:{/}")
    other = next(q for q in map("q{}".format, itertools.count()) if _at(cluster, q) is not home)
    same = next(q for q in map("q{}".format, itertools.count()) if _at(cluster, q) is home)
    lost, well = (same, other) if whose == "namespace" else (other, same)
    worker = place.worker("--queues", f"{lost},{well}", "--concurrency", "20")
    held = [place.tasks.held.using(queue=queue).enqueue("go") for queue in (lost, well)]
    waiting = place.tasks.quick.using(queue=lost, delay=3).enqueue(1)
    place.until_started(2)
    _at(cluster, lost).kill()
    began = time.monotonic()
    before = worker.log
    place.open("go")  # both end now: one of the outcomes can be stored
    handles = []
    while time.monotonic() - began < 5:
        handles.append(place.tasks.quick.using(queue=well).enqueue(1))
        place.completed(handles[-1:])
    place.completed([held[1]])
    with pytest.raises(PenstockError):
        place.tasks.quick.using(queue=lost).enqueue(1)
    assert not worker.ended
    away = [line for line in warnings(worker, before) if "is away" in line]
    assert 1 <= len(away) <= 2, away
    second = place.worker("--queues", f"{lost},{well}")  # it starts without the lost part
    (killed,) = [server for server in cluster.servers if not server.running]
    killed.start_again()
    cluster.wait_ready()
    place.completed([held[0], waiting])
    for one in (worker, second):
        one.signal(signal.SIGTERM)
    assert [one.wait() for one in (worker, second)] == [0, 0]
    assert place.runs()[waiting.id] == 1
    assert "Traceback" not in worker.log + second.log


def _at(cluster, queue):
    return cluster.holder(f"penstock:4:{{/{queue}}}")
