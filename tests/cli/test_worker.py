"""`penstock worker` turns options into settings, and reports an unusable configuration in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands.worker import parse_queues
from penstock.cli.reload import WatchedFiles
from penstock.errors import ConfigError
from penstock.worker.queues import Queue
from tests.cli.conftest import Cli


@pytest.fixture
def penstock() -> Cli:
    return Cli("memory://worker")


@pytest.fixture
def served(monkeypatch) -> dict[str, Any]:
    """What the supervisor was asked to do."""
    asked: dict[str, Any] = {}

    def supervise(app, config, *, queues=None, burst=False):
        asked.update(app=app, config=config, queues=queues, burst=burst)
        return 0

    monkeypatch.setattr("penstock.worker.supervisor.supervise", supervise)
    monkeypatch.setattr("penstock.worker.logs.configure_logs", lambda config: None)
    return asked


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "queues"),
    [
        ("default", [Queue("default")]),
        ("critical:weight=6,default:weight=3:slots=10", [Queue("critical", 6), Queue("default", 3, 10)]),
        ("a:slots=2:weight=5 , b", [Queue("a", 5, 2), Queue("b")]),
        ("team:mail,team:sms:weight=2", [Queue("team:mail"), Queue("team:sms", 2)]),
        ("a=b", [Queue("a=b")]),
    ],
)
def test_queues_are_read_with_their_weights_and_slots(text, queues):
    assert parse_queues(text) == queues


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a:wieght=3", "'wieght' is not an option (did you mean 'weight'?)"),
        ("a:weight=x", "weight=x is not a whole number"),
        ("a:weight=-1", "weight=-1 is not a whole number"),
        ("a:weight=0", "weight=0 is not a whole number of 1 or more"),
        ("a:slots=0", "slots=0 is not a whole number of 1 or more"),
        ("a,,b", "nothing between two commas"),
        ("a,", "nothing between two commas, or at an end"),
        ("a,a", "'a' is listed twice"),
        ("a b", "cannot be a queue's name"),
        (":weight=3", "cannot be a queue's name"),
    ],
)
def test_queues_that_make_no_sense_are_refused(text, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse_queues(text)


# ── options ──────────────────────────────────────────────────────────────────────────────────────


def test_options_become_settings(penstock, served):
    words = (
        "-q a:weight=2,b -c 5 -p 2 --strict --burst --drain-timeout 1m --log-format json --log-level debug "
        "--max-jobs-per-child 7 --max-memory-per-child 500MB"
    )
    assert penstock("worker", "tasks:app", *words.split(), url=False).exit_code == 0
    config = served["config"]
    assert served["app"] == "tasks:app"
    assert served["queues"] == [Queue("a", 2), Queue("b")]
    assert served["burst"] is True
    assert (config.concurrency, config.processes, config.strict, config.drain_timeout) == (5, 2, True, 60_000)
    assert (config.log_format, config.log_level) == ("json", "debug")
    assert (config.max_jobs_per_child, config.max_memory_per_child) == (7, 500_000_000)


def test_without_options_the_settings_decide(penstock, served, here):
    (here / "penstock.toml").write_text(
        'app = "tasks:app"\nconcurrency = 7\nqueues = "x:slots=3"\nstrict = true\n'
    )
    assert penstock("worker", url=False).exit_code == 0
    assert served["app"] == "tasks:app"
    assert served["queues"] == [Queue("x", slots=3)]
    assert (served["config"].concurrency, served["config"].strict) == (7, True)


def test_by_default_the_app_decides_about_the_queues(penstock, served):
    penstock("worker", "tasks:app", url=False)
    assert served["queues"] is None


def test_json_is_the_format_of_the_log(penstock, served):
    penstock("worker", "tasks:app", "--json", url=False)
    assert served["config"].log_format == "json"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-c", "0"], "--concurrency='0' is out of range"),
        (["-c", "many"], "--concurrency='many' is not a whole number"),
        (["--drain-timeout", "soon"], "--drain-timeout='soon' is not a duration"),
        (["--log-format", "xml"], "--log-format='xml' is not one of text, json"),
        (["-q", "a:wieght=2"], "did you mean 'weight'?"),
    ],
)
def test_options_that_make_no_sense_are_one_line(penstock, served, words, says):
    assert says in penstock.says(2, "worker", "tasks:app", *words, url=False)
    assert served == {}


def test_without_an_app_it_says_how_to_give_one(penstock, served):
    assert "name one as MODULE:ATTRIBUTE" in penstock.says(2, "worker", url=False)


# ── the real thing ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.system
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nosuch:app", "there is no module 'nosuch'"),
        ("tasks:ap", "did you mean tasks:app?"),
        ("tasks:other", "is not an App but of the type int"),
    ],
)
def test_an_app_that_is_not_there_is_one_line_and_exit_code_2(shell, tasks, spec, says):
    ran = shell("worker", spec)
    assert ran.returncode == 2
    complaints = [line for line in ran.stderr.splitlines() if "error" in line.lower()]
    assert len(complaints) == 1, ran.stderr
    assert complaints[0].startswith("penstock: error: ")
    assert says in complaints[0]
    assert "Traceback" not in ran.stderr


@pytest.mark.system
def test_a_burst_runs_what_was_enqueued_and_ends(shell, tasks):
    ids = []
    for name in ("a", "b"):
        ran = shell("enqueue", "tasks:app", "tasks.greet", f'["{name}", 2]', "--json")
        assert ran.returncode == 0, ran.stderr
        ids.append(json.loads(ran.stdout)["id"])
    ran = shell("worker", "tasks:app", "--burst", "--log-format", "json")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    assert all(json.loads(line)["level"] for line in ran.stderr.splitlines())
    shown = json.loads(shell("jobs", "show", ids[0], "--json").stdout)["jobs"][0]
    assert (shown["state"], shown["result"], shown["attempt"]) == ("completed", "aa", 1)
    stats = json.loads(shell("stats", "--json").stdout)
    assert stats["totals"] == {"enqueued": 2, "processed": 2, "failed": 0}


# ── reload ───────────────────────────────────────────────────────────────────────────────────────


def test_changed_new_and_gone_files_are_noticed(here):
    (here / "sub").mkdir()
    (here / "sub" / "a.py").write_text("1")
    watched = WatchedFiles(here)
    assert watched.changed() is None
    os.utime(here / "sub" / "a.py", ns=(1, 1))
    assert watched.changed() == "sub/a.py"
    watched = WatchedFiles(here)
    (here / "new.py").write_text("1")
    assert watched.changed() == "new.py"
    watched = WatchedFiles(here)
    (here / "new.py").unlink()
    assert watched.changed() == "new.py"


def test_what_is_not_code_of_ours_is_not_watched(here):
    for directory in (".venv", "__pycache__", "node_modules"):
        (here / directory).mkdir()
    watched = WatchedFiles(here)
    for place in ("notes.txt", ".venv/a.py", "__pycache__/a.py", "node_modules/a.py", "jobs.db"):
        (here / place).write_text("1")
    assert watched.changed() is None


@pytest.mark.system
def test_a_reloading_worker_restarts_on_code_changes_and_ends_on_a_signal(here):
    (here / "tasks.py").write_text("raise SystemExit('first')\n")
    worker = subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", "tasks:app", "--reload"],
        cwd=here,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stderr is not None
        wait_for(worker.stderr, "SystemExit: first")
        wait_for(worker.stderr, "waiting for a change")
        (here / "tasks.py").write_text("raise SystemExit('second')\n")
        wait_for(worker.stderr, "tasks.py changed: the worker restarts")
        wait_for(worker.stderr, "SystemExit: second")
        wait_for(worker.stderr, "waiting for a change")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 2
    finally:
        worker.kill()
        worker.communicate()


def wait_for(stream: Any, text: str) -> None:
    """Read on until a line has the text; the test's timeout is the limit."""
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"the end, and no {text!r}")


def test_the_entry_point_is_the_same_command(here):
    script = Path(sys.executable).parent / "penstock"
    if not script.exists():
        pytest.skip("penstock is not installed here as a command")
    ran = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("penstock ")
