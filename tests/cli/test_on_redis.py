"""All commands on a Redis server and on a Cluster: they show and change the actual data."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import State
from penstock.stores.connect import connect
from penstock.stores.contract import Store, WorkerInfo
from tests.cli.conftest import TASKS, Cli, announce, fetch, kill, put
from tests.servers import Cluster, RedisServer, remove_keys

NAMESPACE = f"cli-{secrets.token_hex(4)}"


@pytest.fixture(params=["redis", "cluster"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, here: Path) -> Iterator[str]:
    """A server that other tests use too; the namespace is ours."""
    server: RedisServer | Cluster = request.getfixturevalue(request.param)
    monkeypatch.setenv("PENSTOCK_NAMESPACE", NAMESPACE)
    yield server.url
    remove_keys(server.servers if isinstance(server, Cluster) else [server], NAMESPACE)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = connect(url, namespace=NAMESPACE)
    yield made
    made.close()


@pytest.fixture
def penstock(url: str) -> Cli:
    return Cli(url)


def test_queues_and_their_counts_are_shown(penstock: Cli, store: Store) -> None:
    assert penstock.json("queues", "list") == {"queues": []}
    put(store, "a", "b", queue="mail")
    put(store, "c", queue="mail", delay=60_000)
    put(store, "d", queue="reports")
    kill(store, queue="mail")
    mail, reports = penstock.json("queues", "list")["queues"]
    assert (mail["name"], mail["counts"]) == ("mail", {"scheduled": 1, "available": 1, "dead": 1})
    assert (reports["name"], reports["counts"]) == ("reports", {"available": 1})
    assert penstock.ok("queues", "list").splitlines()[1].split()[:5] == ["mail", "1", "1", "-", "1"]


def test_a_queue_is_paused_closed_purged_and_forgotten(penstock: Cli, store: Store) -> None:
    put(store, "a", "b", queue="mail")
    penstock.ok("queues", "pause", "mail")
    assert fetch(store, queue="mail") == []
    penstock.ok("queues", "resume", "mail")
    penstock.ok("queues", "close", "mail")
    (queue,) = penstock.json("queues", "list")["queues"]
    assert (queue["paused"], queue["closed"]) == (False, True)
    assert penstock.ok("queues", "purge", "mail", "--yes") == "mail: 2 jobs removed\n"
    penstock.ok("queues", "delete", "mail")
    assert penstock.json("queues", "list") == {"queues": []}


def test_jobs_are_listed_newest_first_over_all_queues(penstock: Cli, store: Store) -> None:
    for number, queue in enumerate(["q1", "q2", "q1", "q3"]):
        put(store, f"job-{number}", queue=queue)
    page = penstock.json("jobs", "list", "--limit", "3")
    assert [job["id"] for job in page["jobs"]] == ["job-3", "job-2", "job-1"]
    rest = penstock.json("jobs", "list", "--after", page["next"])
    assert [job["id"] for job in rest["jobs"]] == ["job-0"]
    assert rest["next"] is None
    assert [job["id"] for job in penstock.json("jobs", "list", "--queue", "q1")["jobs"]] == ["job-2", "job-0"]


def test_a_job_is_found_by_its_id_alone_and_shown_with_its_error(penstock: Cli, store: Store) -> None:
    put(store, "other", queue="q1")
    put(store, "a", queue="q2")
    kill(store, queue="q2")
    (job,) = penstock.json("jobs", "show", "a")["jobs"]
    assert (job["queue"], job["state"]) == ("q2", "dead")
    shown = penstock.ok("jobs", "show", "a")
    assert "ValueError: boom" in shown


def test_jobs_are_called_off_run_again_and_deleted(penstock: Cli, store: Store) -> None:
    put(store, "a", queue="mail", retention=60_000)
    assert "cancelled" in penstock.ok("jobs", "cancel", "a")
    assert "retried (was cancelled)" in penstock.ok("jobs", "retry", "a")
    assert [job.id for job in fetch(store, queue="mail")] == ["a"]
    assert penstock("jobs", "delete", "a").exit_code == 1  # it runs
    put(store, "b", "c", queue="mail")
    penstock.ok("jobs", "delete", "--all", "--queue", "mail", "--yes")
    (queue,) = penstock.json("queues", "list")["queues"]
    assert queue["counts"] == {"running": 1}


def test_workers_and_what_they_run_are_shown(penstock: Cli, store: Store) -> None:
    announce(store, WorkerInfo("w1", "box", 7, 1_700_000_000_000, ("default",), ("t",), 20, running=1))
    put(store, "a", "b")
    fetch(store, worker="w1")
    (worker,) = penstock.json("workers")["workers"]
    assert (worker["id"], worker["host"], worker["concurrency"]) == ("w1", "box", 20)
    assert [job["id"] for job in worker["jobs"]] == ["a"]
    asyncio.run(store.retire("w1"))
    assert penstock.json("workers") == {"workers": []}


def test_stats_count_what_was_settled(penstock: Cli, store: Store) -> None:
    put(store, "a", "b", "c")
    kill(store, 2)
    totals = penstock.json("stats")["totals"]
    assert totals == {"enqueued": 3, "processed": 2, "failed": 2}


def test_the_doctor_says_what_is_wrong_and_how_many_jobs_there_are(penstock: Cli, store: Store) -> None:
    put(store, "a")
    findings = penstock.json("doctor", code=1)["findings"]
    said = {finding["what"]: (finding["how"], finding["says"]) for finding in findings}
    assert said["server"][0] == "ok"
    assert said["persistence"][0] == "bad"  # those of the tests write nothing down
    assert said["store"][1].endswith("answers: 1 queue, 1 job")


Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.system
def test_a_job_goes_from_one_shell_to_the_worker_of_another(
    url: str, shell: Shell, store: Store, here: Path
) -> None:
    (here / "tasks.py").write_text(TASKS.replace("sqlite:///jobs.db", url))

    def run(*words: str) -> Any:
        ran = shell(*words, env={"PENSTOCK_URL": url})
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return json.loads(ran.stdout) if "--json" in words else ran.stdout

    run("enqueue", "tasks:app", "tasks.greet", '{"name": "ho", "times": 3}')
    run("enqueue", "tasks:app", "tasks.send", '{"to": "me"}')
    run("worker", "tasks:app", "--burst", "--processes", "2")
    assert run("queues", "list", "--json")["queues"][0]["counts"] == {"completed": 1}
    (job,) = asyncio.run(store.list_jobs(state=State.COMPLETED)).jobs
    assert job.result == b'"hohoho"'
    totals = run("stats", "--json")["totals"]
    assert totals == {"enqueued": 2, "processed": 2, "failed": 0}
    assert run("workers", "--json") == {"workers": []}  # they said good-bye


@pytest.mark.system
def test_the_demo_runs_on_a_redis_in_a_namespace_of_its_own(redis: RedisServer, here: Path) -> None:
    library = here / "library"
    library.mkdir()
    for number in range(60):
        (library / f"m{number}.py").write_text(f"def f():\n    return {number}\n")
    command = [
        sys.executable,
        "-m",
        "penstock",
        "demo",
        "--path",
        library,
        "--no-kill",
        "--no-keep",
        "--json",
    ]
    more = ["--url", redis.url, "--workdir", here / "run"]
    ran = subprocess.run(
        list(map(str, [*command, *more])), cwd=here, capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.loads(ran.stdout)
    with redis.patient_client() as client:
        left = [key for key in client.keys(f"*{said['namespace']}*") if client.ttl(key) < 0]
    assert left == []
    assert said["good"] is True
    assert said["namespace"].startswith("demo-")
    assert said["jobs"]["completed"] == said["jobs"]["enqueued"] == 2 * 60 + 1
    assert said["found"] == said["direct"]
    assert said["look"] == f"penstock jobs list --url {redis.url} --namespace {said['namespace']}"


def test_no_command_shows_a_password(new_redis: Callable[..., RedisServer], here: Path) -> None:
    server = new_redis(password="s3cret")
    penstock = Cli(server.url)
    assert "s3cret" not in penstock.ok("queues", "list", "--json")
    doctor = penstock("doctor")
    assert "answers: 0 queues" in doctor.output
    assert "s3cret" not in doctor.output
    wrong = Cli(server.url.replace("s3cret", "wr0ng"))("queues", "list")
    assert wrong.exit_code != 0
    assert "does not accept this user name and password" in wrong.stderr
    assert "wr0ng" not in wrong.output
    server.kill()
    gone = Cli(f"{server.url}?timeout=200ms")("queues", "list")
    assert gone.exit_code != 0
    assert "is it running?" in gone.stderr
    assert "s3cret" not in gone.output


def test_a_cluster_behind_a_plain_url_is_met_with_the_right_one(cluster: Cluster, here: Path) -> None:
    plain = cluster.first_masters[0].url
    said = Cli(plain)("queues", "list").stderr
    assert f"is a node of a cluster: use {plain.replace('redis://', 'redis+cluster://')}" in said


def test_tokens_are_created_and_revoked_and_acts_are_in_the_audit_log(penstock: Cli, store: Store) -> None:
    made = penstock.json("tokens", "create", "deploy", "--allow", "produce:mail.*", "--expires", "90d")
    (listed,) = penstock.json("tokens", "list")["tokens"]
    assert listed == {name: value for name, value in made.items() if name != "token"}
    assert not any(made["token"].encode() in one.body for one in documents(store))
    penstock.ok("tokens", "revoke", "deploy", "--yes")
    assert penstock.json("tokens", "list") == {"tokens": []}
    acts = [entry["act"] for entry in penstock.json("audit")["entries"]]
    assert acts == ["tokens.revoke", "tokens.create"]


def documents(store: Store) -> list[Any]:
    async def read() -> list[Any]:
        return (await store.documents("tokens")).documents

    return asyncio.run(read())
