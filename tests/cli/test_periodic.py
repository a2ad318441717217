"""`penstock periodic` creates, changes, pauses and removes periodic entries at run time."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

import pytest
from msgspec.structs import replace

from penstock.app.periodic import new_entry
from penstock.core.job import NewJob
from penstock.core.schedule import Schedule
from penstock.stores.contract import WorkerInfo
from tests.cli.conftest import IN_A_FILE, announce

pytestmark = IN_A_FILE

NIGHTLY = ("nightly", "0 3 * * *", "--tz", "Europe/Berlin", "--raw", "--queue", "default", "report", "[1]")


def put(store, name, **facts):
    spec = new_entry(
        name, NewJob("", "t", queue=facts.pop("queue", "default")), Schedule.of("@daily"), **facts
    )
    asyncio.run(store.put_entries([spec]))


def entries(store):
    return asyncio.run(store.entries()).entries


def test_an_entry_is_made_listed_and_shown(penstock, store):
    assert penstock.ok("periodic", "add", *NIGHTLY).startswith(
        "default/nightly: 0 3 * * * Europe/Berlin, next in "
    )
    (line,) = penstock.ok("periodic", "list").splitlines()[1:]
    assert line.split()[:9] == ["default", "nightly", "report", "0", "3", "*", "*", "*", "Europe/Berlin"]
    assert "operator" in line.split()
    shown = penstock.ok("periodic", "show", "nightly")
    assert "default/nightly" in shown
    assert "[1]" in shown
    (entry,) = penstock.json("periodic", "show", "default/nightly")["entries"]
    assert (entry["schedule"], entry["tz"], entry["payload"]) == ("0 3 * * *", "Europe/Berlin", [1])
    assert (entry["misfire"], entry["overlap"], entry["by"]) == ("once", "allow", "operator")


def test_an_entry_that_no_running_worker_has_in_its_code_is_marked(penstock, store):
    put(store, "gone", by_code=True)
    put(store, "here", by_code=True)
    announce(store, WorkerInfo("w1", "box", 1, 0, ("default",), ("t",), 4, entries=("default/here",)))
    lines = {line.split()[1]: line for line in penstock.ok("periodic", "list").splitlines()[1:]}
    assert "no running worker has it in its code" in lines["gone"]
    assert "worker" not in lines["here"]
    assert "no running worker has it in its code" in penstock.ok("periodic", "show", "gone")
    said = penstock("doctor").stdout
    assert "default/gone in its code" in said


def test_the_next_instants_are_shown_in_the_entrys_time_zone(penstock, store):
    penstock.ok("periodic", "add", *NIGHTLY)
    lines = penstock.ok("periodic", "next", "nightly", "-n", "3").splitlines()
    assert len(lines) == 3
    assert all(" 03:00:00+0" in line for line in lines)
    instants = penstock.json("periodic", "next", "nightly")["next"]
    assert len(instants) == 5
    assert instants == sorted(instants)
    assert all(datetime.fromisoformat(one).minute == 0 for one in instants)


def test_an_entry_of_the_same_name_is_changed(penstock, store):
    penstock.ok("periodic", "add", *NIGHTLY)
    penstock.ok("periodic", "add", "nightly", "every 30s", "--raw", "--queue", "default", "other")
    ((entry),) = entries(store)
    assert (entry.spec.schedule.text, entry.spec.job.task) == ("every 30s", "other")


def test_a_task_of_an_app_has_its_arguments_checked_and_its_queue(penstock, store, tasks):
    said = penstock.json(
        *("periodic", "add", "hello", "@daily", "tasks:app", "tasks.greet", '["x", 2]'),
        *("--misfire", "all", "--catch-up", "3", "--overlap", "skip", "--jitter", "5s", "--timeout", "none"),
        url=False,
    )
    assert (said["queue"], said["payload"]) == ("default", {"name": "x", "times": 2})
    (entry,) = entries(store)
    assert (entry.spec.misfire, entry.spec.catch_up, entry.spec.overlap) == ("all", 3, "skip")
    assert (entry.spec.jitter, entry.spec.job.timeout) == (5_000, None)
    penstock.says(
        2, "periodic", "add", "hello", "@daily", "tasks:app", "tasks.greet", '{"nme": "x"}', url=False
    )
    assert entries(store) == [entry]


def test_an_entry_is_paused_resumed_and_removed(penstock, store):
    put(store, "a")
    put(store, "b", queue="mail")
    assert penstock.ok("periodic", "pause", "a", "mail/b") == "default/a: paused\nmail/b: paused\n"
    assert [one["paused"] for one in penstock.json("periodic", "list")["entries"]] == [True, True]
    assert "paused" in penstock.ok("periodic", "list", "--queue", "mail")
    assert penstock.ok("periodic", "resume", "a") == "default/a: resumed\n"
    assert penstock.json("periodic", "remove", "a")["entries"][0]["name"] == "a"
    assert [one.spec.name for one in entries(store)] == ["b"]
    assert penstock.ok("periodic", "remove", "b") == "mail/b: removed\n"
    assert penstock.ok("periodic", "list") == ""


def test_an_entry_is_triggered_and_the_audit_log_has_it(penstock, store):
    put(store, "a")
    assert penstock.ok("periodic", "trigger", "a").startswith("default/a: triggered: job a@")
    assert penstock.json("periodic", "trigger", "a")["entries"][0]["outcome"] == "done"
    assert len(penstock.json("jobs", "list")["jobs"]) == 2
    (entry, _) = penstock.json("audit", "--act", "periodic.trigger")["entries"]
    assert (entry["act"], entry["to"]) == ("periodic.trigger", "a")


@pytest.mark.parametrize("verb", ["show", "next", "pause", "resume", "remove", "trigger"])
def test_a_mistyped_entry_is_not_found(penstock, store, verb):
    put(store, "nightly")
    line = penstock.says(3, "periodic", verb, "nigthly")
    assert line.startswith("there is no periodic entry 'nigthly' (did you mean 'nightly'?)")


def test_what_code_registers_is_changed_there(penstock, store):
    put(store, "nightly", by_code=True)
    line = penstock.says(2, "periodic", "add", *NIGHTLY)
    assert "is registered by code: change it there" in line
    assert penstock.ok("periodic", "pause", "nightly") == "default/nightly: paused\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("61 * * * *", "t"), "'61 * * * *' is not a cron expression: bad minute"),
        (("every -5s", "t"), "is negative"),
        (("@daily", "t", "--tz", "Mars/Olympus"), "--tz='Mars/Olympus' is not a time zone"),
        (("@daily", "t", "--misfire", "al"), "misfire='al' is not one of skip, once, all"),
        (("@daily", "t", "--catch-up", "0"), "--catch-up=0 is not a whole number"),
        (("@daily", "t", "--jitter", "-1s"), "is negative"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_stored(penstock, store, words, says):
    line = penstock.says(2, "periodic", "add", "x", *words, "--raw", "--queue", "default")
    assert says in line
    penstock.says(2, "periodic", "add", "x", "@daily", "t", "--raw")
    penstock.says(2, "periodic", "add", "a b", "@daily", "t", "--raw", "--queue", "default")
    assert entries(store) == []


def test_an_entry_of_a_time_zone_that_is_unknown_here_is_still_listed(penstock, store):
    put(store, "a")
    (one,) = entries(store)
    strange = replace(one.spec, schedule=Schedule("@daily", "Atlantis/Capital"))
    asyncio.run(store.put_entries([strange]))
    assert penstock.json("periodic", "list")["entries"][0]["next_at"] is None


def test_an_entry_may_hold_any_text(penstock, store):
    """Brackets, quotes, commas, line breaks: nothing of it is read as anything else."""
    odd = '({[",\'(]})", \\ \n\t;ID("x")'
    arguments = json.dumps([odd])
    penstock.ok("periodic", "add", "odd", "@daily", "--raw", "--queue", "default", "t(x)", arguments)
    (entry,) = penstock.json("periodic", "list")["entries"]
    assert (entry["task"], entry["payload"]) == ("t(x)", [odd])
    assert "t(x)" in penstock.ok("periodic", "list")
    assert penstock.ok("periodic", "show", "odd")
