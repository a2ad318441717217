"""`penstock verify`: faults of each type, a verdict, and no data left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock import App
from penstock.cli.main import cli
from penstock.verify.environment import environment_on
from penstock.verify.ledger.history import read
from penstock.verify.processes import session_processes
from tests.servers import RedisServer

_PATIENCE = 500
#: Of workers, with a heartbeat after a third of it. A stall of a busy machine, of which no ledger knows,
#: must not end a lease: the verdict would be right to say that nothing explains its loss.
_LEASE = "6s"


def _start(folder: Path, *options: object) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "verify", *map(str, options)],
        cwd=folder,
        env={**clean, "PENSTOCK_LEASE": _LEASE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(folder: Path, *options: object) -> tuple[int, str, str]:
    with _start(folder, *options) as process:
        try:
            out, err = process.communicate(timeout=_PATIENCE)
        finally:
            process.kill()
    return process.returncode, out, err


def _report(folder: Path, *options: object) -> dict[str, Any]:
    """Of a run that keeps all promises."""
    code, out, err = _run(folder, *options, "--json")
    report: dict[str, Any] = json.loads(out) if out else {}
    assert code == 0, "\n".join([err, *report.get("reasons", ())])  # a tuple would be shortened
    assert report["verdict"] == "kept"
    assert (report["lost"], report["unfinished"], report["unexplained"], report["findings"]) == (0, 0, 0, [])
    assert set(report["injected"]) == set(report["asked"])
    assert all(report["injected"].values())
    return report


NewShop = Callable[[str], App]


@pytest.fixture
def new_shop() -> Iterator[NewShop]:
    """An app of somebody else in a store, with a job."""
    with contextlib.ExitStack() as made:

        def new(url: str) -> App:
            app = made.enter_context(contextlib.closing(App(url, namespace="shop")))

            @app.task(name="sell")
            def sell(article: str) -> None: ...

            sell.using(id="a-1").enqueue("hat")
            return app

        yield new


def _still_there(app: App) -> bool:
    return app.handle("a-1").status() == "available"


@pytest.mark.system
@pytest.mark.slow
def test_a_run_in_a_file_keeps_all_promises_and_leaves_no_row(new_shop: NewShop, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = new_shop(url)
    kinds = "kill-worker,kill-producer,restart-store,clock,raise,os-exit,segfault,unknown-task,poison-payload"
    kinds += ",act-bulk,act-move,act-retry"
    report = _report(
        tmp_path,
        *("--url", url, "--minutes", "0.2", "--seed", "7", "--faults", kinds, "--dir", tmp_path / "run"),
        *("--report", tmp_path / "report.json", "--html", tmp_path / "report.html"),
    )
    assert (report["store"], report["seed"], report["url"]) == ("sqlite", 7, url)
    assert report["completed"] > max(50, report["enqueued"] // 2)
    assert report["recovery"]["n"] + report["restart"]["n"] > 0
    assert {fault["kind"] for fault in report["faults"]} == set(kinds.split(","))
    assert sum(second["completed"] for second in report["throughput"]) > 50
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert _still_there(app)
    assert _namespaces(tmp_path / "jobs.db") == {"shop"}


def _namespaces(file: Path) -> set[str]:
    """Of whom there is anything in this file."""
    import sqlite3

    with sqlite3.connect(file) as cx:
        names = cx.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'penstock%'")
        found: set[str] = set()
        for (table,) in names.fetchall():
            if "namespace" in {row[1] for row in cx.execute(f"PRAGMA table_info({table})")}:
                of_itself = " WHERE qid > 0" if table == "penstock_queue" else ""
                found |= {name for (name,) in cx.execute(f"SELECT namespace FROM {table}{of_itself}")}
        (strays,) = cx.execute(
            "SELECT count(*) FROM penstock_job WHERE queue NOT IN (SELECT qid FROM penstock_queue)"
        ).fetchone()
    assert strays == 0
    return found


@pytest.mark.system
@pytest.mark.slow
def test_a_run_on_redis_keeps_all_promises_and_leaves_no_key(
    new_redis: Callable[..., RedisServer], new_shop: NewShop, tmp_path: Path
) -> None:
    server = new_redis("appendfsync always", appendonly=True)
    app = new_shop(server.url)
    with server.patient_client() as client:
        before = sorted(client.keys())
    kinds = "kill-worker,two-versions,reset,latency,hang,block-loop,poison-payload,act-bulk,remote-restart"
    report = _report(tmp_path, "--url", server.url, "--minutes", "0.15", "--faults", kinds)
    print(f"drawn from the seed {report['seed']}")
    assert report["store"] == "redis"
    assert report["duplicated"] == len(report["duplicates"])
    assert all(one["leased_from"] <= one["leased_until"] for one in report["duplicates"])
    with server.patient_client() as client:
        assert sorted(client.keys()) == before
    assert _still_there(app)


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("store", "seed", "minutes"), [("sqlite", 20_261_122, 0.5), ("redis-always", None, 0.5)]
)
def test_a_run_with_every_fault_keeps_all_promises(
    store: str, seed: int | None, minutes: float, tmp_path: Path
) -> None:
    """One from a seed that is always the same; a longer one from a fresh seed, which the report says."""
    load = ("--minutes", minutes, "--rate", 50, *(() if seed is None else ("--seed", seed)))
    report = _report(tmp_path, "--private", store, "--dir", tmp_path / "run", *load)
    print(f"drawn from the seed {report['seed']}")
    assert {"kill-worker", "restart-store", "stop-store", "segfault"} <= set(report["asked"])
    assert report["forgiven"] == 0
    assert report["completed"] > max(50, report["enqueued"] // 2)


@pytest.mark.system
def test_an_interrupt_leaves_no_process_and_no_row(new_shop: NewShop, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = new_shop(url)
    process = _start(tmp_path, "--url", url, "--faults", "kill-worker,storm", "--dir", tmp_path / "run")
    assert process.stderr is not None
    while " of 300 s" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)  # impatient: it changes nothing
    out, err = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 1, out + err
    assert "Traceback" not in err
    pids = set(read(tmp_path / "run" / "ledger").parents) - {os.getpid()}
    assert len(pids) >= 3
    assert [pid for pid in pids if session_processes(pid)] == []
    assert _still_there(app)
    assert _namespaces(tmp_path / "jobs.db") == {"shop"}


@pytest.mark.system
def test_a_run_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    process = _start(tmp_path, "--url", url, "--faults", "raise", "--dir", tmp_path / "run")
    assert process.stderr is not None
    while " of 300 s" not in process.stderr.readline():
        assert process.poll() is None
    process.kill()
    process.communicate(timeout=_PATIENCE)
    pids = set(read(tmp_path / "run" / "ledger").parents)
    assert len(pids) >= 4
    ends = time.monotonic() + _PATIENCE
    while left := [pid for pid in pids if session_processes(pid)]:
        assert time.monotonic() < ends, f"{left} live on"
        time.sleep(0.1)


@pytest.mark.system
def test_a_file_that_was_not_there_before_is_not_there_afterwards(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    url = f"sqlite:///{tmp_path / 'data' / 'new.db'}"
    report = _report(
        tmp_path, "--url", url, "--minutes", "0.02", "--faults", "raise", "--workers", "1", "--rate", "20"
    )
    assert list(report["injected"]) == ["raise"]
    assert list((tmp_path / "data").iterdir()) == []


# ── what it refuses ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--url", "memory://"], 2, "a store that processes can share"),
        (["--faults", "kill-workers"], 2, "did you mean 'kill-worker'"),
        (["--faults", "reset"], 2, "--faults reset: not possible here: it needs a proxy"),
        (["--faults", "stop-store"], 2, "--private sqlite"),
        (["--faults", "failover"], 2, "it needs redis-sentinel or redis-cluster, and this is sqlite"),
        (["--url", "redis://localhost:1", "--faults", "restart-store"], 2, "--private redis"),
        (["--url", "redis://localhost:1?timeout=100ms", "--faults", "raise"], 4, "localhost:1"),
        (["--namespace", "shop"], 2, "leave --namespace out"),
        (["--private", "sqlite", "--url", "sqlite:///jobs.db"], 2, "leave --url and --app out"),
        (["--dir", "."], 2, "is not empty"),
        (["--url", "sqlite:///nowhere/jobs.db"], 2, "there is no directory"),
        (["--minutes", "0"], 2, "--minutes"),
        (["--minutes", "nan"], 2, "--minutes"),
        (["--rate", "nan"], 2, "--rate"),
        (["--process-share", "nan"], 2, "--process-share"),
        (["--process-share", "1.5"], 2, "--process-share"),
        (["--flow-share", "nan"], 2, "--flow-share"),
        (["--flow-share", "1.5"], 2, "--flow-share"),
        (["--report", "nowhere/report.json"], 2, "cannot be written"),
        (["--html", "nowhere/report.html"], 2, "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    result = CliRunner().invoke(cli, ["verify", *options], catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert says in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_the_same_store_is_meant_wherever_processes_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = environment_on("sqlite:///a b.db?durability=normal")
    assert environment.url == f"sqlite:///{tmp_path.resolve()}/a%20b.db?durability=normal"
    assert environment.fresh
