"""`penstock doctor`: what it finds is what is so."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


def found(document):
    return {finding["what"]: (finding["how"], finding["says"]) for finding in document["findings"]}


def test_a_healthy_place_is_said_to_be(here):
    penstock = Cli(f"sqlite:///{here}/jobs.db")
    penstock.ok("enqueue", "--raw", "-q", "q", "t")
    findings = found(penstock.json("doctor"))
    assert findings["file"][0] in ("ok", "warning")  # a warning on tmpfs
    assert findings["durability"] == ("ok", "full: an acknowledged job survives a power cut")
    assert findings["store"][1].endswith("1 queues, 1 jobs")
    assert findings["settings"][0] == "ok"


def test_a_store_that_is_not_there_yet_stays_so(here):
    findings = found(Cli(f"sqlite:///{here}/jobs.db?durability=normal").json("doctor"))
    assert findings["durability"][0] == "warning"
    assert "not there yet" in findings["store"][1]
    assert list(here.iterdir()) == []


def test_settings_that_are_wrong_are_bad(here, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LEESE", "1s")
    findings = found(Cli("memory://x").json("doctor", code=1))
    assert findings["settings"] == ("bad", "PENSTOCK_LEESE is not a setting (did you mean 'PENSTOCK_LEASE'?)")


def test_a_file_that_is_no_store_is_bad(here):
    (here / "jobs.db").write_text("this is not a database, and long enough to be sure of that" * 100)
    assert found(Cli(f"sqlite:///{here}/jobs.db").json("doctor", code=1))["store"][0] == "bad"


@pytest.mark.parametrize(("version", "how"), [((3, 51, 2), "warning"), ((3, 51, 3), "ok")])
def test_a_vulnerable_sqlite_is_named(here, monkeypatch, version, how):
    monkeypatch.setattr("sqlite3.sqlite_version_info", version)
    assert found(Cli(f"sqlite:///{here}/jobs.db").json("doctor"))["SQLite"][0] == how
