"""The shop's jobs in virtual time: hours pass in milliseconds, and nothing sleeps."""

import logging
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient
from penstock.testing import FaultyStore, Inline, inline

from shop.app import app
from shop.database import Mail, Order, Session, now
from shop.orders import confirm

ORDER = {"product": "pear", "quantity": 3, "email": "ann@example.org"}


def mails() -> list[str]:
    with Session() as db:
        return [mail.text for mail in db.query(Mail)]


def test_an_order_is_confirmed_by_mail(client: TestClient, box: Inline) -> None:
    answer = client.post("/orders", json=ORDER)
    assert answer.status_code == 201
    box.assert_enqueued(confirm, answer.json()["order"], queue="orders")
    assert mails() == []
    box.run()
    assert mails() == ["Thank you for 3 × pear"]


def test_a_second_run_sends_no_second_mail(client: TestClient, box: Inline) -> None:
    order = client.post("/orders", json=ORDER).json()["order"]
    box.run()
    confirm.enqueue(order)
    box.run()
    assert len(mails()) == 1


def test_an_order_without_a_job_is_found(box: Inline) -> None:
    with Session.begin() as db:  # the web process died between its commit and its enqueue
        db.add(Order(**ORDER, created_at=now() - timedelta(minutes=5)))
    box.advance("1m")
    assert len(mails()) == 1


def test_an_order_is_accepted_while_the_store_is_away(client: TestClient, box: Inline) -> None:
    store = FaultyStore(app.store)
    own = app.use_store(store.store)
    store.down()
    order = client.post("/orders", json=ORDER).json()["order"]
    assert client.post("/reports/2020").status_code == 503
    app.use_store(own)
    with Session.begin() as db:
        db.get_one(Order, order).created_at -= timedelta(minutes=5)
    box.advance("1m")
    assert len(mails()) == 1


def test_mails_keep_to_the_rate(client: TestClient, box: Inline) -> None:
    for _ in range(60):
        client.post("/orders", json=ORDER)
    box.run()
    assert 0 < len(mails()) <= 10  # the burst
    box.advance("100ms")
    assert len(mails()) <= 20
    box.advance("1s")
    assert len(mails()) == 60


def test_a_report_shows_its_progress_and_its_result(client: TestClient, box: Inline) -> None:
    client.post("/orders", json=ORDER)
    job = client.post(f"/reports/{now().year}").json()["job"]
    assert client.get(f"/jobs/{job}").json()["state"] == "available"
    box.run()
    events = client.get(f"/jobs/{job}/progress").text
    assert events.startswith('event: progress\ndata: {"done": 12, "of": 12}\n\nevent: end\n')
    assert client.get(f"/jobs/{job}").json()["result"][f"{now():%Y-%m}"] == 3


def test_a_job_can_be_cancelled(client: TestClient, box: Inline) -> None:
    job = client.post("/reports/2020").json()["job"]
    assert client.delete(f"/jobs/{job}").json() == {"state": "cancelled"}
    assert box.run().attempts == 0
    shown: dict[str, Any] = client.get(f"/jobs/{job}").json()
    assert (shown["state"], shown["reason"]) == ("cancelled", "cancelled by the user")


def test_an_unknown_job_is_not_found(client: TestClient) -> None:
    assert client.get("/jobs/nothing").status_code == 404
    assert client.get("/jobs/nothing/progress").status_code == 404


def test_a_full_queue_asks_to_come_again(client: TestClient) -> None:
    app.queue("reports").settings(max_size=1)
    assert client.post("/reports/2020").status_code == 202
    answer = client.post("/reports/2021")
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1


def test_old_mails_are_removed_at_night(box: Inline) -> None:
    with Session.begin() as db:
        for key, days in [("old", 31), ("new", 1)]:
            db.add(Mail(key=key, to="ann@example.org", text=key, sent_at=now() - timedelta(days=days)))
    box.advance("1d")
    assert mails() == ["new"]


def test_a_dead_job_raises_an_alert(caplog: pytest.LogCaptureFixture) -> None:
    with inline(app, raises=False) as box, caplog.at_level(logging.ERROR, "shop.alerts"):
        confirm.using(max_attempts=1).enqueue(404)  # there is no such order
        box.run()
    (alert,) = [line for line in caplog.records if line.name == "shop.alerts"]
    assert alert.message.startswith("job is dead: NoResultFound")


def test_staff_see_the_dashboard_with_the_login_of_the_shop(client: TestClient, box: Inline) -> None:
    job = client.post("/reports/2020").json()["job"]
    page = f"/staff/jobs/jobs/reports/{job}"
    asked = client.get(page, follow_redirects=False)
    assert (asked.status_code, asked.headers["location"]) == (
        303,
        f"/staff/login?{urlencode({'next': page})}",
    )
    login = asked.headers["location"]
    assert client.post(login, data={"name": "ann", "password": "other"}).status_code == 401
    assert "Cancel…" in client.post(login, data={"name": "ann", "password": "secret"}).text
    box.run()
    assert "s-completed" in client.get(page).text
    client.post(login, data={"name": "bob", "password": "other"})
    assert "/act/" not in client.get(page).text  # he may look
