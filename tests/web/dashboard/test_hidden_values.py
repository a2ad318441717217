"""Values that a rule hides are not shown in another form: as base64, as a hash, in a key, as a default."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import App, Worker
from penstock.core.job import NewJob
from penstock.core.schedule import NewEntry, Schedule
from penstock.stores.contract import Share
from penstock.web.dashboard.json_tree import Redaction, hidden_texts
from tests.web.dashboard.conftest import Site

MORE: dict[str, Any] = {"password": "hunter2"}


@pytest.fixture
def bank() -> Iterator[Site]:
    app = App("memory://", retention="1h")

    @app.task(name="pay", queue="bank", unique=True)
    def pay(to: str, cvv: str, note: str = "") -> str:
        return to

    @app.task(name="push", queue="bank", concurrency_key=("device_token", "to"), fair_by="to")
    def push(device_token: str, to: str) -> None: ...

    @app.task(name="sync", queue="bank")
    def sync(url: str = "https://bank", api_key: str = "sk-live-1", more: dict[str, Any] = MORE) -> None: ...

    yield Site(app, open_to_all=True, hosts=())
    app.store.close()


def version_of(page: str) -> str:
    found = re.search(r'name="version" value="(\w+)"', page)
    assert found is not None
    return found[1]


def fact(page: str, name: str) -> str:
    found = re.search(rf"<dt>{name}</dt><dd><bdi>([^<]*)</bdi>", page)
    return "" if found is None else found[1]


def test_the_arguments_of_an_entry_hide_values_also_if_they_are_not_quite_json(bank: Site) -> None:
    payload = b'{"password":"hunter2","half":"\\ud800"}'
    entry = NewEntry("nightly", NewJob("x", "pay", payload, "bank"), Schedule("every 30s"))
    asyncio.run(bank.app.store.put_entries([entry]))
    page = bank.client.get("/periodic/bank/nightly").text
    assert "\\ud800" in page
    assert "hunter2" not in page
    assert "aHVudGVyMg" not in page


def test_what_is_nested_too_deeply_is_not_shown_in_another_form(bank: Site) -> None:
    payload = b'{"password":"hunter2","deep":%b%b}' % (b"[" * 5_000, b"]" * 5_000)
    bank.app.store.sync.enqueue([NewJob("deep", "pay", payload, "bank")])
    for path in ("", "/edit", "/document/arguments", "/steps"):
        page = bank.client.get(f"/jobs/bank/deep{path}")
        assert page.status_code == 200, path
        assert "hunter2" not in page.text
        assert "aHVudGVyMg" not in page.text
    assert "nested too deeply" in bank.client.get("/jobs/bank/deep").text


def test_no_hash_of_a_hidden_argument_is_shown(bank: Site) -> None:
    handle = bank.app.tasks["pay"].using(delay="1h").enqueue("ann", "123")
    path = f"/jobs/bank/{handle.id}"
    assert fact(bank.client.get(path).text, "Unique key") == "hidden"
    before = version_of(bank.client.get(f"{path}/edit").text)
    given = {"a.to": "ann", "a.cvv": "124", "a.note": "", "then": "save"}
    assert bank.post(bank.client, f"{path}/edit", **given, version=before).status_code == 303
    after = version_of(bank.client.get(f"{path}/edit").text)
    assert after.partition("_")[0] == before.partition("_")[0]
    job = handle.job()
    assert job is not None
    bank.app.store.sync.delete([job.ref])
    bank.app.store.sync.enqueue([NewJob("p", "pay", b'{"to":"ann"}', "bank", unique=job.spec.unique)])
    assert len(fact(bank.client.get("/jobs/bank/p").text, "Unique key")) == 32


def test_an_edit_is_refused_if_what_was_shown_has_changed(bank: Site) -> None:
    bank.app.store.sync.enqueue([NewJob("j", "pay", b'{"to":"ann","cvv":"1"}', "bank", delay=3_600_000)])
    version = version_of(bank.client.get("/jobs/bank/j/edit").text)
    given = {"a.to": "bob", "a.cvv": "", "a.note": "", "then": "save"}
    answer = bank.post(bank.client, "/jobs/bank/j/edit", **given, version=f"x{version}")
    assert "have changed since they were shown" in answer.text
    assert bank.post(bank.client, "/jobs/bank/j/edit", **given, version=version).status_code == 303
    (job,) = bank.app.store.sync.get([bank.app.handle("j", queue="bank").ref])
    assert job is not None
    assert job.spec.payload == b'{"to":"bob","cvv":"1"}'


def test_the_id_of_a_copy_does_not_tell_which_hidden_arguments_it_has(bank: Site) -> None:
    handle = bank.app.tasks["pay"].enqueue("ann", "123")
    asyncio.run(Worker(bank.app, concurrency=1, burst=True).run())
    path = f"/jobs/bank/{handle.id}/edit"
    given = {"a.to": "ann", "a.cvv": "", "a.note": "again"}
    first, second = (version_of(bank.client.get(path).text) for _ in range(2))
    sent = [bank.post(bank.client, path, **given, version=one) for one in (first, first, second)]
    assert "other arguments before" in sent[1].text  # the same form, sent twice
    assert sent[0].headers["location"] != sent[2].headers["location"]


def test_a_key_of_hidden_arguments_is_hidden_also_where_a_reason_names_it(bank: Site) -> None:
    push = bank.app.tasks["push"]
    handles = [push.enqueue("secret-7", "ann") for _ in range(2)]
    asyncio.run(_fetched(bank.app))
    pages = [bank.client.get(f"/jobs/bank/{one.id}").text for one in handles]
    assert [fact(page, "Partition") for page in pages] == ["hidden", "hidden"]
    assert [fact(page, "Tenant") for page in pages] == ["ann", "ann"]
    assert "Its partition hidden is held by" in pages[1]
    assert "secret-7" not in "".join(pages)


async def _fetched(app: App) -> None:
    await app.store.fetch([Share("bank", 9, 9)], limit=1, lease=60_000, worker="w", token="t")


def test_defaults_of_hidden_arguments_are_not_shown_and_still_used(bank: Site) -> None:
    pages = [bank.client.get(path).text for path in ("/enqueue", "/enqueue?task=sync")]
    assert all("https://bank" in page for page in pages)
    assert not [page for page in pages if "sk-live-1" in page or "hunter2" in page]
    assert "api_key: str = hidden" in pages[0]
    assert "hidden: leave empty for the default" in pages[1]
    answer = bank.post(bank.client, "/enqueue", task="sync", **{"a.url": "x", "a.api_key": "", "a.more": ""})
    (job,) = asyncio.run(bank.app.store.find(answer.headers["location"].rsplit("/", 1)[1]))
    assert job.spec.payload == b'{"url":"x"}'


def test_hidden_texts_are_those_below_a_hidden_name() -> None:
    raw = b'{"a":"1","PIN":[1.50,{"b":"x","c":null}],"d":[{"pin":true}]}'
    assert hidden_texts(raw, Redaction(["pin"])) == ["1.50", "x", "null", "true"]
    assert hidden_texts(b"\xff", Redaction(["pin"])) == []
    assert hidden_texts(b"[" * 5_000 + b"]" * 5_000, Redaction(["pin"])) is None
