"""The inspector: operators see the stored data, and bulk operations run in pages."""

from __future__ import annotations

import base64
import inspect
from itertools import pairwise

import msgspec
import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import QUEUED, AttemptError, NewJob, Progress, Ref, State
from penstock.core.lifecycle import Transition, decide
from penstock.core.outcomes import Raised
from penstock.core.security import Right
from penstock.errors import ConfigError
from penstock.inspector import (
    RIGHTS,
    BulkActs,
    FlowInspector,
    Inspector,
    JobSearch,
    StatsInspector,
    as_json,
    iso,
    parse_address,
    parse_state,
    right_of,
)
from penstock.inspector import inspector as module
from penstock.inspector.audit import LOOKED_AT, AuditFilter, AuditLog
from penstock.inspector.job_acts import JobAct, every_state
from penstock.stores.contract import HeartbeatRequest, JobFilter, Settlement, Share, WorkerInfo
from penstock.stores.memory import MemoryStore
from penstock.web.access_tokens import AccessToken, TokenScope

NOW = 1_700_000_000_000
NOW_ISO = "2023-11-14T22:13:20.000Z"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def inspector(store: MemoryStore) -> Inspector:
    return Inspector(store)


async def fetch(store: MemoryStore, n: int = 1, worker: str = "w1", queue: str = "default"):
    fetched = await store.fetch(
        [Share(queue, n, n)], limit=n, lease=15_000, worker=worker, token=f"t-{worker}-{n}"
    )
    return fetched.jobs


async def test_no_answer_has_a_lease_token_or_a_checkpoint_and_lists_have_no_payload(
    store: MemoryStore, inspector: Inspector
) -> None:
    await store.enqueue([NewJob("a", "t", b'{"args":["large"]}')])
    (job,) = await fetch(store)
    await store.announce(WorkerInfo("w1", "host", 42, NOW, ("default",), ("t",), 20))
    await store.extend([HeartbeatRequest(job.lease, 15_000, started=True)])
    assert job.token
    (whole,) = await inspector.job("default/a")
    assert whole.spec.payload == job.spec.payload
    overview, (worker,) = await inspector.overview(), await inspector.workers()
    (row,) = await inspector.rows([job.ref])
    found = [one async for step in inspector.search(JobSearch()) for one in step.jobs]
    listed = [row, *found, *overview.running, *worker.jobs, *await inspector.matching(JobFilter(), [job.ref])]
    assert len(listed) >= 4
    for one in [whole, *listed]:
        assert one is not None
        assert (one.id, one.state, one.token, one.checkpoint) == ("a", State.RUNNING, None, None)
    assert {one.spec.payload for one in listed if one is not None} == {b""}


async def kill(store: MemoryStore, n: int = 1, message: str = "boom") -> None:
    """Let the next jobs die."""
    for job in await fetch(store, n):
        error = AttemptError(job.attempt, NOW, "ValueError", message, "Traceback (most recent call last): …")
        dead = Transition(State.DEAD, keep=10**9, error=error, reason=f"ValueError: {message}")
        await store.settle([Settlement(job.lease, dead)])


# ── looking ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_is_shown_with_all_its_facts(store, inspector, clock):
    new = NewJob("a", "mail", b'{"x": [1,\n 2]}', "default", priority=3, retention=60_000, headers={"k": "v"})
    await store.enqueue([new])
    clock.advance(250)
    await kill(store, message="first line\nsecond line")
    (view,) = await inspector.job("default/a")
    shown = view.to_dict()
    assert [shown[name] for name in ("queue", "id", "task", "state", "priority")] == [
        *("default", "a", "mail", "dead", 3)
    ]
    assert [shown[name] for name in ("attempt", "max_attempts", "timeout", "retention")] == [
        1,
        25,
        1800.0,
        60.0,
    ]
    assert shown["enqueued_at"] == NOW_ISO
    assert shown["fetched_at"] == "2023-11-14T22:13:20.250Z"
    assert (shown["waited"], shown["ran"]) == (0.25, 0.0)
    assert shown["headers"] == {"k": "v"}
    assert shown["retry"]["kind"] == "exponential"
    assert shown["error"] == "ValueError: first line"
    assert [one["message"] for one in shown["errors"]] == ["first line\nsecond line"]
    assert [one["traceback"][:9] for one in shown["errors"]] == ["Traceback"]
    assert shown["delivery"] == "at-least-once"
    without = view.to_dict(payload=False, tracebacks=False)
    assert shown.keys() - without.keys() == {"payload", "payload_base64"}
    assert "traceback" not in without["errors"][0]


async def test_a_payload_of_json_stays_exactly_that_json_on_one_line(store, inspector):
    await store.enqueue([NewJob("a", "t", b'{"n": 123456789012345678901234567890,\n "s": "\xc3\xa4"}')])
    (view,) = await inspector.job("a")
    text = msgspec.json.encode(as_json(view)).decode()
    assert '"payload":{"n":123456789012345678901234567890,"s":"ä"}' in text
    assert "\n" not in text
    assert as_json(view)["payload_base64"] is None


@pytest.mark.parametrize("payload", [b"\xff\x00", b"plain text", b"", b'{"a": NaN}'])
async def test_a_payload_of_other_bytes_is_base64(store, inspector, payload):
    await store.enqueue([NewJob("a", "t", payload)])
    (view,) = await inspector.job("a")
    shown = as_json(view)
    assert shown["payload"] is None
    assert base64.b64decode(shown["payload_base64"]) == payload
    assert shown["payload_size"] == len(payload)


async def test_the_token_of_a_lease_is_never_shown(store, inspector):
    await store.enqueue([NewJob("a", "t")])
    await fetch(store, worker="w1")
    await store.announce(WorkerInfo("w1", "host", 42, NOW, ("default",), ("t",), 20))
    steps = [step async for step in inspector.search(JobSearch())]
    shown = [await inspector.job("a"), await inspector.workers(), await inspector.overview(), steps]
    assert b'"w1"' in msgspec.json.encode(as_json(shown))
    assert b"t-w1-1" not in msgspec.json.encode(as_json(shown))


async def test_a_bare_id_is_searched_in_all_queues(store, inspector):
    await store.enqueue(
        [NewJob("a", "t", queue="q1"), NewJob("a", "t", queue="q2"), NewJob("b", "t", queue="q2")]
    )
    assert {view.queue for view in await inspector.job("a")} == {"q1", "q2"}
    assert {view.queue for view in await inspector.job("q2/a")} == {"q2"}
    assert await inspector.job("nothing") == []
    assert await inspector.job("q1/b") == []
    assert await inspector.refs("a") == [Ref("q1", "a"), Ref("q2", "a")]


async def test_a_search_says_what_it_found_and_how_far_it_is(store, inspector):
    await store.enqueue([NewJob(f"job {n}", "t", payload=b"x" * (n % 1000 == 7)) for n in range(2_499)])
    search = JobSearch(JobFilter(text="x"))
    steps = [step async for step in inspector.search(search)]
    assert [job.id for step in steps for job in step.jobs] == ["job 2007", "job 1007", "job 7"]
    seen = [step.seen for step in steps]
    assert seen == sorted(seen)
    assert all(more - less <= 500 for less, more in pairwise([0, *seen]))
    assert (seen[-1], {step.total for step in steps}) == (2499, {2499})
    limited = [step async for step in inspector.search(search, limit=1)]
    assert [job.id for step in limited for job in step.jobs] == ["job 2007"]
    rest = [step async for step in inspector.search(search, after=limited[-1].next)]
    assert [job.id for step in rest for job in step.jobs] == ["job 1007", "job 7"]


async def test_a_job_shows_its_attempts_and_what_operators_did(store, inspector, clock):
    await store.enqueue([NewJob("a", "t"), NewJob("b", "t")])
    job, _ = await fetch(store, 2, worker="w1")
    clock.advance(3_000)
    error = AttemptError(1, clock.now(), "ValueError", "boom\nbang", "Traceback …")
    await store.settle([Settlement(job.lease, decide(job, Raised(error), clock.now()))])
    await AuditLog(store).write("cli:ann@host", "jobs.retry", "b, default/a", facts={"x": "y"})
    await AuditLog(store).write("cli:ann@host", "jobs.cancel", "default/b")
    await store.retry([job.ref])
    await fetch(store, 1, worker="w2")
    (view,) = await inspector.job("a")
    first, second = view.attempts
    assert (first.attempt, first.worker, first.ran, first.outcome) == (1, "w1", 3.0, "failed")
    assert (first.fetched_at, first.error) == (NOW, "ValueError: boom")
    assert (second.worker, second.ran, second.outcome) == ("w2", None, "running")
    assert [(act.entry.who, act.entry.act, act.entry.facts) for act in view.acts] == [
        ("cli:ann@host", "jobs.retry", {"x": "y"})
    ]


async def test_a_moved_job_shows_what_operators_did_before(store, inspector):
    await store.enqueue([NewJob("a", "t"), NewJob("a", "t", queue="third")])
    log = AuditLog(store)
    await log.write("cli:ann@host", "jobs.reschedule", "default/a")
    await log.write("cli:ann@host", "jobs.move", ["default/a"], facts={"to": "other"})
    await log.write("cli:ann@host", "jobs.cancel", "third/a")
    await inspector.move([Ref("default", "a")], "other")
    (view,) = await inspector.job("other/a")
    assert [act.entry.act for act in view.acts] == ["jobs.move", "jobs.reschedule"]


async def test_an_act_on_many_jobs_is_in_the_audit_log_with_all_of_them(store):
    log, names = AuditLog(store), [f"default/{n:036}" for n in range(50)]
    await log.write("cli:ann@host", "jobs.retry", [*names, "x" * 600], facts={"x": "y"})
    entries = [one.entry async for one in log.newest_first()][::-1]
    assert ", ".join(entry.to for entry in entries).split(", ") == [*names, "x" * 500]
    assert {(entry.act, entry.facts["x"], len(entry.to) <= 500) for entry in entries} == {
        ("jobs.retry", "y", True)
    }
    (found,) = await log.of_job(Ref(*names[-1].split("/")))
    assert names[-1] in found.entry.to


async def test_queues_show_their_counts_in_the_order_of_the_lifecycle(store, inspector, clock):
    await store.enqueue([NewJob("a", "t"), NewJob("b", "t"), NewJob("c", "t", delay=9_000)])
    await kill(store)
    await inspector.pause("default")
    (queue,) = await inspector.queues()
    assert list(queue.counts.items()) == [("scheduled", 1), ("available", 1), ("dead", 1)]
    assert (queue.paused, queue.closed, queue.oldest_available) == (True, False, NOW)
    assert await inspector.queue("default") == queue
    assert await inspector.queue("other") is None


async def test_workers_show_what_they_run_since_when(store, inspector, clock):
    await store.enqueue([NewJob(f"j{n}", "t") for n in range(3)])
    await store.announce(WorkerInfo("w1", "host", 42, NOW, ("default",), ("t",), 20, running=3, version="1"))
    clock.advance(1_000)
    jobs = await fetch(store, 3)
    await store.extend(
        [HeartbeatRequest(jobs[0].lease, 15_000, started=True, progress=Progress(1, 4, "one"))]
    )
    (worker,) = await inspector.workers(jobs=2)
    assert (worker.id, worker.host, worker.pid, worker.running) == ("w1", "host", 42, 3)
    assert worker.started_at == NOW
    assert len(worker.jobs) == 2
    assert worker.more
    (worker,) = await inspector.workers(jobs=3)
    assert not worker.more
    begun = {job.id: (job.started, job.fetched_at) for job in worker.jobs}
    assert begun["j0"] == (True, NOW + 1_000)
    assert begun["j1"][0] is False


async def test_stats_show_totals_and_days(store, inspector):
    await store.enqueue([NewJob("a", "t"), NewJob("b", "t")])
    await kill(store)
    (stats,) = await inspector.stats(days=1)
    assert (stats.name, stats.enqueued, stats.processed, stats.failed) == ("default", 2, 1, 1)
    assert [(d.day, d.processed, d.failed) for d in stats.days] == [("2023-11-14", 1, 1)]


# ── doing ────────────────────────────────────────────────────────────────────────────────────────


async def test_each_job_says_what_became_of_it(store, inspector):
    await store.enqueue([NewJob("running", "t"), NewJob("queued", "t")])
    await fetch(store)
    refs = [Ref("default", id) for id in ("running", "queued", "nowhere")]
    assert [c.outcome for c in await inspector.delete(refs[:1])] == ["refused"]
    assert [c.outcome for c in await inspector.cancel(refs)] == ["asked", "done", "missing"]
    assert [c.outcome for c in await inspector.retry(refs)] == ["refused", "done", "missing"]
    assert [c.says for c in await inspector.retry(refs)] == [
        "not retried: it is running",
        "retried (was available)",
        "no such job",
    ]
    assert [c.outcome for c in await inspector.reschedule(refs, delay=500)] == ["refused", "done", "missing"]
    assert [c.outcome for c in await inspector.delete(refs)] == ["refused", "done", "missing"]


async def test_a_job_that_has_ended_cannot_be_cancelled(store, inspector):
    await store.enqueue([NewJob("a", "t")])
    await kill(store)
    (change,) = await inspector.cancel([Ref("default", "a")])
    assert (change.outcome, change.says) == ("refused", "not cancelled: it is dead")


async def test_a_queue_can_be_paused_closed_purged_and_deleted(store, inspector, monkeypatch):
    monkeypatch.setattr(module, "_PURGED_AT_ONCE", 2)
    await store.enqueue([NewJob(f"j{n}", "t") for n in range(5)])
    assert (await inspector.pause("default")).paused
    assert not (await inspector.resume("default")).paused
    assert (await inspector.close("default")).closed
    assert not (await inspector.open("default")).closed
    assert await inspector.delete_queue("default") is False
    assert await inspector.purge("default") == 5
    assert await inspector.delete_queue("default") is True
    assert await inspector.queues() == []


# ── words ────────────────────────────────────────────────────────────────────────────────────────


def test_an_instant_is_written_in_utc_to_the_millisecond():
    assert iso(NOW + 7) == "2023-11-14T22:13:20.007Z"
    assert iso(None) is None
    assert iso(10**18) == f"{10**18} ms since 1970"


def test_an_address_is_an_id_or_queue_slash_id():
    assert parse_address("mail/a:1") == Ref("mail", "a:1")
    assert parse_address("a:1") == "a:1"
    with pytest.raises(ConfigError, match="cannot be a job's id"):
        parse_address("mail/")


def test_a_state_that_does_not_exist_is_answered_with_the_near_one():
    assert parse_state("Dead") is State.DEAD
    with pytest.raises(ConfigError, match=r"did you mean 'dead'\?"):
        parse_state("ded")


def test_acts_on_all_jobs_know_every_state():
    assert set(every_state(JobAct.CANCEL)) == QUEUED | {State.SUSPENDED, State.RUNNING}
    assert set(every_state(JobAct.DELETE)) == set(State) - {State.RUNNING}
    assert set(every_state(JobAct.RETRY)) == set(State)


# ── rights ───────────────────────────────────────────────────────────────────────────────────────


def test_every_method_and_act_of_an_operator_needs_a_right():
    parts = {"": Inspector, "flows.": FlowInspector, "bulk.": BulkActs, "statistics.": StatsInspector}
    methods = {
        f"{prefix}{name}"
        for prefix, part in parts.items()
        for name, member in vars(part).items()
        if not name.startswith("_") and inspect.isfunction(member) and name != "act"
    }
    assert set(RIGHTS) == methods | {f"act.{act.value}" for act in JobAct} | {"enqueue"}
    changing = {name for name, right in RIGHTS.items() if right is not Right.READ}
    assert {right_of(act) for act in JobAct} == {Right.OPERATE}
    assert {"edit", "move", "trigger_entry", "bulk.start"} <= changing
    reader = AccessToken("ann", "", (TokenScope.of("read"), TokenScope.of("operate:mail")), 0)
    assert {act for act in JobAct if reader.allows(right_of(act), ["default"])} == set()
    assert reader.allows(right_of("why"), ["default"])
    assert reader.allows(right_of(JobAct.MOVE), ["mail"])
    assert not reader.allows(right_of("purge"), ["mail"])
    with pytest.raises(ConfigError, match="no act 'paint'"):
        right_of("paint")


async def test_the_audit_log_has_no_contents_of_jobs(store):
    log = AuditLog(store)
    await log.write("ann", "jobs.edit", "default/a", facts={"args": '["4711"]', "to": "mail"})
    await BulkActs(store).start(JobAct.RETRY, JobFilter(text="4711", headers={"card": "4711"}), by="ann")
    written = [one.entry.facts async for one in log.newest_first()]
    assert written[1] == {"args": "(8 characters)", "to": "mail"}
    assert "4711" not in str(written)
    assert "(4 characters)" in written[0]["filter"]


async def test_a_page_of_the_audit_log_reads_a_bounded_number_of_entries(store):
    log = AuditLog(store)
    for who in ("ann", "bob"):
        await log.write(who, "queue.pause", "Mail")
    entry = b'{"who":"cli","address":"","act":"jobs.retry","to":"default/a"}'
    await store.append_log("audit", [entry] * (LOOKED_AT + 1), keep=10_000)
    inspector, filter = Inspector(store), AuditFilter(act="queue.", to="mail")
    first = await inspector.audit(filter)
    assert (first.entries, first.seen) == ([], LOOKED_AT)
    second = await inspector.audit(filter, before=first.next)
    assert [one.entry.who for one in second.entries] == ["bob", "ann"]
    assert second.next is None
    full = await log.page(limit=2, before=second.entries[0].number + 1)
    assert ([one.entry.who for one in full.entries], full.next) == (["bob", "ann"], None)


async def test_one_worker_is_shown_with_its_jobs(store):
    await store.enqueue([NewJob("a", "t"), NewJob("b", "t")])
    await store.fetch([Share("default", 1, 9)], limit=1, lease=1_000, worker="w1", token="t")
    await store.announce(WorkerInfo("w1", "host", 1, 0, ("default",), ("t",), 4))
    worker = await Inspector(store).worker("w1")
    assert worker is not None
    assert ([job.id for job in worker.jobs], worker.running) == (["a"], 1)
    assert await Inspector(store).worker("w") is None
    assert len(await Inspector(store).response_times(reads=2)) == 2
