"""`job.to_dict()`: a job as JSON of an API, with the names of docs/job.md."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Handle, Job, Retry, Worker, current_job
from penstock.core.clock import ManualClock
from penstock.core.job import AttemptError, NewJob, Progress, State
from penstock.inspector import Inspector
from penstock.stores.memory import MemoryStore

PAGE = Path(__file__).resolve().parents[2] / "docs" / "job.md"
NOON = 1_900_000_000_250


@pytest.fixture
def app() -> App:
    app = App(store=MemoryStore(clock=ManualClock(NOON)))

    @app.task(name="when", timeout="90s", headers={"trace": "7"}, concurrency_key="day")
    def when(day: int) -> datetime:
        current_job().progress(day, 10, "half")
        return datetime(2030, 1, day, tzinfo=UTC)

    @app.task(name="fail", max_attempts=2)
    def fail(secret: str) -> int:
        if current_job().attempt == 1:
            raise Retry(delay="1h")
        raise ValueError("no\nway")

    return app


def stored(handle: Handle[Any]) -> Job:
    job = handle.job()
    assert job is not None
    return job


def test_a_queued_job_has_its_facts_as_json(app: App) -> None:
    job = stored(app.tasks["when"].using(id="x", delay="5m", priority=7).enqueue(2))
    facts = job.to_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert {name: value for name, value in facts.items() if value not in (None, [], False, 0)} == {
        "id": "x",
        "queue": "default",
        "task": "when",
        "state": "scheduled",
        "priority": 7,
        "max_attempts": 25,
        "delivery": "at-least-once",
        "enqueued_at": "2030-03-17T17:46:40.250Z",
        "due_at": "2030-03-17T17:51:40.250Z",
        "timeout": 90.0,
        "retention": 600.0,
        "headers": {"trace": "7"},
        "concurrency_key": "2",
    }


def test_a_finished_job_has_its_result_and_times(app: App) -> None:
    handle = app.tasks["when"].enqueue(2)
    asyncio.run(Worker(app, burst=True).run())
    facts = stored(handle).to_dict()
    assert (facts["state"], facts["attempt"], facts["waited"], facts["ran"]) == ("completed", 1, 0.0, 0.0)
    assert facts["fetched_at"] == facts["ended_at"] == "2030-03-17T17:46:40.250Z"
    assert (facts["result"], facts["result_base64"]) == ("2030-01-02T00:00:00Z", None)


def test_a_failed_job_has_its_errors_and_no_traceback_unless_wanted(app: App) -> None:
    handle = app.tasks["fail"].enqueue("password")
    asyncio.run(Worker(app, burst=True).run())
    handle.reschedule(delay=0)
    asyncio.run(Worker(app, burst=True).run())
    job = stored(handle)
    facts = job.to_dict()
    assert facts["error"] == "ValueError: no"
    assert [error["kind"] for error in facts["errors"]] == ["Retry", "ValueError"]
    assert re.fullmatch(r"2030-03-17T17:46:\d\d\.\d{3}Z", facts["errors"][1].pop("at"))
    assert facts["errors"][1].pop("worker")
    assert facts["errors"][1].pop("fetched_at") <= facts["ended_at"]
    assert facts["errors"][1].pop("ran") >= 0
    assert facts["errors"][1] == {
        "attempt": 2,
        "kind": "ValueError",
        "message": "no\nway",
    }
    assert "password" not in json.dumps(facts)
    whole = job.to_dict(payload=True, tracebacks=True)
    assert whole["payload"] == {"secret": "password"}
    assert "raise ValueError" in whole["errors"][1]["traceback"]


def test_progress_is_a_dict() -> None:
    job = Job(NewJob("x", "task", b""), State.RUNNING, progress=Progress(2, 10, "half"))
    assert job.to_dict()["progress"] == {"done": 2, "of": 10, "note": "half"}


def test_bytes_that_are_no_json_are_base64() -> None:
    facts = Job(NewJob("x", "task", b"\xff\x00"), State.COMPLETED, result=b"\xff").to_dict(payload=True)
    assert (facts["result"], facts["result_base64"]) == (None, "/w==")
    assert (facts["payload"], facts["payload_base64"]) == (None, "/wA=")


def test_encrypted_texts_are_named_by_their_key() -> None:
    error = AttemptError(1, NOON, "ValueError", "$sealed:1.0123abcd.AAAA")
    job = Job(NewJob("x", "task", b""), State.DEAD, errors=(error,), reason="$sealed:1.0123abcd.AAAA")
    facts = job.to_dict()
    assert facts["reason"] == facts["errors"][0]["message"] == "(encrypted with the key 0123abcd)"


def test_a_lease_token_is_never_shown() -> None:
    job = Job(NewJob("x", "task", b""), State.RUNNING, token="secret-token", worker="w")
    assert "secret-token" not in json.dumps(job.to_dict(payload=True, tracebacks=True))


# ── the same names for operators, and on the page ────────────────────────────────────────────────


def test_an_operators_view_has_the_same_names_and_values(app: App) -> None:
    handle = app.tasks["when"].enqueue(2)
    asyncio.run(Worker(app, burst=True).run())
    (view,) = asyncio.run(Inspector(app.store).job(handle.id))
    shown, facts = view.to_dict(), stored(handle).to_dict(payload=True, tracebacks=True)
    assert set(facts) - set(shown) == {"concurrency_key"}  # `partition` has more of it
    assert {name: shown[name] for name in facts.keys() & shown.keys()} == {
        name: value for name, value in facts.items() if name in shown
    }


def test_the_page_has_each_name() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+)", PAGE.read_text("utf-8"), re.M)
    on_page = {name for row in rows for name in re.findall(r"\w+", row)}
    facts = Job(NewJob("x", "task", b""), State.RUNNING).to_dict(payload=True, tracebacks=True)
    assert on_page == set(facts)
