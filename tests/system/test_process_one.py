"""A worker that is process 1 of a container: TERM drains it, and it reaps what tasks leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.verify import processes
from tests.system.conftest import Place, Program

NAMESPACE = ["--pid", "--fork", "--mount-proc"]
FORMS = [["unshare", *NAMESPACE], ["unshare", "--user", "--map-root-user", *NAMESPACE]]

TASKS = """
import subprocess
import time
from pathlib import Path

from penstock import App

app = App(f"sqlite:///{Path(__file__).with_name('jobs.db')}")


@app.task(name="leave_behind")
def leave_behind() -> list[str]:
    shell = subprocess.run(["sh", "-c", "sleep 0.2 >/dev/null & echo $!"], capture_output=True, text=True)
    orphan = Path("/proc", shell.stdout.strip())
    parent = (orphan / "stat").read_text().rpartition(")")[2].split()[1]
    ends = time.monotonic() + 60
    while orphan.exists() and time.monotonic() < ends:
        time.sleep(0.01)
    return [parent, "left" if orphan.exists() else "reaped"]


@app.task(name="wait_for")
def wait_for(gate: str) -> str:
    Path("started").touch()
    while not Path(gate).exists():
        time.sleep(0.01)
    return "done"
"""


@pytest.fixture
def unshare() -> list[str]:
    """The command that makes a pid namespace, if that is allowed here."""
    for form in FORMS:
        try:
            if subprocess.run([*form, "true"], capture_output=True).returncode == 0:
                return form
        except FileNotFoundError:
            break
    pytest.skip("needs unshare, and the permission to make a pid namespace")


@pytest.fixture
def worker(place: Place, unshare: list[str]) -> Program:
    (place.folder / "tasks.py").write_text(TASKS)
    python = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
    command = [*unshare, sys.executable, "-m", "penstock", "worker", "tasks:app", "--processes", "2"]
    program = place.start("-c", python, *command)
    place.until(lambda: program.log.count(" serves ") >= 2, "both processes serve")
    return program


def test_process_one_reaps_what_tasks_leave_behind(place: Place, worker: Program) -> None:
    handles = [place.tasks.leave_behind.enqueue() for _ in range(4)]
    assert [handle.result(timeout=60) for handle in handles] == [["1", "reaped"]] * 4


def test_process_one_drains_on_term(place: Place, worker: Program) -> None:
    handle = place.tasks.wait_for.enqueue("gate")
    place.until((place.folder / "started").exists, "the job has started")
    (one,) = processes.children(worker.pid)
    os.kill(one, signal.SIGTERM)
    place.until(lambda: worker.log.count(" drains: ") == 2, "both processes drain")
    place.open("gate")
    assert worker.wait() == 0
    assert handle.result(timeout=0) == "done"
    assert not Path(f"/proc/{one}").exists()


def test_a_killed_process_is_replaced_under_process_one(place: Place, worker: Program) -> None:
    (one,) = processes.children(worker.pid)
    os.kill(processes.children(one)[0], signal.SIGKILL)
    place.until(lambda: worker.log.count(" serves ") >= 3, "a third process serves")
    assert "killed by SIGKILL" in worker.log
