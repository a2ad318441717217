"""`penstock stats` and `penstock errors`: totals, attempts and times by task or period, groups of errors."""

from __future__ import annotations

import asyncio
import re

import pytest
from msgspec.structs import replace

from penstock.core.stats import TaskStats
from penstock.stores.contract import ErrorCount, StatsReport, Store, TaskCount
from tests.cli.conftest import at_terminal, fetch, kill, put

#: 139: one second. 162: ten.
SENT = TaskStats(100, 100, 2, 1, 1, 10**7, 10**8, [70, 100], [139, 96, 162, 4])


def report(store, number=1, *, task="shop.send", stats=SENT, queue="default"):
    errors = [ErrorCount("g", task, "ValueError", "no user <n>", 2, "job-1")]
    asyncio.run(store.add_stats([StatsReport(queue, "w1", number, [TaskCount(task, stats)], errors)]))


def test_totals_days_and_tasks_are_shown(penstock, store):
    put(store, "a")
    kill(store)
    report(store)
    shown = penstock.json("stats")
    assert shown["totals"] == {"enqueued": 1, "processed": 1, "failed": 1}
    (task,) = shown["tasks"]
    numbers = [task[name] for name in ("started", "processed", "failed", "retried", "dead")]
    assert (task["queue"], task["task"], numbers) == ("default", "shop.send", [100, 100, 2, 1, 1])
    assert task["run"] == {"mean": 1.0, **{name: task["run"][name] for name in ("p50", "p95", "p99")}}
    assert 0.95 <= task["run"]["p50"] == task["run"]["p95"] <= 1.05
    assert 9.5 <= task["run"]["p99"] <= 10.5
    lines = penstock.ok("stats").splitlines()
    assert lines[0].split() == ["QUEUE", "ENQUEUED", "PROCESSED", "FAILED"]
    assert lines[-1].split()[:4] == ["100", "2", "1", "1"]
    assert lines[-1].split()[5:] == ["1s/1s/10s", "default/shop.send"]


def test_statistics_are_filtered_by_queue_and_task(penstock, store):
    put(store, "a")
    put(store, "b", queue="mail")
    report(store)
    report(store, task="other", queue="mail")
    assert penstock.json("stats", "--task", "shop.send").keys() == {"tasks"}
    assert [one["task"] for one in penstock.json("stats", "--queue", "mail")["tasks"]] == ["other"]
    assert [one["name"] for one in penstock.json("stats", "--queue", "mail")["queues"]] == ["mail"]
    assert "no attempts in this time" in penstock("stats", "--task", "none").stderr
    for words in ((), ("--sizes",)):
        assert "there is no queue 'nosuch'" in penstock("stats", "-q", "nosuch", *words).stderr
    assert "since" in penstock.says(2, "stats", "--since", "never")


def test_statistics_are_shown_by_period(penstock, store):
    put(store, "a")
    report(store)
    report(store, 2, task="more")
    for by in ("minute", "hour", "day"):
        shown = penstock.json("stats", "--by", by, "--since", "1d")
        assert (shown["by"], [one["processed"] for one in shown["periods"]]) == (by, [200])
    heads, line = penstock.ok("stats", "--by", "day").splitlines()
    assert heads.split()[:5] == ["DAY", "ENQUEUED", "DONE", "FAILED", "RETRIED"]
    assert line.split()[1:6] == ["-", "200", "4", "2", "2"], "nobody has sampled the queue"


def test_enqueued_jobs_are_shown_by_period(penstock, store):
    for number in range(3):
        put(store, str(number))
    put(store, "m", queue="mail")
    asyncio.run(store.sample_depths())
    report(store)
    of_mail, of_task = ["-q", "mail"], ["-t", "shop.send"]
    for words, enqueued, processed in (([], 4, 100), (of_mail, 1, 0), (of_task, None, 100)):
        (day,) = penstock.json("stats", "--by", "day", *words)["periods"]
        assert (day["enqueued"], day["processed"]) == (enqueued, processed)
    assert penstock.ok("stats", "--by", "day", "-q", "mail").splitlines()[1].split()[1:3] == ["1", "0"]


def test_the_depth_of_queues_is_shown(penstock, store):
    assert "no samples in this time" in penstock("stats", "--depth").stderr
    put(store, "a")
    put(store, "b")
    fetch(store)
    put(store, "c", queue="mail", delay=60_000)
    asyncio.run(store.sample_depths())
    means = {"samples": 1, "available": 1.0, "running": 1.0, "later": 0.0, "peak": 1, "enqueued": 2}
    late = {"samples": 1, "available": 0.0, "running": 0.0, "later": 1.0, "peak": 0, "enqueued": 1}
    assert penstock.json("stats", "--depth")["depths"] == [
        {"queue": "default", **means},
        {"queue": "mail", **late},
    ]
    (hour,) = penstock.json("stats", "--depth", "--by", "hour")["depths"]
    assert {name: hour[name] for name in means} == {**means, "later": 1.0, "enqueued": 3}
    heads, line = penstock.ok("stats", "--depth", "--by", "day", "-q", "mail").splitlines()
    assert heads.split() == ["DAY", "AVAILABLE", "PEAK", "RUNNING", "LATER", "ENQUEUED"]
    assert line.split()[1:] == ["0", "0", "0", "1", "1"]
    assert penstock.ok("stats", "--depth").splitlines()[1].split() == ["default", "1", "1", "1", "0", "2"]
    assert "leave out --task" in penstock.says(2, "stats", "--depth", "--task", "t")


@pytest.mark.parametrize("words", [["stats"], ["stats", "--depth"], ["stats", "--by", "day"], ["errors"]])
def test_queues_that_could_not_be_counted_are_named(penstock, store, monkeypatch, words):
    put(store, "a")
    put(store, "b", queue="mail")
    queues = Store.queues

    async def without_a_part(self, names=None):
        found = await queues(self, names)
        return [replace(one, away="no master" if one.name == "mail" else "") for one in found]

    monkeypatch.setattr(Store, "queues", without_a_part)
    says = "not counted, because their part of the store does not answer: mail\n"
    result = penstock(*words)
    assert (result.exit_code, result.stderr.endswith(says)) == (4, True)
    assert penstock(*words, "--queue", "default").exit_code == 0
    assert penstock.json(*words, code=4)


def test_what_is_no_longer_kept_is_said(penstock, store):
    kept = {"minute": ("2h", "3h"), "hour": ("4d", "5d"), "day": ("90d", "100d")}
    for by, (all, more) in kept.items():
        assert "kept" not in penstock("stats", "--by", by, "--since", all).stderr
        assert f"statistics by {by} are kept for" in penstock("stats", "--by", by, "--since", more).stderr
    assert "by day are kept for 90 days" in penstock("stats", "--since", "100d").stderr
    assert "kept" not in penstock("stats", "--since", "90d").stderr


def test_groups_of_errors_are_listed(penstock, store):
    put(store, "a")
    report(store)
    (group,) = penstock.json("errors")["errors"]
    assert (group["queue"], group["task"], group["kind"]) == ("default", "shop.send", "ValueError")
    assert (group["message"], group["count"], group["job"]) == ("no user <n>", 2, "job-1")
    result = penstock("errors", "--queue", "default", "--task", "shop.send")
    assert result.stdout.splitlines()[1].endswith("default/shop.send  ValueError: no user <n>")
    assert "penstock jobs show default/job-1" in result.stderr
    assert "no errors" in penstock("errors", "--task", "none").stderr


def test_the_size_of_queues_is_shown(penstock, store):
    put(store, "a", payload=b"[]" + b" " * 5_000)
    put(store, "b", queue="mail")
    (size,) = penstock.json("stats", "--sizes", "--queue", "default")["sizes"]
    assert (size["queue"], size["sampled"]) == ("default", False)
    assert 5_000 < size["bytes"] < 8_000
    assert penstock.ok("stats", "--sizes").splitlines()[0].split() == ["QUEUE", "BYTES", "ESTIMATE"]


def test_the_tables_fit_a_terminal(penstock, store):
    if store.url.startswith("memory"):
        return
    put(store, "a")
    fetch(store)
    report(store)
    for words in ("stats",), ("stats", "--by", "minute"), ("errors",):
        shown = re.sub(r"\x1b\[[0-9;]*m", "", at_terminal("--url", store.url, *words))
        assert max(len(line.rstrip()) for line in shown.splitlines()[:-1]) <= 80, shown
