"""The command line explains why a job waits."""

from __future__ import annotations

from penstock.core.limits import Rate
from penstock.core.relations import Partition, Tenant
from tests.cli.conftest import fetch, put


def test_a_waiting_job_says_for_whom_it_waits(penstock, store):
    put(store, "a", "b", "c", partition=Partition("d1", ordered=True), tenant=Tenant("acme"))
    fetch(store)
    shown = penstock.ok("jobs", "show", "c")
    assert "partition      d1 (in order, 2 waiting)" in shown
    assert "queued behind  1 waiting job" in shown
    assert "waits for      a running" in shown
    assert "tenant         acme" in shown
    partition = penstock.json("jobs", "show", "b")["jobs"][0]["partition"]
    assert (partition["key"], partition["before"], partition["admitted"]) == ("d1", 0, ["a running"])


def test_a_job_that_waits_for_its_rate_says_until_when(penstock, store):
    put(store, "a", "b", partition=Partition("k", most=9, rate=Rate(1, 3_600_000)))
    fetch(store)
    shown = penstock.ok("jobs", "show", "b")
    assert "queued behind   0 waiting jobs" in shown
    assert "earliest start  20" in shown


def test_waiting_jobs_are_listed_and_counted(penstock, store):
    put(store, "a", "b", "c", partition=Partition("k"))
    listed = penstock.json("jobs", "list", "--state", "waiting")["jobs"]
    assert [job["id"] for job in listed] == ["c", "b"]
    (queue,) = penstock.json("queues", "list")["queues"]
    assert queue["counts"] == {"available": 1, "waiting": 2}


def test_why_names_what_keeps_a_job(penstock, store):
    put(store, "a", "b")
    penstock.ok("queues", "pause", "default")
    (view,) = penstock.json("jobs", "why", "b")["jobs"]
    paused, no_worker, ahead = view["reasons"]
    assert paused["kind"] == "paused"
    assert paused["says"].startswith("the queue was paused by cli:")
    assert [no_worker["kind"], ahead["says"]] == ["no worker", "1 job is ahead of it"]
    shown = penstock.ok("jobs", "why", "default/b").splitlines()
    assert shown[0].startswith("default/b is available since 20")
    assert shown[1:] == [f"  {one['says']}" for one in view["reasons"]]
    assert penstock("jobs", "why", "nobody").exit_code == 3
