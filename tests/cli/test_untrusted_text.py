"""Untrusted text in output gives no escape sequence, forged line or reversed text, on any interface."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from penstock.core.job import AttemptError, NewJob, Progress, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import BatchTerms, Partition, Tenant
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.unique import UniqueKey
from penstock.stores.contract import HeartbeatRequest, Settlement, WorkerInfo
from tests.cli.conftest import IN_A_FILE, at_terminal, fetch
from tests.untrusted_text import HOSTILE, clean


def settle(store, job, state, **facts) -> None:
    asyncio.run(store.settle([Settlement(job.lease, Transition(state, keep=10**9, **facts))]))


@pytest.fixture
def filled(store):
    """A store where each text that anybody may set is a hostile one."""
    payload = json.dumps({"x": HOSTILE}, ensure_ascii=False).encode()
    facts = {"task": HOSTILE, "payload": payload, "headers": {HOSTILE: HOSTILE}, "retention": 10**9}
    put = store.sync.enqueue
    put(
        [
            NewJob(
                "dead",
                unique=UniqueKey(HOSTILE),
                partition=Partition(HOSTILE),
                tenant=Tenant(HOSTILE),
                **facts,
            )
        ]
    )
    (job,) = fetch(store, worker=HOSTILE)
    error = AttemptError(1, 1_700_000_000_000, HOSTILE, HOSTILE, f"Traceback\n  {HOSTILE}")
    settle(store, job, State.DEAD, error=error, reason=HOSTILE)
    put([NewJob("done", **facts)])
    (job,) = fetch(store, worker=HOSTILE)
    result = json.dumps(HOSTILE, ensure_ascii=False).encode()
    asyncio.run(
        store.settle([Settlement(job.lease, Transition(State.COMPLETED, keep=10**9, reason=HOSTILE), result)])
    )
    put([NewJob("parked", **facts)])
    (job,) = fetch(store, worker=HOSTILE)
    settle(store, job, State.PARKED, charge=False, reason=HOSTILE)
    put([NewJob("running", **facts)])
    (job,) = fetch(store, worker=HOSTILE)
    asyncio.run(store.extend([HeartbeatRequest(job.lease, 60_000, progress=Progress(1, 2, HOSTILE))]))
    put([NewJob("bytes", **{**facts, "payload": b"\xff" + HOSTILE.encode()})])
    put([NewJob("half", **{**facts, "payload": b'"\\ud800"'})])
    put([NewJob(HOSTILE, queue=HOSTILE, **facts)])
    put([NewJob("collecting", batch_terms=BatchTerms(HOSTILE, 10, 60_000), **facts)])
    entry = NewJob("e", **facts)
    strange = NewEntry(HOSTILE, entry, Schedule("@daily", tz=HOSTILE))
    asyncio.run(store.put_entries([NewEntry("entry", entry, Schedule.of("@daily")), strange]))
    asyncio.run(store.announce(worker()))
    return store


def worker() -> WorkerInfo:
    return WorkerInfo(
        id=HOSTILE, host=HOSTILE, pid=1, started_at=1, queues=(HOSTILE,), tasks=(HOSTILE,), concurrency=1,
        running=1, state=HOSTILE, version=HOSTILE,
    )  # fmt: skip


LOOKS = [
    *("jobs list", "jobs show dead", "jobs show done", "jobs show parked", "jobs show running"),
    *("jobs show bytes", "jobs show half", "jobs show collecting", "jobs show dead --full"),
    *("queues list", "queues parked", "batches list", "workers", "stats", "doctor", "config"),
    *("periodic list", "periodic show entry", "periodic next entry"),
]
ACTS = [
    *("jobs show {}", "jobs retry {}", "jobs cancel {}", "jobs delete default/{}", "jobs list -q {}"),
    *("jobs list --state {}", "jobs list --after {}", "jobs list --task {}", "jobs list --worker {}"),
    *("jobs retry --all -q {}", "jobs delete --all --task {}", "jobs cancel --all --state dead -q {} --yes"),
    *("queues pause {}", "queues pause {} --create", "queues purge {}", "queues delete {}"),
    *("queues purge {} --yes", "queues delete {} --force", "queues set {} --rate 5/s", "queues close {}"),
    *("queues set default --rate {}", "queues set default --max-size {}", "queues set default --on-full {}"),
    *("periodic show {}", "periodic pause {}", "periodic next {}", "periodic add {} @daily --raw -q q t"),
    *("periodic add x {} --raw -q q t", "periodic add x @daily --raw -q {} t", "batches flush default {}"),
    *("enqueue --raw -q q {}", "enqueue --raw -q {} t", "enqueue --raw -q q t --id {}"),
    *("enqueue --raw -q q t --delay {}", "enqueue --raw -q q t --header {}", "enqueue {} t", "worker {}"),
    *("worker {}:app", "worker t:app -q {}", "{}", "jobs {}", "--url {} jobs list", "jobs list --{}"),
    *("--url sqlite:///{} jobs list", "--namespace {} jobs list", "--app {}:app jobs list"),
    *("completion {}", "demo --path {}", "verify --faults {}", "verify --private {}", "stats --days {}"),
]


def words_of(command: str, text: str) -> list[str]:
    # no process takes a NUL among its arguments
    return [word.replace("{}", text.replace("\x00", "")) for word in command.split(" ")]


def test_what_is_stored_is_shown_without_a_control_character(penstock, filled):
    for command in LOOKS:
        result = penstock(*command.split())
        assert result.exit_code == 0, (command, result.output)
        clean(result.stdout)
        clean(result.stderr)


def test_json_is_valid_and_has_control_characters_as_escapes(penstock, filled):
    for command in LOOKS:
        result = penstock(*command.split(), "--json")
        assert result.exit_code == 0, (command, result.output)
        clean(result.stdout)
        clean(result.stderr)
        json.loads(result.stdout)


@pytest.mark.parametrize("text", [HOSTILE, "\udcff\udc9b\x1b[2J"], ids=["controls", "no-utf-8"])
def test_what_is_typed_is_answered_without_a_control_character(penstock, filled, text):
    for command in ACTS:
        result = penstock(*words_of(command, text), input="n\n")
        clean(result.stdout)
        clean(result.stderr)
        assert result.exit_code == 0 or result.stderr, command


@pytest.mark.parametrize("text", [HOSTILE, "\udcff\udc9b\x1b[2J"], ids=["controls", "no-utf-8"])
def test_what_is_typed_is_answered_in_valid_json(penstock, filled, text):
    for command in ACTS:
        result = penstock(*words_of(command, text), "--json", input="n\n")
        clean(result.stdout)
        clean(result.stderr)
        document = json.loads(result.stdout)
        assert result.exit_code == 0 or "error" in document or result.stderr, command


def test_json_output_keeps_every_stored_character(penstock, filled):
    (job,) = penstock.json("jobs", "show", "dead")["jobs"]
    assert job["payload"] == {"x": HOSTILE}
    assert job["errors"][0]["message"] == HOSTILE
    assert job["headers"] == {HOSTILE: HOSTILE}


def test_a_traceback_keeps_its_lines(penstock, filled):
    shown = penstock.ok("jobs", "show", "dead")
    assert "\n  Traceback\n    a\\x1b]0;owned\\x07" in shown


def test_the_traceback_of_an_error_is_neutral_too(penstock, filled, monkeypatch):
    from penstock.errors import StoreUnavailable
    from penstock.stores.memory import MemoryStore
    from penstock.stores.sqlite import SqliteStore

    async def away(*_, **__):
        raise StoreUnavailable(HOSTILE)

    monkeypatch.setattr(MemoryStore, "queues", away)
    monkeypatch.setattr(SqliteStore, "queues", away)
    result = penstock("queues", "list", "--traceback")
    clean(result.stderr)
    assert "\n    File " in result.stderr


@pytest.mark.slow
class TestAtATerminal:
    pytestmark = IN_A_FILE

    @pytest.mark.parametrize("command", LOOKS[::3])
    def test_only_our_own_colours_reach_it(self, filled, command):
        shown = at_terminal("--url", filled.url, *command.split())
        clean(re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n"))

    @pytest.mark.parametrize("columns", ["1", "100000"])
    def test_its_width_is_no_reason_to_fail(self, filled, columns):
        for command in ("jobs list", "queues list"):
            at_terminal("--url", filled.url, *command.split(), columns=columns)
