"""A lost shard of a Cluster: the run checks that the other queues make progress."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.verify.conductor import conduct
from penstock.verify.environment import PREFIX, Capabilities, Environment, Proxies
from penstock.verify.faults.plan import plan
from penstock.verify.report.report import Report
from penstock.verify.run_folder import QUEUES, RunFolder, RunRequest, settings_of_run
from penstock.verify.servers.clusters import PrivateCluster
from tests.servers import redis_program

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.server, pytest.mark.timeout(400)]

#: The first thing that each process of a run imports: a lost part takes all queues along.
_ALL_AWAY = """
from penstock.stores.redis.unusable_queues import Outages

Outages.why = lambda self, name: next(iter(self._away.values()), None)
"""


def test_a_run_in_which_a_shard_is_lost_keeps_all_promises(tmp_path: Path) -> None:
    redis_program()
    command = [sys.executable, "-m", "penstock", "verify", "--private", "redis-cluster", "--json"]
    command += ["--faults", "lost-shard", "--minutes", "0.2", "--seed", "5", "--dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=390)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, (done.stderr, report["reasons"])
    assert report["injected"]["lost-shard"] >= 1
    numbers = [report[name] for name in ("lost", "unfinished", "forgiven", "unexplained")]
    assert numbers == [0, 0, 0, 0]
    for fault in report["faults"]:  # each master has queues, and none has all
        assert 1 <= len(fault["note"].split(", ")) < len(QUEUES)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateCluster]:
    redis_program()
    with PrivateCluster(tmp_path / "cluster", proxied=True, full_coverage=request.param) as cluster:
        yield cluster


@pytest.mark.parametrize("cluster", [False], indirect=True)
def test_workers_that_stop_for_a_queue_of_another_master_are_found(
    cluster: PrivateCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_ALL_AWAY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _is_found(cluster, tmp_path)


@pytest.mark.parametrize("cluster", [True], indirect=True)
def test_a_cluster_that_refuses_all_when_it_lacks_a_shard_is_found(
    cluster: PrivateCluster, tmp_path: Path
) -> None:
    _is_found(cluster, tmp_path)


def _is_found(cluster: PrivateCluster, folder: Path) -> None:
    """A run finds it; those in which the machine stalls the workers are not judged."""
    for n in range(5):
        report = _run(cluster, folder / f"run-{n}")
        if report.verdict == "broken":
            break
    assert report.verdict == "broken"
    found = [finding for finding in report.findings if finding.promise == "lost shard"]
    assert found, report.reasons


def _run(cluster: PrivateCluster, folder: Path) -> Report:
    """With another shard lost first than that of the queue which most of its jobs are in."""
    request = RunRequest(12.0, ["lost-shard"], seed=5)
    environment = Environment(
        Capabilities("redis-cluster", private=True, proxy=True),
        cluster.url,
        server=cluster,
        proxies=Proxies(cluster.proxies),
    )
    lost = int(next(plan(request.seed, "store", request.asked)).random_values[0] * cluster.shards)
    shards_by_queue: dict[str, int] = {"main": lost}
    while shards_by_queue["main"] == lost or lost not in shards_by_queue.values():
        namespace = f"{PREFIX}{secrets.token_hex(4)}"
        shards_by_queue = cluster.shards_by_queue(namespace, QUEUES)
    place = RunFolder(folder, environment.url, namespace, settings=settings_of_run())
    return conduct(place, environment, request, lambda progress: None)
