"""`penstock jobs` shows what is stored, and reports the result of each operation per job."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta

import msgspec
import pytest

from penstock.cli import show
from penstock.cli.job_search import run_search
from penstock.core.job import NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import FlowMember
from penstock.core.unique import UniqueKey
from penstock.inspector import Inspector, JobSearch
from penstock.retry import exponential, fibonacci, fixed, linear, sidekiq, steps
from penstock.stores.contract import Settlement, Store
from tests.cli.conftest import fetch, kill, logging_job, put


def states(store, *ids, queue="default"):
    return [None if job is None else job.state for job in store.sync.get([Ref(queue, id) for id in ids])]


# ── list ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_listing_shows_full_ids_newest_first(penstock, store):
    long = "x" * 128
    put(store, "first", long)
    lines = penstock.ok("jobs", "list").splitlines()
    assert lines[0].split() == ["ID", "QUEUE", "TASK", "STATE", "ATTEMPT", "WHEN", "ENQUEUED", "NOTE"]
    assert [line.split()[0] for line in lines[1:]] == [long, "first"]
    assert lines[1].split()[1:5] == ["default", "t", "available", "0/25"]


def test_a_listing_as_json_is_one_document(penstock, store):
    put(store, "a", "b", "c")
    page = penstock.json("jobs", "list", "--limit", "2")
    assert [job["id"] for job in page["jobs"]] == ["c", "b"]
    rest = penstock.json("jobs", "list", "--after", page["next"])
    assert [job["id"] for job in rest["jobs"]] == ["a"]
    assert rest["next"] is None


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5000], ids=["too large", "too long"])
def test_numbers_that_python_does_not_read_are_printed_as_they_are_stored(penstock, store, number):
    store.sync.enqueue([NewJob("a", "t", b'{"n":%s}' % number), NewJob("b", "t")])
    asyncio.run(store.complete([Ref("default", "b")], result=number))
    assert [job["id"] for job in penstock.json("jobs", "list", "--by", "enqueued")["jobs"]] == ["b", "a"]
    for id, expected in (("a", b'"payload":{"n":%s}' % number), ("b", b'"result":%s' % number)):
        assert expected.decode() in penstock.ok("--json", "jobs", "show", id).replace(" ", "")
        assert penstock.json("jobs", "steps", id)["job"]["id"] == id


def test_each_state_has_a_style():
    assert set(State) <= set(show._styles())


def test_a_listing_with_more_pages_prints_the_next_command_to_stderr(penstock, store):
    put(store, "a", "b")
    result = penstock("jobs", "list", "-n", "1")
    assert "more jobs match: continue with --after" in result.stderr
    assert "--after" not in result.stdout


def test_a_listing_can_be_filtered(penstock, store):
    put(store, "a", queue="q1")
    put(store, "b", queue="q2", task="u")
    put(store, "c", queue="q2", delay=60_000)

    def ids(*filters):
        return [job["id"] for job in penstock.json("jobs", "list", *filters)["jobs"]]

    assert ids("--queue", "q2") == ["c", "b"]
    assert ids("--state", "scheduled") == ["c"]
    assert ids("--state", "SCHEDULED") == ["c"]
    assert ids("--task", "u") == ["b"]
    assert ids("-q", "q1", "-s", "dead") == []


def test_a_listing_can_be_of_what_a_worker_holds(penstock, store):
    put(store, "a", "b")
    fetch(store, 1, worker="w7")
    assert [job["id"] for job in penstock.json("jobs", "list", "--worker", "w7")["jobs"]] == ["a"]


def test_a_listing_can_be_searched(penstock, store):
    put(store, "a", payload=b'[["Order-4711"]]', headers={"tenant": "ann"})
    put(store, "b", payload=b'[["order-4712"]]', queue="q2")
    put(store, "c", delay=3_600_000, flow=FlowMember("q2", "f", 0))
    put(store, "d", delay=60_000)

    def ids(*filters):
        return [job["id"] for job in penstock.json("jobs", "list", *filters)["jobs"]]

    assert ids("--text", "ORDER-471") == ["b", "a"]
    assert ids("-x", "order-471", "-q", "q2") == ["b"]
    assert ids("-q", "q2", "-q", "default", "--reverse", "-n", "2") == ["a", "b"]
    assert ids("--header", "tenant=ann") == ["a"]
    assert ids("--flow", "q2/f") == ["c"]
    assert ids("--by", "due") == ["d", "c"]
    assert ids("--by", "due", "--until", "+30m", "--since", "1h") == ["d"]
    assert ids("--since", "1h", "-s", "available", "-s", "dead") == ["b", "a"]
    assert ids("--until", "2026-01-02T03:04:05Z") == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--header", "x"], "NAME=VALUE"),
        (["--flow", "f"], "write QUEUE/ID; see `"),
        (["--since", "soon"], "'soon' is not a time: write 2h (ago), +2h, or 2026"),
        (["--since", "-2h"], "is not a time"),
        (["--since", "2026-11-20"], "has no time zone: write 2026-11-20T00:00:00Z for UTC"),
        (["--since", "1h", "--until", "2h"], "--since '1h' is not before --until '2h'"),
        (["--since", "2026-13-01T00:00:00Z"], "not a time"),
        (["--by", "due", "-s", "dead"], "no order by due time"),
    ],
)
def test_a_search_that_makes_no_sense_is_a_usage_error(penstock, words, problem):
    result = penstock("jobs", "list", *words)
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_the_log_of_a_job_is_printed(penstock, store):
    job = logging_job(store, "page 1 of 7")
    line = "2023-11-14T22:13:20.000Z  page 1 of 7"
    assert penstock.ok("jobs", "log", "a") == f"{line}\n"
    assert f"log (1 line)\n  {line}" in penstock.ok("jobs", "show", "default/a")
    assert penstock.json("jobs", "log", "a")["log"] == [
        {"at": "2023-11-14T22:13:20.000Z", "text": "page 1 of 7"}
    ]
    asyncio.run(store.settle([Settlement(job.lease, Transition(State.COMPLETED, keep=60_000))]))
    assert penstock.ok("jobs", "log", "a", "--follow") == f"{line}\n"
    assert penstock("jobs", "log", "b").exit_code == 3


def test_a_job_without_a_log_says_so(penstock, store):
    put(store, "a")
    result = penstock("jobs", "log", "a")
    assert (result.stdout, result.stderr) == ("", "this job has logged no lines\n")


def test_an_act_that_no_job_matches_asks_nothing(penstock, store):
    put(store, "a")
    result = penstock("jobs", "retry", "--all", "--queue", "nope")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "0 jobs match\n", "")
    assert penstock.json("jobs", "cancel", "--all", "--queue", "nope") == {"jobs": 0}
    assert penstock.json("bulk", "list") == {"bulk": []}


async def test_a_stopped_search_gives_what_it_has_found(store):
    await store.enqueue([NewJob("a", "t")])
    found = asyncio.Event()

    class Endless(Inspector):
        async def search(self, search, *, after=None, limit=None):
            async for step in super().search(search, after=after, limit=limit):
                yield msgspec.structs.replace(step, next="0:7:q")
            found.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run_search(Endless(store), JobSearch(), None, 50))
    await found.wait()
    task.cancel()
    jobs, after, stopped, _ = await task
    assert ([job.id for job in jobs], after, stopped) == (["a"], "0:7:q", True)


@pytest.mark.parametrize(
    "words", [["jobs", "list"], ["errors"], ["stats"], ["stats", "--by", "day"], ["stats", "--depth"]]
)
def test_a_listing_of_a_queue_that_does_not_exist_says_so(penstock, store, words):
    put(store, "a")
    result = penstock(*words, "--queue", "defalt")
    assert result.stderr == "there is no queue 'defalt' (did you mean 'default'?)\n"
    assert (result.exit_code, result.stdout) == (0, "")


def test_a_search_names_the_queues_that_it_could_not_search(penstock, store, monkeypatch):
    put(store, "a")
    search = Store.search

    async def without_a_part(self, *args, **options):
        return msgspec.structs.replace(await search(self, *args, **options), away=("orders", "mail"))

    monkeypatch.setattr(Store, "search", without_a_part)
    found = penstock("jobs", "list", "--text", "nowhere")
    assert found.exit_code == 4
    says = "not searched, because their part of the store does not answer: mail, orders\n"
    assert found.stderr == f"no matching jobs\n{says}"
    assert penstock.json("jobs", "list", code=4)["away"] == ["mail", "orders"]


def test_an_empty_listing_leaves_stdout_empty(penstock):
    result = penstock("jobs", "list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no matching jobs\n")


def test_a_dead_job_shows_its_error_in_a_line(penstock, store):
    put(store, "a")
    kill(store)
    assert penstock.ok("jobs", "list").splitlines()[1].endswith("ValueError: boom")


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    "words",
    [
        "jobs list --state {}",
        "jobs retry --all --yes --state {}",
        "jobs cancel --all --yes --state {}",
        "jobs delete --all --yes --state {}",
    ],
)
def test_every_state_can_be_asked_for(penstock, state, words):
    penstock.ok(*words.format(state).split())


def test_a_state_that_does_not_exist_is_a_usage_error(penstock):
    assert "'ded' is not one of" in penstock.says(2, "jobs", "list", "--state", "ded")


def test_a_cursor_that_is_none_is_a_usage_error(penstock):
    assert "'nonsense'" in penstock.says(2, "jobs", "list", "--after", "nonsense")


# ── show ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_shown_with_its_payload_and_its_errors(penstock, store):
    put(
        store,
        "a",
        payload=b'{"user":{"id":42,"name":"\xc3\x84nne"}}',
        headers={"trace": "1f"},
        max_attempts=1,
    )
    kill(store)
    text = penstock.ok("jobs", "show", "a")
    facts = dict(
        line.split(maxsplit=1) for line in text.split("\n\n")[0].splitlines() if len(line.split()) > 1
    )
    assert facts["state"] == "dead"
    assert facts["reason"] == "the only attempt failed"
    assert facts["attempt"] == "1 of 1"
    assert "header trace  1f" in text
    assert '  {\n    "user": {\n      "id": 42,\n      "name": "Änne"\n    }\n  }' in text
    assert "attempt 1 failed 2023-11-14T22:13:20.000Z" in text
    assert "  ValueError: boom" in text


def test_a_unique_job_shows_its_key_and_how_long_it_is_held(penstock, store):
    put(store, "a", unique=UniqueKey("k1"))
    put(store, "b", unique=UniqueKey("k2", 60_000, 7))
    assert "unique     k1 while queued or running\n" in penstock.ok("jobs", "show", "a")
    line = "k2 while queued or running or finished, until 2"
    assert line in penstock.ok("jobs", "show", "b")
    (job,) = penstock.json("jobs", "show", "default/b")["jobs"]
    assert job["unique"]["states"] == ["queued", "running", "finished"]
    held = datetime.fromisoformat(job["unique"]["until"]) - datetime.fromisoformat(job["enqueued_at"])
    assert held == timedelta(minutes=1)


def test_a_job_as_json_has_its_payload_as_json(penstock, store):
    put(store, "a", payload=b'{"x": 1}')
    (job,) = penstock.json("jobs", "show", "default/a")["jobs"]
    assert job["payload"] == {"x": 1}
    assert job["state"] == "available"
    assert job["enqueued_at"].endswith("Z")


def test_a_long_payload_is_cut_for_people_unless_they_want_it_all(penstock, store):
    put(store, "a", payload=json.dumps({"x": "y" * 10_000}).encode())
    short = penstock.ok("jobs", "show", "a")
    assert "more characters: --full)" in short
    assert len(short) < 6_000
    assert "y" * 10_000 in penstock.ok("jobs", "show", "a", "--full")


def test_a_payload_that_is_not_json_is_shown_as_bytes(penstock, store):
    put(store, "a", payload=b"\xff\x00raw")
    assert r"b'\xff\x00raw'" in penstock.ok("jobs", "show", "a")


def test_a_bare_id_shows_the_jobs_of_all_queues(penstock, store):
    put(store, "a", queue="q1")
    put(store, "a", queue="q2")
    assert [job["queue"] for job in penstock.json("jobs", "show", "a")["jobs"]] == ["q1", "q2"]


def test_a_job_that_is_not_there_is_not_found(penstock):
    assert penstock.says(3, "jobs", "show", "nowhere").startswith("there is no job 'nowhere': ")


def test_an_id_that_can_be_none_is_a_usage_error(penstock):
    assert "cannot be a job's id" in penstock.says(2, "jobs", "show", "a b")


@pytest.mark.parametrize(
    ("policy", "shown", "as_json"),
    [
        (None, "exponential", {"kind": "exponential"}),
        (
            exponential("500ms", cap="10s"),
            "exponential, base 0.5s, cap 10s",
            {"kind": "exponential", "base": 0.5, "cap": 10.0},
        ),
        (
            exponential("2s", factor=3, cap="90m", jitter=0),
            "exponential, base 2s, factor 3, cap 1h 30m, jitter 0",
            {"kind": "exponential", "base": 2.0, "factor": 3.0, "cap": 5400.0, "jitter": 0.0},
        ),
        (fixed("1ms"), "fixed, delay 0.001s", {"kind": "fixed", "delay": 0.001}),
        (fixed(0), "fixed, delay 0s", {"kind": "fixed", "delay": 0.0}),
        (linear("10s"), "linear, step 10s, cap 1d", {"kind": "linear", "step": 10.0, "cap": 86400.0}),
        (fibonacci("2s"), "fibonacci, step 2s, cap 1d", {"kind": "fibonacci", "step": 2.0, "cap": 86400.0}),
        (
            steps(1, "10s", "5m"),
            "steps, delays 1s then 10s then 5m",
            {"kind": "steps", "delays": [1.0, 10.0, 300.0]},
        ),
        (sidekiq(), "polynomial, jitter 10, even", {"kind": "polynomial", "jitter": 10, "even": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_retry_policy_is_shown_in_durations_that_people_and_programs_read(
    penstock, store, policy, shown, as_json
):
    put(store, "a", retry=policy)
    (line,) = [one for one in penstock.ok("jobs", "show", "a").splitlines() if one.startswith("retry ")]
    assert line.split(maxsplit=1)[1] == shown
    (job,) = penstock.json("jobs", "show", "a")["jobs"]
    assert job["retry"] == as_json


def test_many_steps_are_shown_in_part(penstock, store):
    put(store, "a", retry=steps(*range(1, 1_000)))
    (line,) = [one for one in penstock.ok("jobs", "show", "a").splitlines() if one.startswith("retry ")]
    assert line.endswith("9s then 10s then 989 more")


# ── retry, cancel, delete by id ──────────────────────────────────────────────────────────────────


def test_jobs_can_be_retried_cancelled_and_deleted_by_id(penstock, store):
    put(store, "a", "b")
    kill(store)
    assert penstock.ok("jobs", "retry", "a") == "default/a: retried (was dead)\n"
    assert states(store, "a") == [State.AVAILABLE]
    assert penstock.ok("jobs", "cancel", "default/a", "b") == "default/a: cancelled\ndefault/b: cancelled\n"
    assert penstock.ok("jobs", "delete", "a", "b").count("deleted (was cancelled)") == 2
    assert states(store, "a", "b") == [None, None]


def test_a_running_job_is_asked_to_stop_and_cannot_be_deleted(penstock, store):
    put(store, "a")
    fetch(store)
    result = penstock("jobs", "delete", "a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "default/a: not deleted: it is running\n"
    assert penstock.ok("jobs", "cancel", "a") == "default/a: asked to stop\n"
    assert store.sync.get([Ref("default", "a")])[0].cancel_asked


def test_missing_jobs_decide_the_exit_code_and_the_others_are_processed(penstock, store):
    put(store, "a")
    document = penstock.json("jobs", "cancel", "a", "nowhere", "default/neither", code=3)
    assert [(c["id"], c["outcome"]) for c in document["jobs"]] == [
        ("nowhere", "missing"),
        ("a", "done"),
        ("neither", "missing"),
    ]
    assert states(store, "a") == [State.CANCELLED]


def test_a_bare_id_of_two_queues_is_refused_and_nothing_is_done(penstock, store):
    put(store, "a", queue="q1")
    put(store, "a", queue="q2")
    assert penstock.says(1, "jobs", "delete", "a") == "the id 'a' is in 2 queues: name one of q1/a, q2/a"
    assert penstock.ok("jobs", "delete", "q2/a") == "q2/a: deleted (was available)\n"
    assert states(store, "a", queue="q1") == [State.AVAILABLE]


# ── retry, cancel, delete by filter ──────────────────────────────────────────────────────────────


def test_all_dead_jobs_of_a_queue_can_be_retried(penstock, store):
    put(store, "a", "b", "c")
    put(store, "other", queue="q2")
    kill(store, 2)
    kill(store, queue="q2")
    bulk = penstock.json("jobs", "retry", "--all", "--queue", "default", "--yes")
    assert (bulk["done"], bulk["asked"], bulk["refused"], bulk["limited"]) == (2, 0, 0, False)
    assert (bulk["act"], bulk["state"], bulk["by"][:4]) == ("retry", "done", "cli:")
    assert states(store, "a", "b", "c") == [State.AVAILABLE] * 3
    assert states(store, "other", queue="q2") == [State.DEAD]


def test_a_bulk_operation_asks_first_and_says_how_many(penstock, store):
    put(store, "a", "b")
    result = penstock("jobs", "cancel", "--all", "-q", "default", "-s", "available", input="n\n")
    assert result.exit_code == 1
    assert "cancel 2 available jobs in the queue default?" in result.stderr
    assert states(store, "a", "b") == [State.AVAILABLE] * 2
    result = penstock("jobs", "cancel", "--all", "-q", "default", input="y\n")
    assert "cancel 2 unfinished jobs in the queue default?" in result.stderr
    assert result.stdout == "2 cancelled\n"


def test_without_an_answer_nothing_is_done(penstock, store):
    put(store, "a")
    assert penstock("jobs", "delete", "--all", "-q", "default", input="").exit_code == 1
    assert states(store, "a") == [State.AVAILABLE]


def test_a_bulk_operation_keeps_to_its_limit(penstock, store):
    put(store, *(f"j{n}" for n in range(5)))
    result = penstock("jobs", "delete", "--all", "-q", "default", "--limit", "3", "-y")
    assert (result.stdout, result.stderr) == ("3 deleted\n", "limit reached: more jobs may match\n")


def test_a_dry_run_counts_and_a_detached_act_is_left_to_workers(penstock, store):
    put(store, *(f"j{n}" for n in range(5)))
    assert penstock.ok("jobs", "delete", "--all", "--text", "j", "--dry-run") == "5 jobs match\n"
    started = penstock.ok("jobs", "delete", "--all", "--text", "j", "--detach", "-y")
    id = started.removeprefix("started ").strip()
    (row,) = penstock.json("bulk", "list")["bulk"]
    assert (row["id"], row["state"], row["done"]) == (id, "running", 0)
    assert "delete" in penstock.ok("bulk", "list")
    assert "text=j" in penstock.ok("bulk", "show", id)
    assert penstock.says(2, "jobs", "delete", "--all", "--text", "j", "-y").startswith(f"the bulk act {id}")
    assert penstock.ok("bulk", "abort", id) == f"{id}: aborted, reached 0 jobs\n"
    assert penstock("bulk", "show", "nobody").exit_code == 3
    assert states(store, "j0") == [State.AVAILABLE]


def test_a_bulk_retry_says_how_many_at_most_once_jobs_start_again_and_can_leave_them_out(penstock, store):
    put(store, "once", at_most_once=True, max_attempts=1)
    put(store, "plain", max_attempts=1)
    kill(store, 2)
    asked = penstock("jobs", "retry", "--all", "--dry-run")
    assert asked.stdout == "2 jobs match\n"
    assert "1 of them at-most-once and started: each starts again; --spare-at-most-once" in asked.stderr
    result = penstock("jobs", "retry", "--all", "--spare-at-most-once", "-y")
    assert (result.exit_code, result.stdout) == (1, "1 retried, 1 refused\n")
    assert states(store, "once", "plain") == [State.DEAD, State.AVAILABLE]
    result = penstock("jobs", "retry", "--all", "-y")
    assert (result.stdout, result.stderr) == ("1 retried\n", "1 of them are at-most-once and start again\n")
    kill(store, 3)
    spared = penstock("jobs", "retry", "once", "--spare-at-most-once")
    assert "at-most-once, and it has started" in spared.stderr
    assert "at-most-once: it starts again" in penstock.ok("jobs", "retry", "once")


def test_the_filter_of_a_bulk_act_is_shown_in_words(penstock, store):
    given = "-q mail -s dead -s cancelled -t t -x boom --header a=b --flow f/1 --worker w"
    since = ("--since", "2026-11-20T08:30:00Z")
    penstock.ok("jobs", "retry", "--all", *given.split(), *since, "--detach", "-y")
    (row,) = penstock.json("bulk", "list")["bulk"]
    says = (
        "filter    queue=mail, state=cancelled, state=dead, task=t, worker=w, text=boom, header=a=b, "
        "flow=f/1, enqueued since 2026-11-20T08:30:00.000Z\n"
    )
    assert says in penstock.ok("bulk", "show", row["id"])


def test_jobs_are_duplicated_and_rescheduled(penstock, store):
    put(store, "a", "b")
    assert penstock.ok("jobs", "duplicate", "b").startswith("default/b: duplicated as ")
    assert (
        penstock.ok("jobs", "reschedule", "b", "--delay", "1h") == "default/b: rescheduled (was available)\n"
    )
    assert penstock.ok("jobs", "run-now", "b") == "default/b: made available (was scheduled)\n"


def test_jobs_are_discarded_and_moved(penstock, store):
    put(store, "a", "b", "c", "d")
    assert penstock.ok("jobs", "discard", "a", "--reason", "order 17") == (
        "default/a: discarded (was available)\n"
    )
    assert store.sync.get([Ref("default", "a")])[0].reason == "order 17"
    assert penstock.ok("jobs", "move", "b", "--to", "mail") == "default/b: moved to mail (was available)\n"
    assert states(store, "b", queue="mail") == [State.AVAILABLE]
    penstock.says(2, "jobs", "move", "c")
    penstock.says(2, "jobs", "move", "c", "--to", "a/b")
    penstock.says(2, "jobs", "move", "--all", "--to", "mail")
    result = penstock("jobs", "move", "--all", "--queue", "default", "--to", "mail", input="y\n")
    assert "move 2 queued jobs in the queue default to mail?" in result.stderr
    assert result.stdout.endswith("2 moved\n")
    (bulk,) = penstock.json("bulk", "list")["bulk"]
    assert (bulk["act"], bulk["to"], bulk["done"]) == ("move", "mail", 2)
    assert states(store, "c", "d", queue="mail") == [State.AVAILABLE] * 2
    assert penstock("jobs", "move", "a", "--to", "mail").exit_code == 1


def test_jobs_are_completed_by_hand(penstock, store):
    put(store, "a", "b", "c", retention=3_600_000)
    assert penstock.ok("jobs", "complete", "a", "--result", '{"paid": true}', "--reason", "order 17") == (
        "default/a: completed (was available)\n"
    )
    (job,) = store.sync.get([Ref("default", "a")])
    assert (job.state, job.result) == (State.COMPLETED, b'{"paid": true}')
    assert job.reason == "completed by an operator: order 17"
    (entry,) = penstock.json("audit")["entries"]
    assert (entry["act"], entry["to"]) == ("jobs.complete", "a")
    assert "paid" not in str(entry["facts"])
    assert "the result is not JSON" in penstock.says(2, "jobs", "complete", "b", "--result", "paid")
    penstock.says(2, "jobs", "complete", "--all")
    of_all = ("jobs", "complete", "--all", "-q", "default")
    assert penstock.json(*of_all, "--dry-run") == {"jobs": 2}
    assert "the result is not JSON" in penstock.says(2, *of_all, "--result", "paid", "--dry-run")
    bulk = penstock.json("jobs", "complete", "--all", "-q", "default", "--result", "7", "--yes")
    assert (bulk["act"], bulk["done"], bulk["refused"]) == ("complete", 2, 0)
    assert {job.result for job in store.sync.get([Ref("default", id) for id in "bc"])} == {b"7"}
    (shown,) = penstock.json("jobs", "complete", "a", code=1)["jobs"]
    assert shown["says"] == "not completed: it is completed"


def test_arguments_are_edited_as_json_of_any_task_without_an_app(penstock, store):
    put(store, "a", payload=b'{"n":1}')
    result = penstock("jobs", "edit", "a", "--kwargs", '{"n": 12345678901234567890123}')
    assert (result.exit_code, result.stdout) == (0, "default/a: edited (is available)\n")
    assert "no app here knows the task 't': the arguments are not checked" in result.stderr
    (job,) = store.sync.get([Ref("default", "a")])
    assert job.spec.payload == b'{"n":12345678901234567890123}'
    (shown,) = penstock.json("jobs", "show", "a")["jobs"]
    assert penstock("jobs", "edit", "a", "--args", "[2]", "--if-version", shown["version"]).exit_code == 0
    result = penstock("jobs", "edit", "a", "--args", "[3]", "--if-version", shown["version"])
    assert (result.exit_code, "changed since they were shown" in result.stderr) == (1, True)
    (entry, *_) = penstock.json("audit", "--act", "jobs.edit")["entries"]
    assert entry["facts"] == {"args": "(3 characters)"}, "the log has no arguments"
    assert "retried with new arguments" in penstock.ok("jobs", "edit", "a", "--args", "[4]", "--retry")
    penstock.says(2, "jobs", "edit", "a")
    penstock.says(2, "jobs", "edit", "a", "--args", "{nonsense")
    penstock.says(2, "jobs", "edit", "a", "--args", "[1]", "--kwargs", '{"n": 1}')
    penstock.says(3, "jobs", "edit", "nobody", "--args", "[]")


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_arguments_are_edited_as_the_task_of_the_app_takes_them(penstock, store, tasks):
    made = penstock.json("enqueue", "tasks:app", "tasks.greet", '["x"]', url=False)
    edit = ("--app", "tasks:app", "jobs", "edit", made["id"])
    assert "edited" in penstock.ok(*edit, "--args", '["y"]', "--kwargs", '{"times": 3}', url=False)
    (job,) = store.sync.get([Ref("default", made["id"])])
    assert job.spec.payload == b'{"name":"y","times":3}'
    for wrong in ('["y", "many"]', '["y", 1, 2]', "[]"):
        penstock.says(2, *edit, "--args", wrong, url=False)
    penstock.says(2, *edit, "--args", '["y"]', "--kwargs", '{"name": "z"}', url=False)
    assert store.sync.get([job.ref]) == [job]


@pytest.mark.parametrize(
    "words",
    [("retry",), ("retry", "a", "--all"), ("retry", "a", "--state", "dead"), ("delete", "a", "--limit", "3")],
)
def test_ids_and_filters_do_not_mix(penstock, words):
    assert "--all" in penstock.says(2, "jobs", *words)
