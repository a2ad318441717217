"""examples/django_site keeps every subscriber that it has accepted, through kills and restarts."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES, SRC, Site
from tests.packages import packages_or_skip

PROJECT = EXAMPLES / "django_site"

#: On each of these servers with one of the stores; the other project has the other pairs.
SERVERS = {
    "uvicorn": "uvicorn watched:asgi --workers 2 --timeout-worker-healthcheck 60 --port {port}",
    "gunicorn": "gunicorn watched:wsgi --workers 2 --threads 4 --preload --bind 127.0.0.1:{port}",
}

WATCHED = """\
import os

from penstock.testing.ledger import Ledger
from mysite.worker import app
from mysite.asgi import application as asgi
from mysite.wsgi import application as wsgi

Ledger(os.environ["LEDGER"]).watch(app)
"""


@pytest.fixture(autouse=True)
def _frameworks() -> None:
    packages_or_skip("django", "uvicorn", "gunicorn")


@pytest.fixture
def site(open_site: Callable[..., Site], url: str, tmp_path: Path) -> Site:
    (tmp_path / "watched.py").write_text(WATCHED)
    site = open_site(
        "django_site", url, DATABASE=str(tmp_path / "site.db"), DJANGO_SETTINGS_MODULE="mysite.settings"
    )
    site.run("django", "migrate", "--verbosity", "0")
    return site


@pytest.mark.system
def test_the_tests_of_the_site_pass() -> None:
    ran = subprocess.run(
        [sys.executable, "manage.py", "test"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.system
@pytest.mark.timeout(400)  # four programs start and end, one after another
@pytest.mark.parametrize(("server", "url"), [("uvicorn", "sqlite"), ("gunicorn", "redis")], indirect=["url"])
def test_no_accepted_subscriber_is_lost_by_kills_and_restarts(site: Site, server: str) -> None:
    accepted = site.live_through_kills_and_restarts(SERVERS[server], lambda number: subscribe(site, number))
    every_subscriber_has_one_letter(site, accepted)
    site.check_ledger()


@pytest.mark.system
def test_a_worker_keeps_no_connection_of_a_task_open(site: Site) -> None:
    worker = site.worker("watched:app")
    web = site.web("gunicorn", "watched:wsgi", "--bind", f"127.0.0.1:{site.port}")
    assert None not in [subscribe(site, number) for number in range(20)]
    site.drained("mail")
    site.until(lambda: not open_databases(worker.serving()), "connections are closed", worker)
    assert worker.drain() == 0
    assert web.drain() in (0, -15)


def open_databases(pids: list[int]) -> list[str]:
    files = [os.readlink(fd) for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
    return [file for file in files if "site.db" in file]


def subscribe(site: Site, number: int) -> int | None:
    answer = site.request("POST", "/subscribers", {"email": f"customer-{number}@example.org"})
    return answer.json["subscriber"] if answer.status == 201 else None


def every_subscriber_has_one_letter(site: Site, accepted: list[int]) -> None:
    db = sqlite3.connect(site.folder / "site.db")
    welcomed = {key for (key,) in db.execute("SELECT id FROM newsletter_subscriber WHERE welcomed_at > 0")}
    welcomes = [key for (key,) in db.execute("SELECT subscriber_id FROM newsletter_letter")]
    db.close()
    assert set(accepted) <= welcomed
    assert set(accepted) <= set(welcomes)
    assert len(set(welcomes)) == len(welcomes)
