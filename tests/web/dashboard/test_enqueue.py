"""The form that enqueues a task, the form that edits a job, and the acts of the page of a job."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from html import unescape
from typing import Any, Literal

import pytest

from penstock import App, Worker
from penstock.core.job import Job, Ref, State
from tests.web.dashboard.conftest import Site


def state_of(site: Site, ref: Ref) -> State | None:
    (job,) = asyncio.run(site.app.store.get([ref]))
    return None if job is None else job.state


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    sku: str
    n: int = 1


def app_with_typed_tasks() -> App:
    app = App("memory://", retention="1h")

    @app.task(name="paint", queue="art", max_attempts=1)
    def paint(
        count: int,
        colour: Colour,
        size: Literal["s", "l"] = "s",
        at: datetime | None = None,
        items: list[Item] = [],  # noqa: B006
        note: str = "hi",
        fast: bool = False,
        token: str = "",
    ) -> str:
        """Paint some items."""
        if note == "boom":
            raise ValueError("no paint")
        return f"{count} {colour.name} {size} {note} {items}"

    return app


@pytest.fixture
def art() -> Iterator[Site]:
    app = app_with_typed_tasks()
    yield Site(app, open_to_all=True, hosts=())
    app.store.close()


def job_of(site: Site, location: str) -> Job:
    (job,) = asyncio.run(site.app.store.find(location.rsplit("/", 1)[1]))
    return job


def error_of(page: str, name: str) -> str:
    found = re.search(rf'<p class="wrong" id="{re.escape(name)}-e">(.*?)</p>', page)
    return "" if found is None else unescape(found[1])


FINE = {"task": "paint", "a.count": "12", "a.colour": '"red"', "a.size": '"s"', "a.note": "hi"}


def test_a_form_has_the_fields_of_the_signature_with_their_defaults(art: Site) -> None:
    assert "Paint some items." in art.client.get("/enqueue").text
    page = art.client.get("/enqueue?task=paint&priority=7").text
    assert re.search(r'<input id="a-count" name="a.count" value="" inputmode="decimal"', page)
    assert '<option value="&#34;blue&#34;">BLUE</option>' in page
    assert '<option value="&#34;s&#34;" selected>s</option>' in page
    assert '<option value="false" selected>false</option>' in page
    assert 'placeholder="2026-11-20T08:30:00Z"' in page
    assert ">\nhi</textarea>" in page
    assert 'name="o.priority" value="7"' in page
    assert art.client.get("/enqueue?task=nothing").status_code == 404


def test_what_does_not_fit_is_said_at_its_field_and_nothing_is_lost(art: Site) -> None:
    given = {
        **FINE,
        "a.count": "many",
        "a.colour": "",
        "a.at": "soon",
        "a.items": '[{"n": "x"}',
        "a.note": "<b>",
    }
    answer = art.post(art.client, "/enqueue", **given, **{"o.delay": "later", "o.max_attempts": "0"})
    assert answer.status_code == 200
    page = answer.text
    assert error_of(page, "a-count") == "Expected `int`, got `str`"
    assert error_of(page, "a-colour") == "colour is missing"
    assert "Invalid RFC3339" in error_of(page, "a-at")
    assert error_of(page, "a-items").startswith("This is not JSON")
    assert "delay='later'" in error_of(page, "o-delay")
    assert "max_attempts=0" in error_of(page, "o-max_attempts")
    assert 'value="many"' in page
    assert ">\n&lt;b&gt;</textarea>" in page
    assert asyncio.run(art.app.store.queues()) == []
    wrong = art.post(art.client, "/enqueue", **{**FINE, "a.items": '[{"n": 2}]'}).text
    assert "missing required field `sku`" in error_of(wrong, "a-items")


def test_a_form_enqueues_what_its_fields_show(art: Site) -> None:
    given = {**FINE, "a.items": '[{"sku": "a"}]', "a.note": " x\r\ny "}
    options = {"o.queue": "rush", "o.delay": "5m", "o.priority": "-3", "o.unique_key": "k"}
    answer = art.post(art.client, "/enqueue", **given, **options)
    job = job_of(art, answer.headers["location"])
    assert (job.queue, job.spec.priority, job.state) == ("rush", -3, "scheduled")
    assert job.spec.payload == b'{"count":12,"colour":"red","items":[{"sku":"a"}],"note":" x\\ny "}'
    assert "jobs.enqueue by anonymous" in art.client.get(answer.headers["location"]).text
    again = art.post(art.client, "/enqueue", **given, **options)
    assert again.headers["location"] == answer.headers["location"]
    taken = art.post(art.client, "/enqueue", **FINE, **{"o.id": job.id, "o.queue": "rush"})
    assert "exists" in taken.text
    both = art.post(art.client, "/enqueue", **FINE, **{"o.delay": "5m", "o.run_at": "2030-01-01T00:00:00Z"})
    assert "delay= and run_at= both" in both.text


def test_an_operator_of_some_queues_enqueues_into_these_only(art: Site) -> None:
    client = art.logged_in(art.token("ann", "operate:art"))
    assert art.post(client, "/enqueue", **FINE).headers["location"].startswith("/jobs/art/")
    refused = art.post(client, "/enqueue", **FINE, **{"o.queue": "rush"})
    assert "no right to enqueue into rush" in refused.text
    location = art.post(client, "/enqueue", **FINE).headers["location"]
    art.post(client, f"{location}/act/move", to="rush")
    assert "no right to operate rush" in client.get(location).text
    viewer = art.logged_in(art.token("bob", "read"))
    assert 'href="/enqueue"' not in viewer.get("/").text
    of_all = art.logged_in(art.token("eve", "operate"))
    for page in ("/tasks", "/tasks/paint"):
        assert 'href="/enqueue?task=paint"' in of_all.get(page).text
        assert "/enqueue" not in viewer.get(page).text
    assert "<form" not in viewer.get("/enqueue?task=paint").text.partition("<main")[2]


def test_a_dead_job_is_edited_and_retried_and_its_secrets_stay(art: Site) -> None:
    (task,) = art.app.tasks.values()
    handle = task.enqueue(2, Colour.RED, note="boom", token="hunter2")
    asyncio.run(Worker(art.app, concurrency=1, burst=True).run())
    path = f"/jobs/art/{handle.id}"
    assert f'href="{path}/edit">Edit and retry' in art.client.get(path).text
    page = art.client.get(f"{path}/edit").text
    assert "hunter2" not in page
    assert ">\nboom</textarea>" in page
    version = re.search(r'name="version" value="(\w+)"', page)
    assert version is not None
    kept = {"version": version[1], "a.count": "2", "a.colour": '"red"', "a.size": '"s"', "a.token": ""}
    wrong = art.post(art.client, f"{path}/edit", **{**kept, "a.count": "2.5"})
    assert error_of(wrong.text, "a-count") == "Expected `int`, got `float`"
    answer = art.post(art.client, f"{path}/edit", **{**kept, "a.note": "fine"})
    copy = job_of(art, answer.headers["location"])
    assert copy.spec.payload == b'{"count":2,"colour":"red","note":"fine","token":"hunter2"}'
    assert art.client.get(path).status_code == 404
    asyncio.run(Worker(art.app, concurrency=1, burst=True).run())
    page = art.client.get(answer.headers["location"]).text
    assert "s-completed" in page
    assert "jobs.edit by anonymous" in page


def test_a_queued_job_is_edited_in_place_if_nobody_else_has_done_so(art: Site) -> None:
    (task,) = art.app.tasks.values()
    handle = task.using(delay="1h").enqueue(2, Colour.RED)
    path = f"/jobs/art/{handle.id}"
    version = re.search(r'name="version" value="(\w+)"', art.client.get(f"{path}/edit").text)
    assert version is not None
    given = {**FINE, "version": version[1]}
    assert art.post(art.client, f"{path}/edit", **given, then="save").headers["location"] == path
    assert handle.job().spec.payload.startswith(b'{"count":12')
    stale = art.post(art.client, f"{path}/edit", **{**given, "a.count": "13"}, then="save")
    assert "its arguments have changed since they were shown" in stale.text
    art.post(art.client, f"{path}/act/reschedule", delay="2030-01-01T00:00:00Z")
    assert "2030-01-01" in art.client.get(path).text
    moved = art.post(art.client, f"{path}/act/move", back=path, to="rush")
    assert moved.headers["location"] == f"/jobs/rush/{handle.id}"
    art.post(art.client, f"{moved.headers['location']}/act/discard", reason="too <late>")
    assert "too &lt;late&gt;" in art.client.get(moved.headers["location"]).text
    assert "Complete" in art.client.get(moved.headers["location"]).text
    art.post(art.client, f"{moved.headers['location']}/act/complete", result="7 apples")
    assert state_of(art, Ref("rush", handle.id)) is State.DEAD
    art.post(art.client, f"{moved.headers['location']}/act/complete", result='{"apples":7}')
    assert state_of(art, Ref("rush", handle.id)) is State.COMPLETED
    for wrong in ("tomorrow", "2030-01-01T00:00:00", "T"):
        art.post(art.client, f"/jobs/rush/{handle.id}/act/reschedule", delay=wrong)


def test_arguments_of_an_unknown_task_are_edited_as_json(art: Site) -> None:
    def edited(payload: bytes, text: str = "") -> Any:
        id = art.app.enqueue_raw("art", payload, "unknown").id
        path = f"/jobs/art/{id}/edit"
        page = art.client.get(path).text
        return page if not text else art.post(art.client, path, arguments=text, then="save")

    assert ">\n{\n  &#34;n&#34;: 1.10\n}</textarea>" in edited(b'{"n":1.10}')
    assert "A rule of this dashboard hides" in edited(b'{"a":[{"password":1}]}')
    assert "Its arguments are not JSON." in edited(b"\xff")
    assert edited(b"{}", "[1, 2]").status_code == 303
    for wrong in ("{", "7", '"x"'):
        assert "neither a JSON object nor an array" in edited(b"{}", wrong).text


def test_without_an_app_the_page_says_what_is_missing(art: Site) -> None:
    from penstock.web.dashboard import Dashboard

    other = Site(art.app, open_to_all=True, hosts=())
    other.dashboard = Dashboard(art.app.store, open_to_all=True, hosts=())
    assert "penstock serve tasks:app" in other.new_client().get("/enqueue").text
