"""`penstock doctor` reports the actual state of the store and the configuration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.stores.contract import WorkerInfo
from tests.cli.conftest import Cli, announce, put


def found(document):
    return {finding["what"]: (finding["how"], finding["says"]) for finding in document["findings"]}


def test_a_healthy_place_is_said_to_be(here):
    penstock = Cli(f"sqlite:///{here}/jobs.db")
    penstock.ok("enqueue", "--raw", "-q", "q", "t")
    findings = found(penstock.json("doctor"))
    assert findings["file"][0] in ("ok", "warning")  # a warning on tmpfs
    assert findings["durability"] == ("ok", "full: an acknowledged job survives a power cut")
    assert findings["syncs"] == ("ok", "each commit is synced to the disk (durability=full)")
    assert findings["size"][1].endswith("in the write-ahead log")
    assert findings["store"][1].endswith("1 queue, 1 job")
    assert findings["settings"][0] == "ok"


def test_a_store_that_is_not_there_yet_stays_so(here):
    findings = found(Cli(f"sqlite:///{here}/jobs.db?durability=normal").json("doctor"))
    assert findings["durability"][0] == "warning"
    assert "does not exist yet" in findings["store"][1]
    assert list(here.iterdir()) == []


def test_settings_that_are_wrong_are_bad(here, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LEESE", "1s")
    findings = found(Cli("memory://x").json("doctor", code=1))
    assert findings["settings"] == ("bad", "PENSTOCK_LEESE is not a setting (did you mean 'PENSTOCK_LEASE'?)")


def test_a_file_that_is_no_store_is_bad(here):
    (here / "jobs.db").write_text("this is not a database, and long enough to be sure of that" * 100)
    assert found(Cli(f"sqlite:///{here}/jobs.db").json("doctor", code=1))["store"][0] == "bad"


@pytest.mark.parametrize(("free", "how"), [(10_000_000, "bad"), (2_000_000_000, "ok")])
def test_a_disk_that_is_nearly_full_is_bad(here, monkeypatch, free, how):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    code = 1 if how == "bad" else 0
    disk = found(Cli(f"sqlite:///{here}/jobs.db").json("doctor", code=code))["disk"]
    assert (disk[0], "free some space" in disk[1]) == (how, how == "bad")
    assert f"{free / 1e6:,.0f} MB free on the disk of {here}/jobs.db" in disk[1]


@pytest.mark.parametrize(("version", "named"), [((3, 51, 2), True), ((3, 51, 3), False)])
def test_a_vulnerable_sqlite_is_named(here, monkeypatch, version, named):
    monkeypatch.setattr("sqlite3.sqlite_version_info", version)
    how, says = found(Cli(f"sqlite:///{here}/jobs.db").json("doctor"))["SQLite"]
    assert (how, "can lose committed writes" in says) == ("ok", named)


@pytest.mark.parametrize(
    ("mode", "how", "says"),
    [
        (
            0o644,
            "warning",
            "every user of this machine may read penstock.toml, which has secrets (key); ",
        ),
        (0o640, "warning", "its group may read penstock.toml, which has secrets (key); chmod 600"),
        (0o600, "ok", "only its owner may read the secrets in penstock.toml"),
    ],
)
def test_a_settings_file_with_secrets_that_others_may_read_is_named(here, mode, how, says):
    (here / "penstock.toml").write_text(f'url = "memory://x"\nkey = "{"A" * 43}="\n')
    (here / "penstock.toml").chmod(mode)
    findings = found(Cli("memory://x").json("doctor", url=False))
    assert (findings["settings file"][0], findings["settings file"][1][: len(says)]) == (how, says)
    assert "AAAA" not in str(findings)
    (here / "penstock.toml").write_text('lease = "30s"\n')
    assert "settings file" not in found(Cli("memory://x").json("doctor"))


def test_the_fleet_is_checked_and_each_finding_has_its_way_out(penstock, store):
    put(store, "a", queue="mail")
    announce(store, WorkerInfo("w1", "box", 7, 0, ("news",), ("t",), 4, version="9.9"))
    findings = {one["what"]: one for one in penstock.json("doctor")["findings"]}
    queues = findings["queues"]
    assert (queues["how"], queues["why"]) == ("warning", "no live worker serves mail (1 job)")
    assert queues["way_out"] == "start a worker with --queues that names it, or purge it"
    assert queues["says"] == f"{queues['why']}; {queues['way_out']}"
    assert findings["versions"]["how"] == "warning"
    assert all(one["way_out"] for one in findings.values() if one["how"] != "ok")
    assert "warning  queues: no live worker serves mail" in penstock.ok("doctor")


APP = """
from penstock import App
from penstock.stores.contract import Finding, Level
from penstock.stores.memory import MemoryStore


class Judged(MemoryStore):
    async def checkup(self):
        return [
            Finding(Level.FINE, "server", "Redis 7.2.4"),
            Finding(Level.WARNING, "clock", "it is late", "use NTP"),
            Finding(Level.ERROR, "persistence", "nothing is written", "appendonly yes"),
        ]


app = App(store=Judged())
"""


def test_what_a_store_says_of_itself_is_shown(here):
    (here / "judged.py").write_text(APP)
    shown = Cli("unused")("doctor", "--app", "judged:app", url=False)
    assert shown.exit_code == 1
    findings = found(Cli("unused").json("doctor", "--app", "judged:app", url=False, code=1))
    assert findings["server"] == ("ok", "Redis 7.2.4")
    assert findings["clock"] == ("warning", "it is late; use NTP")
    assert findings["persistence"] == ("bad", "nothing is written; appendonly yes")
    assert findings["store"][0] == "ok"
    assert "bad      persistence: nothing is written; appendonly yes\n" in shown.stdout


def test_a_redis_that_writes_nothing_down_is_bad_and_one_that_does_is_fine(new_redis):
    pytest.importorskip("penstock.stores.redis.store")
    forgetful, careful = new_redis(), new_redis(appendonly=True)
    findings = found(Cli(forgetful.url).json("doctor", code=1))
    assert findings["persistence"][0] == "bad"
    assert "a restart loses every job" in findings["persistence"][1]
    findings = found(Cli(careful.url).json("doctor"))
    assert {how for what, (how, _) in findings.items() if what != "event loop"} == {"ok"}
    assert findings["store"][1].endswith("answers: 0 queues, 0 jobs")


def test_a_redis_that_is_not_there_is_bad(new_redis):
    pytest.importorskip("penstock.stores.redis.store")
    server = new_redis()
    server.kill()
    assert found(Cli(server.url).json("doctor", code=1))["store"][0] == "bad"
