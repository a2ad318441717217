"""`penstock batches`: list collecting batches and flush them; their members cannot be changed singly."""

from __future__ import annotations

from penstock.core.job import State
from penstock.core.relations import BatchTerms
from tests.cli.conftest import fetch, put

TERMS = BatchTerms("customer-7", 100, wait=60_000)


def test_what_is_collected_is_shown(penstock, store):
    put(store, "a", "b", batch_terms=TERMS, payload=b"1")
    (batch,) = penstock.json("batches", "list")["batches"]
    assert {**batch, "oldest_at": "", "due_at": ""} == {
        "queue": "default",
        "task": "t",
        "key": "customer-7",
        "size": 2,
        "oldest_at": "",
        "due_at": "",
    }
    heads, line = penstock.ok("batches", "list", "--queue", "default").splitlines()
    assert heads.split() == ["QUEUE", "TASK", "BATCH", "KEY", "SIZE", "OLDEST", "DUE"]
    assert line.split()[:4] == ["default", "t", "customer-7", "2"]
    assert "COLLECTING" in penstock.ok("queues", "list")


def test_a_batch_is_made_a_batch_by_hand(penstock, store):
    put(store, "a", "b", batch_terms=TERMS, payload=b"1")
    assert penstock.ok("batches", "flush", "default", "t", "--key", "customer-7") == (
        "default/a.batch: available\n"
    )
    (job,) = penstock.json("jobs", "show", "a.batch")["jobs"]
    assert [act["act"] for act in job["acts"]] == ["batches.flush"]
    assert (job["members"], job["batch_key"], job["payload"]) == (["a", "b"], "customer-7", [[1, 1]])
    assert "a, b" in penstock.ok("jobs", "show", "a.batch")
    assert penstock.json("jobs", "show", "a")["jobs"][0]["batch"] == "a.batch"
    assert [job.members for job in fetch(store)] == [("a", "b")]


def test_a_batch_that_is_not_there_is_not_found(penstock, store):
    put(store, "a", batch_terms=TERMS)
    line = penstock.says(3, "batches", "flush", "default", "t")
    assert line.startswith(
        "the queue 'default' has no collecting batch '' of the task 't'; there is 'customer-7' of t"
    )
    assert penstock.ok("batches", "list", "--queue", "nowhere").strip() in ("", "no batches are collecting")


def test_single_members_of_a_batch_are_refused(penstock, store):
    put(store, "a", "b", batch_terms=BatchTerms("", 2))
    for verb in ("cancel", "delete"):
        (change,) = penstock.json("jobs", verb, "a", *(["--yes"] if verb == "delete" else []), code=1)["jobs"]
        assert change["outcome"] == "refused", verb
    assert store.sync.get([job.ref for job in fetch(store)])[0].state is State.RUNNING
