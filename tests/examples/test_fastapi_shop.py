"""examples/fastapi_shop keeps every order that it has accepted, through kills and restarts."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES, SRC, Site
from tests.packages import packages_or_skip

SHOP = EXAMPLES / "fastapi_shop"

#: On each of these servers with one of the stores; the other project has the other pairs.
SERVERS = {
    "uvicorn": "uvicorn watched:web --workers 2 --timeout-worker-healthcheck 60 --port {port}",
    "gunicorn": "gunicorn watched:web --worker-class asgi --workers 2 --preload --bind 127.0.0.1:{port}",
}

WATCHED = """\
import os

from penstock.testing.ledger import Ledger
from shop.app import app
from shop.web import web

Ledger(os.environ["LEDGER"]).watch(app)
"""


@pytest.fixture(autouse=True)
def _frameworks() -> None:
    packages_or_skip("fastapi", "httpx2", "sqlalchemy", "uvicorn", "gunicorn")


@pytest.fixture
def shop(open_site: Callable[..., Site], url: str, tmp_path: Path) -> Site:
    (tmp_path / "watched.py").write_text(WATCHED)
    site = open_site("fastapi_shop", url, DATABASE_URL=f"sqlite:///{tmp_path}/shop.db")
    site.run("shop.database")
    return site


@pytest.mark.system
def test_the_tests_of_the_shop_pass(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(SHOP)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.system
@pytest.mark.timeout(400)  # four programs start and end, one after another
@pytest.mark.parametrize(("server", "url"), [("uvicorn", "redis"), ("gunicorn", "sqlite")], indirect=["url"])
def test_no_accepted_order_is_lost_by_kills_and_restarts(shop: Site, server: str) -> None:
    accepted = shop.live_through_kills_and_restarts(SERVERS[server], lambda number: order(shop, number))
    every_order_has_one_mail(shop, accepted)
    shop.check_ledger()


@pytest.mark.system
def test_a_report_is_followed_to_its_end(shop: Site) -> None:
    shop.worker("watched:app")
    shop.web("uvicorn", "watched:web", "--port", str(shop.port))
    job = shop.request("POST", "/reports/2020").json["job"]
    *_, last = shop.request("GET", f"/jobs/{job}/progress").text.strip().split("\n\n")
    kind, data = last.split("\ndata: ")
    assert kind == "event: end"
    assert json.loads(data)["state"] == "completed"
    assert len(shop.request("GET", f"/jobs/{job}").json["result"]) == 12


def order(shop: Site, number: int) -> int | None:
    new = {"product": f"pear {number}", "quantity": 1, "email": "ann@example.org"}
    answer = shop.request("POST", "/orders", new)
    return answer.json["order"] if answer.status == 201 else None


def every_order_has_one_mail(shop: Site, accepted: list[int]) -> None:
    with sqlite3.connect(shop.folder / "shop.db") as db:
        orders = dict(db.execute("SELECT id, confirmed_at FROM orders").fetchall())
        mails = Counter(text for (text,) in db.execute("SELECT text FROM mails"))
        products = dict(db.execute("SELECT id, product FROM orders").fetchall())
    db.close()
    assert not [number for number in accepted if orders[number] is None]
    assert {mails[f"Thank you for 1 × {products[number]}"] for number in accepted} == {1}
    assert set(mails.values()) == {1}
