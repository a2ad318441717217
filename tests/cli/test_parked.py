"""Parked jobs: operators see their number, their tasks, and whether a worker for them runs."""

from __future__ import annotations

from penstock.stores.contract import WorkerInfo
from tests.cli.conftest import announce, park, put

UNKNOWN = "no worker here knows the task 'send'"


def unknown_tasks(store):
    put(store, "a", "b", task="reports.build")
    put(store, "c", task="send", queue="mail")
    park(store, 2)
    park(store, queue="mail")


def knowing(store, *tasks):
    announce(store, WorkerInfo("w7", "box", 42, 1_700_000_000_000, ("default",), tasks, 20))


def test_they_are_counted_by_queue_and_task(penstock, store):
    unknown_tasks(store)
    knowing(store, "reports.build", "send")  # but it does not serve `mail`
    assert penstock.json("queues", "parked") == {
        "parked": [
            {"queue": "default", "task": "reports.build", "jobs": 2, "known_to": ["w7"], "reason": ""},
            {"queue": "mail", "task": "send", "jobs": 1, "known_to": [], "reason": UNKNOWN},
        ]
    }
    lines = [line.split() for line in penstock.ok("queues", "parked").splitlines()]
    assert lines == [
        ["QUEUE", "TASK", "JOBS", "KNOWN", "TO", "REASON"],
        ["default", "reports.build", "2", "w7"],
        ["mail", "send", "1", "none", *UNKNOWN.split()],
    ]


def test_where_there_are_none_nothing_is_printed(penstock, store):
    put(store, "a")
    result = penstock("queues", "parked")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no parked jobs\n")


def test_queues_and_jobs_show_them_too(penstock, store):
    unknown_tasks(store)
    heads, default, _ = penstock.ok("queues", "list").splitlines()
    assert default.split()[heads.split().index("PARKED")] == "2"
    shown = penstock.json("jobs", "list", "--state", "parked", "--task", "send")["jobs"]
    assert [(job["id"], job["reason"]) for job in shown] == [("c", UNKNOWN)]


def test_the_doctor_warns_of_unknown_queues(penstock, store):
    unknown_tasks(store)
    knowing(store, "reports.build")
    told = [
        (found["how"], found["says"])
        for found in penstock.json("doctor")["findings"]
        if found["what"] == "parked jobs"
    ]
    way_out = "no live worker knows the task; start a worker that knows the task, or cancel them"
    assert told == [
        ("ok", "2 jobs of 'reports.build' in 'default'; the task is known to w7"),
        ("warning", f"1 job of 'send' in 'mail': {way_out}"),
    ]


def test_where_an_argument_differs_the_reason_is_said(penstock, store):
    put(store, "a", task="send")
    park(store, reason="of another release: send(to): unknown argument(s) 'lang'")
    announce(store, WorkerInfo("w7", "box", 42, 1_700_000_000_000, ("default",), (), 20))  # without `send`
    (row,) = penstock.json("queues", "parked")["parked"]
    assert row["reason"] == "of another release: send(to): unknown argument(s) 'lang'"
    assert "unknown argument(s) 'lang'" in penstock.ok("queues", "parked")
    (told,) = (f["says"] for f in penstock.json("doctor")["findings"] if f["what"] == "parked jobs")
    assert "knows the task" not in told
    assert told == (
        "1 job of 'send' in 'default': of another release: send(to): unknown argument(s) 'lang'; "
        "start a worker that can run them, or cancel them"
    )
