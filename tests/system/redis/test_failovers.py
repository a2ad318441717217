"""A master dies and a replica takes over: no job that both had acknowledged is lost.

Enqueues wait for a replica (`?wait_replicas=1`). Outcomes do not, so a failover may lose a fetch or an end,
and the job runs again. The tests count these reruns.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

from penstock.core.job import State
from penstock.errors import EnqueueManyError, EnqueueUnknown, NotReplicated, StoreUnavailable
from tests.system.redis.conftest import Load, RedisPlace

pytestmark = pytest.mark.slow

REFUSALS = (EnqueueUnknown, NotReplicated, StoreUnavailable, EnqueueManyError)


def nothing_acknowledged_is_lost(place: RedisPlace, load: Load, worker) -> None:
    load.stop()
    assert all(isinstance(error, REFUSALS) for error in load.refused)
    place.completed(load.handles)
    place.done(worker)
    verdict = place.verdict()
    owed = {handle.id for handle in load.handles}
    runs = place.runs()
    assert owed <= set(runs)
    again = Counter({id: n - 1 for id, n in runs.items() if n > 1})
    print(f"{len(owed)} acknowledged, {again.total()} second runs of {len(again)} jobs, by {verdict.reruns}")
    # what is found must be about jobs that the failover has set back, and is no loss
    for finding in verdict.findings:
        if finding.promise == "lost":
            assert finding.id not in owed, finding
        elif finding.id:
            assert finding.promise in ("one end", "attempts", "fencing", "cause"), finding
        else:
            assert finding.promise == "counters", finding
    assert again.total() <= 40 + len(runs) // 20, "more than was in hand when the master died"


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_sentinel_failover_under_load(new_sentinels, place_at, how):
    """The master that only hung comes back and holds itself for the master still, for a moment."""
    fleet = new_sentinels()
    place = place_at(fleet.url, fleet.url + "?wait_replicas=1&timeout=2s")
    worker = place.worker()
    with Load(place, producers=4) as load:
        load.more(100)
        old = fleet.master()
        place.ledger.fault("store", 0, "failover")
        getattr(old, how)()
        new = fleet.wait_failover(old)
        place.works_on(time.monotonic())
        if how == "pause":
            old.resume()
            time.sleep(1.0)
        else:
            old.start_again()
        with (
            old.patient_client() as client
        ):  # sooner than sentinels do; without it nothing is acknowledged any more
            client.replicaof("127.0.0.1", new.port)
        load.more(50)
        nothing_acknowledged_is_lost(place, load, worker)


def test_a_cluster_failover_under_load(new_cluster, place_at):
    cluster = new_cluster()
    place = place_at(cluster.url, cluster.url + "?wait_replicas=1&timeout=2s")
    worker = place.worker()
    place.completed([place.tasks.quick.enqueue(0)])
    old = cluster.holder("penstock:4:{/default}")
    with Load(place, producers=4) as load:
        load.more(100)
        place.ledger.fault("store", 0, "failover")
        old.kill()
        cluster.wait_ready()
        place.works_on(time.monotonic())
        old.start_again()
        load.more(50)
        nothing_acknowledged_is_lost(place, load, worker)
    assert State.RUNNING not in place.counts()
