"""The page of steps: typed forms for signals, forms that drop and replace steps; and stored signals."""

from __future__ import annotations

import asyncio
import enum
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from penstock import App, Worker
from penstock.core.job import Ref, State
from penstock.stores.contract import Share, Signal, StepRecord
from penstock.web.dashboard.forms import Form
from penstock.web.dashboard.json_tree import Redaction
from penstock.web.dashboard.signal_fields import WHOLE, entered_signal, signal_fields
from penstock.workflows import current_flow
from tests.web.dashboard.conftest import Site

PATH = "/jobs/shop/o/steps"


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Packed(msgspec.Struct):
    boxes: int
    size: Size
    fragile: bool = False
    note: str | None = None
    items: list[str] = []


@pytest.fixture
def app() -> Iterator[App]:
    made = App("memory://")

    def no_stock() -> None:
        raise ValueError("no <box>")

    @made.task(queue="shop", retention="1h")
    async def order() -> str:
        flow = current_flow()
        await flow.step("charge", dict, id=7, password="hunter2")
        try:
            await flow.step("reserve", no_stock)
        except ValueError:
            await flow.step("back", str, "order")
        found = await flow.branches(left=flow.wait_for("packed", key="k", of=Packed))
        return f"{found['left']}"

    made.order = order  # type: ignore[attr-defined]
    yield made
    made.store.close()


@pytest.fixture
def site(app: App) -> Site:
    return Site(app, open_to_all=True, hosts=())


def run_all(app: App) -> None:
    asyncio.run(Worker(app, concurrency=4, burst=True).run())


@pytest.fixture
def waiting(app: Any) -> None:
    app.signal("packed", key="k", data={"boxes": "two", "password": "hunter2"}, flow="o")
    app.order.using(id="o").enqueue()
    run_all(app)


def state(app: App) -> State:
    (job,) = app.store.sync.get([Ref("shop", "o")])
    assert job is not None
    return job.state


def after(site: Site, path: str, **fields: str) -> str:
    answer = site.post(site.client, path, **fields)
    assert answer.status_code == 303, answer.text
    return str(site.client.get(answer.headers["location"]).text)


@pytest.mark.usefixtures("waiting")
def test_all_that_is_stored_of_a_step_is_shown(site: Site) -> None:
    page = site.client.get(PATH).text
    assert "<bdi>ValueError: no &lt;box&gt;</bdi>" in page
    assert "in <bdi>left</bdi>" in page
    assert "A signal was set aside" in page
    assert "a part of which is hidden, does not fit" in page
    assert "hunter2" not in page


@pytest.mark.usefixtures("waiting")
def test_a_signal_is_entered_in_fields_of_its_type(site: Site, app: Any) -> None:
    page = site.client.get(PATH).text
    ids = re.findall(r'id="(s\d+-\w+)" name="s\.(\w+)"', page)
    assert [name for _, name in ids] == ["boxes", "size", "fragile", "note", "items"]
    assert len({id for id, _ in ids}) == 5
    assert re.search(r'<option value="&#34;large&#34;">large</option>', page)
    send = {"name": "packed", "key": "k", "typed": "1", "s.size": '"large"', "s.items": '["a"]'}
    back = site.post(site.client, PATH, **send, **{"s.boxes": "two", "s.note": "</textarea>"})
    assert back.status_code == 200
    assert "Nothing was sent: expected integer, got string" in back.text
    assert re.search(r'<input id="s\d-boxes" name="s.boxes" aria-invalid="true"[^>]* value="two"', back.text)
    assert "&lt;/textarea&gt;" in back.text
    back = site.post(site.client, PATH, **send)
    assert "This is required." in back.text
    back = site.post(site.client, PATH, **{**send, "s.boxes": "1", "s.items": "[1]"})
    assert "expected string, got integer - at `$[0]`" in back.text
    back = site.post(site.client, PATH, name="packed", key="k", data='{"boxes": 1}')
    assert "&#39;size&#39; is missing; nothing was sent" in back.text
    assert state(app) is State.SUSPENDED
    assert "the job has received it" in after(site, PATH, **send, **{"s.boxes": "2", "s.fragile": "true"})
    run_all(app)
    result = app.store.sync.get([Ref("shop", "o")])[0].result
    assert b"boxes=2, size=<Size.LARGE: 'large'>, fragile=True, note=None, items=['a']" in result


@pytest.mark.usefixtures("waiting")
def test_steps_are_dropped_and_replaced(site: Site, app: Any) -> None:
    page = site.client.get(PATH).text
    assert "Replace the value" in page
    drop = {"act": "drop", "step": "!step/reserve"}
    assert "dropped step/reserve; it runs again at once" in after(site, PATH, **drop)
    assert state(app) is State.AVAILABLE
    assert "has no step &#39;step/reserve&#39;" in after(site, PATH, **drop)
    replace = {"act": "set", "step": "!step/charge"}
    for data, says in (("{", "is not JSON"), ("", "Enter the new value as JSON.")):
        back = site.post(site.client, PATH, **replace, data=data)
        assert (back.status_code, says in back.text) == (200, True)
    assert "replaced step/charge" in after(site, PATH, **replace, data='{"id": 8}')
    (step,) = app.store.sync.steps(Ref("shop", "o"), names=["!step/charge"])
    assert step.value.endswith(b'\n{"id": 8}')
    acts = site.client.get("/jobs/shop/o").text
    assert "jobs.set-step by anonymous" in acts


def test_a_running_job_has_no_forms_for_its_steps(site: Site, app: Any) -> None:
    app.order.using(id="o").enqueue()
    (job,) = asyncio.run(
        app.store.fetch([Share("shop", 1, 1)], limit=1, lease=60_000, worker="w", token="t")
    ).jobs
    app.store.sync.record_steps([StepRecord(job.lease, "!step/charge", b"a b\n1", 60_000)])
    assert "Replace the value" not in site.client.get(PATH).text
    assert "not changed: it is running" in after(site, PATH, act="drop", step="!step/charge")


def test_stored_signals_are_shown_replaced_and_dropped(site: Site, app: Any) -> None:
    assert "Stored signals" not in Site(app, open_to_all=True, hosts=()).client.get("/flows").text
    secret = Signal("packed", "<7>", b'{"password":"hunter2","n":1}')
    app.store.sync.send_signals([secret, Signal("packed", "8", b"[1]", flow="o")])
    page = site.client.get("/flows").text
    assert page.count("Replace the data") == 2
    assert "<code>&lt;7&gt;</code>" in page
    assert "hunter2" not in page
    one = {"name": "packed", "key": "8", "flow": "o"}
    back = site.post(site.client, "/flows", act="replace", data="[", **one)
    assert (back.status_code, "The data is not JSON, and nothing was changed" in back.text) == (200, True)
    assert "The signal is replaced." in after(site, "/flows", act="replace", data="[2]", **one)
    (stored,) = asyncio.run(app.store.signals(key="8"))
    assert stored.data == b"[2]"
    assert "The signal is dropped." in after(site, "/flows", act="drop", **one)
    for act in ("drop", "replace"):
        assert "This signal is not stored any more" in after(site, "/flows", act=act, data="1", **one)
    assert [one.key for one in asyncio.run(app.store.signals())] == ["<7>"]


def test_signals_are_not_shown_to_those_who_may_not_read_all_queues(app: Any) -> None:
    site = Site(app, hosts=())
    app.store.sync.send_signals([Signal("packed", "8", b"[1]")])
    operator = site.logged_in(site.token("ann", "operate:shop"))
    assert "Stored signals" not in operator.get("/flows").text
    assert site.post(operator, "/flows", act="drop", name="packed", key="8").status_code == 403
    viewer = site.logged_in(site.token("ben", "read"))
    page = viewer.get("/flows").text
    assert "Stored signals" in page
    assert "Replace the data" not in page


@pytest.mark.parametrize(
    ("schema", "sent", "data"),
    [
        (b'{"type":"array","items":{"type":"integer"}}', {"": "[1]"}, b"[1]"),
        (b'{"enum":["a",1]}', {"": "1"}, b"1"),
        (b'{"type":"string"}', {"": ""}, b'""'),
        (b'{"anyOf":[{"type":"integer"},{"type":"null"}]}', {"null.": "1"}, b"null"),
        (b'{"type":"object","properties":{"a":{"type":"integer","default":7}}}', {"a": "7"}, b"{}"),
        (b"not JSON", {"": '{"a":1}'}, b'{"a":1}'),
        (b'{"$ref":"#/$defs/A","$defs":{"A":{"$ref":"#/$defs/A"}}}', {"": "1"}, b"1"),
    ],
)
def test_fields_of_schemas(schema: bytes, sent: dict[str, str], data: bytes) -> None:
    form = Form([(name if name.startswith("null.") else f"s.{name}", text) for name, text in sent.items()])
    fields = signal_fields(schema, Redaction(()))
    assert entered_signal(fields, form, schema) == data
    assert all(field.name == WHOLE for field in fields) == (b"properties" not in schema)


def test_a_hidden_default_is_not_shown() -> None:
    schema = b'{"type":"object","properties":{"password":{"type":"string","default":"hunter2"}}}'
    (field,) = signal_fields(schema, Redaction(("password",)))
    assert (field.default, field.text, field.json) == ("", "", None)
