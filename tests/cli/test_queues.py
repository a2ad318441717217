"""`penstock queues`, `workers` and `stats` show what is stored."""

from __future__ import annotations

import pytest

from penstock.core.job import NewJob, Ref, State
from penstock.core.limits import limits_by_code
from penstock.core.relations import Partition
from penstock.stores.contract import EnqueueStatus, QueueInfo, WorkerInfo
from penstock.stores.memory import MemoryStore
from penstock.stores.sqlite import SqliteStore
from tests.cli.conftest import announce, fetch, kill, put


def test_queues_are_listed_with_their_counts_and_switches(penstock, store):
    put(store, "a", "b", queue="mail")
    put(store, "c", queue="mail", delay=60_000)
    kill(store, queue="mail")
    penstock.ok("queues", "pause", "mail")
    (queue,) = penstock.json("queues", "list")["queues"]
    assert queue["name"] == "mail"
    assert queue["counts"] == {"scheduled": 1, "available": 1, "dead": 1}
    assert (queue["paused"], queue["closed"]) == (True, False)
    heads, line = penstock.ok("queues", "list").splitlines()
    assert heads.startswith("QUEUE  SCHEDULED  AVAILABLE")
    assert "RETRYABLE" not in heads
    assert line.split()[:5] == ["mail", "1", "1", "-", "1"]
    assert line.split()[-3:] == ["ago", "0", "paused"]


def test_waiting_jobs_are_counted_listed_and_explained(penstock, store):
    store.sync.enqueue([NewJob(id, "t", partition=Partition("7")) for id in "abc"])
    assert [job.id for job in fetch(store)] == ["a"]
    (queue,) = penstock.json("queues", "list")["queues"]
    assert queue["counts"] == {"running": 1, "waiting": 2}
    heads, line = (shown.split() for shown in penstock.ok("queues", "list").splitlines())
    assert heads[3] == "WAITING"
    assert line[:5] == ["default", "-", "1", "2", "-"]
    listed = penstock.json("jobs", "list", "--state", "waiting")["jobs"]
    assert sorted(job["id"] for job in listed) == ["b", "c"]
    assert "7" in penstock.ok("jobs", "show", "b")


def test_a_paused_queue_gives_nothing_until_it_is_resumed(penstock, store):
    put(store, "a")
    assert penstock.ok("queues", "pause", "default") == "default: paused\n"
    assert fetch(store) == []
    assert penstock.ok("queues", "resume", "default") == "default: open and running\n"
    assert len(fetch(store)) == 1


def test_a_closed_queue_takes_nothing_until_it_is_opened(penstock, store):
    put(store, "a")
    penstock.ok("queues", "close", "default")
    assert store.sync.enqueue([NewJob("b", "t")])[0].status is EnqueueStatus.CLOSED
    penstock.ok("queues", "open", "default")
    assert store.sync.enqueue([NewJob("b", "t")])[0].status is EnqueueStatus.NEW


@pytest.mark.parametrize("verb", ["pause", "resume", "close", "open", "purge", "delete"])
def test_a_mistyped_queue_is_not_found_and_does_not_come_to_be(penstock, store, verb):
    put(store, "a", queue="mail")
    line = penstock.says(3, "queues", verb, "mial")
    assert line.startswith("there is no queue 'mial' (did you mean 'mail'?)")
    assert [q.name for q in store.sync.queues()] == ["mail"]


def test_a_queue_can_be_paused_before_its_first_job(penstock, store):
    penstock.ok("queues", "pause", "later", "--create")
    assert store.sync.queues()[0].paused


def test_several_queues_can_be_named_at_once(penstock, store):
    put(store, "a", queue="q1")
    put(store, "b", queue="q2")
    assert [q["paused"] for q in penstock.json("queues", "pause", "q1", "q2")["queues"]] == [True, True]


def test_a_purge_removes_all_but_what_runs(penstock, store):
    put(store, "running", "a", "b")
    fetch(store)
    assert penstock.json("queues", "purge", "default", "--yes") == {
        "queues": [{"name": "default", "purged": 2}]
    }
    assert store.sync.get([Ref("default", "running")])[0] is not None


@pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING])
def test_every_state_but_running_can_be_purged(penstock, store, state):
    put(store, "a")
    penstock.ok("queues", "purge", "default", "--yes", "--state", state)


def test_there_is_a_column_for_every_state_that_some_job_is_in(penstock, monkeypatch):
    full = QueueInfo("mail", {state: n for n, state in enumerate(State, 1)})

    async def queues(*_, **__):
        return [full]

    monkeypatch.setattr(MemoryStore, "queues", queues)
    monkeypatch.setattr(SqliteStore, "queues", queues)
    heads, line = penstock.ok("queues", "list").splitlines()
    shown = dict(zip(heads.lower().split()[1:], line.split()[1:], strict=False))
    assert {state: shown[state] for state in State} == {state: str(n) for state, n in full.counts.items()}


def test_a_purge_can_be_of_some_states(penstock, store):
    put(store, "dies", "a")
    kill(store)
    assert penstock.ok("queues", "purge", "default", "-s", "dead", "-y") == "default: 1 job removed\n"
    assert store.sync.get([Ref("default", "a")])[0] is not None


def test_a_purge_asks_first_and_says_how_many(penstock, store):
    put(store, "a", "b")
    result = penstock("queues", "purge", "default", input="n\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "remove 2 jobs from default?" in result.stderr
    assert store.sync.get([Ref("default", "a")])[0] is not None


def test_a_queue_with_jobs_is_deleted_only_by_force(penstock, store):
    put(store, "a")
    result = penstock("queues", "delete", "default")
    assert result.exit_code == 1
    assert result.stderr == "default: not deleted: the queue is not empty; --force removes its jobs first\n"
    assert penstock.ok("queues", "delete", "default", "--force", "--yes") == "default: deleted\n"
    assert store.sync.queues() == []


def test_a_deletion_by_force_asks_with_the_number_of_jobs(penstock, store):
    put(store, "a", "b")
    put(store, "c", queue="mail")
    result = penstock("queues", "delete", "default", "mail", "mail", "--force", input="n\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "delete default, mail and remove 3 jobs?" in result.stderr
    assert len(penstock.json("jobs", "list")["jobs"]) == 3
    assert "there is no queue 'nope'" in penstock.says(3, "queues", "delete", "nope", "--force")


def test_a_queue_of_which_jobs_run_is_not_deleted(penstock, store):
    put(store, "a")
    fetch(store)
    document = penstock.json("queues", "delete", "default", "--force", "--yes", code=1)
    assert document == {"queues": [{"name": "default", "deleted": False}]}


# ── workers and stats ────────────────────────────────────────────────────────────────────────────


def test_workers_are_listed_with_what_they_run(penstock, store):
    announce(
        store, WorkerInfo("w1", "box", 42, 1_700_000_000_000, ("default", "mail"), ("t",), 20, running=1)
    )
    put(store, "a")
    fetch(store, worker="w1")
    (worker,) = penstock.json("workers")["workers"]
    assert (worker["id"], worker["host"], worker["pid"], worker["concurrency"]) == ("w1", "box", 42, 20)
    (job,) = worker["jobs"]
    assert (job["id"], job["task"], job["started"]) == ("a", "t", False)
    assert job["since"].endswith("Z")
    text = penstock.ok("workers")
    assert text.splitlines()[1].split()[:7] == ["w1", "box", "42", "running", "1", "20", "default,mail"]
    assert text.splitlines()[4].split()[:4] == ["a", "default", "t", "1"]


def test_without_workers_the_list_is_empty(penstock):
    assert penstock.json("workers") == {"workers": []}
    assert penstock("workers").stderr == "no workers\n"


def test_stats_are_totals_and_days(penstock, store):
    put(store, "a", "b")
    put(store, "c", queue="mail")
    kill(store)
    document = penstock.json("stats", "--days", "1")
    assert document["totals"] == {"enqueued": 3, "processed": 1, "failed": 1}
    assert [(q["name"], q["enqueued"], len(q["days"])) for q in document["queues"]] == [
        ("default", 2, 1),
        ("mail", 1, 0),
    ]
    lines = penstock.ok("stats").splitlines()
    assert lines[3].split() == ["all", "3", "1", "1"]
    assert lines[6].split()[1:] == ["1", "1"]


# ── limits ──


def test_a_queue_is_limited_and_the_limits_are_shown(penstock, store):
    put(store, "a", queue="mail")
    said = penstock.ok(
        *("queues", "set", "mail", "--max-size", "10000", "--on-full", "wait", "--max-running", "7"),
        *("--rate", "100/min", "--burst", "10", "--keep-dead", "1000", "--keep-dead-for", "30d"),
    )
    words = "max-size=10000 on-full=wait max-running=7 rate=100/min burst=10 keep-dead=1000 keep-dead-for=30d"
    assert said == f"mail: {words}\n"
    assert words in penstock.ok("queues", "list")
    (queue,) = penstock.json("queues", "list")["queues"]
    assert queue["limits"] == {
        "max_size": 10_000,
        "on_full": "wait",
        "max_running": 7,
        "rate": "100/min",
        "burst": 10,
        "keep_finished": None,
        "keep_dead": 1_000,
        "keep_finished_for": None,
        "keep_dead_for": 2_592_000.0,
    }
    assert queue["waits_for"] == "its rate is 100/min"


def test_a_queue_shows_where_each_limit_comes_from(penstock, store):
    store.sync.settings(
        "mail", limits=limits_by_code(rate="5/s", burst=2, max_running=3, keep_dead_for="30d")
    )
    penstock.ok("queues", "set", "mail", "--rate", "1/s", "--max-size", "9")
    rows = [line.split() for line in penstock.ok("queues", "show", "mail").splitlines()[1:]]
    assert rows == [
        ["paused", "no", "default", "-"],
        ["closed", "no", "default", "-"],
        ["max-size", "9", "operator", "-"],
        ["on-full", "reject", "default", "-"],
        ["max-running", "3", "code", "3"],
        ["rate", "1/s", "operator", "5/s"],
        ["burst", "2", "operator", "2"],
        ["keep-finished", "none", "default", "-"],
        ["keep-dead", "none", "default", "-"],
        ["keep-finished-for", "none", "default", "-"],
        ["keep-dead-for", "30d", "code", "30d"],
    ]
    queue = penstock.json("queues", "show", "mail")["queue"]
    assert queue["limits"]["rate"] == "1/s"
    assert queue["set_by"] == {
        "max_size": "operator",
        "max_running": "code",
        "rate": "operator",
        "burst": "operator",
        "keep_dead_for": "code",
    }
    assert queue["by_code"] == {"max_running": 3, "rate": "5/s", "burst": 2, "keep_dead_for": 2_592_000.0}


def test_an_operator_goes_back_to_the_limits_in_code(penstock, store):
    store.sync.settings("mail", limits=limits_by_code(rate="5/s", max_running=3))
    penstock.ok("queues", "set", "mail", "--rate", "1/s", "--max-size", "9", "--max-running", "none")
    assert penstock.ok("queues", "reset", "mail", "--rate") == "mail: max-size=9 on-full=reject rate=5/s\n"
    (queue,) = penstock.json("queues", "reset", "mail")["queues"]
    assert (queue["limits"]["max_running"], queue["limits"]["max_size"]) == (3, None)
    assert set(queue["set_by"].values()) == {"code"}


def test_showing_or_resetting_a_queue_that_is_not_there_is_an_error(penstock, store):
    put(store, "a", queue="mail")
    for words in (("show", "mial"), ("reset", "mial")):
        assert penstock.says(3, "queues", *words) == "there is no queue 'mial' (did you mean 'mail'?)"


def test_none_takes_a_limit_away_and_the_others_stay(penstock, store):
    put(store, "a")
    penstock.ok("queues", "set", "default", "--max-size", "5", "--max-running", "7", "--rate", "1/s")
    assert penstock.ok("queues", "set", "default", "--max-size", "none", "--rate", "none") == (
        "default: max-running=7\n"
    )
    assert penstock.ok("queues", "set", "default", "--max-running", "none") == "default: no limits\n"


def test_a_queue_is_held_and_let_go(penstock, store):
    put(store, "a")
    assert penstock.ok("queues", "set", "default", "--throttle", "1h").startswith(
        "default: throttled until 20"
    )
    assert fetch(store) == []
    (queue,) = penstock.json("queues", "list")["queues"]
    assert queue["throttled_until"] is not None
    assert queue["waits_for"].startswith("the queue is throttled until")
    assert penstock.ok("queues", "set", "default", "--throttle", "none") == "default: no limits\n"
    assert len(fetch(store)) == 1
    facts = [entry["facts"] for entry in penstock.json("audit")["entries"]]
    assert facts == [{"throttle": "none"}, {"throttle": "1h"}]


def test_a_queue_that_is_not_there_is_limited_only_if_that_is_meant(penstock, store):
    put(store, "a", queue="mail")
    assert penstock.says(3, "queues", "set", "mial", "--max-running", "1").startswith(
        "there is no queue 'mial'"
    )
    penstock.ok("queues", "set", "later", "--max-running", "1", "--create")
    assert [q.name for q in store.sync.queues()] == ["later", "mail"]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--max-running", "0", "pause the queue"),
        ("--max-size", "0", "close the queue"),
        ("--max-size", "-1", "--max-size=-1 is not a whole number"),
        ("--max-size", "many", "neither a whole number nor 'none'"),
        ("--rate", "fast", "--rate='fast' is not a rate"),
        ("--rate", "0/s", "never let a job start"),
        ("--burst", "3", "--burst needs a rate"),
        ("--on-full", "wiat", "did you mean 'wait'?"),
        ("--keep-dead", "-2", "--keep-dead=-2 is not a whole number"),
        ("--keep-dead-for", "soon", "--keep-dead-for='soon' is not a duration"),
        ("--throttle", "2d", "longer than a day"),
    ],
)
def test_a_limit_that_makes_no_sense_gets_one_clear_error(penstock, store, option, value, says):
    put(store, "a")
    result = penstock("queues", "set", "default", option, value)
    assert result.exit_code != 0
    assert says in result.stderr
    assert penstock.json("queues", "list")["queues"][0]["limits"]["max_size"] is None


def test_nothing_to_set_is_said(penstock, store):
    put(store, "a")
    assert "nothing to set" in penstock("queues", "set", "default").stderr
