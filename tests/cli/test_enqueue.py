"""`penstock enqueue` checks arguments as a call in Python does, and stores nothing invalid."""

from __future__ import annotations

import pytest

from penstock.core.job import Ref, State
from tests.cli.conftest import IN_A_FILE, Cli

pytestmark = IN_A_FILE


def job(store, queue, id):
    return store.sync.get([Ref(queue, id)])[0]


@pytest.mark.parametrize("arguments", ['{"name": "x", "times": 2}', '["x", 2]'])
def test_arguments_may_be_given_by_name_or_in_order(penstock, store, tasks, arguments):
    said = penstock.json("enqueue", "tasks:app", "tasks.greet", arguments, url=False)
    assert (said["queue"], said["task"], said["existing"]) == ("default", "tasks.greet", False)
    stored = job(store, "default", said["id"])
    assert stored.spec.payload == b'{"name":"x","times":2}'


def test_the_address_of_the_job_is_printed(penstock, store, tasks):
    line = penstock.ok("enqueue", "tasks:app", "tasks.send", '["me"]', "--id", "m-1", url=False)
    assert line == "mail/m-1\n"
    assert job(store, "mail", "m-1").state is State.AVAILABLE


def test_arguments_can_come_from_stdin(penstock, store, tasks):
    penstock.ok("enqueue", "tasks:app", "tasks.greet", "-", "--id", "a", input='{"name": "x"}', url=False)
    assert job(store, "default", "a").spec.payload == b'{"name":"x"}'


def test_each_option_reaches_the_job(penstock, store, tasks):
    options = (
        "--id a --queue slow --delay 5m --expires 1h --priority 7 --timeout none --max-attempts 3 "
        "--retention 1h --keep-dead 2d --header trace=1=2"
    )
    penstock.ok("enqueue", "tasks:app", "tasks.greet", '["x"]', *options.split(), url=False)
    stored = job(store, "slow", "a")
    spec = stored.spec
    assert stored.state is State.SCHEDULED
    assert stored.run_at - stored.enqueued_at == 300_000
    assert (spec.priority, spec.timeout, spec.max_attempts, spec.retention) == (7, None, 3, 3_600_000)
    assert spec.keep_dead == 2 * 86_400_000
    assert spec.headers == {"trace": "1=2"}
    assert spec.expires_in == 3_600_000


def test_an_instant_needs_its_offset(penstock, store, tasks):
    words = ("enqueue", "tasks:app", "tasks.greet", '["x"]', "--id", "a")
    assert "has no time zone" in penstock.says(2, *words, "--run-at", "2099-01-01T00:00:00", url=False)
    assert "is not a timestamp" in penstock.says(2, *words, "--run-at", "tomorrow", url=False)
    penstock.ok(*words, "--run-at", "2099-01-01T00:00:00Z", url=False)
    assert job(store, "default", "a").run_at == 4_070_908_800_000


def test_a_unique_job_that_is_there_already_is_said_to_be(penstock, store, tasks):
    words = ("enqueue", "tasks:app", "tasks.greet", '["x"]', "--unique")
    first = penstock.json(*words, url=False)
    second = penstock.json(*words, url=False)
    assert (second["id"], second["existing"]) == (first["id"], True)
    assert "(existing job)" in penstock.ok(*words, url=False)


def test_a_key_of_ones_own_makes_it_unique(penstock, store, tasks):
    first = penstock.json("enqueue", "tasks:app", "tasks.greet", '["x"]', "--unique-key", "k", url=False)
    words = ("enqueue", "tasks:app", "tasks.greet", '["y"]', "--unique-key", "k", "--unique-for", "1h")
    second = penstock.json(*words, url=False)
    assert (second["id"], second["existing"]) == (first["id"], True)
    assert "--unique-key=''" in penstock.says(2, *words[:4], "--unique-key", "", url=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tasks.greet"], "name"),
        (["tasks.greet", '{"name": 3}'], "'name'"),
        (["tasks.greet", '{"nme": "x"}'], "'nme'"),
        (["tasks.greet", '["x", 1, 2]'], "tasks.greet"),
        (["tasks.greet", "{name: x}"], "neither a JSON object nor an array"),
        (["tasks.greet", '["x"]', "--delay", "-5s"], "is negative"),
        (["tasks.greet", '["x"]', "--priority", "1000"], "priority=1000"),
        (["tasks.greet", '["x"]', "--queue", "a b"], "cannot be a queue's name"),
        (["tasks.greet", '["x"]', "--id", "a b"], "cannot be a job's id"),
        (["tasks.greet", '["x"]', "--header", "trace"], "--header 'trace' has no '='"),
        (["tasks.greet", '{"name":', '"x"}'], "put the JSON into quotes"),
    ],
)
def test_a_call_that_does_not_fit_is_one_line_and_stores_nothing(penstock, store, tasks, words, says):
    assert says in penstock.says(2, "enqueue", "tasks:app", *words, url=False)
    assert not any(queue.counts for queue in store.sync.queues())


def test_a_task_that_is_not_there_is_not_found(penstock, tasks):
    line = penstock.says(3, "enqueue", "tasks:app", "tasks.gret", url=False)
    assert line == "the app has no task 'tasks.gret' (did you mean 'tasks.greet'?)"


def test_an_id_that_is_taken_is_refused(penstock, tasks):
    words = ("enqueue", "tasks:app", "tasks.greet", '["x"]', "--id", "a")
    penstock.ok(*words, url=False)
    assert "a job with the id 'a' exists" in penstock.says(1, *words, url=False)


def test_a_closed_queue_refuses(penstock, tasks):
    penstock.ok("enqueue", "tasks:app", "tasks.send", '["x"]', url=False)
    penstock.ok("queues", "close", "mail")
    assert "the queue 'mail' is closed" in penstock.says(
        1, "enqueue", "tasks:app", "tasks.send", '["x"]', url=False
    )


def test_an_app_from_the_settings_need_not_be_named(penstock, store, tasks, monkeypatch):
    penstock.ok("--app", "tasks:app", "enqueue", "tasks.greet", '["x"]', url=False)
    monkeypatch.setenv("PENSTOCK_APP", "tasks:app")
    penstock.ok("enqueue", "tasks.greet", '["x"]', url=False)
    penstock.ok("enqueue", "tasks:app", "tasks.greet", '["x"]', url=False)
    assert store.sync.queues()[0].counts == {State.AVAILABLE: 3}


def test_without_an_app_it_says_how_to_give_one(penstock):
    assert "name one as MODULE:ATTRIBUTE" in penstock.says(2, "enqueue", "tasks.greet", url=False)


# ── raw ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_raw_job_is_stored_as_it_is_without_an_app(penstock, store):
    penstock.ok("enqueue", "--raw", "-q", "legacy", "resize", "any bytes \xe4", "--id", "a")
    stored = job(store, "legacy", "a")
    assert (stored.task, stored.spec.payload) == ("resize", "any bytes \xe4".encode())


def test_a_raw_job_needs_a_queue(penstock):
    assert "--raw needs --queue" in penstock.says(2, "enqueue", "--raw", "resize", "{}")


def test_a_store_that_ends_with_the_process_takes_no_job(here):
    assert "ends with this process" in Cli("memory://x").says(1, "enqueue", "--raw", "-q", "q", "t")
